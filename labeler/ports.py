"""What the pages may ask of the training pipeline: a protocol, so that neither imports the other.

The composition root hands `app.create_app` an object that fulfils `Loop`.  Every error meant
for a person is a ``ValueError`` whose message is one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from storage.gate_report import GateReport, Standing
from storage.records import Stage

SettingKind = Literal["int", "float", "str", "bool"]
SettingValue = int | float | str | bool


@dataclass(frozen=True, kw_only=True)
class SettingView:
    """One setting of the pipeline as the "Train" form shows it.

    `name` is the dotted key (``ppo.kl_weight``), `value` what holds now, `default` what the
    project ships.  `choices` lists the permitted values of a closed setting, else None.
    `basic` settings stand in the form; the others under "All settings".  `why_fixed` is None
    where training reads it; else the form shows it with this reason and lets nobody change it.
    `offered` is False where a stage that stopped would not read it if it is tried again.
    """

    name: str
    value: SettingValue
    default: SettingValue
    help: str
    choices: Sequence[str] | None = None
    kind: SettingKind = "str"
    basic: bool = False
    why_fixed: str | None = None
    offered: bool = True


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """A stage that failed or was cancelled, and what helps.

    `method` is what improves the policy.  `resumable`: there is a checkpoint to go on from.  `may_label`: labeling can go on in its place.
    `flag` is the worst red flag that it raised and `remedy` what that says to try first (empty
    without one), `suggestion` the same as settings.
    """

    run: str
    attempt: int
    stage: Stage
    status: str
    reason: str
    resumable: bool
    may_label: bool
    method: str = "ppo"
    flag: str = ""
    remedy: str = ""
    suggestion: Mapping[str, str] = field(default_factory=dict)


class RewardReports(Protocol):
    """How good each reward model is."""

    def report(self, model: str | None = None) -> dict[str, Any]:
        """Of one reward model, of the newest where none is named.  Plain values.

        ``models``: all, the newest first; ``model``: the one, or None where there is none.
        ``quality``: figures of its held-out judgments, or None where ``missing`` says why.
        ``verdict``: the ``verdict`` and its ``checks``, each with what it ``allows`` (ppo, best_of_n
        or labeling), what it ``says`` and whether anything is ``known``.  ``curve``: ``state`` (none, running, cancelling, stopped, failed or
        done), ``progress`` from 0 to 1, ``message``, ``reason``, ``points``, ``lines`` and ``forecast``.
        """
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
