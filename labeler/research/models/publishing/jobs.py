"""Pushes of models to the hub that researchers start: threads with their progress."""

from __future__ import annotations

import contextvars
import threading
import traceback
from collections import OrderedDict
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from labeler.html.components import sentence
from storage.control import Control, ImportCancelled
from storage.engine.database import Database
from storage.errors import Conflict, NotFound, StorageUnavailable
from storage.exporting.model_push import (
    Pushed,
    check_repository,
    hub_token,
    plan,
    push_model,
    pushable,
)
from storage.records import new_id

Phase = Literal["waiting", "uploading", "committing", "done", "failed", "cancelled"]
_KEPT = 20


@dataclass
class Push:
    """A push; `result` if it succeeded, `error` if it did not."""

    id: str
    model: str
    repository: str
    private: bool
    control: Control = field(default_factory=Control)
    phase: Phase = "waiting"
    result: Pushed | None = None
    error: str = ""

    @property
    def over(self) -> bool:
        return self.phase in ("done", "failed", "cancelled")

    def view(self) -> dict[str, Any]:
        """The push as JSON values."""
        committing = self.control.total is not None and not self.over
        return {
            "id": self.id, "model": self.model, "repository": self.repository, "private": self.private,
            "phase": "committing" if committing else self.phase, "sent": self.control.sent,
            "bytes": self.control.of_bytes, "error": self.error or None,
            "url": self.result.url if self.result else None,
        }  # fmt: skip


class Pushes:
    """The pushes of a server; they run one at a time, and the last `_KEPT` are remembered."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._jobs: OrderedDict[str, Push] = OrderedDict()
        self._lock = threading.Lock()
        self._turn = threading.Lock()

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
        return asdict(plan(self._db, model))

    def start(self, model: str, repository: str, *, private: bool) -> Push:
        """Start a push; ValueError if it cannot start, Conflict while the same model is pushed."""
        check_repository(repository)
        hub_token(self._db.workspace)
        plan(self._db, model)
        job = Push(new_id(), model, repository, private)
        with self._lock:
            if any(not each.over and each.model == model for each in self._jobs.values()):
                raise Conflict(f"{model} is being pushed already")
            self._jobs[job.id] = job
            for old in [each for each in self._jobs.values() if each.over][: -(_KEPT - 1) or None]:
                del self._jobs[old.id]
        run = contextvars.copy_context().run  # the audit log notes the person
        threading.Thread(target=run, args=(self._run, job), daemon=True).start()
        return job

    def get(self, id: str) -> Push:
        """A push; NotFound if it is unknown."""
        with self._lock:
            job = self._jobs.get(id)
        if job is None:
            raise NotFound("this push is not known; the server was restarted, or it is long ago")
        return job

    def cancel(self, id: str) -> Push:
        """Cancel a push; Conflict if its files are being committed."""
        job = self.get(id)
        if not job.over and not job.control.cancel():
            raise Conflict("the files are being committed, so the push can't be cancelled any more")
        return job

    def _run(self, job: Push) -> None:
        try:
            while not self._turn.acquire(timeout=0.2):
                job.control.require_wanted()
            try:
                job.phase = "uploading"
                job.result = push_model(
                    self._db, job.model, job.repository, private=job.private, control=job.control
                )
                job.phase = "done"
            finally:
                self._turn.release()
        except ImportCancelled:
            job.phase = "cancelled"
        except (ValueError, LookupError, OSError, StorageUnavailable) as error:
            job.error, job.phase = sentence(str(error)), "failed"
        except Exception:
            traceback.print_exc()
            job.error = "The push failed. The server's log has the details."
            job.phase = "failed"
