"""Access to a workspace: opened in this process, or through the server that has it open."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

import httpx

from labeler.project import Project
from labeler.research.models.playground.session import Ask, Playground
from labeler.webhooks.dispatcher import Dispatcher
from labeler.webhooks.service import Webhooks
from pipeline.config.sections import Config
from pipeline.demo import corpus
from pipeline.loop import generation
from pipeline.loop.loop import Loop
from pipeline.loop.retraining import plan_retraining, read_rule, write_inputs
from pipeline.loop.settings_store import Layers
from pipeline.loop.settings_view import disagreeing
from pipeline.loop.workspace_config import load_settings, prepare
from pipeline.models.context import ContextCheck
from pipeline.ppo.settings import assignments
from pipeline.serving.client import Generation
from pipeline.simulation.clients import AdminClient, what_stopped
from storage.browsing import studies as browsing
from storage.commands import Commands
from storage.engine.database import Database
from storage.engine.workspace import SERVER, read_server
from storage.errors import WorkspaceLocked
from storage.exporting import model_push
from storage.records import Prompt, as_messages
from storage.reports import LoopState, SettingView, WorkspaceSettings, from_json, to_json
from storage.status import Status, status
from storage.tables import prompts
from storage.tables.runs import runs

GENERATION_LOG = "generation.log"
LAUNCH = Path(__file__).parents[1] / "launch.py"


PRIVATE_WEBHOOKS = "KITESTRING_ALLOW_PRIVATE_WEBHOOKS"
"""The environment variable that allows webhooks at private addresses, as the option of `serve`."""


def private_webhooks() -> bool:
    """Whether `PRIVATE_WEBHOOKS` is set to 1 or true."""
    return os.environ.get(PRIVATE_WEBHOOKS, "").lower() in ("1", "true")


class Target(Protocol):
    """Where commands go: an open workspace or a live server."""

    def call(self, command: str, **arguments: Any) -> Any:
        """Run a command of `storage.commands`; ``ValueError`` when it is refused."""
        ...


class Studio:
    """An open workspace with its loop, its generation service and its webhooks."""

    def __init__(
        self,
        workspace: Path,
        config: Config,
        layers: Layers = Layers(),
        *,
        allow_private_webhooks: bool = False,
    ) -> None:
        """`layers` are the files and assignments that `config` has on top of config.toml."""
        self.db = Database.open(workspace, create=False)
        self.loop = Loop(self.db, config, layers)
        dispatcher = Dispatcher(self.db, allow_private=allow_private_webhooks)
        self.webhooks = Webhooks(self.db, dispatcher)
        self.generation = Generation(
            config,
            workspace / GENERATION_LOG,
            paths=lambda: generation.model_paths(self.db),
            current=lambda: generation.current_models(self.db),
            running=lambda: generation.running_stage(self.db),
        )
        self._verdicts = model_push.Verdicts(self.loop.gate, self.loop.reports.report)
        self.commands = Commands(self.db)
        self.commands.too_long = lambda: ContextCheck.of(config)
        # Only the operator has the token for these commands, and the operator may edit config.toml.
        self.commands.register("train", self._train)
        self.commands.register("advance", self.advance)
        self.commands.register("resume", self._resume)
        self.commands.register("retry", self._retry)
        self.commands.register("cancel", self._cancel)
        self.commands.register("runs.log", self._log)
        self.commands.register("studies.list", self._studies)
        self.commands.register("studies.get", self._study)
        self.commands.register("studies.cancel", self._cancel_study)
        self.commands.register("studies.continue", self._continue_study)
        self.commands.register("label-more", lambda: self.loop.label_more(self.loop.stopped().id))
        self.commands.register("settings", lambda: [asdict(s) for s in self.loop.settings()])
        self.commands.register("settings.list", self.loop.workspace_settings)
        self.commands.register("settings.save", self._save_settings)
        self.commands.register("gate", self.loop.gate)
        self.commands.register("gate.override", self.loop.override_gate)
        self.commands.register("leaderboard", self.loop.model_board)
        self.commands.register("evidence", self.loop.evidence)
        self.commands.register("reward.report", self.loop.reports.report)
        self.commands.register("reward.retrain", self._plan_retraining)
        self.commands.register("push", self._push)
        self.commands.register("push.plan", self._plan_push)
        self.commands.register("status", self._status)
        self.commands.register("ask", self._ask)
        for name, command in (self.webhooks.commands() | Project(self.db).commands()).items():
            self.commands.register(name, command)

    def call(self, command: str, **arguments: Any) -> Any:
        return self.commands.call(command, arguments)

    def _resume(self, overrides: dict[str, str] | None = None) -> None:
        self.loop.resume(self.loop.stopped().id, overrides)

    def _cancel(self) -> dict[str, str]:
        """Ask the running stage to stop; ValueError if none runs."""
        self.loop.refresh()
        running = [run for run in runs.listing(self.db) if run.status == "running"]
        if not running and (study := self.loop.studies.active()):
            raise ValueError(
                f"no stage is running; `launch.py studies {study.id} --cancel` cancels the study"
            )
        if not running:
            raise ValueError("no stage is running; there is nothing to cancel")
        self.loop.cancel(running[-1].id)
        return {"run": running[-1].id, "stage": runs.name(running[-1])}

    def _log(self, id: str, tail: int = 200) -> dict[str, str]:
        """The last lines of a run's log."""
        return {"log": self.loop.log(id, tail)}

    def _studies(self) -> list[dict[str, Any]]:
        """The studies with their runs, the newest first."""
        self.loop.refresh()
        return [to_json(each) for each in browsing.summaries(self.db)]

    def _study(self, id: str) -> dict[str, Any]:
        """A study with its report."""
        self.loop.refresh()
        found = to_json(browsing.details(self.db, id))
        plot = browsing.report_file(self.db, id, "svg")
        return found | {"plot": str(plot) if plot.exists() else None}

    def _cancel_study(self, id: str) -> dict[str, str]:
        return {"study": self.loop.studies.cancel(id).id}

    def _continue_study(self, id: str) -> dict[str, str]:
        self.loop.refresh()
        return {"study": self.loop.studies.resume(id).id}

    def _plan_retraining(
        self,
        without: list[str],
        only: list[str],
        guidelines: list[str],
        before: str | None = None,
        iteration: int | None = None,
        controls: int = 0,
        name: str = "",
    ) -> dict[str, Any]:
        """Write the inputs of a study that trains a reward model again; returns what it does."""
        self.loop.refresh()
        rule = read_rule(without=without, only=only, guidelines=guidelines, before=before)
        spec = plan_retraining(self.db, rule, iteration=iteration, controls=controls, name=name)
        write_inputs(self.db, spec)
        return asdict(spec)

    def _train(self, overrides: dict[str, str]) -> None:
        self.loop.train(overrides, by_operator=True)

    def _retry(self, overrides: dict[str, str] | None = None) -> None:
        self.loop.retry(self.loop.stopped().id, overrides, by_operator=True)

    def _save_settings(self, changes: dict[str, str]) -> WorkspaceSettings:
        version = self.loop.workspace_settings().version
        return self.loop.save_settings(changes, version, by_operator=True)

    def _plan_push(self, model: str) -> model_push.PushPlan:
        return model_push.plan(self.db, self._verdicts, model)

    def _push(self, model: str, repository: str, private: bool = True) -> model_push.Pushed:
        return model_push.push_model(self.db, self._verdicts, model, repository, private=private)

    def _status(self) -> Status:
        """The workspace's status with the label budget; `trouble` says why the loop cannot continue."""
        try:
            self.loop.refresh()
        except Exception as error:  # the user needs the rest of the status even more then
            self.db.health.loop_error = str(error)
        blocked = self.loop.state().blocked
        stopped = what_stopped(blocked, self.db.workspace) if blocked else None
        trouble = self.db.health.trouble or stopped
        return replace(status(self.db), trouble=trouble, label_budget=self.loop.label_budget())

    def _ask(
        self,
        messages: list[dict[str, str]],
        models: list[str],
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_tokens: int = 256,
        seed: int | None = None,
        send: bool = False,
    ) -> dict[str, Any]:
        """Replies of these models, by default those of the playground; with `send`, the two replies
        are sent to the annotators."""
        playground = Playground(self.db, self.generation)
        chosen = tuple(models) or playground.state().chosen
        if send and len(chosen) != 2:
            raise ValueError("--send needs exactly two models: name them with --model")
        ask = Ask(
            messages=as_messages(messages),
            models=chosen,
            temperature=temperature,
            top_p=top_p,
            max_tokens=max_tokens,
            seed=seed,
        )
        found = asyncio.run(playground.collected(ask, person="operator"))
        sent = None
        if send:
            for reply in found.replies:
                if reply["error"]:
                    raise ValueError(f"{reply['model']}: {reply['error']}")
            probe = playground.send([reply["id"] for reply in found.replies])
            sent = {"id": probe.comparison.id, "learned_from": probe.learned_from}
        return asdict(found) | {"sent": sent}

    def advance(self) -> LoopState:
        """Advance the loop by one step; returns its state."""
        self.loop.advance()
        return self.loop.state()

    def fill_demo(self, config: Config) -> None:
        """Add the demo's prompts to a workspace with the embedded model, once.

        Gold and practice pairs, whose prompts are audit prompts, may have been imported before.
        """
        if config.model.name == "demo" and prompts.counts(self.db).keys() <= {"audit"}:
            shipped = corpus.prompts()
            prompts.add(
                self.db,
                [Prompt.make(m, role=r, category=c, source="demo") for r, m, c in shipped],
            )

    def close(self) -> None:
        self.generation.shut_down()
        self.loop.shut_down()
        self.db.close()


class Remote:
    """A live server that has the workspace open; a context manager."""

    def __init__(self, workspace: Path) -> None:
        server = read_server(workspace)
        self.url = server["url"]
        self.admin = AdminClient(self.url, server["token"])

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *exception: object) -> None:
        self.admin.__exit__(*exception)

    def call(self, command: str, **arguments: Any) -> Any:
        return self.admin(command, arguments)


@contextmanager
def connect(workspace: Path) -> Iterator[Target]:
    """The open workspace, or the server that has it open."""
    try:
        studio = Studio(
            workspace, load_settings(workspace, [], []), allow_private_webhooks=private_webhooks()
        )
    except WorkspaceLocked:
        if not (workspace / SERVER).exists():
            raise
        with Remote(workspace) as server:
            yield server
        return
    try:
        yield studio
    finally:
        studio.close()


@contextmanager
def server_for(
    workspace: Path, files: Sequence[Path], sets: Sequence[str], defaults: Sequence[str] = ()
) -> Iterator[Remote]:
    """The live server of a workspace, or a new server that stops when the context ends.

    A live server keeps its settings: ``ValueError`` if `files` or `sets` differ from them.  The
    settings `defaults` apply only to a new server.
    """
    sets = [*defaults, *sets]
    config = prepare(workspace, None, files, sets)
    try:
        Database.open(workspace).close()
    except WorkspaceLocked:
        with Remote(workspace) as server:
            named = assignments(sets[len(defaults) :]).keys() | {
                s.name for s in Config.load(files).settings() if s.value != s.default
            }
            running = [from_json(SettingView, each) for each in server.call("settings")]
            if other := disagreeing(config, named, running):
                raise ValueError(
                    f"the server that has {workspace} open runs with {', '.join(other)}; change "
                    "them there with `python launch.py settings --set`, stop the server, or leave out "
                    "the settings that differ"
                ) from None
            yield server
        return
    options = [f"--config={file}" for file in files] + [f"--set={item}" for item in sets]
    command = [
        sys.executable,
        str(LAUNCH),
        "serve",
        f"--workspace={workspace}",
        "--port=0",
        *options,
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        while process.poll() is None and not is_up(workspace):
            time.sleep(0.1)
        if process.poll() is not None:
            raise RuntimeError(f"the server did not start (exit status {process.returncode})")
        with Remote(workspace) as server:
            yield server
    finally:
        process.terminate()  # a process that a shell script started with & ignores SIGINT
        process.wait(timeout=30)


def is_up(workspace: Path) -> bool:
    with suppress(FileNotFoundError, ValueError, httpx.TransportError):
        # Any status counts: a server whose disk is full is up and reports the problem.
        httpx.get(f"{read_server(workspace)['url']}/healthz", timeout=2)
        return True
    return False
