"""Times the computation of agreement and of the annotators' figures on many judgments.

    python -m benchmarks.agreement --judgments 1000000

Fills two temporary workspaces with random judgments, without the journal: in `overlap` two people
judge every ninth pair, in `every pair` three people judge each pair.  Prints one JSON object with
the best and median wall-clock seconds of `--repeat` runs, the median CPU seconds (more reliable on a
busy machine), and the load average before the runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from storage.analysis.agreement import agreement
from storage.analysis.reliability import annotator_figures
from storage.engine.database import Database
from storage.records import LEARNED_FROM, Annotator

TEXT = "A response of ordinary length, such as a small model gives. "

_FILL = (
    """INSERT INTO completions BY NAME
       SELECT 'k-' || i || side AS id, 'p-' || i // 20 AS prompt, 'm' AS policy,
              $text || md5(i || side) AS text
       FROM range($pairs) AS t(i), (SELECT unnest(['x', 'y']) AS side)""",
    """INSERT INTO comparisons BY NAME
       SELECT 'c-' || left(md5(i::VARCHAR), 16) AS id, 'p-' || i // 20 AS prompt,
              'k-' || i || 'x' AS first, 'k-' || i || 'y' AS second, i // 5000 AS iteration,
              'random' AS arm, 1 AS wanted, i AS position
       FROM range($pairs) AS t(i)""",
    # Six in ten judgments are the pair's consensus; the rest are random.
    """INSERT INTO judgments BY NAME
       SELECT uuid()::VARCHAR AS id, 'c-' || left(md5(i::VARCHAR), 16) AS comparison,
              'a-' || (hash(i) % $people + k) % $people AS annotator,
              ['first', 'second', 'tie', 'both_bad'][1 + CASE WHEN random() < 0.6
                  THEN (hash(i) % 3)::BIGINT ELSE floor(random() * 4)::BIGINT END] AS outcome,
              random() < 0.5 AS shown_swapped, (3000 + random() * 20000)::BIGINT AS milliseconds,
              now() AS created_at
       FROM range($pairs) AS t(i), range($most) AS r(k) WHERE k = 0 OR i % $every = 0""",
    """INSERT INTO judgments BY NAME
       SELECT uuid()::VARCHAR AS id, comparison, annotator, 'tie' AS outcome, shown_swapped,
              milliseconds, id AS replaces, now() AS created_at
       FROM judgments WHERE hash(id) % 1000 = 0""",
)


def fill(db: Database, *, judgments: int, people: int, most: int, every: int) -> None:
    """Store random judgments of pairs; `most` people judge every n-th pair (n = `every`)."""
    pairs = round(judgments / (1 + (most - 1) / every))
    options = {"pairs": pairs, "people": people, "most": most, "every": every, "text": TEXT * 3}
    db.write(lambda tx: tx.store(*(Annotator(id=f"a-{n}", name=f"A{n}") for n in range(people))))
    for sql in _FILL:
        used = {name: value for name, value in options.items() if f"${name}" in sql}
        db.write(lambda tx, sql=sql, used=used: tx.execute(sql, **used))


def measure(action: Callable[[], object], repeat: int) -> dict[str, float]:
    """Wall-clock and CPU seconds of `action`."""
    clock, processor = [], []
    for _ in range(repeat):
        began, spent = time.perf_counter(), time.process_time()
        action()
        clock.append(time.perf_counter() - began)
        processor.append(time.process_time() - spent)
    return {
        "best": round(min(clock), 3),
        "median": round(statistics.median(clock), 3),
        "processor": round(statistics.median(processor), 3),
    }


def case(options: argparse.Namespace, *, most: int, every: int) -> dict[str, Any]:
    """Fill and measure one workspace."""
    from storage.engine import items  # noqa: PLC0415  (only this benchmark calls it directly)

    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        Database.open(Path(folder) / "w") as db,
    ):
        fill(db, judgments=options.judgments, people=options.people, most=most, every=every)
        began = time.perf_counter()
        items.add(db.cursor())
        noting = time.perf_counter() - began
        found = agreement(db)
        return {
            "judgments": db.read("SELECT count(*) AS n FROM judgments")[0]["n"],
            "items": found.items,
            "alpha": [found.alpha, found.alpha_interval],
            "noting all items once": round(noting, 2),
            "agreement": measure(lambda: agreement(db), options.repeat),
            "annotators": measure(
                lambda: annotator_figures(db, kinds=LEARNED_FROM), options.repeat
            ),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--judgments", type=int, default=1_000_000)
    parser.add_argument("--people", type=int, default=20)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    report = {
        "load": os.getloadavg()[0],
        "cores": os.cpu_count(),
        "overlap": case(options, most=2, every=9),
        "every pair": case(options, most=3, every=1),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
