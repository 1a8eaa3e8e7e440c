"""Routes for the loop and its results: status, training, settings, gate, models and lineage."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Query, Request

from labeler.ports import Loop
from labeler.research.api.bodies import PREFIX, Overrides, Text, Word, person
from storage import worker_files
from storage.commands import Commands
from storage.engine.database import Database
from storage.errors import Conflict
from storage.gate_report import GateReport, ModelBoard, Standing
from storage.lineage import tree
from storage.lineage.graph import LineageGraph, lineage_graph
from storage.records import RunLabel
from storage.reports import RewardReport, Stopped
from storage.status import Status, status
from storage.tables.runs import run_labels, runs


@dataclass(frozen=True, kw_only=True)
class StudioStatus(Status):
    """The status; `stopped` is the stage that somebody must resume or retry, and `waits` says why
    training cannot start now."""

    stopped: Stopped | None
    waits: str | None


def loop_routes(db: Database, loop: Loop, commands: Commands) -> list[APIRouter]:
    """The routes.  A request that contradicts the loop's state gets 409."""
    routes = APIRouter(prefix=PREFIX)
    routes.get("/iterations/{number}")(commands.function("iteration"))
    routes.get("/runs/{id}")(commands.function("runs.get"))

    @routes.get("/status")
    def now() -> StudioStatus:
        found: dict[str, Any] = vars(status(db)) | {
            "trouble": db.health.trouble,
            "label_budget": loop.label_budget(),
        }
        return StudioStatus(**found, stopped=loop.stopped_stage(), waits=loop.can_train())

    @routes.post("/runs/{id}")
    def describe(
        id: str,
        request: Request,
        name: Word = None,
        note: Annotated[str | None, Body(embed=True, max_length=20_000)] = None,
    ) -> RunLabel:
        """Give a run a name and a note."""
        who = person(request).id
        return run_labels.describe(db, id, name=name, note=note, researcher=who)

    @routes.get("/runs/{id}/log")
    def log(id: str, tail: Annotated[int, Query(ge=1, le=10_000)] = 200) -> dict[str, str]:
        return {"log": loop.log(runs.get(db, id).id, tail)}

    @routes.get("/iterations/{number}/evaluation")
    def evaluation(number: int) -> list[dict[str, Any]]:
        """The responses that the evaluation stage sampled."""
        return [asdict(each) for each in worker_files.evaluated(db, number)]

    @routes.get("/gate")
    def gate() -> GateReport:
        return loop.gate()

    @routes.post("/gate/override")
    def override(
        ruling: Annotated[Literal["promote", "block", "evidence"], Body(embed=True)],
        reason: Text,
        request: Request,
        policy: Word = None,
    ) -> Standing:
        who = person(request).name
        return loop.override_gate(ruling, reason, policy=policy, researcher=who)

    @routes.get("/leaderboard")
    def leaderboard(anchor: str | None = None, category: str | None = None) -> ModelBoard:
        return loop.model_board(anchor, category)

    @routes.get("/reward")
    def reward(model: str | None = None) -> RewardReport:
        return loop.reports.report(model)

    @routes.post("/reward/{model}/curve/start")
    def start_curve(model: str) -> dict[str, str]:
        """Compute the model's learning curve, or continue it."""
        loop.reports.start_curve(model)
        return {"model": model}

    @routes.post("/reward/{model}/curve/stop")
    def stop_curve(model: str) -> dict[str, str]:
        """Stop computing it; finished models are kept."""
        loop.reports.cancel_curve(model)
        return {"model": model}

    @routes.get("/lineage")
    def graph() -> LineageGraph:
        return lineage_graph(db)

    @routes.get("/lineage/{policy}")
    def shaped(policy: str) -> dict[str, Any]:
        found = tree.lineage(db, policy)
        return {"lineage": asdict(found), "text": tree.render(found)}

    return [routes, _training_routes(db, loop)]


def _training_routes(db: Database, loop: Loop) -> APIRouter:
    """A researcher's training, as on the page: settings that only `config.toml` has are refused."""
    routes = APIRouter(prefix=f"{PREFIX}/loop")

    def stopped() -> str:
        found = loop.stopped_stage()
        if found is None:
            raise Conflict("No stage is stopped, so there is nothing to resume or retry.")
        return found.run

    @routes.post("/train")
    def train(overrides: Overrides = {}) -> dict[str, bool]:  # noqa: B006 (FastAPI copies it)
        if reason := loop.can_train():
            raise Conflict(reason)
        loop.train(overrides)
        return {"started": True}

    @routes.post("/cancel")
    def cancel() -> dict[str, str]:
        running = [run for run in runs.listing(db) if run.status == "running"]
        if not running:
            raise Conflict("No stage is running, so there is nothing to cancel.")
        loop.cancel(running[-1].id)
        return {"run": running[-1].id, "stage": runs.name(running[-1])}

    @routes.post("/resume")
    def resume() -> dict[str, str]:
        run = stopped()
        loop.resume(run)
        return {"run": run}

    @routes.post("/retry")
    def retry(
        overrides: Overrides = {},  # noqa: B006
        run: Word = None,
        attempt: Annotated[int | None, Body(embed=True)] = None,
    ) -> dict[str, str]:
        """With `run` and `attempt`, 409 if another run or attempt is stopped now."""
        found, now_stopped = stopped(), loop.stopped_stage()
        seen = (run or found, attempt or (now_stopped and now_stopped.attempt))
        if now_stopped is None or seen != (now_stopped.run, now_stopped.attempt):
            raise Conflict("The loop has changed since the form was opened. Open it again.")
        loop.retry(found, overrides)
        return {"run": runs.listing(db)[-1].id}  # a retry is a new run

    @routes.post("/label-more")
    def label_more() -> dict[str, str]:
        run = stopped()
        loop.label_more(run)
        return {"run": run}

    return routes
