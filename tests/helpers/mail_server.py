"""A real SMTP server (aiosmtpd) that keeps what it accepts."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass
class Mails:
    """What arrived. `answers` are the replies to the next messages, or seconds before one; then 250."""

    port: int
    messages: list[EmailMessage] = field(default_factory=list)
    recipients: list[list[str]] = field(default_factory=list)
    answers: list[str | float] = field(default_factory=list)

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:
        parsed = message_from_bytes(envelope.content, policy=policy.default)
        assert isinstance(parsed, EmailMessage)
        self.messages.append(parsed)
        self.recipients.append(envelope.rcpt_tos)
        answer = self.answers.pop(0) if self.answers else "250 OK"
        if isinstance(answer, str):
            return answer
        await asyncio.sleep(answer)
        return "250 OK"

    def wait(self, count: int, *, seconds: float = 90) -> None:
        """Until so many messages have arrived."""
        until = time.monotonic() + seconds
        while len(self.messages) < count:
            assert time.monotonic() < until, f"{len(self.messages)} messages arrived"
            time.sleep(0.05)

    @property
    def ids(self) -> list[str]:
        return [str(each["Message-ID"]) for each in self.messages]


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]


@contextmanager
def mail_server(
    port: int = 0, *, tls: str = "none", cert: Path | None = None, password: str = ""
) -> Iterator[Mails]:
    """Runs on 127.0.0.1. With `password`, only the user ``studio`` with it can sign in."""
    mails = Mails(port or free_port())
    context = None
    if cert is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert)

    def check(
        _server: Any, _session: Any, _envelope: Any, _mechanism: str, data: Any
    ) -> AuthResult:
        assert isinstance(data, LoginPassword)
        right = (data.login, data.password) == (b"studio", password.encode())
        return AuthResult(success=right, handled=False)

    options: dict[str, Any] = {}
    if password:
        starttls = tls == "starttls"
        options = {"authenticator": check, "auth_required": starttls, "auth_require_tls": starttls}
    if tls == "starttls":
        options |= {"tls_context": context, "require_starttls": True}
    if tls == "tls":
        options |= {"ssl_context": context}
    controller = Controller(mails, hostname="127.0.0.1", port=mails.port, **options)
    controller.start()
    try:
        yield mails
    finally:
        controller.stop()


def self_signed(file: Path) -> Path:
    """A certificate for 127.0.0.1 and localhost with its key, in one PEM file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    today = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            ),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return file
