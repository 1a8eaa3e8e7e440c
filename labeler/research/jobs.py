"""Work that researchers start and watch, in threads: one job at a time, with progress and cancel."""

from __future__ import annotations

import contextvars
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from labeler.html.components import sentence
from labeler.research.interrupted import AGAIN, Started
from storage.control import Control, ImportCancelled
from storage.errors import Conflict, NotFound, StorageUnavailable
from storage.records import new_id

KEPT = 20
"""Jobs that are remembered."""


@dataclass(kw_only=True)
class Job:
    """A job; `error` says why it failed.

    `phase` is "waiting", then what the work sets, then "done", "failed" or "cancelled".
    """

    id: str = field(default_factory=new_id)
    control: Control = field(default_factory=Control)
    phase: str = "waiting"
    error: str = ""

    @property
    def over(self) -> bool:
        return self.phase in ("done", "failed", "cancelled")

    @property
    def what(self) -> str:
        """What the job works on, to name it after a restart; "" if that does not matter."""
        return ""


J = TypeVar("J", bound=Job)


class Jobs(Generic[J]):
    """The jobs of a server; they run one at a time, and the last `KEPT` are remembered.

    `name` is what a job is called; `too_late` says why a job that stores can't be cancelled.
    `workspace` keeps which jobs are running.
    """

    def __init__(self, name: str, *, too_late: str, workspace: Path) -> None:
        self._name = name
        self._started = Started(workspace, name)
        self._too_late = too_late
        self._jobs: OrderedDict[str, J] = OrderedDict()
        self._lock = threading.Lock()
        self._turn = threading.Lock()

    def start(self, job: J, work: Callable[[J], None], admit: Callable[[Sequence[J]], None]) -> J:
        """Start `work` for the person for whom this code runs.

        `admit` gets the jobs that are not over, and raises to refuse this one.
        """
        with self._lock:
            admit([each for each in self._jobs.values() if not each.over])
            self._jobs[job.id] = job
            if job.what:
                self._started.begin(job.id, job.what)
            for old in [each for each in self._jobs.values() if each.over][: -(KEPT - 1) or None]:
                del self._jobs[old.id]
        run = contextvars.copy_context().run  # the audit log notes the person
        threading.Thread(target=run, args=(self._run, job, work), daemon=True).start()
        return job

    def get(self, id: str) -> J:
        """A job; NotFound if it is unknown."""
        with self._lock:
            job = self._jobs.get(id)
        if job is None:
            what = self._started.interrupted().get(id)
            raise NotFound(
                f"{self._started.sentence(what)} {AGAIN[self._name]}"
                if what
                else f"this {self._name} is not known; the server was restarted, or it is long ago"
            )
        return job

    def cancel(self, id: str) -> J:
        """Cancel a job; Conflict if it is storing and will be completed."""
        job = self.get(id)
        if not job.over and not job.control.cancel():
            raise Conflict(f"{self._too_late}, so the {self._name} can't be cancelled any more")
        return job

    def _run(self, job: J, work: Callable[[J], None]) -> None:
        try:
            while not self._turn.acquire(timeout=0.2):
                job.control.require_wanted()
            try:
                job.control.require_wanted()
                work(job)
                job.phase = "done"
            finally:
                self._turn.release()
        except ImportCancelled:
            job.phase = "cancelled"
        except (ValueError, LookupError, OSError, StorageUnavailable) as error:
            self._failed(job, str(error))
        except Exception:
            traceback.print_exc()
            self._failed(job, f"the {self._name} failed; the server's log has the details")
        finally:
            if job.what:
                self._started.end(job.id)

    def _failed(self, job: J, reason: str) -> None:
        # The phase last: whoever sees it reads the error.
        job.error = sentence(reason)
        job.phase = "failed"
