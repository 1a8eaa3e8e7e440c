"""Routes for judgments, adjudication, prompts, flags and gold pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from pydantic import BaseModel, ConfigDict, Field

from labeler.research.api.bodies import PREFIX, Id, Text, Word, Yes, person
from storage.browsing.commands import data_commands, filter_by_name
from storage.browsing.exclusion import exclude_all, restore_all
from storage.browsing.prompts import AddedRole, add_prompt, edit_prompt
from storage.commands import Commands
from storage.engine.database import Database
from storage.labeling import adjudication, exclusions, flag_answers, gold, judgments
from storage.labeling.adjudication import GivenRuling, WaitingPair
from storage.records import (
    AdjudicationRequest,
    Arm,
    Exclusion,
    Flag,
    FlagAnswer,
    Outcome,
    Prompt,
    PromptEdit,
    ScreenOutcome,
    new_id,
)

# A limit also makes pydantic refuse half of a character (a lone surrogate), which no query can have.
Filtered = Annotated[str, Field(max_length=20_000)]


class Matching(BaseModel):
    """The judgments to exclude or restore, and why; `annotator` is a name."""

    model_config = ConfigDict(extra="forbid")
    reason: str = Field(default="", max_length=20_000)
    annotator: Filtered | None = None
    arm: Arm | None = None
    outcome: Outcome | None = None
    category: Filtered | None = None
    iteration: int | None = None
    text: Filtered = ""
    disagreement: bool | None = None
    surprise: bool | None = None
    flagged: bool | None = None
    commented: bool | None = None


def data_routes(db: Database, commands: Commands) -> list[APIRouter]:
    """The routes; lists take the options of the commands."""
    routes, reading = APIRouter(prefix=PREFIX), data_commands(db)
    routes.get("/judgments")(reading["judgments.list"])
    routes.get("/judgments/{id}")(reading["judgments.show"])
    routes.get("/prompts")(reading["prompts.list"])
    routes.get("/flags")(commands.function("flags.list"))

    def change_all(change: Callable[..., int], body: Matching, request: Request) -> dict[str, int]:
        wanted = filter_by_name(db, **body.model_dump(exclude={"reason"}))
        return {"judgments": change(db, wanted, reason=body.reason, researcher=person(request).id)}

    @routes.post("/judgments/exclude")
    def exclude_matching(body: Matching, request: Request) -> dict[str, int]:
        """Exclude all judgments that match."""
        return change_all(exclude_all, body, request)

    @routes.post("/judgments/restore")
    def restore_matching(body: Matching, request: Request) -> dict[str, int]:
        """Restore the excluded judgments that match."""
        return change_all(restore_all, body, request)

    @routes.post("/judgments/{id}/exclude")
    def exclude(id: str, reason: Text, request: Request) -> Exclusion:
        return exclusions.exclude(db, id, reason=reason, researcher=person(request).id)

    @routes.post("/judgments/{id}/restore")
    def restore(id: str, request: Request, reason: Text = "") -> Exclusion:
        return exclusions.restore(db, id, reason=reason, researcher=person(request).id)

    @routes.post("/prompts")
    def add(
        text: Text, role: Annotated[AddedRole | None, Body(embed=True)] = None, category: Text = ""
    ) -> Prompt:
        """A prompt of one message; without a `role`, it gets the one of an import."""
        return add_prompt(db, text, role=role, category=category)

    @routes.post("/prompts/{id}")
    def edit(
        id: str,
        request: Request,
        retired: Annotated[bool | None, Body(embed=True)] = None,
        category: Word = None,
    ) -> PromptEdit:
        """Retire a prompt or use it again, and set its category."""
        who = person(request).id
        return edit_prompt(db, id, retired=retired, category=category, researcher=who)

    @routes.post("/flags/{id}/answer")
    def answer(id: str, text: Text, request: Request, clear: Yes = False) -> FlagAnswer:
        who = person(request).id
        return flag_answers.answer_flag(
            db, id=new_id(), flag=id, researcher=who, text=text, clear=clear
        )

    @routes.post("/flags/{id}/clear")
    def clear(id: str, request: Request) -> Flag:
        return judgments.clear_flag(db, id=new_id(), flag=id, researcher=person(request).id)

    return [routes, _adjudication_routes(db), _gold_routes(db, commands)]


def _adjudication_routes(db: Database) -> APIRouter:
    """Adjudication by the person of the request, who never sees the votes first."""
    routes = APIRouter(prefix=f"{PREFIX}/adjudication")

    @routes.get("")
    def listed(request: Request) -> dict[str, Any]:
        """The pairs that wait for this person, their number, and all rulings."""
        who = person(request).id
        return {
            "waiting": [asdict(each) for each in adjudication.waiting(db, who)],
            "total": adjudication.count_waiting(db, who),
            "rulings": [asdict(each) for each in adjudication.rulings(db)],
        }

    @routes.get("/{id}")
    def show(id: str, request: Request) -> WaitingPair:
        return adjudication.waiting_pair(db, id, person(request).id)

    @routes.post("/{id}/send")
    def send(id: str, request: Request) -> AdjudicationRequest:
        return adjudication.send(db, id, researcher=person(request).id)

    @routes.post("/{id}/rule")
    def rule(
        id: str,
        outcome: Annotated[ScreenOutcome, Body(embed=True)],
        reason: Text,
        ruling: Id,
        request: Request,
    ) -> GivenRuling:
        """A ruling; `ruling` is its id, so that a request that is sent again changes nothing."""
        who = person(request).id
        return adjudication.rule(
            db, id=ruling, comparison=id, outcome=outcome, reason=reason, adjudicator=who
        )

    return routes


def _gold_routes(db: Database, commands: Commands) -> APIRouter:
    routes = APIRouter(prefix=f"{PREFIX}/gold")
    routes.get("")(commands.function("gold.list"))

    @routes.post("")
    def make(count: Annotated[int, Body(embed=True, ge=1, le=1000)]) -> dict[str, int]:
        """Make gold pairs from pairs on which annotators agree."""
        return {"made": gold.make(db, count), "candidates": gold.candidates(db)}

    @routes.post("/{id}/retire")
    def retire(id: str) -> dict[str, Any]:
        return asdict(gold.set_active(db, id, active=False))

    @routes.post("/{id}/restore")
    def restore(id: str) -> dict[str, Any]:
        return asdict(gold.set_active(db, id, active=True))

    return routes
