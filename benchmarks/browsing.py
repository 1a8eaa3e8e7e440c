"""Times the researcher's list of judgments, with its facets, on many judgments.

    python -m benchmarks.browsing --judgments 100000

Fills a temporary workspace with random judgments, without the journal: two people judge every ninth
pair, one judgment in a hundred has a comment, one in two hundred is excluded, and every third pair
has a stored prediction.  Prints one JSON object with the best and median wall-clock seconds of
`--repeat` runs for each kind of question, and the load average before the runs.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.agreement import fill, measure
from storage.browsing.judgments import Filter, browse
from storage.browsing.pair import pair_in_full
from storage.engine.database import Database
from storage.records import Prompt, new_id

_MORE = (
    """INSERT INTO prompts BY NAME
       SELECT 'p-' || i AS id, CASE WHEN i % 6 = 0 THEN 'held-out' ELSE 'train' END AS role,
              [{'role': 'user', 'content': $text || md5(i::VARCHAR)}]::JSON AS messages,
              ['code', 'advice', 'facts', ''][1 + i % 4] AS category, now() AS created_at
       FROM range($prompts) AS t(i)""",
    """UPDATE judgments SET seq = n.seq FROM (
           SELECT id, row_number() OVER (ORDER BY hash(id)) AS seq FROM judgments) AS n
       WHERE n.id = judgments.id""",
    "UPDATE judgments SET comment = 'the needle is in ' || id WHERE hash(id) % 100 = 0",
    """INSERT INTO exclusions BY NAME
       SELECT id AS judgment, true AS excluded, 'careless' AS reason, '' AS researcher,
              now() AS created_at FROM judgments WHERE hash(id) % 200 = 0""",
    """INSERT INTO predictions BY NAME
       SELECT id AS comparison, 'reward-1' AS reward_model, random() AS first, 0 AS first_score,
              0 AS second_score, now() AS created_at FROM comparisons WHERE hash(id) % 3 = 0""",
)
TEXT = "A question of ordinary length, such as people ask a chatbot. "


def prepare(db: Database, judgments: int) -> None:
    """Store random judgments with everything that the facets read."""
    fill(db, judgments=judgments, people=20, most=2, every=9)
    options = {"prompts": judgments // 18 + 1, "text": TEXT}
    for sql in _MORE:
        used = {name: value for name, value in options.items() if f"${name}" in sql}
        db.write(lambda tx, sql=sql, used=used: tx.execute(sql, **used))


def questions(db: Database) -> dict[str, Any]:
    """What a researcher asks, by name: filters, and the page that is read."""
    first = browse(db)

    def changed() -> None:
        """The first list after a commit: the columns are read again."""
        db.write(lambda tx: tx.store(Prompt.make(new_id("p"), role="train")))
        browse(db)

    return {
        "everything": lambda: browse(db),
        "everything, after a commit": changed,
        "second page": lambda: browse(db, before=first.after),
        "one annotator, one outcome": lambda: browse(
            db, Filter(annotator="a-3", outcome="first", iteration=2)
        ),
        "disagreement": lambda: browse(db, Filter(disagreement=True)),
        "surprise": lambda: browse(db, Filter(surprise=True, category="code")),
        "text": lambda: browse(db, Filter(text="needle")),
        "a pair in full": lambda: pair_in_full(db, first.rows[0].comparison),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--judgments", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        Database.open(Path(folder) / "w") as db,
    ):
        prepare(db, options.judgments)
        report = {
            "load": load,
            "cores": os.cpu_count(),
            "judgments": browse(db).total,
            "seconds": {name: measure(ask, options.repeat) for name, ask in questions(db).items()},
        }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
