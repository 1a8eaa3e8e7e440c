"""Judgments by a callable: both orders, one order, and again after a stop."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pipeline.simulation.judge import judge_all, load_judge
from storage import worker_files
from storage.commands import Commands
from storage.engine.database import Database
from storage.exporting import exports
from storage.labeling import judgments, model_judges, queue
from storage.labeling.queue_cache import QueueCache
from storage.records import Annotator, now
from storage.reports import to_json
from storage.sides import shown_swapped
from storage.status import status
from storage.tables import iterations, settings
from storage.tables.people import annotators
from tests.helpers.storage_world import fill


def likes_first(prompt: str, left: str, right: str) -> str:
    """Consistent: `fill` writes "first 0" and "second 0"."""
    assert prompt.startswith("question")
    assert left != right
    return "A" if left.startswith("first") else "B"


def likes_left(_prompt: str, _left: str, _right: str) -> str:
    return "A"


def reads_messages(messages: list[dict[str, str]], _left: str, _right: str) -> str:
    assert [turn["role"] for turn in messages] == ["user"]
    return "tie"


def says_maybe(_prompt: str, left: str, _right: str) -> str:
    return "maybe" if left.endswith("2") else "A"


def breaks(_prompt: str, _left: str, _right: str) -> str:
    raise ConnectionError("no route to the judge")


def gives_up(_prompt: str, _left: str, _right: str) -> str:
    raise SystemExit("no API key")


def tries_for_ever(_prompt: str, _left: str, _right: str) -> str:
    while True:
        with suppress(Exception):
            time.sleep(60)


def two_arguments(_left: str, _right: str) -> str:
    return "A"


def asker(db: Database) -> Callable[..., Any]:
    """Commands as the command line sends them: as JSON."""
    commands = Commands(db)
    return lambda command, **arguments: json.loads(
        json.dumps(commands.call(command, json.loads(json.dumps(arguments))))
    )


def judged(db: Database, name: str, **options: Any) -> dict[str, Any]:
    judge = load_judge(f"tests.pipeline.simulation.test_judge:{name}")
    return asdict(judge_all(asker(db), judge, name=name, **options))


def outcomes(db: Database) -> dict[str, str]:
    rows = db.read("SELECT comparison, outcome FROM current_judgments")
    return {row["comparison"]: row["outcome"] for row in rows}


def test_a_consistent_judge_says_the_same_in_both_orders(db: Database):
    pairs = fill(db, 20)
    assert judged(db, "likes_first") == {
        "judge": "likes_first", "judgments": 20, "ties": 0, "contradictions": 0,
    }  # fmt: skip
    assert outcomes(db) == dict.fromkeys(pairs, "first")
    assert to_json(status(db))["judgments_by_kind"] == {"model": 20}
    assert to_json(status(db))["iteration"]["labels"] == 0
    assert annotators.by_name(db, "likes_first").kind == "model"  # type: ignore[union-attr]


def test_one_that_favors_a_side_contradicts_itself_and_that_is_a_tie(db: Database):
    pairs = fill(db, 5)
    assert judged(db, "likes_left")["contradictions"] == 5
    assert outcomes(db) == dict.fromkeys(pairs, "tie")
    comment = db.read("SELECT comment FROM judgments WHERE comparison = 'c1-0'")[0]["comment"]
    assert comment.startswith("contradicts itself: ")


def test_in_one_order_sides_are_tossed_for_each_pair(db: Database):
    pairs = fill(db, 40)
    assert judged(db, "likes_left", both_orders=False)["contradictions"] is None
    judge = annotators.by_name(db, "likes_left")
    assert judge is not None
    on_the_left = {pair: "second" if shown_swapped(judge.id, pair) else "first" for pair in pairs}
    assert outcomes(db) == on_the_left
    stored = db.read("SELECT comparison, shown_swapped FROM judgments")
    assert {r["comparison"]: r["shown_swapped"] for r in stored} == {
        pair: side == "second" for pair, side in on_the_left.items()
    }
    assert set(on_the_left.values()) == {"first", "second"}


def test_no_pair_is_judged_twice(db: Database):
    fill(db, 5)
    assert judged(db, "likes_first", limit=2)["judgments"] == 2
    assert sorted(outcomes(db)) == ["c1-0", "c1-1"]
    assert judged(db, "likes_first")["judgments"] == 3
    assert judged(db, "likes_first")["judgments"] == 0
    fill(db, 2, iteration=2)
    assert judged(db, "likes_first")["judgments"] == 2  # the newest iteration's
    judge = annotators.by_name(db, "likes_first")
    assert judge is not None
    again = {"name": "likes_first", "comparison": "c1-0", "outcome": "second"}
    assert model_judges.save(db, **again) is False
    assert outcomes(db)["c1-0"] == "first"


def test_an_answer_that_is_none_stops_it_and_what_was_said_stays(db: Database):
    fill(db, 4)
    with pytest.raises(
        ValueError, match="answered 'maybe' on comparison c1-2; it must answer \"A\""
    ):
        judged(db, "says_maybe")
    assert sorted(outcomes(db)) == ["c1-0", "c1-1"]
    with pytest.raises(RuntimeError, match="failed on comparison c1-0: ConnectionError: no route"):
        judged(db, "breaks")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("breaks", "the judge breaks failed on comparison c1-0: ConnectionError: no route"),
        ("gives_up", "the judge gives_up failed on comparison c1-0: SystemExit: no API key"),
        ("tries_for_ever", "the judge tries_for_ever gave no answer on comparison c1-0 within 0.2"),
    ],
)
def test_a_judge_that_never_answers_is_named_and_becomes_nobody(db: Database, name: str, said: str):
    fill(db, 2)
    people = annotators.listing(db)
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=said):
        judged(db, name, timeout=0.2)
    assert time.monotonic() - start < 20
    assert annotators.listing(db) == people
    with pytest.raises(ValueError, match="'ann' is a person"):
        model_judges.save(db, name="ann", comparison="c1-0", outcome="tie")


def test_a_timeout_is_a_number_of_seconds(db: Database):
    for seconds in (0, -1, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"--timeout .* must be a number of seconds above 0"):
            judged(db, "likes_first", timeout=seconds)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("..:x", "judge '..:x' must be written module:function"),
        (".x:y", "judge '.x:y' must be written module:function"),
        ("typo_in_judge:y", "typo_in_judge cannot be imported: SyntaxError: "),
        ("sad_judge:y", "sad_judge cannot be imported: KeyError: 'API_KEY'"),
        ("quitting_judge:y", "quitting_judge cannot be imported: SystemExit: bye"),
        ("lost_judge:y", "judge 'lost_judge:y': there is no module 'no_such_package'"),
    ],
)
def test_a_module_that_cannot_be_loaded_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
):
    for module, text in {
        "typo_in_judge": "def y(a, b, c:\n    pass\n",
        "sad_judge": "import os\nos.environ['API_KEY']\n",
        "quitting_judge": "import sys\nsys.exit('bye')\n",
        "lost_judge": "import no_such_package\n",
    }.items():
        (tmp_path / f"{module}.py").write_text(text)
    monkeypatch.delenv("API_KEY", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        load_judge(name)
    assert "\n" not in str(caught.value)


def test_a_judge_may_read_the_whole_conversation(db: Database):
    fill(db, 1)
    assert judged(db, "reads_messages")["ties"] == 1


def test_a_name_or_function_that_will_not_do_is_refused(db: Database):
    fill(db, 1)
    with pytest.raises(ValueError, match="'ann' is a person"):
        judge_all(asker(db), likes_first, name="ann")  # type: ignore[arg-type]
    annotators.add(db, Annotator(id="off", name="off", kind="model", disabled=True))
    with pytest.raises(ValueError, match="'off' is disabled"):
        judge_all(asker(db), likes_first, name="off")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="takes 2 arguments, not prompt, left, right"):
        load_judge("tests.pipeline.simulation.test_judge:two_arguments")
    with pytest.raises(ValueError, match="judge 'nothing' must be written module:function"):
        load_judge("nothing")


def test_flagged_and_imported_pairs_are_left_alone(db: Database):
    fill(db, 3)
    assert queue.lease(db, "ann", 1).pairs[0].comparison.id == "c1-0"
    judgments.flag(db, id="f", comparison="c1-0", annotator="ann")
    assert judged(db, "likes_first")["judgments"] == 2


def test_a_judge_takes_no_pair_from_people(db: Database):
    """Before and after it has judged; and a desk that is read again sees the same."""
    fill(db, 2)
    assert queue.progress(db, "ann", since=now()).remaining == 2
    judged(db, "likes_first")
    assert queue.progress(db, "ann", since=now()).remaining == 2
    assert [p.comparison.id for p in queue.lease(db, "ann", 5).pairs] == ["c1-0", "c1-1"]
    db.write(lambda tx: tx.observer(QueueCache).forget())
    assert [p.comparison.id for p in queue.lease(db, "ann", 5).pairs] == ["c1-0", "c1-1"]
    assert queue.lease(db, "bob", 5).pairs == []


def test_a_lease_of_a_models_account_keeps_nobody_off(db: Database):
    fill(db, 1)
    annotators.add(db, Annotator(id="bot", name="bot", kind="model"))
    assert len(queue.lease(db, "bot", 1).pairs) == 1
    assert len(queue.lease(db, "ann", 1).pairs) == 1


def test_people_measure_a_reward_model_that_learns_from_a_judge_too(db: Database):
    """Without people, the judge measures it."""
    fill(db, 2)
    judged(db, "likes_first")
    kinds = ("person", "model")
    assert sum(each.judgments for each in worker_files.judged_prompts(db, kinds)) == 2
    queue.lease(db, "ann", 1)
    judgments.judge(db, id="j", comparison="c1-0", annotator="ann", outcome="a")
    assert [each.judgments for each in worker_files.judged_prompts(db, kinds)] == [1]


def test_an_export_says_who_is_a_model_or_leaves_them_out(db: Database, tmp_path: Path):
    fill(db, 2)
    judged(db, "likes_first")
    exports.export(db, format="raw", ties="keep", out=str(tmp_path / "raw.jsonl"))
    rows = [json.loads(line) for line in (tmp_path / "raw.jsonl").read_text().splitlines()]
    assert [row["annotator_kind"] for row in rows] == ["model", "model"]
    out = str(tmp_path / "trl.jsonl")
    with pytest.raises(ValueError, match="nothing is left to export: 2 by model left out, a kind"):
        exports.export(db, format="trl", out=out)
    queue.lease(db, "ann", 1)
    judgments.judge(db, id="j", comparison="c1-0", annotator="ann", outcome="a")
    report = exports.export(db, format="trl", out=out)
    assert (report.rows, report.left_out) == (1, {"by model": 2})
    assert report.notes[0].startswith("2 by model left out")
    assert "Left out: 2 by model." in Path(report.card).read_text()
    settings.set_learn_from(db, ("person", "model"))
    assert exports.export(db, format="trl", out=out).rows == 3


def test_labels_count_once_they_are_learned_from(db: Database):
    fill(db, 3)
    judged(db, "likes_first")
    current = iterations.get(db, 1)
    assert worker_files.labels_in(db, current) == 0
    settings.set_learn_from(db, ("person", "model"))
    assert worker_files.labels_in(db, current) == 3
    assert worker_files.labels_by_arm(db) == {1: {"random": 3}}
