"""Simulates a thousand power failures and checks that no acknowledged act is lost.

    python -m benchmarks.powercuts [--points 1000] [--minutes 60] [--seed 0] [--acts 60]

``kill -9`` cannot test fsync, because the kernel keeps the writes of a dead process.  Here a library
between the programs and the kernel (`recorder.c`, compiled on this machine) records each write,
truncation, rename and fsync of the workspace's files in order, while six processes fill a workspace,
label, are killed, checkpoint, back up, rebuild and restore.  Replaying the whole log must give the
files on the disk, byte for byte.

The log is then cut at random points.  At each point a disk state is generated that a power failure
could leave (`disk.py`), and the real code opens it.  At each point

* every act acknowledged before the cut is stored once, in database and journal, as it was sent;
* nothing is stored that was not sent;
* a database rebuilt from the journal has the same content;
* a backup acknowledged before the cut can be restored and is complete.

Prints a table; the exit status is 1 if a check fails.  Stops after --minutes.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common import markdown
from benchmarks.kills.ledger import FAULTS
from benchmarks.powercuts import recording, workload
from benchmarks.powercuts.check import Expected, examine, faults, restored
from benchmarks.powercuts.disk import Disk
from storage.engine.workspace import LOCK

NAMED = (*FAULTS, "unopened")
_JOBS = 2
_BACKUPS_LOOKED_AT = 0.3


def record(folder: Path, *, acts: int, seed: int) -> tuple[Path, Path, int]:
    """Run the workload under the recorder; returns its root, the log and the act file's inode."""
    root, log = folder / "root", folder / "log"
    root.mkdir()
    (root / workload.ACTS).touch()
    library = recording.build(folder)
    for number, phase in enumerate(workload.PHASES):
        command = [sys.executable, "-m", "benchmarks.powercuts.workload", str(number), str(root)]
        status = recording.run(
            [*command, str(acts), str(seed + 100 * number)], library=library, root=root, log=log
        )
        if status:
            raise RuntimeError(f"phase {phase!r} of the workload ended with {status}")
    return root, log, (root / workload.ACTS).stat().st_ino


def missed(disk: Disk, root: Path) -> list[str]:
    """Paths that differ between the replayed log and the disk: changes that the recorder missed."""
    whole = disk.whole()
    there = {
        str(path.relative_to(root)): None if path.is_dir() else path.read_bytes()
        for path in root.rglob("*")
        if path.name != workload.ACTS
    }
    return sorted(
        path for path in whole.keys() | there.keys() if whole.get(path, 0) != there.get(path, 1)
    )


class Cuts:
    """The log, cut at `points` places."""

    def __init__(self, folder: Path, *, acts: int, seed: int, points: int) -> None:
        self.folder, self.seed = folder, seed
        self.root, self.log, self.told = record(folder, acts=acts, seed=seed)
        self.records = list(recording.read(self.log))
        coin = random.Random(seed)
        self.points = sorted(coin.sample(range(len(self.records)), min(points, len(self.records))))
        while len(self.points) < points:  # more points than records: one record has many states
            self.points.append(coin.randrange(len(self.records)))
        self.points.sort()
        self.found: list[dict[str, Any]] = []

    def run(self, give_up: float) -> None:
        """Generate and examine a state at every point, until the time is up."""
        disk, expected, waiting = Disk(self.root), Expected(), list(enumerate(self.points))
        with ThreadPoolExecutor(_JOBS) as pool:
            looking = []
            for index, change in enumerate(self.records):
                while waiting and waiting[0][1] == index:
                    number, _ = waiting.pop(0)
                    if time.monotonic() < give_up:
                        looking.append(pool.submit(*self._state(number, disk, expected)))
                        while sum(not job.done() for job in looking) > 2 * _JOBS:
                            time.sleep(0.01)
                if change.inode == self.told and change.op == recording.WRITE:
                    expected.hear(change.data)
                elif change.inode != self.told:
                    disk.do(change)
            self.found = [job.result() for job in looking]
        if gone := missed(disk, self.root):
            raise RuntimeError(f"the recorder missed changes to {', '.join(gone)}")

    def _state(self, number: int, disk: Disk, expected: Expected) -> tuple[Any, ...]:
        """Write a state to a folder; returns the arguments of `_examine`, for a thread."""
        coin = random.Random(f"{self.seed} {number}")
        folder = self.folder / f"point-{number}"
        folder.mkdir(mode=0o700)
        for path, content in sorted(disk.cut(coin).items()):
            if content is None:
                (folder / path).mkdir(mode=0o700)
            elif Path(path).name != LOCK:
                (folder / path).write_bytes(content)
        ledger = replace(
            expected.ledger,
            sent=dict(expected.ledger.sent),
            acknowledged=dict(expected.ledger.acknowledged),
            refused=set(expected.ledger.refused),
        )
        of_backup = expected.backed_up if coin.random() < _BACKUPS_LOOKED_AT else None
        return self._examine, number, folder, ledger, expected.pairs, of_backup

    def _examine(
        self, number: int, folder: Path, ledger: Any, pairs: int, of_backup: Any
    ) -> dict[str, Any]:
        found = examine(folder / workload.WORKSPACE, ledger, pairs)
        if of_backup is not None:
            of = restored(folder / workload.BACKUP, of_backup, pairs)
            found["backup"] = 1
            for name in NAMED:
                found[name] = found.get(name, 0) + of.get(name, 0)
            if faults(of, NAMED):
                found["why"] = f"the backup: {of.get('why', '')}"
        found |= {"point": number, "record": self.points[number]}
        if faults(found, NAMED):
            print(json.dumps({**found, "kept": str(folder)}), file=sys.stderr, flush=True)
        else:
            shutil.rmtree(folder)
        return found


def table(cuts: Cuts) -> str:
    """The results as Markdown."""
    ops = Counter(change.op for change in cuts.records)
    total: Counter[str] = Counter()
    ways: Counter[str] = Counter()
    for found in cuts.found:
        total.update(faults(found, NAMED))
        ways.update(found.get("recovered") or ["opened"])
    header = (
        "changes recorded",
        "of them writes",
        "fsyncs",
        "points",
        "backups restored",
        "faults",
    )
    backups = sum(found.get("backup", 0) for found in cuts.found)
    writes, syncs = ops[recording.WRITE], ops[recording.SYNC]
    row = (len(cuts.records), writes, syncs, len(cuts.found), backups, dict(total) or "none")
    recovered = [
        f"point {found['point']}, record {found['record']}: {found['recovered']}: {found['why']}"
        for found in cuts.found
        if found.get("recovered")
    ]
    return "\n".join([markdown(header, [row]), "", f"opened by: {dict(ways)}", *recovered])


def main() -> int:
    parser = argparse.ArgumentParser(description="Simulated power failures.")
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--acts", type=int, default=60, help="acts in each phase of the workload")
    parser.add_argument("--minutes", type=float, default=60, help="generate no state later")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kitestring-powercuts-"))
    cuts = Cuts(folder, acts=args.acts, seed=args.seed, points=args.points)
    cuts.run(time.monotonic() + 60 * args.minutes)
    print(table(cuts))
    if any(faults(found, NAMED) for found in cuts.found):
        print(f"kept in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0 if cuts.found else 1


if __name__ == "__main__":
    sys.exit(main())
