"""Settings of the mail server: a TOML file of the operator, and the password.

They are in a file of their own, because `config.toml` is shown to researchers.  Nothing of it is
stored in the journal.  The file is read for each e-mail, so a correction needs no restart.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from email.headerregistry import Address
from email.utils import parseaddr
from pathlib import Path
from typing import Any, Literal, get_args

from storage.notification_records import require_address

FILE = "mail.toml"
"""The name of the file in the workspace."""
PASSWORD = "KITESTRING_SMTP_PASSWORD"
"""The environment variable with the password."""
Tls = Literal["starttls", "tls", "none"]
PORTS: dict[Tls, int] = {"starttls": 587, "tls": 465, "none": 25}
"""The port of each mode, unless the file names another one."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
NOT_SET_UP = (
    "This server sends no e-mail: the operator has to create {file} in the workspace, as "
    "docs/notifications.md describes."
)


@dataclass(frozen=True, kw_only=True)
class MailSettings:
    """The mail server.  `sender` may have a name: ``Kitestring <studio@example.org>``.

    With `allowed_domains`, only addresses of these domains can receive e-mail.  `ca_file` has the
    certificates that are trusted in place of the system's.
    """

    host: str
    sender: str
    tls: Tls = "starttls"
    port: int = 0
    user: str = ""
    allowed_domains: Sequence[str] = ()
    ca_file: str = ""
    password: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for key in ("host", "sender", "user", "ca_file"):
            value = getattr(self, key)
            right = isinstance(value, str) and value.isprintable()
            _require(right, f"{key} must be a text in one line")
        _require(self.host, "host is missing")
        _require(self.tls in get_args(Tls), f"tls must be one of {', '.join(get_args(Tls))}")
        object.__setattr__(self, "port", self.port or PORTS[self.tls])
        right = type(self.port) is int and 1 <= self.port <= 65535
        _require(right, "port must be from 1 to 65535")
        right = isinstance(self.allowed_domains, list | tuple)
        right = right and all(isinstance(each, str) for each in self.allowed_domains)
        _require(right, "allowed_domains must be a list of texts")
        _require(not self.user or self.password, f"user needs a password in {PASSWORD}")
        _require((self.password or "").isascii(), f"the password in {PASSWORD} must be ASCII")
        _require(
            not self.user or self.tls != "none" or self.host in _LOOPBACK,
            'tls = "none" would send the password unprotected; use starttls or tls',
        )
        require_address(self.address.addr_spec)

    @property
    def address(self) -> Address:
        """The sender with its name."""
        name, address = parseaddr(self.sender)
        _require("@" in address, "sender must be an e-mail address")
        try:
            return Address(name or "Kitestring", addr_spec=address)
        except Exception:  # errors of the parser have many types
            raise ValueError("sender must be an e-mail address") from None

    def require_recipient(self, address: str) -> None:
        """ValueError if the operator has not allowed the domain of an address."""
        domain = address.rpartition("@")[2].lower()
        allowed = [each.lower() for each in self.allowed_domains]
        if allowed and domain not in allowed:
            raise ValueError(
                f"the operator allows e-mail only to {', '.join(allowed)}, not to {domain}"
            )


def read(workspace: Path) -> MailSettings | None:
    """The settings of a workspace; None without a file, ValueError if they are wrong."""
    file = workspace / FILE
    try:
        given: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{FILE} is not TOML: {error}") from None
    except OSError as error:
        raise ValueError(f"{FILE} cannot be read: {error.strerror}") from None
    if "password" in given:
        raise ValueError(f"{FILE}: put the password into the environment variable {PASSWORD}")
    known = {each.name for each in fields(MailSettings)} - {"password"}
    if unknown := sorted(given.keys() - known):
        listed = ", ".join(sorted(known))
        raise ValueError(f"{FILE}: unknown setting {unknown[0]!r}; known: {listed}")
    if missing := sorted({"host", "sender"} - given.keys()):
        raise ValueError(f"{FILE}: {missing[0]} is missing")
    try:
        return MailSettings(**given, password=os.environ.get(PASSWORD) or None)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{FILE}: {error}") from None


def _require(right: object, sentence: str) -> None:
    if not right:
        raise ValueError(sentence)
