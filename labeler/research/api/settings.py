"""Routes for settings: those of the current iteration, those of config.toml, and the form that starts
training.  ``settings.js`` and ``train.js`` call them too."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request

from labeler.ports import Loop
from labeler.research.api.bodies import PREFIX, Overrides, person
from labeler.research.caveats import CONTINUES, unready
from labeler.research.phases import STAGE_LABELS, reading_name
from storage.engine.database import Database
from storage.reports import RewardReport, SettingView, Stopped, WorkspaceSettings
from storage.tables import iterations
from storage.tables.runs import run_settings, runs


@dataclass(frozen=True, kw_only=True)
class ConfigFile(WorkspaceSettings):
    """The settings in config.toml; `may_save` says whether the caller may change them."""

    may_save: bool


@dataclass(frozen=True, kw_only=True)
class TrainForm:
    """What the form that starts training, or another attempt at a stopped stage, shows."""

    iteration: int | None
    reason: str | None
    """Why training cannot start now."""
    stopped: Stopped | None
    stage: str
    """The name of the stopped stage."""
    flag: str
    """The name of its worst red flag."""
    last: str | None
    """The name of the last training, to which `last` of each setting belongs."""
    settings: list[SettingView]
    caution: Caution | None
    """About the newest reward model, if the training or stage would use such a one."""


@dataclass(frozen=True, kw_only=True)
class Caution:
    """A warning that the form shows for these methods."""

    methods: tuple[str, ...]
    title: str
    body: str


def _caution(report: RewardReport, stopped: Stopped | None) -> Caution | None:
    found = unready(report)
    if found is None or (stopped and stopped.stage not in ("reward", "policy")):
        return None
    what = "This stage uses it." if stopped and stopped.stage == "policy" else CONTINUES
    return Caution(methods=found.methods, title=found.title, body=f"{found.reason} {what}".strip())


def settings_routes(db: Database, loop: Loop) -> APIRouter:
    """The routes.  A wrong setting gets 422, with a sentence for each wrong one in ``fields``."""
    routes = APIRouter(prefix=PREFIX)

    @routes.get("/settings")
    def settings() -> list[SettingView]:
        return loop.settings()

    @routes.get("/config")
    def config(request: Request) -> ConfigFile:
        return _config(loop.workspace_settings(), request)

    @routes.post("/config")
    def save(
        changes: Overrides,
        version: Annotated[str, Body(embed=True, max_length=64)],
        request: Request,
    ) -> ConfigFile:
        """409 if the file has another version: it changed after it was read."""
        return _config(loop.save_settings(changes, version), request)

    @routes.get("/loop/form")
    def form() -> TrainForm:
        stopped, current = loop.stopped_stage(), iterations.latest(db)
        last = run_settings.last_trained(runs.listing(db))
        return TrainForm(
            iteration=current.number if current else None,
            reason=loop.can_train(),
            stopped=stopped,
            stage=STAGE_LABELS[stopped.stage] if stopped else "",
            flag=reading_name(stopped.flag) if stopped else "",
            last=f"{runs.name(last)}, iteration {last.iteration}" if last else None,
            settings=loop.settings(),
            caution=_caution(loop.reports.report(), stopped),
        )

    return routes


def _config(found: WorkspaceSettings, request: Request) -> ConfigFile:
    shown: dict[str, Any] = vars(found) | {"file": PurePath(found.file).name}
    return ConfigFile(**shown, may_save=person(request).role == "researcher")
