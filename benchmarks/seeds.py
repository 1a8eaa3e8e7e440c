"""One JSON file per seed, so that a long benchmark can be interrupted and continued; labels needed."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

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
