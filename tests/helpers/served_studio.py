"""A whole studio behind the real server, with its loop and its webhooks, as `serve` starts it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from fastapi import FastAPI

from commands.serve import advance_periodically
from commands.studio import Studio
from labeler.app import create_app
from labeler.ports import Generation
from pipeline.config.sections import Config
from storage.engine.database import Database
from storage.labeling import judgments, queue
from storage.records import AnnotatorRole, Prompt, new_id
from storage.tables import prompts
from storage.tables.people import annotators, tokens
from tests.helpers.desk_world import ADMIN_TOKEN, add_person, serving
from tests.helpers.recording_loop import in_a_loop
from tests.helpers.tiny import save_tiny

TINY = {
    "labeling.labels": "12", "sampling.max_new_tokens": "8", "reward.batch": "8",
    "reward.held_out_share": "0.3", "ppo.updates": "3", "ppo.rollouts": "8", "ppo.minibatch": "4",
    "ppo.epochs": "1", "ppo.max_new_tokens": "8", "ppo.checkpoint_every": "1",
    "evaluate.prompts": "4", "evaluate.max_new_tokens": "8", "worker.threads": "1",
    "worker.nice": "0",
}  # fmt: skip
"""Settings with which an iteration takes seconds."""


@dataclass(frozen=True)
class ServedStudio:
    """The studio and its address."""

    studio: Studio
    url: str
    app: FastAPI

    @property
    def db(self) -> Database:
        return self.studio.db

    def token(self, name: str, role: AnnotatorRole = "researcher") -> str:
        """An API token of this person, whose account is made if there is none."""
        who = annotators.by_name(self.db, name) or add_person(self.db, name, role)
        return tokens.issue(self.db, who.id, "api", lifetime=None)


@contextmanager
def served_studio(
    workspace: Path,
    *,
    settings: Mapping[str, str] | None = None,
    generation: Generation | None = None,
    looping: bool = False,
) -> Iterator[ServedStudio]:
    """The studio of an existing workspace; with `looping`, its loop runs the stages that are due."""
    config = Config().override(dict(settings or {}))
    studio = Studio(workspace, config, allow_private_webhooks=True)
    stop = threading.Event()
    timer = threading.Thread(target=advance_periodically, args=(studio, stop), daemon=True)
    try:
        app = in_a_loop(
            lambda: create_app(
                studio.db,
                loop=cast("Any", studio.loop),
                generation=generation,
                webhooks=studio.webhooks,
                admin=studio.commands.call,
                admin_token=ADMIN_TOKEN,
                accounts_required=False,
            )
        )
        with serving(app) as server, studio.webhooks.dispatcher:
            if looping:
                timer.start()
            yield ServedStudio(studio, server.url, app)
    finally:
        stop.set()
        if timer.is_alive():
            timer.join()
        studio.close()


@contextmanager
def tiny_study(folder: Path) -> Iterator[ServedStudio]:
    """A studio with prompts, whose loop trains a model that is small enough for a test."""
    model, workspace = save_tiny(folder / "model"), folder / "study"
    with Database.open(workspace) as db:
        train = [Prompt.make(f"What is {i} + {i}?", role="train") for i in range(20)]
        held_out = [Prompt.make(f"What is {i} - 1?", role="held-out") for i in range(4)]
        prompts.add(db, train + held_out)
    settings = TINY | {"model.name": str(model)}
    with served_studio(workspace, settings=settings, looping=True) as served:
        yield served


def label(served: ServedStudio, name: str = "Lena") -> int:
    """A person who prefers the longer response judges all pairs."""
    who = (annotators.by_name(served.db, name) or add_person(served.db, name)).id
    count = 0
    while pairs := queue.lease(served.db, who, 4).pairs:
        for pair in pairs:
            outcome = "a" if len(pair.left) > len(pair.right) else "b"
            judgments.judge(
                served.db,
                id=new_id(),
                comparison=pair.comparison.id,
                annotator=who,
                outcome=outcome,
            )
            count += 1
    return count
