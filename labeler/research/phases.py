"""What phases, stages and their states are called on the pages."""

from __future__ import annotations

import re
from collections.abc import Mapping

from labeler.html import components
from labeler.html.components import Markup
from labeler.ports import Stopped
from storage.records import Phase, Run
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
    """What a run's stage is called on the pages; by its method where it improves the policy."""
    return runs.name(run) if run.stage == "policy" else STAGES[run.stage]


def stopped_title(stopped: Stopped) -> str:
    """The same of a stage that stopped."""
    if stopped.stage != "policy":
        return STAGES[stopped.stage]
    return runs.METHODS.get(stopped.method, stopped.method)


def phase_title(phase: Phase, method: str) -> str:
    """What a phase is called on the pages; `method` is what improves the policy."""
    return runs.METHODS.get(method, method) if phase == "policy" else dict(PHASES)[phase]


SEE_LOG = "Its log, under Training, says more."


STATUS_TONES: Mapping[str, components.Tone] = {
    "running": "info",
    "succeeded": "good",
    "failed": "bad",
    "cancelled": "warn",
}


def has_stopped(run: Run | None) -> bool:
    """Whether a run waits for somebody to resume or retry it."""
    return run is not None and run.status in ("failed", "cancelled")


def stopping(run: Run) -> str:
    """What a run does that has been asked to stop, and how long it is waited for."""
    return f"Cancelling: {run.message}"


def nothing_new(new_labels: int | None) -> Markup:
    """A sentence where an iteration trains on what an earlier one trained on; else nothing."""
    if new_labels != 0:
        return Markup("")
    return components.note(
        "warn", "No label is new since the last training: the reward model learns the same again."
    )


def reading_name(flag: str) -> str:
    """``kl_high`` → ``KL high``."""
    words = flag.replace("_", " ").strip()
    return re.sub(r"\bkl\b", "KL", words[:1].upper() + words[1:], flags=re.IGNORECASE)
