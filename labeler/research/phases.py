"""Names of phases, stages and their states on the pages."""

from __future__ import annotations

import re
from collections.abc import Mapping

from labeler.html import components
from labeler.html.components import Markup
from storage.records import Phase, Run
from storage.tables.runs import runs

PHASES: tuple[tuple[Phase, str], ...] = (
    ("sampling", "Sample"),
    ("labeling", "Label"),
    ("reward", "Reward model"),
    ("policy", "Policy"),
    ("evaluating", "Evaluate"),
    ("done", "Done"),
)


STAGE_LABELS = {
    "sft": "Supervised fine-tuning",
    "sampling": "Sampling",
    "reward": "Reward model",
    "policy": "Policy",
    "evaluate": "Evaluation",
}


_OPENINGS = {
    "sft": "The SFT stage",
    "sampling": "The sampling stage",
    "reward": "The reward stage",
    "policy": "The policy stage",
    "evaluate": "The evaluation stage",
    "evaluating": "The evaluation stage",
}


def opening(stage_or_phase: str) -> str:
    """``The policy stage``, for a stage or for the phase of that stage, at the start of a sentence."""
    return _OPENINGS[stage_or_phase]


def phase_title(phase: Phase) -> str:
    """The name of a phase."""
    return dict(PHASES)[phase]


def capitalized(method: str) -> str:
    """A method's name at the start of a label: ``Best-of-N``."""
    return method[:1].upper() + method[1:]


def run_title(run: Run) -> str:
    """The stage of a run; for the policy stage its method."""
    return capitalized(runs.name(run)) if run.stage == "policy" else STAGE_LABELS[run.stage]


SEE_LOG = "The Runs page shows its log."


STATUS_TONES: Mapping[str, components.Tone] = {
    "running": "info",
    "succeeded": "good",
    "failed": "bad",
    "cancelled": "warn",
}


def has_stopped(run: Run | None) -> bool:
    """Whether a run failed or was cancelled, so that a researcher must resume or retry it."""
    return run is not None and run.status in ("failed", "cancelled")


def stopping(run: Run) -> str:
    """The state of a run that is being cancelled; its message says how long the studio waits."""
    return f"Cancelling: {run.message}"


def nothing_new(new_labels: int | None) -> Markup:
    """A warning if an iteration trains on the same judgments as an earlier one."""
    if new_labels != 0:
        return Markup("")
    return components.note(
        "warn",
        "There are no new labels since the last training.",
        "The reward model learns from the same judgments as before.",
    )


def reading_name(flag: str) -> str:
    """``kl_high`` → ``KL high``."""
    words = flag.replace("_", " ").strip()
    return re.sub(r"\bkl\b", "KL", words[:1].upper() + words[1:], flags=re.IGNORECASE)
