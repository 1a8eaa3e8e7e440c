"""The audit log: who did what on the research side, and which changes of records it notes.

`acting` names the person for whom code runs.  When a transaction stores a record for that person, the
hook `audit` of the record's kind says what to note; the functions at the end are these hooks.
`storage.tables.audit.note` notes actions that store no record.  A hook names the values that it
notes, so secrets, password hashes and texts of prompts do not enter the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from urllib.parse import urlsplit

from storage.records import check_choice, now
from storage.wording import shortened

Via = Literal["browser", "token", "command line", "studio"]
"""`studio` is the studio itself, such as when it starts training by itself."""
MAX_TEXT_LENGTH = 500
"""Characters of a text in the details, such as a reason."""
Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Actor:
    """Who acts: the id of an account, or "" for the operator; and through what."""

    account: str
    via: Via


_ACTOR: ContextVar[Actor | None] = ContextVar("actor", default=None)


def actor() -> Actor | None:
    """For whom this code runs; None for the studio itself, whose changes of records are not noted."""
    return _ACTOR.get()


@contextmanager
def acting(who: Actor | None) -> Iterator[None]:
    """Run the block for this person, including the threads and tasks that it starts."""
    before = _ACTOR.set(who)
    try:
        yield
    finally:
        _ACTOR.reset(before)


@dataclass(frozen=True, kw_only=True)
class AuditEntry:
    """An action: `actor` is the id of an account, "" for the operator of the command line.

    `subject` is the id of what was changed; the values in `details` depend on the action.
    """

    id: str
    action: str
    subject: str = ""
    actor: str = ""
    via: Via = "command line"
    details: Mapping[str, Any] = field(default_factory=dict)
    created_at: datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        check_choice("via", self.via, Via)


@dataclass(frozen=True)
class Noted:
    """What a hook notes of a change."""

    action: str
    subject: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


def short(text: str) -> str:
    """The beginning of a text."""
    return shortened(text, MAX_TEXT_LENGTH)


def of_account(before: Entry | None, after: Entry) -> Noted | None:
    """An account was added, enabled, disabled, or got another role or password."""
    named = {"name": after["name"], "role": after["role"]}
    if before is None:
        return Noted("account.added", after["id"], named | {"kind": after["kind"]})
    if before["disabled"] != after["disabled"]:
        action = "account.disabled" if after["disabled"] else "account.enabled"
        return Noted(action, after["id"], named)
    if before["role"] != after["role"]:
        return Noted("account.role", after["id"], named | {"before": before["role"]})
    if before["password_hash"] != after["password_hash"]:
        return Noted("account.password", after["id"], named)
    return None


def of_linked_identity(before: Entry | None, after: Entry) -> Noted | None:
    """An account of an OpenID provider was linked to an account."""
    if before is not None:
        return None
    return Noted("account.linked", after["annotator"], {"issuer": after["issuer"]})


_ISSUED = {"session": "sign-in", "invite": "invite.issued", "api": "token.issued"}
_REVOKED = {"session": "session.ended", "invite": "invite.revoked", "api": "token.revoked"}


def of_token(before: Entry | None, after: Entry) -> Noted | None:
    """Somebody signed in, or a session, invite or API token was issued or revoked."""
    if before is None:
        return Noted(_ISSUED[after["kind"]], after["annotator"])
    if after["revoked"] and not before["revoked"]:
        return Noted(_REVOKED[after["kind"]], after["annotator"])
    return None


_PLANS = ("judgment_form", "check_plan")
_SHOWN_SETTINGS = ("learn_from",)
_SILENT_SETTINGS = ("language.", "guidelines.", "pseudonym_secret")


def of_setting(before: Entry | None, after: Entry) -> Noted | None:
    """A setting of the workspace was changed; values are noted only of settings known here."""
    key, value = after["key"], after["value"]
    known = before["value"] if before else None
    if key.startswith(_SILENT_SETTINGS) or key.endswith("secret") or known == value:
        return None
    if key == "guidelines":
        return Noted("guidelines.changed", "", {"characters": len(str(value))})
    if key == "guidelines_translations":
        changed = [k for k in value if (known or {}).get(k) != value[k]]
        removed = [k for k in known or {} if k not in value]
        languages = ", ".join(sorted([*changed, *removed]))
        return Noted("guidelines.changed", "", {"languages": languages}) if languages else None
    if key in _PLANS:
        used = value.get("used", {})
        was = (known or {}).get("used") or value.get("configured", {})
        details = {k: v for k, v in used.items() if was.get(k) != v}
        return Noted("setting.changed", key, details) if details else None
    return Noted("setting.changed", key, {"value": value} if key in _SHOWN_SETTINGS else {})


def of_override(before: Entry | None, after: Entry) -> Noted | None:
    """A researcher ruled on a policy."""
    if before is not None:
        return None
    details = {"ruling": after["ruling"], "reason": short(after["reason"])}
    return Noted("gate.override", after["policy"], details)


def of_check(before: Entry | None, after: Entry) -> Noted | None:
    """A gold or practice pair was made, retired or restored."""
    if after["kind"] == "reask":
        return None
    if before is None:
        return Noted(f"{after['kind']}.added", "")
    if before["active"] != after["active"]:
        action = "restored" if after["active"] else "retired"
        return Noted(f"{after['kind']}.{action}", after["comparison"])
    return None


def of_exclusion(before: Entry | None, after: Entry) -> Noted | None:
    """A judgment was excluded or restored."""
    if before is not None and before["excluded"] == after["excluded"]:
        return None
    action = "judgment.excluded" if after["excluded"] else "judgment.restored"
    return Noted(action, after["judgment"], {"reason": short(after["reason"])})


def of_adjudication_request(before: Entry | None, after: Entry) -> Noted | None:
    """A researcher sent a pair to adjudication."""
    return Noted("adjudication.requested", after["comparison"]) if before is None else None


def of_adjudication(before: Entry | None, after: Entry) -> Noted | None:
    """An adjudicator ruled on a pair."""
    return Noted("adjudication.ruled", after["comparison"]) if before is None else None


def of_prompt_edit(before: Entry | None, after: Entry) -> Noted | None:
    """A prompt was retired or restored, or got another category."""
    if after["retired"] != (before["retired"] if before else False):
        return Noted("prompt.retired" if after["retired"] else "prompt.restored", after["prompt"])
    if after["category"] != (before["category"] if before else None):
        return Noted("prompt.category", after["prompt"], {"category": after["category"] or ""})
    return None


def of_run_label(before: Entry | None, after: Entry) -> Noted | None:
    """A run got another name or note; the note itself is left out."""
    known = before or {"name": "", "note": ""}
    details = {"name": short(after["name"])} if after["name"] != known["name"] else {}
    if after["note"] != known["note"]:
        details["note"] = "changed" if after["note"] else "removed"
    return Noted("run.described", after["run"], details) if details else None


def of_flag_answer(before: Entry | None, after: Entry) -> Noted | None:
    """A researcher answered a flag."""
    return Noted("flag.answered", after["flag"]) if before is None else None


def of_webhook(before: Entry | None, after: Entry) -> Noted | None:
    """A webhook was changed.  The path of its URL may contain a token and is left out."""
    parts = urlsplit(after["url"])
    mail = parts.scheme == "mailto"
    host = {"host": after["url"] if mail else f"{parts.scheme}://{parts.netloc}"}
    if before is None:
        return Noted("webhook.added", after["id"], host | {"events": list(after["events"])})
    if after["removed"]:
        return None if before["removed"] else Noted("webhook.removed", after["id"], host)
    if before["secret"] != after["secret"]:
        return Noted("webhook.rotated", after["id"], host)
    if before["active"] != after["active"]:
        action = "webhook.enabled" if after["active"] else "webhook.disabled"
        return Noted(action, after["id"], host)
    return None


def of_delivery(before: Entry | None, after: Entry) -> Noted | None:
    """An event was sent to a webhook again."""
    if before is not None and before["status"] != "pending" == after["status"]:
        return Noted("webhook.resent", after["webhook"], {"event": after["event"]})
    return None
