"""Studies: sweeps over KL weights, comparisons of methods at equal KL, and reward models that are
trained again without some judgments."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kitestring.client.connection import Connection, part, route
from kitestring.client.records import StudyDetails, StudyOffer, StudySummary
from kitestring.client.rows import Rows, parsed

STUDIES = "/research/api/studies"


class Studies:
    """``studio.studies``: runs that repeat the newest PPO run outside the loop."""

    def __init__(self, at: Connection) -> None:
        self._at = at

    @route("GET", STUDIES)
    def list(self) -> Rows[StudySummary]:
        """All studies with their runs, the newest first."""
        return Rows.of(StudySummary, self._at.get(STUDIES)["studies"])

    def offer(self) -> StudyOffer:
        """What a new study would repeat; `reason` says why none can start."""
        return parsed(StudyOffer, self._at.get(STUDIES)["offer"])

    @route("POST", STUDIES)
    def start(
        self,
        kind: str,
        name: str,
        *,
        kl_weight: Sequence[float] = (),
        kl_budget: float = 5,
        methods: Sequence[str] = (),
        kl: float = 2,
        snapshots: int = 5,
        without: Sequence[str] = (),
        only: Sequence[str] = (),
        guidelines: Sequence[str] = (),
        before: str | None = None,
        iteration: int | None = None,
        controls: int = 0,
        settings: Mapping[str, Any] | None = None,
    ) -> StudyDetails:
        """Start a sweep over `kl_weight`, a comparison (compare) of `methods`, or train the reward model
        of an `iteration`, by default the newest, again (retrain).

        The reward model learns `without` these annotators, from judgments by the kinds `only`, under
        these versions of the `guidelines`, and `before` a date in ISO 8601; `controls` are models
        without as many random judgments.
        With the name and values of an earlier study, that one continues.
        """
        body = {
            "kind": kind,
            "name": name,
            "kl_weight": [*kl_weight],
            "kl_budget": kl_budget,
            "methods": [*methods],
            "kl": kl,
            "snapshots": snapshots,
            "without": [*without],
            "only": [*only],
            "guidelines": [*guidelines],
            "before": before,
            "iteration": iteration,
            "controls": controls,
            "settings": {key: str(value) for key, value in (settings or {}).items()},
        }
        return parsed(StudyDetails, self._at.post(STUDIES, body))

    @route("GET", f"{STUDIES}/{{id}}")
    def get(self, id: str) -> StudyDetails:
        """A study as it is now, with its report if it is finished."""
        return parsed(StudyDetails, self._at.get(f"{STUDIES}/{part(id)}"))

    @route("GET", f"{STUDIES}/{{id}}/plot")
    def plot(self, id: str, out: str | Path) -> Path:
        """Write the plot of a finished study to a file, as SVG."""
        return self._at.download(f"{STUDIES}/{part(id)}/plot", Path(out))

    @route("POST", f"{STUDIES}/{{id}}/cancel")
    def cancel(self, id: str) -> StudyDetails:
        """Stop a study after the current step of its worker."""
        return parsed(StudyDetails, self._at.post(f"{STUDIES}/{part(id)}/cancel"))

    @route("POST", f"{STUDIES}/{{id}}/continue")
    def resume(self, id: str) -> StudyDetails:
        """Continue a study that failed or was cancelled; finished runs are not repeated."""
        return parsed(StudyDetails, self._at.post(f"{STUDIES}/{part(id)}/continue"))

    def wait(self, study: StudySummary | str) -> StudyDetails:
        """The study when it no longer runs; its `status` says how it ended."""
        id = study if isinstance(study, str) else study.id
        while (found := self.get(id)).status == "running":
            time.sleep(1)
        return found
