"""`launch.py gold` and `import --gold`: from judgments and from a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from commands.main import app
from pipeline.config.sections import Config
from pipeline.loop.loop import Loop
from storage.engine.database import Database
from storage.records import Judgment
from storage.tables.settings import CheckPlan, check_plan
from tests.helpers.command_line import told
from tests.helpers.storage_world import fill
from tests.helpers.tiny import save_tiny


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    place = tmp_path / "workspace"
    save_tiny(tmp_path / "model")
    CliRunner().invoke(app, ["init", "--workspace", str(place), "--model", str(tmp_path / "model")])
    with Database.open(place) as db:
        fill(db, 3)
        agreed = (
            Judgment(
                id=f"{c}-{who}", comparison=c, annotator=who, outcome="first", shown_swapped=False
            )
            for c in ("c1-0", "c1-1")
            for who in ("ann", "bob")
        )
        db.write(lambda tx: tx.store(*agreed))
    return place


def test_gold_is_made_listed_retired_and_imported(workspace: Path, tmp_path: Path) -> None:
    where = ("--workspace", workspace, "--json")
    assert told("gold", "make", "--count", "1", *where) == {"made": 1, "candidates": 1}
    [made] = told("gold", "list", *where)
    assert (made["source"], made["answer"], made["active"]) == ("c1-0", "first", True)
    assert made["messages"] == [{"role": "user", "content": "question 1.0?"}]
    assert told("gold", "retire", made["id"], *where)["active"] is False
    assert told("status", *where)["checks"]["gold_pairs"] == 0
    assert told("gold", "restore", made["id"], *where)["active"] is True

    file = tmp_path / "gold.csv"
    file.write_text("prompt,response_a,response_b,answer\nWhy?,Because.,No.,a\n")
    report = told("import", "--gold", file, *where)
    assert report["added"]["checks"] == 1
    assert told("status", *where)["checks"]["gold_pairs"] == 2


def test_the_defaults_of_the_settings_are_those_of_the_queue(db: Database) -> None:
    loop = Loop(db, Config())
    assert db.read("SELECT key FROM settings WHERE key = 'check_plan'") == []
    labeling = Config().labeling
    assert CheckPlan() == CheckPlan(
        gold_share=labeling.gold_share, gold_first=labeling.gold_first,
        reask_share=labeling.reask_share, reask_after=labeling.reask_after,
    )  # fmt: skip
    loop.shut_down()


def test_the_queue_follows_the_settings_of_the_loop(db: Database) -> None:
    config = Config().override({"labeling.gold_share": "0.1", "labeling.gold_first": "4",
                                "labeling.reask_share": "0.2", "labeling.reask_after": "9"})  # fmt: skip
    loop = Loop(db, config)
    with db.snapshot():
        found = db.write(check_plan)
    assert found == CheckPlan(gold_share=0.1, gold_first=4, reask_share=0.2, reask_after=9)
    loop.shut_down()
