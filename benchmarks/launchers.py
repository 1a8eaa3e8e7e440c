"""Times what a launcher adds to each stage: local, a Ray cluster of two nodes, and Slurm.

    python -m benchmarks launchers [--launchers local ray] [--rounds 3] [--workspace DIR]

The stages of an iteration of the tiny demo run again and again, with the inputs that they had, on each
launcher in turn.  The overhead of a stage is the time from `Jobs.start` to the poll that concludes the
run, without the seconds that the worker itself counted.  As the studio does, this polls every second.
The Ray cluster is started here; Slurm is the one whose `sinfo` answers.  With a cluster, the policy
stage runs on two nodes as well.  The exit status is 1 if a median is above the target.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from benchmarks.common import exit_status, launch, markdown
from pipeline.config.sections import WorkerConfig
from pipeline.runs.jobs import Jobs
from pipeline.runs.rundir import RunDirectory
from pipeline.runs.study_folder import busy
from storage.engine.database import Database
from storage.tables.runs import runs
from tests.helpers.clusters import RayNodes
from tests.helpers.desk_world import free_port

Place = Literal["local", "ray", "slurm"]
STAGES = ("sampling", "reward", "policy", "evaluate")
TARGET = 15.0
"""Seconds that a stage may take longer than its worker."""
POLL = 1.0
"""Seconds between two looks of the studio at its runs."""


@dataclass(frozen=True, kw_only=True)
class Took:
    """Seconds of a stage: from its start to its outcome, and by the worker's own count."""

    whole: float
    worker: float


def iteration(workspace: Path) -> None:
    """Run the tiny demo once, which leaves a run of each stage with its inputs."""
    options = ("--tiny", "--labels=24", "--annotators=2", "--json")
    launch("simulate", f"--workspace={workspace}", *options)
    while busy(workspace):
        time.sleep(POLL)  # the pairs of the next iteration are sampled


def finished(workspace: Path) -> dict[str, RunDirectory]:
    """By stage a run that succeeded in the workspace."""
    found = {}
    for path in sorted((workspace / "runs").iterdir()):
        directory = RunDirectory(path)
        if directory.result() is not None and any(directory.inputs.iterdir()):
            found.setdefault(directory.job().stage, directory)
    return found


class Repeater:
    """Runs the stages of a workspace again."""

    def __init__(self, db: Database) -> None:
        self._jobs = Jobs(db)
        self._db = db
        self._stages = finished(db.workspace)
        self._count = 0

    def run(self, stage: str, worker: WorkerConfig) -> Took:
        """Run a stage with its earlier inputs where `worker` says."""
        earlier = self._stages[stage]
        job = earlier.job()
        self._count += 1
        job = replace(
            job,
            run=f"repeated-{self._count}",
            attempt=1,
            config=replace(job.config, worker=replace(worker, threads=1, nice=0)),
        )
        began = time.monotonic()
        run = self._jobs.start(
            job, fill=lambda to: shutil.copytree(earlier.inputs, to, dirs_exist_ok=True)
        )
        while run.status == "running":
            time.sleep(POLL)
            self._jobs.poll()
            run = runs.get(self._db, run.id)
        whole = time.monotonic() - began
        result = self._jobs.directory(run).result()
        if result is None:
            raise RuntimeError(f"the {stage} stage failed: {run.reason}")
        return Took(whole=whole, worker=result["seconds"])

    def close(self) -> None:
        self._jobs.shut_down()


@contextmanager
def places(launchers: Sequence[Place]) -> Iterator[dict[str, WorkerConfig]]:
    """The settings of each launcher; Ray's cluster lasts as long as the block."""
    cluster = RayNodes(free_port()) if "ray" in launchers else None
    address = cluster.address if cluster else WorkerConfig().ray_address
    try:
        yield {name: WorkerConfig(launcher=name, ray_address=address) for name in launchers}
    finally:
        if cluster:
            cluster.close()


def measure(
    workspace: Path, launchers: Sequence[Place], rounds: int
) -> dict[tuple[str, str], list[Took]]:
    """By stage and launcher what it took in each round."""
    took = defaultdict(list)
    with places(launchers) as machines, Database.open(workspace) as db:
        repeater = Repeater(db)
        for number in range(rounds):
            for stage, nodes in [*((stage, 1) for stage in STAGES), ("policy", 2)]:
                for name, machine in machines.items():
                    if nodes > 1 and name == "local":
                        continue
                    asked = replace(machine, nodes=nodes, processes=nodes)
                    found = repeater.run(stage, asked)
                    title = stage if nodes == 1 else f"{stage}, {nodes} nodes"
                    took[title, name].append(found)
                    print(
                        f"round {number + 1}: {title} on {name}: {found}",
                        file=sys.stderr,
                        flush=True,
                    )
        repeater.close()
    return took


def table(took: dict[tuple[str, str], list[Took]], launchers: Sequence[Place]) -> str:
    """Medians of the overhead in seconds, with the lowest and the highest, and the worker's own."""
    rows = []
    for title in dict.fromkeys(title for title, _ in took):
        here = {name: took[title, name] for name in launchers if (title, name) in took}
        own = statistics.median(each.worker for found in here.values() for each in found)
        cells = [described(overheads(here[name])) if name in here else "" for name in launchers]
        rows.append([title, f"{own:.1f}", *cells])
    return markdown(["stage", "worker", *launchers], rows)


def overheads(found: Sequence[Took]) -> list[float]:
    return [each.whole - each.worker for each in found]


def described(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.1f} [{min(seconds):.1f}, {max(seconds):.1f}]"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--launchers", nargs="+", choices=("local", "ray", "slurm"), default=["local", "ray"]
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each stage on each launcher")
    parser.add_argument("--workspace", type=Path, help="one with an iteration that is done")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kitestring-launchers-") as folder:
        place = Path(folder) / "workspace"
        if given.workspace:
            shutil.copytree(given.workspace, place)
        else:
            iteration(place)
        took = measure(place, given.launchers, given.rounds)
    print(table(took, given.launchers))
    missed = [
        f"{stage} on {name}: a median overhead of {seconds:.1f} s is above {TARGET:.0f} s"
        for (stage, name), found in took.items()
        if (seconds := statistics.median(overheads(found))) > TARGET
    ]
    return exit_status(missed)


if __name__ == "__main__":
    sys.exit(main())
