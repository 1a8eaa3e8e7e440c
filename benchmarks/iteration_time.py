"""How long does an iteration of the demo take?  Seconds of each stage, with one process and with two.

    python -m benchmarks iteration-time [--rounds 3] [--labels 400] [--processes 1 2] [--set NAME=VALUE]

Each round simulates one iteration with the demo's defaults for each number of processes
(`worker.processes`), alternately.  `train` is the time from the click on *Train* to the end of the
policy's evaluation, with the start of each worker.  Figures are medians over rounds; read them only if
nothing else ran.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import markdown
from benchmarks.seeds import run_alone
from pipeline.runs.repeat import newest_run
from pipeline.runs.rundir import RunDirectory
from pipeline.simulation.trials import TrialArm

STAGES = ("reward", "policy", "evaluate")
TRAIN = "train"
ANNOTATORS = 8


def stage_seconds(workspace: Path) -> dict[str, float]:
    """The seconds of each stage of the first iteration, and of its training."""
    found: dict[str, RunDirectory] = {}
    for stage in STAGES:
        run = newest_run(workspace, stage, iteration=1)
        assert run is not None, f"the iteration has no {stage} stage"
        found[stage] = run
    seconds = {stage: float((run.result() or {})["seconds"]) for stage, run in found.items()}
    began = found["reward"].path / "inputs"  # written before the worker starts
    ended = found["evaluate"].path / "result.json"
    return seconds | {TRAIN: ended.stat().st_mtime - began.stat().st_mtime}


def measured(processes: int, labels: int, settings: dict[str, Any], seed: int) -> dict[str, float]:
    """The seconds of one simulated iteration."""
    found = run_alone(
        TrialArm(name=f"{processes} processes"),
        (1, labels),
        settings={"worker.processes": processes, **settings},
        look=lambda place: {"seconds": stage_seconds(place)},
        annotators=ANNOTATORS,
        seed=seed,
    )
    return found["seconds"]


def table(found: dict[int, list[dict[str, float]]]) -> str:
    """Median seconds by stage and number of processes; the ratio of the first to the last."""
    counts = list(found)
    header = ("stage", *(f"{n} process{'es' if n > 1 else ''}, s" for n in counts), "ratio")
    rows = []
    for stage in (*STAGES, TRAIN):
        medians = [median(one[stage] for one in found[n]) for n in counts]
        rows.append(
            (stage, *(f"{each:.0f}" for each in medians), f"{medians[0] / medians[-1]:.2f}")
        )
    return markdown(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--labels", type=int, default=400)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--set", action="append", default=[], help="override a setting of the demo")
    args = parser.parse_args()
    settings = dict(item.split("=", 1) for item in args.set)
    found: dict[int, list[dict[str, float]]] = {n: [] for n in args.processes}
    for seed in range(args.rounds):
        for processes in args.processes:
            found[processes].append(measured(processes, args.labels, settings, seed))
    print(table(found))


if __name__ == "__main__":
    main()
