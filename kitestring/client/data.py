"""Prompts, adjudication and gold pairs."""

from __future__ import annotations

import uuid
from typing import Any, Literal

from kitestring.client.connection import Connection, part, route
from kitestring.client.records import (
    Adjudication,
    GivenRuling,
    GoldPair,
    Prompt,
    ScreenOutcome,
    WaitingPair,
)
from kitestring.client.rows import Pages, Rows, parsed

PROMPTS, ADJUDICATION, GOLD = (
    f"/research/api/{name}" for name in ("prompts", "adjudication", "gold")
)


class Prompts:
    """``studio.prompts``: the prompts of the workspace."""

    def __init__(self, at: Connection) -> None:
        self._at = at

    @route("GET", PROMPTS)
    def list(
        self,
        *,
        role: str | None = None,
        category: str | None = None,
        retired: bool | None = None,
        text: str | None = None,
        limit: int = 200,
    ) -> Pages[Prompt]:
        """Prompts, the newest first, read `limit` at a time (up to 500); None does not filter."""
        wanted = {"role": role, "category": category, "retired": retired, "text": text}
        return Pages(
            Prompt,
            lambda before, n: self._at.get(PROMPTS, **wanted, before=before, limit=n),
            limit,
        )

    @route("POST", PROMPTS)
    def add(
        self,
        text: str,
        *,
        role: Literal["train", "held-out", "audit"] | None = None,
        category: str = "",
    ) -> str:
        """Add a prompt of one message; returns its id.  Without a `role`, the studio chooses one."""
        return self._at.post(PROMPTS, {"text": text, "role": role, "category": category})["id"]

    @route("POST", f"{PROMPTS}/{{id}}")
    def edit(self, id: str, *, retired: bool | None = None, category: str | None = None) -> None:
        """Retire a prompt or use it again, and set its category; None changes nothing."""
        body = {"retired": retired, "category": category}
        self._at.post(f"{PROMPTS}/{part(id)}", body, again=True)


class Adjudications:
    """``studio.adjudication``: pairs on which annotators disagree, without sight of their votes."""

    def __init__(self, at: Connection) -> None:
        self._at = at

    @route("GET", ADJUDICATION)
    def list(self) -> Adjudication:
        """The pairs that wait for you, and the rulings of all adjudicators."""
        return parsed(Adjudication, self._at.get(ADJUDICATION))

    @route("GET", f"{ADJUDICATION}/{{id}}")
    def show(self, id: str) -> WaitingPair:
        """A pair that waits for you."""
        return parsed(WaitingPair, self._at.get(f"{ADJUDICATION}/{part(id)}"))

    @route("POST", f"{ADJUDICATION}/{{id}}/send")
    def send(self, id: str) -> dict[str, Any]:
        """Send a pair to the adjudicators."""
        return self._at.post(f"{ADJUDICATION}/{part(id)}/send")

    @route("POST", f"{ADJUDICATION}/{{id}}/rule")
    def rule(self, id: str, outcome: ScreenOutcome, reason: str) -> GivenRuling:
        """Rule on a pair; `outcome` refers to `a` and `b` of `show`."""
        # With an id of its own, a ruling that is sent again is stored once.
        body = {"outcome": outcome, "reason": reason, "ruling": f"r-{uuid.uuid4().hex}"}
        return parsed(
            GivenRuling, self._at.post(f"{ADJUDICATION}/{part(id)}/rule", body, again=True)
        )


class GoldPairs:
    """``studio.gold``: pairs with a known answer, which check annotators."""

    def __init__(self, at: Connection) -> None:
        self._at = at

    @route("GET", GOLD)
    def list(self, kind: Literal["gold", "practice"] = "gold") -> Rows[GoldPair]:
        """All gold or practice pairs, active ones first."""
        return Rows.of(GoldPair, self._at.get(GOLD, kind=kind))

    @route("POST", GOLD)
    def make(self, count: int) -> int:
        """Make gold pairs from pairs on which annotators agree; returns how many were made."""
        return self._at.post(GOLD, {"count": count})["made"]

    @route("POST", f"{GOLD}/{{id}}/retire")
    def retire(self, id: str) -> None:
        """Stop showing a gold pair; its judgments no longer count."""
        self._at.post(f"{GOLD}/{part(id)}/retire", again=True)

    @route("POST", f"{GOLD}/{{id}}/restore")
    def restore(self, id: str) -> None:
        """Show a gold pair again."""
        self._at.post(f"{GOLD}/{part(id)}/restore", again=True)
