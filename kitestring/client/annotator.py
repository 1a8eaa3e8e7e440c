"""`Annotator`: labels from Python, as a person does on the page.  For scripts and simulations."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, Self

from kitestring.client.connection import Connection, part, route
from kitestring.client.records import (
    LabelingGuidelines,
    OwnFigures,
    OwnJudgment,
    Progress,
    ScreenOutcome,
    ShownPair,
)
from kitestring.client.rows import Pages, Rows, parsed

API = "/label/api"
Side = Literal["a", "b"]
PER_PAGE = 30


class Annotator:
    """The annotator whose API token is given; a context manager.

    `token` comes from ``python launch.py users add NAME --token``; the other parameters are those of
    `Studio`.  Every act has an id of its own and is stored once, however often it is sent.  Methods
    raise `StudioError`.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:7860",
        *,
        token: str | None = None,
        timeout: float = 60.0,
        patience: float = 10.0,
    ) -> None:
        self._at = Connection(url, token, timeout=timeout, patience=patience)
        self._held: set[str] = set()  # pairs that were returned and not answered

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._at.close()

    def pairs(self, at_once: int = 4) -> Iterator[ShownPair]:
        """Pairs to judge, skip or flag, until none is left for this annotator.

        Requests `at_once` pairs (1 to 16) at a time.  Each pair is returned once.
        """
        seen: set[str] = set()
        while True:
            found = self.next(at_once, holding=self._held)
            new = [pair for pair in found if pair.id not in seen]
            if not new:
                return
            self._held |= {pair.id for pair in new}
            seen |= self._held
            yield from new

    @route("GET", f"{API}/next")
    def next(self, n: int = 4, *, holding: Iterable[str] = ()) -> Rows[ShownPair]:
        """Up to `n` pairs besides those in `holding`; others do not get them for 30 minutes."""
        query = {"n": n, "holding": ",".join(holding) or None}
        return Rows.of(ShownPair, self._at.get(f"{API}/next", **query)["pairs"])

    @route("POST", f"{API}/release")
    def release(self, comparisons: Iterable[str]) -> int:
        """Give pairs back to others; returns how many."""
        body = {"comparisons": [*comparisons]}
        self._held -= {*body["comparisons"]}
        return self._at.post(f"{API}/release", body, again=True)["released"]

    @route("POST", f"{API}/judgments")
    def judge(
        self,
        comparison: ShownPair | str,
        outcome: ScreenOutcome,
        *,
        strength: Literal[1, 2, 3] | None = None,
        criteria: Mapping[str, Literal["a", "b", "tie"]] | None = None,
        reasons: Mapping[Side, Iterable[str]] | None = None,
        safety: Mapping[Side, str] | None = None,
        marks: Mapping[Side, Iterable[Mapping[str, Any]]] | None = None,
        comment: str | None = None,
        edit: str | None = None,
        milliseconds: int | None = None,
        guidelines: str | None = None,
        replaces: str | None = None,
    ) -> str:
        """Judge a pair; returns the judgment's id when it is on disk.  docs/http.md has the fields."""
        sides = {side: [*tags] for side, tags in (reasons or {}).items()} or None
        body = {
            "outcome": outcome, "strength": strength, "criteria": criteria, "reasons": sides,
            "safety": safety, "marks": marks, "comment": comment, "edit": edit,
            "milliseconds": milliseconds, "guidelines": guidelines, "replaces": replaces,
        }  # fmt: skip
        return self._act("judgments", comparison=_id(comparison), **body)

    @route("POST", f"{API}/skip")
    def skip(self, comparison: ShownPair | str) -> str:
        """Leave a pair to others; returns the id of the act."""
        return self._act("skip", comparison=_id(comparison))

    @route("POST", f"{API}/flag")
    def flag(self, comparison: ShownPair | str, comment: str = "") -> str:
        """Remove a pair from all queues until a researcher clears the flag; returns its id."""
        return self._act("flag", comparison=_id(comparison), comment=comment)

    @route("POST", f"{API}/undo")
    def undo(self, replaces: str | None = None) -> str:
        """Take back an act by its id, by default the latest; returns the id of the undo."""
        return self._act("undo", replaces=replaces)

    @route("GET", f"{API}/progress")
    def progress(self, *, offset: int = 0) -> Progress:
        """How many pairs were judged and are left; `today` begins `offset` minutes before midnight UTC."""
        return parsed(Progress, self._at.get(f"{API}/progress", offset=offset))

    @route("GET", f"{API}/figures")
    def figures(self, *, offset: int = 0) -> OwnFigures:
        """This annotator's own figures."""
        return parsed(OwnFigures, self._at.get(f"{API}/figures", offset=offset))

    @route("GET", f"{API}/judgments")
    def judgments(self, *, search: str = "") -> Pages[OwnJudgment]:
        """This annotator's current judgments, the newest first; they have no `total`."""

        def page(before: str | None, _: int) -> Mapping[str, Any]:
            found = self._at.get(f"{API}/judgments", search=search, before=before)
            rows = found["judgments"]
            return {"rows": rows, "after": rows[-1]["id"] if found["more"] else None}

        return Pages(OwnJudgment, page, PER_PAGE)

    @route("GET", f"{API}/judgments/{{id}}")
    def judgment(self, id: str) -> Mapping[str, Any]:
        """One of them: `judgment` as it was sent, and its `pair`."""
        return self._at.get(f"{API}/judgments/{part(id)}")

    @route("GET", f"{API}/guidelines")
    def guidelines(self, language: str | None = None) -> LabelingGuidelines:
        """The guidelines as annotators see them."""
        return parsed(LabelingGuidelines, self._at.get(f"{API}/guidelines", language=language))

    def _act(self, act: str, **fields: Any) -> str:
        body = {"id": str(uuid.uuid4()), **fields}
        stored = self._at.post(f"{API}/{act}", body, again=True)["id"]
        self._held.discard(fields.get("comparison", ""))
        return stored


def _id(pair: ShownPair | str) -> str:
    return pair if isinstance(pair, str) else pair.id
