"""Is the reward model good enough?  One report: figures, learning curve and verdict.  Loads no torch.

The figures stand in the reward model's summary.  The learning curve is a study of its own in
``WORKSPACE/reward_curves/MODEL.RUN`` (after a restore another run may make a model of the same
name): nothing of the database changes, and what was stopped goes on.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.reward.report import learning_curve
from pipeline.reward.report.verdict import verdict
from pipeline.runs import process
from pipeline.runs.cancellation import WAS_CANCELLED
from pipeline.runs.repeat import Progress, copy_inputs, prepared, run_to_end
from pipeline.runs.rundir import Job, RunDirectory
from storage.records import now

CURVES = "reward_curves"
TABLE = "held_out.parquet"
"""Of the reward stage's outputs: its held-out judgments one by one."""
OLD = "it was trained before its held-out judgments were kept; train again to see how good it is"


class RewardReports:
    """The reports of one workspace's reward models.  Methods may be called from any thread.

    `made()` lists them as `storage.tables.models.reward_models` does; the ``message`` of `state()` says
    what stage of the loop is at work, and nothing where none is.
    """

    def __init__(
        self,
        workspace: Path,
        made: Callable[[], Sequence[Mapping[str, Any]]],
        state: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._workspace = workspace
        self._made = made
        self._state = state
        self._lock = threading.Lock()
        self._children: list[subprocess.Popen[bytes]] = []
        self._known: dict[Path, tuple[Any, dict[str, Any] | None]] = {}

    def report(self, model: str | None = None) -> dict[str, Any]:
        """One reward model's report, the newest's where none is named; plain values.

        ``models`` lists all, the newest first; ``model``, ``quality``, ``verdict`` and ``curve`` are
        of the one, or None where there is none.  ``missing`` says why there are no figures,
        ``curve_seconds`` how long the whole curve will take, by how long the model itself took.
        """
        made = self._made()
        names = [each["model"] for each in made]
        if not made and model is None:
            return {
                "models": [],
                **dict.fromkeys(
                    ("model", "quality", "verdict", "curve", "curve_seconds", "missing")
                ),
            }
        found = self._find(made, model)
        quality = found["summary"].get("quality")
        curve, seconds = self._curve(found), found["summary"].get("seconds")
        return {
            "models": names,
            "model": found["model"],
            "directory": found["directory"],
            "quality": quality,
            "verdict": verdict(quality, curve["forecast"]) if quality else None,
            "curve": curve,
            "curve_seconds": learning_curve.TRAININGS * seconds if seconds else None,
            "missing": None if quality else OLD,
        }

    def start_curve(self, model: str) -> None:
        """Train the curve's models in a worker of its own; ValueError where that cannot be now."""
        with self._lock:
            if doing := self._state()["message"]:
                raise ValueError(
                    f"A stage is running ({doing}), and both would be slow: wait until it has finished."
                )
            found = self._find(self._made(), model)
            directory, job, fill = curve_job(self._workspace, found)
            if directory.is_running():
                raise ValueError("The learning curve is already being computed.")
            directory.path.mkdir(parents=True, exist_ok=True)
            with directory.hold_lock() as lock:
                if prepared(directory, job, fill=fill):
                    self._children.append(process.spawn(directory, lock.fileno()))

    def cancel_curve(self, model: str) -> None:
        """Stop the worker; what it has trained stays, and `start_curve` goes on from there."""
        directory = curve_place(self._workspace, self._find(self._made(), model))
        if not directory.is_running():
            raise ValueError("No learning curve is being computed.")
        if not (directory.path / "pid").exists():
            raise ValueError("A command in a terminal computes the learning curve; stop it there.")
        process.cancel(directory, now())

    def shut_down(self) -> None:
        """Let go of running workers without stopping them."""
        process.let_go(self._children)

    def _find(self, made: Sequence[Mapping[str, Any]], model: str | None) -> Mapping[str, Any]:
        for each in made:
            if model in (None, each["model"]):
                return each
        names = ", ".join(each["model"] for each in made)
        raise ValueError(
            f"there is no reward model {model}; there are: {names}"
            if made
            else "there is no reward model yet; train once (`launch.py iterate`) first"
        )

    def _curve(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """How far the curve is and, once an order is complete, its figures."""
        self._children = [child for child in self._children if child.poll() is None]
        directory = curve_place(self._workspace, found)
        figures = self._figures(directory.outputs) or {
            "points": [], "forecast": None, "lines": None, "orders": 0,
        }  # fmt: skip
        return figures | _state(directory)

    def _figures(self, outputs: Path) -> dict[str, Any] | None:
        """Worked out again when there are new files; pages ask every few seconds."""
        key = tuple(sorted((p.name, p.stat().st_mtime_ns) for p in outputs.glob("*.parquet")))
        if self._known.get(outputs, (None,))[0] != key:
            self._known[outputs] = (key, learning_curve.figures(outputs))
        return self._known[outputs][1]


def _state(directory: RunDirectory) -> dict[str, Any]:
    """``state``: none, running, cancelling, stopped, failed or done; with progress and reason."""
    found: dict[str, Any] = {"state": "none", "progress": 0.0, "message": "", "reason": None}
    if not (directory.path / "job.json").exists():
        return found
    if directory.is_running():
        process.kill_if_late(directory, now())
        cancelling = directory.cancel_asked() is not None
        return found | {"state": "cancelling" if cancelling else "running"} | _progress(directory)
    if directory.result() is not None:
        return found | {"state": "done", "progress": 1.0}
    found |= {"progress": _progress(directory)["progress"]}
    error, asked = directory.error(), directory.cancel_asked() is not None
    if error == WAS_CANCELLED or (asked and error is None):
        return found | {"state": "stopped"}
    return found | {"state": "failed", "reason": directory.failure()}


def _progress(directory: RunDirectory) -> dict[str, Any]:
    told = [e for e in directory.events_after(1, 0) if e["kind"] == "progress"]
    done = told[-1]["done"] / told[-1]["total"] if told else 0.0
    begun = told and told[-1]["attempt"] == directory.job().attempt
    return {"progress": done, "message": told[-1]["message"] if begun else "starting the worker"}


def curve_place(workspace: Path, found: Mapping[str, Any]) -> RunDirectory:
    """The run directory of a reward model's curve: the model's, as this run made it."""
    run = [Path(found["directory"]).name] if found["directory"] else []
    return RunDirectory(workspace / CURVES / ".".join([found["model"], *run]))


def curve_job(
    workspace: Path, found: Mapping[str, Any]
) -> tuple[RunDirectory, Job, Callable[[Path], None]]:
    """The run directory of a reward model's curve, its job, and what writes its inputs.

    With the settings that the reward model was trained with.  ValueError where its run cannot be
    repeated.
    """
    model = found["model"]
    source = RunDirectory(workspace / (found["directory"] or ""))
    table = source.outputs / TABLE
    if not found["directory"] or not table.exists():
        raise ValueError(f"{model} cannot be trained again on fewer labels: {OLD}")
    job = replace(source.job(), run=f"curve-{model}", stage="curve", attempt=1, resume=False)
    copies = [copy_inputs(source, "judgments.parquet")]

    def fill(inputs: Path) -> None:
        for copy in copies:
            copy(inputs)
        (inputs / TABLE).write_bytes(table.read_bytes())

    return curve_place(workspace, found), job, fill


def make_curve(workspace: Path, found: Mapping[str, Any], progress: Progress) -> None:
    """Train the curve's models here and now, those that are missing; stops with us.

    ValueError where they are being trained already.
    """
    directory, job, fill = curve_job(workspace, found)
    if directory.is_running():
        raise ValueError(
            f"the learning curve of {found['model']} is being made already, by the studio or by "
            "another command; `launch.py reward report` shows its points as they come"
        )
    run_to_end(directory.path, job, fill=fill, progress=progress)


def format_report(found: Mapping[str, Any]) -> str:
    """The report for people."""
    if found["model"] is None:
        return "There is no reward model yet."
    if found["quality"] is None:
        return f"{found['model']}: {found['missing']}"
    lines = [f"{found['model']}: {found['verdict']['verdict']}"]
    lines += [
        f"  {_MARKS[check['allows']] if check['known'] else '?'} {check['says']}"
        for check in found["verdict"]["checks"]
    ]
    quality = found["quality"]
    if quality["log_loss"] is not None:
        lines.append(
            f"\nlog-loss {quality['log_loss']:.3f} nats a judgment; chance that knows how often "
            f"people tie: {quality['coin_log_loss']:.3f}"
        )
    if quality["accuracy"]:
        lines += ["", *_tables(quality)]
    return "\n".join([*lines, *_curve_lines(found["curve"])])


_MARKS = {"ppo": "+", "best_of_n": "~", "labeling": "-"}


def _tables(quality: Mapping[str, Any]) -> list[str]:
    lines = [f"{'':<30} {'accuracy':<22} judgments"]
    lines += [
        _row(f"|d| from {row['from']:.2f} to {row['to']:.2f}", row) for row in quality["by_margin"]
    ]
    lines += [_row(f"{_GROUPS[row['group']]}", row) for row in quality["by_agreement"]]
    lines.append(f"\n{'stated probability':<30} {'was right':<22} judgments")
    lines += [_row(f"{row['stated']:.0%}", row) for row in quality["calibration"]["bins"]]
    return lines


_GROUPS = {
    "unanimous": "people agree",
    "split": "people disagree",
    "single": "judged by one person",
}


def _row(name: str, row: Mapping[str, Any]) -> str:
    share = f"{row['accuracy']:.0%} ({row['low']:.0%} to {row['high']:.0%})"
    return f"{name:<30} {share:<22} {row['judgments']}"


def _curve_lines(curve: Mapping[str, Any]) -> list[str]:
    if not curve["points"]:
        return ["\nno learning curve yet: --curve makes one"] if curve["state"] == "none" else []
    lines = [f"\n{'labels':<30} {'accuracy':<22} judgments"]
    return lines + [
        _row(f"{point['labels']:.0f} ({point['share']:.0%})", point) for point in curve["points"]
    ]
