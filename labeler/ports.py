"""What the pages may ask of the training pipeline: a protocol, so that neither imports the other.

The composition root hands `app.create_app` an object that fulfils `Loop`.  Every error meant
for a person is a ``ValueError`` whose message is one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from storage.gate_report import GateReport, Standing
from storage.reports import RewardReport, SettingView, Stopped


class RewardReports(Protocol):
    """How good each reward model is."""

    def report(self, model: str | None = None) -> RewardReport:
        """The report on one reward model, by default the newest."""
        ...

    def start_curve(self, model: str) -> None:
        """Make a reward model's learning curve, or go on with it; ``ValueError`` at a bad moment."""
        ...

    def cancel_curve(self, model: str) -> None:
        """Stop making it; what is done is kept."""
        ...


class Loop(Protocol):
    """The pipeline as seen from the researcher's page."""

    @property
    def reports(self) -> RewardReports:
        """Reports on reward models."""
        ...

    def settings(self) -> list[SettingView]:
        """Every setting with its current value, in the order to show them."""
        ...

    def can_train(self) -> str | None:
        """None when training may start now, else the sentence that says why not."""
        ...

    def train(self, overrides: dict[str, str]) -> None:
        """Start training on the labels so far; ``ValueError`` on a bad override or a bad moment."""
        ...

    def cancel(self, run: str) -> None:
        """Stop a running stage and everything it started."""
        ...

    def resume(self, run: str) -> None:
        """Continue a stopped or failed stage from its last checkpoint."""
        ...

    def retry(self, run: str, overrides: Mapping[str, str] | None = None) -> None:
        """Run a stopped or failed stage again from scratch, with `overrides`; ``ValueError`` as for `train`."""
        ...

    def label_more(self, run: str) -> None:
        """Leave a stopped reward stage for labeling."""
        ...

    def stopped_stage(self) -> Stopped | None:
        """The stage that keeps the loop from going on; None where none does."""
        ...

    def log(self, run: str, tail: int = 200) -> str:
        """The last `tail` lines of the stage's log."""
        ...

    def gate(self) -> GateReport:
        """The verdict on each policy, and the leaderboard."""
        ...

    def override_gate(
        self, ruling: str, reason: str, *, policy: str | None = None, researcher: str = ""
    ) -> Standing:
        """Rule promote, block or evidence on a policy; ``ValueError`` without a reason."""
        ...

    def metric_help(self) -> dict[str, str]:
        """Metric name → its definition in one sentence."""
        ...
