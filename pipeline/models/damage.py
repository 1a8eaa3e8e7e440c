"""What a resume says about damaged checkpoints.

A module of its own: `hf_trainer` imports the `Trainer` of transformers, which takes a second.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.ppo.checkpoint import DamagedCheckpoint
from pipeline.runs.rundir import Report


def report_damage(
    report: Report, damaged: Sequence[DamagedCheckpoint], *, used: str, step: int
) -> None:
    """Warn, in the events and the log, that a resume skipped damaged checkpoints."""
    for error in damaged:
        name = error.path.name
        message = (
            f"the checkpoint {name} is damaged ({error.reason}), so the stage resumes from {used}"
        )
        report.note("warning", "damaged_checkpoint", message, step=step, damaged=name, used=used)
        report.log(message)
