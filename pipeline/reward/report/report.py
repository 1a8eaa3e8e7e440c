"""The report on a reward model: figures, learning curve and verdict.  Does not import torch.

The figures are in the reward model's summary.  The learning curve is a study in
``WORKSPACE/reward_curves/MODEL.RUN``; the name includes the run, because after a restore another
run may create a model of the same name.  The database does not record the study.  An interrupted
curve can be continued.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.reward.report.learning_curve import TRAININGS, learning_curve
from pipeline.reward.report.verdict import verdict
from pipeline.runs import process
from pipeline.runs.cancellation import WAS_CANCELLED
from pipeline.runs.repeat import Progress, copy_inputs, prepared, run_to_end
from pipeline.runs.rundir import Job, RunDirectory
from storage.records import HELD_OUT_FILE, TrainedRewardModel, now
from storage.reports import Accuracy, Curve, CurvePoint, Quality, RewardReport, from_json

CURVES = "reward_curves"
OLD = "it was trained before held-out judgments were stored; train again to see how good it is"


class RewardReports:
    """The reports of one workspace's reward models.  Methods may be called from any thread.

    `made()` lists the models, newest first.  `running()` describes the running stage of the loop;
    it is empty if none runs.
    """

    def __init__(
        self,
        workspace: Path,
        made: Callable[[], Sequence[TrainedRewardModel]],
        running: Callable[[], str],
    ) -> None:
        self._workspace = workspace
        self._made = made
        self._running = running
        self._lock = threading.Lock()
        self._children: list[subprocess.Popen[bytes]] = []
        self._known: dict[Path, tuple[Any, Curve]] = {}

    def report(self, model: str | None = None) -> RewardReport:
        """The report on one reward model, by default the newest; ValueError if it is unknown."""
        made = self._made()
        if not made and model is None:
            return RewardReport(models=())
        found = _find(made, model)
        stored, seconds = found.summary.get("quality"), found.summary.get("seconds")
        quality = from_json(Quality, stored) if stored else None
        curve = self._curve(curve_place(self._workspace, found.model, found.directory))
        return RewardReport(
            models=tuple(each.model for each in made),
            model=found.model,
            directory=found.directory,
            quality=quality,
            verdict=verdict(quality, curve.forecast) if quality else None,
            curve=curve,
            curve_seconds=TRAININGS * seconds if seconds else None,
            missing=None if quality else OLD,
        )

    def newest_curve(self) -> Curve | None:
        """The learning curve of the newest reward model; None without a model."""
        made = self._made()
        if not made:
            return None
        return self._curve(curve_place(self._workspace, made[0].model, made[0].directory))

    def start_curve(self, model: str) -> None:
        """Start a worker that trains the curve's missing models; ValueError if it cannot start now."""
        with self._lock:
            if doing := self._running():
                raise ValueError(
                    f"A stage is running ({doing}), and the learning curve would slow it down. "
                    "Wait until the stage has finished."
                )
            found = _find(self._made(), model)
            directory, job, fill = curve_job(self._workspace, found.model, found.directory)
            if directory.is_running():
                raise ValueError("The learning curve is already being computed.")
            directory.path.mkdir(parents=True, exist_ok=True)
            with directory.hold_lock() as lock:
                if prepared(directory, job, fill=fill):
                    self._children.append(process.spawn(directory, lock.fileno()))

    def cancel_curve(self, model: str) -> None:
        """Stop the worker; trained models are kept, and `start_curve` continues."""
        found = _find(self._made(), model)
        directory = curve_place(self._workspace, found.model, found.directory)
        if not directory.is_running():
            raise ValueError("No learning curve is being computed.")
        if not (directory.path / "pid").exists():
            raise ValueError("A command in a terminal computes the learning curve; stop it there.")
        process.cancel(directory, now())

    def shut_down(self) -> None:
        """Release running workers without stopping them."""
        process.release(self._children)

    def _curve(self, directory: RunDirectory) -> Curve:
        """The curve so far, computed again if there are new files: pages ask every few seconds."""
        self._children = [child for child in self._children if child.poll() is None]
        outputs = directory.outputs
        key = tuple(sorted((p.name, p.stat().st_mtime_ns) for p in outputs.glob("*.parquet")))
        if self._known.get(outputs, (None,))[0] != key:
            self._known[outputs] = (key, learning_curve(outputs))
        return _with_state(self._known[outputs][1], directory)


def _find(made: Sequence[TrainedRewardModel], model: str | None) -> TrainedRewardModel:
    for each in made:
        if model in (None, each.model):
            return each
    if not made:
        raise ValueError("there is no reward model yet; train once (`launch.py iterate`) first")
    names = ", ".join(each.model for each in made)
    raise ValueError(f"there is no reward model {model}; there are: {names}")


def _with_state(curve: Curve, directory: RunDirectory) -> Curve:
    """The curve with the state of its worker."""
    if not (directory.path / "job.json").exists():
        return curve
    events = [*directory.progress_events()]
    done = events[-1]["done"] / events[-1]["total"] if events else 0.0
    if directory.is_running():
        process.kill_if_late(directory, now())
        begun = events and events[-1]["attempt"] == directory.job().attempt
        return replace(
            curve,
            state="running" if directory.cancel_requested_at() is None else "cancelling",
            progress=done,
            message=events[-1]["message"] if begun else "starting the worker",
        )
    if directory.result() is not None:
        return replace(curve, state="done", progress=1.0)
    error, asked = directory.error(), directory.cancel_requested_at() is not None
    if error == WAS_CANCELLED or (asked and error is None):
        return replace(curve, state="stopped", progress=done)
    return replace(curve, state="failed", progress=done, reason=directory.failure())


def curve_place(workspace: Path, model: str, directory: str | None) -> RunDirectory:
    """The run directory of the learning curve of `model`, which the run in `directory` trained."""
    run = [Path(directory).name] if directory else []
    return RunDirectory(workspace / CURVES / ".".join([model, *run]))


def curve_job(
    workspace: Path, model: str, directory: str | None
) -> tuple[RunDirectory, Job, Callable[[Path], None]]:
    """The run directory of a model's curve, its job, and the function that writes its inputs.

    The job has the settings that the model was trained with.  Raises ValueError if its run, in
    `directory`, cannot be repeated.
    """
    source = RunDirectory(workspace / (directory or ""))
    table = source.outputs / HELD_OUT_FILE
    if not directory or not table.exists():
        raise ValueError(f"{model} cannot be trained again on fewer labels: {OLD}")
    job = replace(source.job(), run=f"curve-{model}", stage="curve", attempt=1, resume=False)

    def fill(inputs: Path) -> None:
        copy_inputs(source, "judgments.parquet")(inputs)
        # Edits are there with reward.learn_from_edits; gold pairs not in runs of earlier versions.
        given = [
            name for name in ("edits.parquet", "gold.parquet") if (source.inputs / name).exists()
        ]
        if given:
            copy_inputs(source, *given)(inputs)
        (inputs / HELD_OUT_FILE).write_bytes(table.read_bytes())

    return curve_place(workspace, model, directory), job, fill


def make_curve(workspace: Path, report: RewardReport, progress: Progress) -> None:
    """Train the missing models of the curve in this process group, and wait for them.

    Raises ValueError if there is no reward model or another process trains them.
    """
    if report.model is None:
        raise ValueError("there is no reward model yet; train once (`launch.py iterate`)")
    directory, job, fill = curve_job(workspace, report.model, report.directory)
    if directory.is_running():
        raise ValueError(
            f"the studio or another command already computes the learning curve of {report.model}; "
            "`launch.py reward report` shows its points as they appear"
        )
    run_to_end(directory.path, job, fill=fill, progress=progress)


_MARKS = {"ppo": "+", "best_of_n": "~", "labeling": "-"}
_GROUPS = {
    "unanimous": "people agree",
    "split": "people disagree",
    "single": "judged by one person",
}


def format_report(report: RewardReport) -> str:
    """The report as text for a terminal."""
    if report.model is None:
        return "There is no reward model yet."
    quality = report.quality
    if quality is None or report.verdict is None:
        return f"{report.model}: {report.missing}"
    lines = [
        f"{report.model}: {report.verdict.verdict}",
        *(
            f"  {_MARKS[each.allows] if each.known else '?'} {each.says}"
            for each in report.verdict.checks
        ),
    ]
    if quality.log_loss is not None:
        lines.append(
            f"\nlog-loss {quality.log_loss:.3f} nats per judgment; chance at the tie rate: "
            f"{quality.coin_log_loss:.3f}"
        )
    if quality.calibration:
        lines += [
            "",
            f"{'':<30} {'accuracy':<22} judgments",
            *(_row(f"|d| from {row.start:.2f} to {row.end:.2f}", row) for row in quality.by_margin),
            *(_row(_GROUPS[row.group], row) for row in quality.by_agreement),
            f"\n{'stated probability':<30} {'was right':<22} judgments",
            *(_row(f"{row.stated:.0%}", row) for row in quality.calibration.bins),
        ]
    curve = report.curve or Curve()
    if curve.points:
        lines.append(f"\n{'labels':<30} {'accuracy':<22} judgments")
        lines += [_row(f"{each.labels:.0f} ({each.share:.0%})", each) for each in curve.points]
    elif curve.state == "none":
        lines.append("\nno learning curve yet: --curve computes one")
    return "\n".join(lines)


def _row(name: str, row: Accuracy | CurvePoint) -> str:
    share = f"{row.accuracy:.0%} ({row.low:.0%} to {row.high:.0%})"
    return f"{name:<30} {share:<22} {row.judgments}"
