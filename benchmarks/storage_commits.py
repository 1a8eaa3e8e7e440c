"""Durable commits per second of the storage, and their latency.

    python -m benchmarks.storage_commits --threads 32 --seconds 5

Prints one JSON object.  `judgments` does everything for a label (checks the lease, journals, fsyncs,
commits); `records` stores one record per commit; `lease` asks for 4 pairs out of
`--comparisons`.  Times are milliseconds, `cpu` is the CPU time of a call, and `load` is the load
average before.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from storage.engine.database import Database
from storage.engine.transaction import Transaction
from storage.labeling import judgments, queue
from storage.labeling.queue_cache import QueueCache, grant
from storage.records import LEASE_LIFETIME, Completion
from tests.helpers.desk_world import add_pairs


def assign(db: Database, threads: int) -> list[list[str]]:
    """Lease three quarters of the comparisons (the last in the queue) to the threads in turn."""
    rows = db.read("SELECT id FROM comparisons WHERE iteration = 1 ORDER BY position, id")
    names = [row["id"] for row in rows]
    taken = names[len(names) // 4 :]

    def operation(tx: Transaction) -> None:
        tx.observer(QueueCache).load(tx)
        moment = tx.now()
        for n, name in enumerate(taken):
            grant(tx, name, f"a{n % threads}", moment, moment + LEASE_LIFETIME)

    db.write(operation)
    return [taken[thread::threads] for thread in range(threads)]


def measure(threads: int, seconds: float, action: Callable[[int, int], object]) -> dict[str, float]:
    """Call action(thread, n) repeatedly in `threads` threads; return the rate and latencies."""
    waits: list[list[float]] = [[] for _ in range(threads)]
    start = threading.Barrier(threads + 1)
    stop = threading.Event()

    def work(thread: int) -> None:
        start.wait()
        for n in itertools.count():
            if stop.is_set():
                return
            began = time.perf_counter()
            try:
                action(thread, n)
            except IndexError:  # nothing left to label
                return
            waits[thread].append(time.perf_counter() - began)

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    start.wait()
    began = time.perf_counter()
    cpu = time.process_time()
    while time.perf_counter() - began < seconds and any(w.is_alive() for w in workers):
        time.sleep(0.05)
    stop.set()
    for worker in workers:
        worker.join()
    elapsed = time.perf_counter() - began
    ordered = sorted(itertools.chain.from_iterable(waits))
    return {
        "count": len(ordered),
        "cpu": round((time.process_time() - cpu) / len(ordered) * 1000, 2),
        "per_second": round(len(ordered) / elapsed, 1),
        "p50": round(ordered[len(ordered) // 2] * 1000, 2),
        "p95": round(ordered[int(len(ordered) * 0.95)] * 1000, 2),
        "max": round(ordered[-1] * 1000, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Commits per second, and their latency.")
    parser.add_argument("--threads", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--comparisons", type=int, default=10_000)
    options = parser.parse_args()
    report: dict[str, object] = {"load": os.getloadavg()[0], "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory() as folder, Database.open(Path(folder)) as db:
        text = "A response of ordinary length, such as a small model gives. " * 5
        asked = (f"Question number {n}?" for n in range(options.comparisons))
        add_pairs(db, [(question, f"{text}x", f"{text}y") for question in asked])
        mine = assign(db, options.threads)

        def judge(thread: int, _: int) -> None:
            judgments.judge(
                db,
                id=str(uuid.uuid4()),
                comparison=mine[thread].pop(),
                annotator=f"a{thread}",
                outcome="a",
                milliseconds=900,
            )

        def store(thread: int, n: int) -> None:
            record = Completion(id=f"b-{thread}-{n}", prompt="p", policy="m", text="text")
            db.write(lambda tx: tx.store(record, fresh=True))

        def lease(_: int, n: int) -> None:
            queue.lease(db, f"one-{n}", 4)

        report["records"] = measure(options.threads, options.seconds, store)
        report["judgments"] = measure(options.threads, options.seconds, judge)
        report["lease"] = measure(1, options.seconds, lease)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
