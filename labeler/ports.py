"""The protocol through which the pages use the training pipeline: neither imports the other.

`commands/serve.py` passes an implementation to `app.create_app`. A ``ValueError`` has a sentence
that the page shows.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol

from storage.gate_report import GateReport, ModelBoard, Standing
from storage.generation_records import (
    CurrentModels,
    LiveSettings,
    MeasureRequest,
    ReplyEnd,
    ReplyMeasures,
    ReplyRequest,
)
from storage.records import Study, StudyKind
from storage.reports import (
    LabelBudget,
    RewardReport,
    SettingView,
    Stopped,
    StudyOffer,
    WorkspaceSettings,
)


class RewardReports(Protocol):
    """Reports on the quality of reward models."""

    def report(self, model: str | None = None) -> RewardReport:
        """The report on one reward model, by default the newest."""
        ...

    def start_curve(self, model: str) -> None:
        """Start or continue a model's learning curve; ``ValueError`` if it cannot run now."""
        ...

    def cancel_curve(self, model: str) -> None:
        """Stop computing the learning curve; finished models are kept."""
        ...


class Generation(Protocol):
    """Replies of the workspace's models; a ``GenerationRefused`` has a sentence for the page."""

    @property
    def live(self) -> LiveSettings:
        """How live conversations are held."""
        ...

    @property
    def at_once(self) -> int:
        """How many replies one person can ask for at the same time."""
        ...

    def refusal(self) -> str | None:
        """Why no reply can be generated now, in one sentence; None if it can."""
        ...

    def current_models(self) -> CurrentModels:
        """The models that people try now."""
        ...

    async def prepare(self, *models: str) -> None:
        """Load these models, so that the first reply is not delayed."""
        ...

    def stream(self, request: ReplyRequest, *, person: str) -> AsyncGenerator[str | ReplyEnd]:
        """The pieces of a reply's text, then its end; closing it cancels the reply."""
        ...

    async def measure(self, request: MeasureRequest, *, person: str) -> ReplyMeasures:
        """The rewards and tokens of a finished reply."""
        ...


class Studies(Protocol):
    """Studies: sweeps and comparisons of methods, outside the loop."""

    def offer(self) -> StudyOffer:
        """What a study would repeat now, or why none can start."""
        ...

    def start(
        self,
        kind: StudyKind,
        name: str,
        plan: Mapping[str, Any],
        settings: Mapping[str, str],
        *,
        created_by: str = "",
    ) -> Study:
        """Start a study; ``ValueError`` for a wrong value, InvalidSettings for invalid settings,
        Conflict if the name is taken or nothing can start now."""
        ...

    def resume(self, id: str) -> Study:
        """Continue a study that failed or was cancelled; Conflict if it cannot be."""
        ...

    def cancel(self, id: str) -> Study:
        """Ask a running study to stop; Conflict if it does not run."""
        ...


class Loop(Protocol):
    """The pipeline as seen from the researcher's page."""

    @property
    def reports(self) -> RewardReports:
        """Reports on reward models."""
        ...

    @property
    def studies(self) -> Studies:
        """Sweeps and comparisons of methods."""
        ...

    def settings(self) -> list[SettingView]:
        """Every setting with its current value, in display order."""
        ...

    def workspace_settings(self) -> WorkspaceSettings:
        """The settings in the workspace's config.toml."""
        ...

    def save_settings(self, changes: Mapping[str, str], version: str) -> WorkspaceSettings:
        """Change settings in config.toml; `version` is that of the settings that were shown.

        InvalidSettings names every wrong setting; Conflict if the file changed meanwhile.
        """
        ...

    def can_train(self) -> str | None:
        """None if training can start now, else the reason in one sentence."""
        ...

    def train(self, overrides: dict[str, str]) -> None:
        """Start training on the current labels; ``ValueError`` if it cannot start, InvalidSettings for
        invalid overrides."""
        ...

    def cancel(self, run: str) -> None:
        """Stop a running stage and all its processes."""
        ...

    def resume(self, run: str) -> None:
        """Continue a stopped or failed stage from its last checkpoint."""
        ...

    def retry(self, run: str, overrides: Mapping[str, str] | None = None) -> None:
        """Run a stopped or failed stage again from scratch; ``ValueError`` as for `train`."""
        ...

    def label_more(self, run: str) -> None:
        """Leave a stopped reward stage and continue labeling."""
        ...

    def stopped_stage(self) -> Stopped | None:
        """The stopped stage that blocks the loop, if any."""
        ...

    def log(self, run: str, tail: int = 200) -> str:
        """The last `tail` lines of the stage's log."""
        ...

    def gate(self) -> GateReport:
        """The verdict on each policy, and the leaderboard."""
        ...

    def label_budget(self) -> LabelBudget:
        """How many more labels the newest iteration needs."""
        ...

    def model_board(self, anchor: str | None = None, category: str | None = None) -> ModelBoard:
        """The leaderboard of all models in the judgments; slow with many judgments.

        ``ValueError`` for a model or a category without judgments.
        """
        ...

    def override_gate(
        self, ruling: str, reason: str, *, policy: str | None = None, researcher: str = ""
    ) -> Standing:
        """Rule promote, block or evidence on a policy; ``ValueError`` without a reason."""
        ...

    def evidence(self, out: str) -> object:
        """Write an evidence package to this file, which must not exist and must end in .zip."""
        ...

    def metric_help(self) -> dict[str, str]:
        """Metric name → its definition in one sentence."""
        ...
