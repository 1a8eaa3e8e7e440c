"""E-mails to a real SMTP server: their text, retries, TLS, passwords, and text that would break headers."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from labeler.webhooks import mail, mail_settings
from labeler.webhooks.dispatcher import Dispatcher
from labeler.webhooks.mail_settings import FILE, PASSWORD, MailSettings
from labeler.webhooks.service import Webhooks
from storage.audit_records import Actor, acting
from storage.engine.database import Database
from storage.notification_records import Event, Webhook
from storage.tables import audit
from storage.tables.runs import events, webhooks
from tests.helpers.mail_server import Mails, free_port, mail_server, self_signed

QUICK = (timedelta(seconds=0.05),) * 2
ANN = "ann@example.org"


def set_up(db: Database, port: int, *more: str) -> None:
    """The operator's file for a mail server on this machine."""
    lines = ['host = "127.0.0.1"', f"port = {port}", 'tls = "none"']
    lines += ['sender = "studio@example.org"', *more]
    (db.workspace / FILE).write_text("\n".join(lines) + "\n")


@pytest.fixture
def mails(db: Database) -> Iterator[Mails]:
    with mail_server() as found:
        set_up(db, found.port)
        yield found


@pytest.fixture
def service(db: Database) -> Iterator[Webhooks]:
    dispatcher = Dispatcher(db, schedule=QUICK, every=0.02, seconds=5)
    dispatcher.address = "https://studio.example.org"
    with dispatcher:
        yield Webhooks(db, dispatcher)


def happen(db: Database, n: int = 1, reason: str = "out of memory") -> Event:
    event = Event.of(
        "stage.failed", str(n), run=f"run-{n}", stage="PPO", iteration=3, attempt=1, reason=reason
    )
    db.write(lambda tx: events.record(tx, event))
    return event


def settled(db: Database, *, seconds: float = 20) -> dict[str, tuple[str, int, int | None]]:
    until = time.monotonic() + seconds
    while webhooks.outbox(db):
        assert time.monotonic() < until, webhooks.deliveries(db)
        time.sleep(0.01)
    found = [each.delivery for each in webhooks.deliveries(db)]
    return {each.event: (each.status, each.attempts, each.code) for each in found}


def test_an_event_arrives_as_an_e_mail_with_a_sentence_and_a_link(db, service, mails):
    made = service.add(ANN, ["stage.failed"])
    assert "secret" not in made
    assert made["url"] == "mailto:ann@example.org"
    event = happen(db)
    assert settled(db) == {event.id: ("delivered", 1, 250)}
    (found,) = mails.messages
    assert mails.recipients == [[ANN]]
    assert found["Subject"] == "Kitestring · PPO failed (iteration 3)"
    assert found["From"] == "Kitestring <studio@example.org>"
    assert found["To"] == ANN
    assert found["Message-ID"] == f"<{made['id']}.{event.id}@example.org>"
    assert found["Auto-Submitted"] == "auto-generated"
    assert found["Date"].datetime == events.listing(db)[0].created_at.replace(microsecond=0)
    assert found.get_content_type() == "text/plain"
    assert found.get_content().splitlines() == [
        "PPO failed. Iteration 3: out of memory",
        "",
        "https://studio.example.org/research/?tab=runs&run=run-1",
        "",
        f"Workspace: {db.workspace.name}",
        f"Event: stage.failed, {event.id}",
    ]
    happen(db)  # known already
    assert len(settled(db)) == 1


def test_a_server_that_is_down_gets_the_e_mail_once_it_is_up(db):
    port = free_port()
    set_up(db, port)
    slow = (timedelta(seconds=0.3),) * 20
    with Dispatcher(db, schedule=slow, every=0.02) as dispatcher:
        Webhooks(db, dispatcher).add(ANN)
        event = happen(db)
        time.sleep(0.5)
        (waiting,) = webhooks.deliveries(db)
        assert waiting.delivery.status == "pending"
        assert waiting.delivery.error.startswith("The connection to the mail server failed: ")
        with mail_server(port) as mails:
            status, attempts, code = settled(db)[event.id]
            assert (status, code) == ("delivered", 250)
            assert attempts >= 2
            assert len(mails.messages) == 1


def test_an_e_mail_that_is_refused_is_sent_again_with_the_same_message_id(db, service, mails):
    mails.answers = ["451 try later", "550 mailbox unavailable", "250 OK"]
    service.add(ANN)
    event = happen(db)
    assert settled(db) == {event.id: ("delivered", 3, 250)}
    assert len(set(mails.ids)) == 1
    assert len({each.as_string() for each in mails.messages}) == 1
    mails.answers = ["550 mailbox unavailable"] * 3
    refused = happen(db, 2)
    assert settled(db)[refused.id] == ("failed", 3, 550)
    (last,) = webhooks.deliveries(db, status="failed")
    assert last.delivery.error == "The mail server answered 550: mailbox unavailable."


def test_a_receiver_that_accepts_nothing_is_disabled_as_webhooks_are(db, service, mails):
    mails.answers = ["550 no"] * 3
    service.add(ANN)
    happen(db)
    settled(db)
    (listed,) = service.listing()
    assert not listed["active"]
    assert "The mail server answered 550: no." in listed["reason"]


def test_a_test_is_sent_at_once(service, mails):
    made = service.add(ANN)
    found = service.test(made["id"])
    assert (found["status"], found["code"]) == ("delivered", 250)
    assert mails.messages[0]["Subject"] == "Kitestring · Test"


def test_the_deadline_ends_a_connection_that_never_answers():
    """The server accepts the connection and sends one byte of its greeting now and then."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ended = threading.Event()

        def trickle() -> None:
            connection, _ = listener.accept()
            with connection:
                while not ended.wait(0.1):
                    try:
                        connection.sendall(b"2")
                    except OSError:
                        return

        thread = threading.Thread(target=trickle, daemon=True)
        thread.start()
        settings = MailSettings(
            host="127.0.0.1", port=listener.getsockname()[1], tls="none", sender="a@example.org"
        )
        made = mail.message(event(), ANN, settings, id="d", workspace="w", address="")
        start = time.monotonic()
        result = mail.send(made, settings, seconds=0.6)
        assert time.monotonic() - start < 3
        ended.set()
    assert result.error == "The mail server did not answer within 0.6 seconds."


@pytest.mark.parametrize("tls", ["starttls", "tls"])
def test_the_password_is_sent_over_tls_that_is_verified(db, monkeypatch, tmp_path, tls):
    cert = self_signed(tmp_path / "cert.pem")
    with mail_server(tls=tls, cert=cert, password="correct horse") as mails:
        lines = ('user = "studio"', f'ca_file = "{cert}"')
        monkeypatch.setenv(PASSWORD, "correct horse")
        set_up(db, mails.port, *lines)
        file = db.workspace / FILE
        file.write_text(file.read_text().replace('"none"', f'"{tls}"'))
        service = Webhooks(db, Dispatcher(db, seconds=5))
        made = service.add(ANN)
        assert service.test(made["id"])["status"] == "delivered", service.test(made["id"])
        monkeypatch.setenv(PASSWORD, "wrong")
        assert service.test(made["id"])["error"].startswith("The mail server answered 535: ")
        monkeypatch.setenv(PASSWORD, "correct horse")
        file.write_text(file.read_text().replace(f'ca_file = "{cert}"', ""))  # the system's
        found = service.test(made["id"])
        assert "certificate verify failed" in found["error"]
        assert len(mails.messages) == 1


HOSTILE = "Bcc: evil@example.org\r\nSubject: owned\r\n\r\n<script>\x00\u202e\x1b[31m\ud800"


def event(reason: str = "x", **more: str) -> Event:
    data = {"run": "run-1", "stage": "PPO", "iteration": 3, "reason": reason} | more
    return Event.of("stage.failed", "1", **data)


@pytest.mark.parametrize("field", ["reason", "stage", "workspace", "sender"])
def test_no_text_can_add_a_header_or_a_recipient(field):
    settings = MailSettings(host="h", sender="Kite <studio@example.org>", tls="none")
    given = event(**{field: HOSTILE}) if field in ("reason", "stage") else event()
    if field == "sender":
        with pytest.raises(ValueError, match="one line"):
            MailSettings(host="h", sender=f"Kite\r\n{HOSTILE} <studio@example.org>")
        return
    workspace = HOSTILE if field == "workspace" else "w"
    made = mail.message(given, ANN, settings, id="d", workspace=workspace, address="")
    raw = made.as_bytes()
    head, *_ = raw.partition(b"\r\n\r\n")
    names = [line.split(b":")[0] for line in head.split(b"\r\n") if line[:1] not in (b" ", b"\t")]
    assert sorted(names) == sorted(
        [b"Subject", b"From", b"To", b"Date", b"Message-ID", b"Auto-Submitted", b"Content-Type",
         b"Content-Transfer-Encoding", b"MIME-Version"]
    )  # fmt: skip
    assert len(made.get_content().splitlines()) == 4
    assert b"\x00" not in raw
    assert made["To"] == ANN


@pytest.mark.parametrize(
    "address",
    [
        "ann@example.org\r\nBcc: evil@example.org", "ann@example.org\n", "ann@example.org,bob@example.org",
        "ann@example.org?bcc=evil@example.org", "ann@example.org;bob@x", "<ann@example.org>", "@example.org",
        "ann@", "ann bob@example.org", "ann@exa mple.org", "ann@example..org", "ann\x00@example.org",
        '"a\r\nb"@example.org', "änn@example.org", "a" * 250 + "@example.org", "mailto:mailto:ann@example.org",
        "ann@-example.org", "ann%0ARCPT@example.org",
    ],
)  # fmt: skip
@pytest.mark.usefixtures("mails")
def test_only_one_plain_address_is_accepted(service, address):
    if address.strip() != ANN:
        with pytest.raises(ValueError, match=r"address|URL"):
            service.add(address)
    for url in (f"mailto:{address}", address if address.startswith("mailto:") else ""):
        with pytest.raises(ValueError, match=r"address|URL"):
            Webhook(id="wh", url=url, events=["flag.opened"])
    assert [each for each in service.listing() if each["url"] != f"mailto:{ANN}"] == []


def test_without_a_mail_server_an_address_is_refused_with_what_to_do(db, service):
    with pytest.raises(ValueError, match=r"has to create mail\.toml"):
        service.add(ANN)
    set_up(db, 25)
    made = service.add(ANN)
    (db.workspace / FILE).unlink()
    assert "has to create mail.toml" in service.test(made["id"])["error"]


def test_the_operator_limits_the_domains(db, service, mails):
    set_up(db, mails.port, 'allowed_domains = ["Example.org"]')
    service.add("bob@EXAMPLE.org")
    with pytest.raises(ValueError, match=r"only to example\.org, not to example\.com"):
        service.add("eve@example.com")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("port = 0.5", "port must be from 1 to 65535"),
        ("port = 99999", "port must be from 1 to 65535"),
        ('tls = "ssl"', "tls must be one of starttls, tls, none"),
        ('sender = "nobody"', "sender must be an e-mail address"),
        ('sender = "a@b@c"', "e-mail address"),
        ("host = 3", "host must be a text"),
        ('user = "ann"', "user needs a password in KITESTRING_SMTP_PASSWORD"),
        ('password = "x"', "put the password into the environment variable"),
        ('colour = "red"', "unknown setting 'colour'"),
        ("host =", "is not TOML"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, monkeypatch, line, says):
    monkeypatch.delenv(PASSWORD, raising=False)
    known = {"host": 'host = "mail.example.org"', "sender": 'sender = "studio@example.org"'}
    known[line.split(" ")[0]] = line
    (tmp_path / FILE).write_text("\n".join(known.values()))
    with pytest.raises(ValueError, match=says):
        mail_settings.read(tmp_path)


def test_a_password_is_not_sent_unprotected(tmp_path, monkeypatch):
    monkeypatch.setenv(PASSWORD, "secret")
    text = 'host = "mail.example.org"\nsender = "a@example.org"\nuser = "a"\ntls = "none"'
    (tmp_path / FILE).write_text(text)
    with pytest.raises(ValueError, match="unprotected"):
        mail_settings.read(tmp_path)
    (tmp_path / FILE).write_text(text.replace("mail.example.org", "localhost"))
    found = mail_settings.read(tmp_path)
    assert found is not None
    assert (found.port, found.password) == (25, "secret")
    assert "secret" not in repr(found)
    (tmp_path / FILE).write_text('host = "h"\nsender = "a@example.org"')
    assert mail_settings.read(tmp_path).port == 587  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.usefixtures("mails")
def test_an_address_has_no_secret_and_is_in_the_audit_log(db, service):
    made = service.add(ANN)
    with pytest.raises(ValueError, match="has no secret"):
        service.rotate(made["id"])
    with acting(Actor("", "command line")):
        service.remove(made["id"])
    noted = [(each.entry.action, each.entry.details) for each in audit.listing(db)]
    assert ("webhook.removed", {"host": "mailto:ann@example.org"}) in noted
