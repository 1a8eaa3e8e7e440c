"""One event as an e-mail: its message, and one attempt to hand it to the mail server."""

from __future__ import annotations

import smtplib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email import policy
from email.headerregistry import Address
from email.message import EmailMessage

from labeler.webhooks.mail_settings import MailSettings
from labeler.webhooks.sender import short
from labeler.webhooks.wording import page, subject, told
from storage.notification_records import Event
from storage.tables.runs.webhooks import Attempt
from storage.wording import shortened

TOTAL_SECONDS = 30.0
"""From the first connection attempt to the server's last answer."""
_LONGEST = 150
"""Characters of a subject or of the workspace's name."""


def message(
    event: Event, to: str, settings: MailSettings, *, id: str, workspace: str, address: str
) -> EmailMessage:
    """The e-mail about an event; the same at every attempt.

    `id` becomes the Message-ID, by which receivers recognize an e-mail that arrives twice.
    `workspace` is the name of the workspace, `address` the studio's URL or "".
    """
    made, sender = EmailMessage(policy=policy.SMTP), settings.address
    made["Subject"] = _line(f"Kitestring · {subject(event)}")
    made["From"] = Address(_line(sender.display_name), sender.username, sender.domain)
    made["To"] = Address(addr_spec=to)
    made["Date"] = event.created_at
    made["Message-ID"] = f"<{id}@{sender.domain}>"
    made["Auto-Submitted"] = "auto-generated"
    lines = [f"{_line(told(event).title)}. {_line(told(event).text, 2 * _LONGEST)}", ""]
    lines += [_line(f"{address}{page(event)}"), ""] if address else []
    lines += [f"Workspace: {_line(workspace)}", f"Event: {event.type}, {event.id}"]
    made.set_content("\n".join(lines) + "\n")
    return made


def send(made: EmailMessage, settings: MailSettings, *, seconds: float = TOTAL_SECONDS) -> Attempt:
    """Hand a message to the mail server; a code from 200 to 299 accepts it."""
    try:
        with _connected(settings, seconds) as server:
            if settings.user:
                server.login(settings.user, settings.password or "")
            server.send_message(made)
    except smtplib.SMTPRecipientsRefused as refused:
        code, answer = next(iter(refused.recipients.values()))
        return Attempt(code=code, error=_answered(code, answer))
    except smtplib.SMTPResponseException as error:
        return Attempt(code=error.smtp_code, error=_answered(error.smtp_code, error.smtp_error))
    except TimeoutError:
        return Attempt(error=f"The mail server did not answer within {seconds:g} seconds.")
    except socket.gaierror as error:
        return Attempt(error=f"The mail server cannot be found: {short(error)}.")
    except (OSError, smtplib.SMTPException, ValueError) as error:
        return Attempt(error=f"The connection to the mail server failed: {short(error)}.")
    return Attempt(code=250)


@contextmanager
def _connected(settings: MailSettings, seconds: float) -> Iterator[smtplib.SMTP]:
    """A connection with TLS if the settings say so; TimeoutError at the deadline.

    The timeout of smtplib is for each answer: a server could send one byte at a time, without end.
    """
    context = ssl.create_default_context(cafile=settings.ca_file or None)
    late = threading.Event()
    server = (
        smtplib.SMTP_SSL(timeout=seconds, context=context)
        if settings.tls == "tls"
        else smtplib.SMTP(timeout=seconds)
    )

    def end() -> None:
        late.set()
        with suppress(OSError):  # closed meanwhile
            if server.sock is not None:
                server.sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        # TLS verifies the certificate for this name, which only the constructor sets; but it would
        # connect at once, before there is a deadline.
        server._host = settings.host  # pyright: ignore[reportAttributeAccessIssue]
        server.connect(settings.host, settings.port)
        if settings.tls == "starttls":
            server.starttls(context=context)
        yield server
        with suppress(smtplib.SMTPException, OSError):  # the message is accepted already
            server.quit()
    except (OSError, smtplib.SMTPException):
        if late.is_set():
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()
        server.close()


def _answered(code: int, answer: bytes | str) -> str:
    text = answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer
    return f"The mail server answered {code}: {short(Exception(text))}."


def _line(text: str, longest: int = _LONGEST) -> str:
    """Text in one line, without control characters: headers and the lines of the body end there."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return shortened(plain, longest)
