"""One JSON file per seed, so that a long benchmark can be interrupted and continued; labels needed."""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from commands.simulate import run_trial, stop_workers
from pipeline.config.sections import CONFIGS
from pipeline.loop.settings_view import written
from pipeline.simulation.trials import TrialArm, run_all, stored

A = TypeVar("A", bound=TrialArm)


def run_seeds(
    run: Callable[[A, int], dict[str, Any]],
    arms: Sequence[A],
    seeds: Sequence[int],
    folder: Path,
    *,
    conditions: Mapping[str, Any],
    only_report: bool,
) -> list[dict[str, Any]]:
    """`pipeline.simulation.trials.run_all`, or only the stored results.

    Exits with a message before any run if a file has other conditions.
    """
    conditions = json.loads(json.dumps(conditions))  # as in a file: tuples become lists
    there = [seed for seed in seeds if (folder / f"seed-{seed}.json").exists()]
    try:
        for seed in there:
            stored(folder / f"seed-{seed}.json", conditions)
    except ValueError as error:
        sys.exit(str(error))
    return run_all(
        cast(Callable[[TrialArm, int], dict[str, Any]], run),
        [] if only_report else arms,
        there if only_report else seeds,
        folder,
        conditions=conditions,
        progress=lambda line: print(line, file=sys.stderr, flush=True),
    )


def run_alone(
    arm: TrialArm,
    planned: tuple[int, int],
    *,
    settings: Mapping[str, Any],
    look: Callable[[Path], dict[str, Any]] = lambda _: {},
    **others: Any,
) -> dict[str, Any]:
    """The report of a simulation on the demo in a workspace of its own, with its seconds (`wall`).

    `planned` has the iterations, and the labels of each.  `look` adds figures from the workspace.
    `others` are further arguments of `run_trial`.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kitestring-trial-") as folder:
        place = Path(folder) / "workspace"
        try:
            report = run_trial(
                arm,
                place,
                planned,
                files=[CONFIGS / "demo.toml"],
                sets=[f"{name}={written(value)}" for name, value in settings.items()],
                progress=lambda line: print(f"  {line}", file=sys.stderr, flush=True),
                **others,
            )
            seen = look(place)
        finally:
            stop_workers(place)
    return report | seen | {"wall": round(time.monotonic() - started, 1)}


def labels_needed(labels: np.ndarray, curve: np.ndarray, goal: float) -> float:
    """Where a curve (rounds,) over `labels` (rounds,), linear between its points, first reaches `goal`.

    The first of the labels if the curve begins there; infinity if it never reaches the goal.
    """
    for n in range(len(labels)):
        if curve[n] >= goal:
            if n == 0:
                return float(labels[0])
            part = (goal - curve[n - 1]) / (curve[n] - curve[n - 1])
            return float(labels[n - 1] + part * (labels[n] - labels[n - 1]))
    return math.inf
