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
from storage.records import AnnotatorRole
from storage.tables import annotators, tokens
from tests.helpers.desk_world import ADMIN_TOKEN, add_person, serving
from tests.helpers.recording_loop import in_a_loop


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
