"""Pushes of models to the hub that researchers start: threads with their progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from labeler.html.components import sentence
from labeler.research.jobs import Job, Jobs
from storage.engine.database import Database
from storage.errors import Conflict
from storage.exporting.hub_calls import check_repository
from storage.exporting.model_push import (
    Pushed,
    Verdicts,
    hub_token,
    plan,
    push_model,
    pushable,
)


@dataclass(kw_only=True)
class Push(Job):
    """A push of a model; `result` if it succeeded."""

    model: str
    repository: str
    private: bool
    result: Pushed | None = None

    @property
    def what(self) -> str:
        return f"{self.model} to {self.repository}"

    def view(self) -> dict[str, Any]:
        """The push as JSON values."""
        committing = self.control.total is not None and not self.over
        return {
            "id": self.id, "model": self.model, "repository": self.repository, "private": self.private,
            "phase": "committing" if committing else self.phase, "sent": self.control.sent,
            "bytes": self.control.of_bytes, "error": self.error or None,
            "url": self.result.url if self.result else None,
        }  # fmt: skip


class Pushes(Jobs[Push]):
    """The pushes of a server."""

    def __init__(self, db: Database, verdicts: Verdicts) -> None:
        super().__init__("push", too_late="the files are being committed", workspace=db.workspace)
        self._db = db
        self._verdicts = verdicts

    def models(self) -> dict[str, Any]:
        """The models that can be pushed, and why none can be if there is no token."""
        try:
            hub_token(self._db.workspace)
            reason = None
        except (ValueError, OSError) as error:
            reason = sentence(str(error))
        found = [
            {"id": m.id, "name": m.name, "role": m.role, "iteration": m.iteration}
            for m in pushable(self._db)
        ]
        return {"models": found, "reason": reason}

    def plan(self, model: str) -> dict[str, Any]:
        """The files and the card of a push."""
        return asdict(plan(self._db, self._verdicts, model))

    def begin(self, model: str, repository: str, *, private: bool) -> Push:
        """Start a push; ValueError if it cannot start, Conflict while the same model is pushed."""
        check_repository(repository)
        hub_token(self._db.workspace)
        model = plan(
            self._db, self._verdicts, model
        ).model  # the id: a name would pass the check below

        def admit(waiting: Sequence[Push]) -> None:
            if any(each.model == model for each in waiting):
                raise Conflict(f"{model} is being pushed already")
            # The hub does not tell cases apart; the files of two models would mix.
            for each in waiting:
                if each.repository.lower() == repository.lower():
                    raise Conflict(
                        f"{each.model} is being pushed to {repository}; wait for it, or name another "
                        "repository"
                    )

        push = Push(model=model, repository=repository, private=private)
        return self.start(push, self._push, admit)

    def _push(self, job: Push) -> None:
        job.phase = "uploading"
        job.result = push_model(
            self._db,
            self._verdicts,
            job.model,
            job.repository,
            private=job.private,
            control=job.control,
        )
