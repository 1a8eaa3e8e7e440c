"""Names of phases, stages and their states on the pages."""

from __future__ import annotations

import re
from collections.abc import Mapping

from labeler.html import components
from labeler.html.components import Markup
from storage.records import Phase, Run
from storage.reports import Stopped
from storage.tables import runs

PHASES: tuple[tuple[Phase, str], ...] = (
    ("sampling", "Sample"),
    ("labeling", "Label"),
    ("reward", "Reward model"),
    ("policy", "Policy"),
    ("evaluating", "Evaluate"),
    ("done", "Done"),
)


STAGES = {
    "sft": "Supervised fine-tuning",
    "sampling": "Sampling",
    "reward": "Reward model",
    "policy": "Policy",
    "evaluate": "Evaluation",
}


def stage_title(run: Run) -> str:
    """The name of a run's stage; the method's name for the policy stage."""
    return runs.name(run) if run.stage == "policy" else STAGES[run.stage]


def stopped_title(stopped: Stopped) -> str:
    """As `stage_title`, of a stopped stage."""
    if stopped.stage != "policy":
        return STAGES[stopped.stage]
    return runs.METHODS.get(stopped.method, stopped.method)


def phase_title(phase: Phase, method: str) -> str:
    """The name of a phase; that of the policy phase is the name of `method`."""
    return runs.METHODS.get(method, method) if phase == "policy" else dict(PHASES)[phase]


SEE_LOG = "The Training tab shows its log."


STATUS_TONES: Mapping[str, components.Tone] = {
    "running": "info",
    "succeeded": "good",
    "failed": "bad",
    "cancelled": "warn",
}


def has_stopped(run: Run | None) -> bool:
    """Whether a run failed or was cancelled, so that somebody must resume or retry it."""
    return run is not None and run.status in ("failed", "cancelled")


def stopping(run: Run) -> str:
    """What a run that is being cancelled does, and how long the studio waits for it."""
    return f"Cancelling: {run.message}"


def nothing_new(new_labels: int | None) -> Markup:
    """A warning if an iteration trains on the same judgments as an earlier one."""
    if new_labels != 0:
        return Markup("")
    return components.note(
        "warn", "There are no new labels since the last training: the reward model learns the same."
    )


def reading_name(flag: str) -> str:
    """``kl_high`` → ``KL high``."""
    words = flag.replace("_", " ").strip()
    return re.sub(r"\bkl\b", "KL", words[:1].upper() + words[1:], flags=re.IGNORECASE)
