"""Agreement of three annotators on the PandaLM test set, and a round trip through a raw export.

    python benchmarks/pandalm.py testset-v1.json [--judgments pandalm.jsonl]

The file is data/testset-v1.json of github.com/WeOpenML/PandaLM (Apache-2.0, 999 pairs, three
annotators; its README publishes Cohen's kappa .85, .88 and .86).  `--judgments` also writes the
rows for `launch.py import --judgments`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from storage import exporting, importing
from storage.database import Database
from storage.status import status

OUTCOMES = {0: "tie", 1: "a", 2: "b"}
ANNOTATORS = ("annotator1", "annotator2", "annotator3")
_JUDGMENTS = """
    SELECT j.* EXCLUDE annotator, a.name FROM judgments AS j
    JOIN annotators AS a ON a.id = j.annotator ORDER BY j.id
"""


def judgments(testset: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Three rows for `import --judgments` from each pair of the test set."""
    for pair in testset:
        model_a, model_b = pair["cmp_key"].split("_")
        task = [pair["instruction"], pair["input"]]
        shared = {
            "prompt": "\n\n".join(part for part in task if part.strip()),
            "response_a": pair["response1"],
            "response_b": pair["response2"],
            "model_a": model_a,
            "model_b": model_b,
            "item": pair["idx"],
        }
        for annotator in ANNOTATORS:
            yield shared | {"annotator": annotator, "outcome": OUTCOMES[pair[annotator]]}


def measure(rows: Path, folder: Path) -> dict[str, Any]:
    """Import, the agreement that `status` reports, and whether an export comes back the same."""
    with Database.open(folder / "one") as db:
        report = importing.import_judgments(db, rows)
        again = importing.import_judgments(db, rows)
        found = status(db)
        exported = folder / "raw.parquet"
        exporting.export(db, format="raw", out=exported, ties="keep", names=True)
        before = db.read(_JUDGMENTS)
    with Database.open(folder / "two") as db:
        importing.import_judgments(db, exported)
        after = db.read(_JUDGMENTS)
    return {
        "rows": report.rows,
        "added": report.added,
        "warnings": len(report.warnings),
        "added_again": sum(again.added.values()),
        "judgments": found["judgments"],
        "comparisons": found["comparisons"],
        "annotators": found["annotators"],
        "agreement": found["agreement"],
        "identical_after_re-import": before == after,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("testset", type=Path, help="PandaLM's testset-v1.json")
    parser.add_argument("--judgments", type=Path, help="keep the rows for an import here (JSONL)")
    arguments = parser.parse_args()
    testset = json.loads(arguments.testset.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        rows = arguments.judgments or Path(folder) / "judgments.jsonl"
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in judgments(testset))
        rows.write_text("".join(lines), encoding="utf-8")
        print(json.dumps(measure(rows, Path(folder)), indent=2))


if __name__ == "__main__":
    main()
