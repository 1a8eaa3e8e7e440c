"""Accounts, the audit log, webhooks, and what annotators are given."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Literal

from kitestring.client.connection import Connection, part, route
from kitestring.client.records import (
    AuditEntry,
    Delivery,
    Form,
    Guidelines,
    NewAccount,
    Person,
    Ping,
    Practice,
    Presence,
    Role,
    Webhook,
)
from kitestring.client.rows import Rows, parsed

PEOPLE, WEBHOOKS, AUDIT, GUIDELINES, FORM, PRACTICE = (
    f"/research/api/{name}"
    for name in ("people", "webhooks", "audit", "guidelines", "form", "practice")
)


class People:
    """``studio.people``: accounts by name."""

    def __init__(self, at: Connection) -> None:
        self._at = at

    @route("GET", PEOPLE)
    def list(self) -> Rows[Person]:
        """All accounts."""
        return Rows.of(Person, self._at.get(PEOPLE))

    @route("POST", PEOPLE)
    def add(self, name: str, *, role: Role = "annotator", token: bool = False) -> NewAccount:
        """An account with an invite link, or with an API token; an existing one gets another."""
        body = {"name": name, "role": role, "token": token}
        return parsed(NewAccount, self._at.post(PEOPLE, body))

    @route("POST", f"{PEOPLE}/role")
    def set_role(self, name: str, role: Role) -> Person:
        """Give a person another role, which applies immediately."""
        body = {"name": name, "role": role}
        return parsed(Person, self._at.post(f"{PEOPLE}/role", body, again=True))

    @route("POST", f"{PEOPLE}/disable")
    def disable(self, name: str) -> Person:
        """Sign a person out everywhere; their judgments are kept."""
        return parsed(Person, self._at.post(f"{PEOPLE}/disable", {"name": name}, again=True))

    @route("POST", f"{PEOPLE}/enable")
    def enable(self, name: str) -> Person:
        """Enable a disabled account."""
        return parsed(Person, self._at.post(f"{PEOPLE}/enable", {"name": name}, again=True))

    @route("POST", f"{PEOPLE}/revoke")
    def revoke(self, name: str) -> int:
        """Revoke a person's invites and API tokens; returns how many there were."""
        return self._at.post(f"{PEOPLE}/revoke", {"name": name})["revoked"]


class Project:
    """``studio.project``: the guidelines, the form and the practice of annotators.

    Annotators get a change within about a minute.
    """

    def __init__(self, at: Connection) -> None:
        self._at = at

    @route("GET", GUIDELINES)
    def guidelines(self, language: str | None = None) -> Guidelines:
        """The guidelines of annotators who chose a language, with all saved texts."""
        return parsed(Guidelines, self._at.get(GUIDELINES, language=language))

    @route("POST", GUIDELINES)
    def save_guidelines(self, text: str, *, language: str | None = None) -> str:
        """Save guidelines in Markdown; returns their version.

        With a `language`, only annotators who chose it see them; an empty text removes them.
        """
        body = {"text": text, "language": language}
        return self._at.post(GUIDELINES, body, again=True)["version"]

    @route("GET", FORM)
    def form(self) -> Form:
        """What annotators are asked about a pair."""
        return parsed(Form, self._at.get(FORM))

    @route("POST", FORM)
    def set_form(
        self,
        *,
        scale: Literal["two-step", "one-press"] | None = None,
        strength: Literal["optional", "required"] | None = None,
        criteria: Iterable[str] | None = None,
        reasons: Iterable[str] | None = None,
        rationale: Presence | None = None,
        safety: Presence | None = None,
        marks: bool | None = None,
    ) -> Form:
        """Change the form; None leaves a field as it is."""
        body = {
            "scale": scale, "strength": strength,
            "criteria": None if criteria is None else [*criteria],
            "reasons": None if reasons is None else [*reasons],
            "rationale": rationale, "safety": safety, "marks": marks,
        }  # fmt: skip
        return parsed(Form, self._at.post(FORM, body, again=True))

    @route("GET", PRACTICE)
    def practice(self) -> Practice:
        """Whether annotators first judge the practice pairs, and how many there are."""
        return parsed(Practice, self._at.get(PRACTICE))

    @route("POST", PRACTICE)
    def ask_for_practice(self, asked: bool = True) -> Practice:
        """Ask annotators for practice, or no longer."""
        return parsed(Practice, self._at.post(PRACTICE, {"asked": asked}, again=True))


class Audit:
    """``studio.audit``: who did what on the research side."""

    def __init__(self, at: Connection) -> None:
        self._at = at

    @route("GET", AUDIT)
    def list(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        search: str | None = None,
        limit: int = 50,
    ) -> Rows[AuditEntry]:
        """Entries of the audit log, the newest first; times are in ISO 8601."""
        found = self._at.get(
            AUDIT, actor=actor, action=action, since=_time(since), until=_time(until),
            search=search, limit=limit,
        )  # fmt: skip
        return Rows.of(AuditEntry, found)

    @route("GET", "/research/download/audit")
    def export(
        self,
        out: str | Path,
        *,
        actor: str | None = None,
        action: str | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        search: str | None = None,
        file: Literal["csv", "jsonl"] | None = None,
    ) -> Path:
        """Write all matching entries to a file, whose name decides its type."""
        target = Path(out)
        return self._at.download(
            "/research/download/audit", target, actor=actor, action=action, since=_time(since),
            until=_time(until), search=search, file=file or target.suffix.removeprefix("."),
        )  # fmt: skip


class Webhooks:
    """``studio.webhooks``: events that are sent to programs as signed requests, or by e-mail."""

    def __init__(self, at: Connection) -> None:
        self._at = at

    @route("GET", WEBHOOKS)
    def list(self) -> Rows[Webhook]:
        """The webhooks with the numbers of their deliveries."""
        return Rows.of(Webhook, self._at.get(WEBHOOKS))

    @route("POST", WEBHOOKS)
    def add(self, url: str, *, events: Iterable[str] = (), description: str = "") -> Webhook:
        """Add a webhook, by default for all events.  Keep its `secret`: it is not shown again.

        `url` may be an e-mail address, which has no secret.
        """
        body = {"url": url, "events": [*events] or None, "description": description}
        return parsed(Webhook, self._at.post(WEBHOOKS, body))

    @route("POST", f"{WEBHOOKS}/{{id}}/test")
    def test(self, id: str) -> Ping:
        """Send a ping now, and say what came of it."""
        return parsed(Ping, self._at.post(f"{WEBHOOKS}/{part(id)}/test"))

    @route("POST", f"{WEBHOOKS}/{{id}}/enable")
    def enable(self, id: str) -> Webhook:
        """Send events again; pending deliveries continue at once."""
        return self._changed(id, "enable")

    @route("POST", f"{WEBHOOKS}/{{id}}/disable")
    def disable(self, id: str) -> Webhook:
        """Send nothing until the webhook is enabled."""
        return self._changed(id, "disable")

    @route("POST", f"{WEBHOOKS}/{{id}}/remove")
    def remove(self, id: str) -> None:
        """Remove a webhook; its pending deliveries are not sent."""
        self._at.post(f"{WEBHOOKS}/{part(id)}/remove")

    @route("POST", f"{WEBHOOKS}/{{id}}/rotate")
    def rotate(self, id: str) -> Webhook:
        """Replace the secret; the answer has the new one."""
        return parsed(Webhook, self._at.post(f"{WEBHOOKS}/{part(id)}/rotate"))

    @route("GET", f"{WEBHOOKS}/deliveries")
    def deliveries(
        self,
        webhook: str | None = None,
        *,
        status: Literal["pending", "delivered", "failed"] | None = None,
        limit: int = 50,
    ) -> Rows[Delivery]:
        """Deliveries, those with the newest attempt first."""
        query = {"webhook": webhook, "status": status, "limit": limit}
        return Rows.of(Delivery, self._at.get(f"{WEBHOOKS}/deliveries", **query))

    @route("POST", f"{WEBHOOKS}/deliveries/{{id}}/resend")
    def resend(self, id: str) -> None:
        """Send the event of a delivery again, with the same id."""
        self._at.post(f"{WEBHOOKS}/deliveries/{part(id)}/resend")

    def _changed(self, id: str, act: str) -> Webhook:
        return parsed(Webhook, self._at.post(f"{WEBHOOKS}/{part(id)}/{act}", again=True))


def _time(given: datetime | str | None) -> str | None:
    return given.isoformat() if isinstance(given, datetime) else given
