"""The kill benchmark: what it would notice, and twenty kills of every kind."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.kills.__main__ import plan
from benchmarks.kills.damage import damage
from benchmarks.kills.ledger import Act, Ledger, check
from benchmarks.kills.recover import recover
from benchmarks.kills.world import fill
from storage.engine.database import Database
from storage.labeling import judgments, queue

ROOT = Path(__file__).parents[2]


@pytest.fixture
def judged(tmp_path: Path) -> tuple[Path, Ledger]:
    """A workspace with three judgments and a withdrawal, and the ledger of them."""
    workspace, known = tmp_path / "workspace", Ledger()
    fill(workspace, clients=2, pairs=5, seed=1)
    with Database.open(workspace) as db:
        for pair in queue.lease(db, "a-0", 3).pairs:
            act = Act(f"j-{pair.comparison.id}", "judgment", "a-0", pair.comparison.id, "a", "why")
            judgments.judge(
                db,
                id=act.id,
                comparison=act.target,
                annotator="a-0",
                outcome="a",
                comment="why",
            )
            known.sent[act.id] = act
        undo = Act("undo", "withdrawal", "a-0", act.id)
        judgments.undo(db, id="undo", annotator="a-0", replaces=act.id)
        known.sent["undo"] = undo
    known.acknowledged = dict.fromkeys(known.sent)
    return workspace, known


def test_the_ledger_agrees_with_what_was_stored(judged, tmp_path):
    assert not any(check(*judged, tmp_path).values())


def test_the_ledger_notices_what_is_lost_altered_and_made_up(judged, tmp_path):
    workspace, known = judged
    first, second, *_ = known.sent.values()
    known.sent["lost"] = replace(first, id="lost")
    known.acknowledged["lost"] = None
    known.sent[second.id] = replace(second, outcome="b")
    del known.sent[first.id], known.acknowledged[first.id]
    found = check(workspace, known, tmp_path)
    assert (found["lost"], found["altered"], found["never_sent"]) == (1, 1, 1)


def test_the_check_notices_a_table_that_the_journal_would_not_make(judged, tmp_path):
    workspace, known = judged
    with Database.open(workspace) as db:
        db.write(lambda tx: tx.execute("UPDATE prompts SET category = 'other'"))
    assert check(workspace, known, tmp_path)["rebuild_differs"] == 1


@pytest.mark.parametrize("seed", range(6))
def test_damage_changes_one_file_and_the_advice_brings_everything_back(judged, tmp_path, seed):
    workspace, known = judged
    before = {path.name: path.read_bytes() for path in workspace.iterdir() if path.is_file()}
    said = damage(workspace, random.Random(seed))
    after = {path.name: path.read_bytes() for path in workspace.iterdir() if path.is_file()}
    assert [name for name in before if before[name] != after[name]] in ([said.split()[0]], [])
    recover(workspace)
    assert not any(check(workspace, known, tmp_path).values())


def test_the_plan_of_a_thousand():
    kinds = Counter(kind for _, kinds in plan(1000, seed=0) for kind in kinds)
    assert kinds == {"load": 600, "start": 200, "full": 100, "damage": 100}
    web = Counter(k for name, kinds in plan(1000, seed=0) for k in kinds if name.startswith("web"))
    assert web == {"load": 30, "start": 10, "full": 5, "damage": 5}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twenty_kills_of_every_kind_lose_nothing(tmp_path):
    out = tmp_path / "kills.json"
    command = [sys.executable, "-m", "benchmarks", "kills", "--kills", "20", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stdout + done.stderr
    reports = json.loads(out.read_text())
    kinds: Counter[str] = Counter()
    for report in reports.values():
        kinds.update(report["kills"])
        assert report["acknowledged"] > 0
        assert report["faults"] == {}
    assert kinds.total() == 20
    assert kinds.keys() == {"load", "start", "full", "damage"}
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert again.returncode == 0
    assert json.loads(out.read_text()) == reports  # nothing is killed a second time
