"""The commands on judgments, adjudication and prompts.  Arguments and results are JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

from storage.browsing.exclusion import exclude_all, restore_all
from storage.browsing.judgments import PAGE, Filter, Listing, browse
from storage.browsing.pair import PairInFull, pair_in_full, pair_of
from storage.browsing.prompts import (
    AddedRole,
    PromptFilter,
    PromptListing,
    add_prompt,
    browse_prompts,
    edit_prompt,
)
from storage.engine.database import Database
from storage.errors import NotFound
from storage.labeling import adjudication, exclusions
from storage.records import (
    AdjudicationRequest,
    Arm,
    Exclusion,
    Outcome,
    Prompt,
    PromptEdit,
    PromptRole,
    ScreenOutcome,
    new_id,
)
from storage.reports import to_json
from storage.tables.people import annotators


def data_commands(db: Database) -> dict[str, Callable[..., Any]]:
    """The commands by name."""

    def listing(
        annotator: str | None = None,
        arm: Arm | None = None,
        outcome: Outcome | None = None,
        category: str | None = None,
        iteration: int | None = None,
        text: str = "",
        disagreement: bool | None = None,
        surprise: bool | None = None,
        flagged: bool | None = None,
        commented: bool | None = None,
        excluded: bool | None = None,
        before: str | None = None,
        limit: int = PAGE,
    ) -> Listing:
        """`annotator` is a name; the rest is as for `browse`."""
        wanted = filter_by_name(
            db, annotator, arm=arm, outcome=outcome, category=category, iteration=iteration,
            text=text, disagreement=disagreement, surprise=surprise, flagged=flagged,
            commented=commented, excluded=excluded,
        )  # fmt: skip
        return browse(db, wanted, before=before, limit=limit)

    def show(id: str) -> PairInFull:
        return pair_in_full(db, pair_of(db, id))

    def exclude(id: str, reason: str) -> dict[str, Any]:
        return _stored(exclusions.exclude(db, id, reason=reason))

    def restore(id: str, reason: str = "") -> dict[str, Any]:
        return _stored(exclusions.restore(db, id, reason=reason))

    def change_all(
        change: Callable[..., int],
        reason: str = "",
        annotator: str | None = None,
        arm: Arm | None = None,
        outcome: Outcome | None = None,
        category: str | None = None,
        iteration: int | None = None,
        text: str = "",
        disagreement: bool | None = None,
        surprise: bool | None = None,
        flagged: bool | None = None,
        commented: bool | None = None,
    ) -> dict[str, int]:
        wanted = filter_by_name(
            db, annotator, arm=arm, outcome=outcome, category=category, iteration=iteration,
            text=text, disagreement=disagreement, surprise=surprise, flagged=flagged,
            commented=commented,
        )  # fmt: skip
        return {"judgments": change(db, wanted, reason=reason)}

    return {
        **_adjudication_commands(db),
        **_prompt_commands(db),
        "judgments.list": listing,
        "judgments.show": show,
        "judgments.exclude": exclude,
        "judgments.restore": restore,
        "judgments.exclude_all": partial(change_all, exclude_all),
        "judgments.restore_all": partial(change_all, restore_all),
    }


def filter_by_name(db: Database, annotator: str | None, **others: Any) -> Filter:
    """A filter with the name of the annotator instead of the id; NotFound if nobody has the name."""
    return Filter(annotator=None if annotator is None else _id_of(db, annotator), **others)


def _id_of(db: Database, name: str) -> str:
    found = annotators.by_name(db, name)
    if found is None:
        known = ", ".join(a.name for a in annotators.listing(db)) or "nobody"
        raise NotFound(f"there is no annotator called {name!r}; there are: {known}")
    return found.id


def _stored(made: Exclusion | AdjudicationRequest | Prompt | PromptEdit) -> dict[str, Any]:
    return dataclasses.asdict(made) | {"created_at": made.created_at.isoformat()}


def _adjudication_commands(db: Database) -> dict[str, Callable[..., Any]]:
    """`name` is that of the adjudicator's account; "" is the operator."""

    def listing(name: str = "") -> dict[str, Any]:
        who = _adjudicator(db, name)
        return {
            "waiting": [to_json(each) for each in adjudication.waiting(db, who)],
            "total": adjudication.count_waiting(db, who),
            "rulings": [to_json(each) for each in adjudication.rulings(db)],
        }

    def show(id: str, name: str = "") -> adjudication.WaitingPair:
        return adjudication.waiting_pair(db, id, _adjudicator(db, name))

    def send(id: str) -> dict[str, Any]:
        return _stored(adjudication.send(db, id))

    def rule(
        id: str, outcome: ScreenOutcome, reason: str, name: str = ""
    ) -> adjudication.GivenRuling:
        who = _adjudicator(db, name)
        return adjudication.rule(
            db, id=new_id("r"), comparison=id, outcome=outcome, reason=reason, adjudicator=who
        )

    return {
        "adjudicate.list": listing,
        "adjudicate.show": show,
        "adjudicate.send": send,
        "adjudicate.rule": rule,
    }


def _prompt_commands(db: Database) -> dict[str, Callable[..., Any]]:
    def listing(
        role: PromptRole | None = None,
        category: str | None = None,
        retired: bool | None = None,
        text: str = "",
        before: str | None = None,
        limit: int = PAGE,
    ) -> PromptListing:
        wanted = PromptFilter(role=role, category=category, retired=retired, text=text)
        return browse_prompts(db, wanted, before=before, limit=limit)

    def add(text: str, role: AddedRole | None = None, category: str = "") -> dict[str, Any]:
        return _stored(add_prompt(db, text, role=role, category=category))

    def edit(id: str, retired: bool | None = None, category: str | None = None) -> dict[str, Any]:
        return _stored(edit_prompt(db, id, retired=retired, category=category))

    return {"prompts.list": listing, "prompts.add": add, "prompts.edit": edit}


def _adjudicator(db: Database, name: str) -> str:
    return _id_of(db, name) if name else ""
