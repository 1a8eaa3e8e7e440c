"""Agreement of three annotators on the PandaLM test set, and a round trip through a raw export.

    python -m benchmarks.pandalm testset-v1.json [--judgments pandalm.jsonl] [--train]
    python -m benchmarks.pandalm testset-v1.json --compare [--seeds 0 1 2] [--max-tokens 128] [--report]

The file is data/testset-v1.json of github.com/WeOpenML/PandaLM (Apache-2.0, 999 pairs, three
annotators; its README publishes Cohen's kappa .85, .88 and .86).  `--judgments` also writes the
rows for `launch.py import --judgments`.  `--train` trains a reward model on the judgments, starting
from the embedded model, to check that the pipeline accepts human data; at two million parameters it
shows little more.  `--compare` only trains reward models with learned annotators, with pooled
votes, and on majority votes (`benchmarks/pandalm_compare.py`).  It writes one JSON file per seed
and skips seeds that have one.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.common import CACHE
from benchmarks.demo_world import reward_settings
from benchmarks.pandalm_compare import compare
from pipeline.config.sections import CONFIGS, Config
from pipeline.demo import MODEL_DIR, corpus
from pipeline.loop.loop import Loop
from pipeline.models.text import ChatTokenizer
from storage.engine.database import Database
from storage.exporting import exports
from storage.importing import imports
from storage.records import Prompt
from storage.reports import to_json
from storage.status import status
from storage.tables import iterations, models, prompts

CONTEXT = 512
OUTCOMES = {0: "tie", 1: "a", 2: "b"}
ANNOTATORS = ("annotator1", "annotator2", "annotator3")
# Without `seq`, the position in one journal.
_JUDGMENTS = """
    SELECT j.* EXCLUDE (annotator, seq), a.name FROM judgments AS j
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
    """Import the rows; report the agreement, and whether an export can be reimported unchanged."""
    with Database.open(folder / "one") as db:
        report = imports.import_judgments(db, rows)
        again = imports.import_judgments(db, rows)
        found = to_json(status(db))
        exported = folder / "raw.parquet"
        exports.export(db, format="raw", out=exported, ties="keep", names=True)
        before = db.read(_JUDGMENTS)
    with Database.open(folder / "two") as db:
        imports.import_judgments(db, exported)
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


def train(rows: Path, folder: Path) -> dict[str, Any]:
    """The reward stage's summary; pairs beyond the embedded model's context are left out."""
    # One epoch on all cores, because texts are long and judgments are many.
    chosen = {"labeling.labels": "8", "reward.epochs": "1", "worker.threads": "0"}
    config = Config.load([CONFIGS / "demo.toml"], chosen)
    chat = ChatTokenizer.load(str(MODEL_DIR))
    judged = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    fitting = [row for row in judged if _tokens(row, chat) <= CONTEXT]
    short = folder / "short.jsonl"
    short.write_text("".join(json.dumps(row) + "\n" for row in fitting), encoding="utf-8")
    held_out = [Prompt.make(m, role="held-out") for r, m, _ in corpus.prompts() if r == "held-out"]
    with Database.open(folder / "training") as db:
        imports.import_judgments(db, short)
        prompts.add(db, held_out)
        loop = Loop(db, config)
        _advance(db, loop, "labeling")
        loop.train({})
        _advance(db, loop, "policy")
        loop.shut_down()
        (made,) = models.listing(db, role="reward")
    return {"judgments": len(fitting), "left_out": len(judged) - len(fitting)} | dict(made.summary)


def _tokens(row: dict[str, Any], chat: ChatTokenizer) -> int:
    asked = [{"role": "user", "content": str(row["prompt"])}]
    return max(len(chat.chat(asked, str(row[side])).ids) for side in ("response_a", "response_b"))


def _advance(db: Database, loop: Loop, phase: str) -> None:
    while (current := iterations.latest(db)) is None or current.phase != phase:
        if stopped := loop.blocked_by():
            raise SystemExit(f"the {stopped.stage} stage stopped: {stopped.reason}")
        loop.advance()
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("testset", type=Path, help="PandaLM's testset-v1.json")
    parser.add_argument("--judgments", type=Path, help="keep the rows for an import here (JSONL)")
    parser.add_argument("--train", action="store_true", help="train a reward model on them")
    parser.add_argument("--compare", action="store_true", help="compare joint, pooled and majority")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--max-tokens", type=int, default=128, help="longest text to compare")
    parser.add_argument("--set", nargs="+", default=["epochs=1"], help="settings of [reward]")
    parser.add_argument("--folder", type=Path, default=CACHE / "pandalm")
    parser.add_argument("--report", action="store_true", help="only print stored results")
    arguments = parser.parse_args()
    testset = json.loads(arguments.testset.read_text(encoding="utf-8"))
    if arguments.compare or arguments.report:
        try:
            config = reward_settings(arguments.set)
        except ValueError as error:
            parser.error(str(error))
        compare(judgments(testset), arguments, config, CONTEXT)
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = arguments.judgments or Path(folder) / "judgments.jsonl"
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in judgments(testset))
        rows.write_text("".join(lines), encoding="utf-8")
        found = measure(rows, Path(folder))
        if arguments.train:
            found["reward_model"] = train(rows, Path(folder))
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
