"""The demo's ready-made first pairs: from the shipped model, and taken only where they fit."""

import json
from pathlib import Path

import pandas as pd
import pytest

from pipeline.config.sections import CONFIGS, Config
from pipeline.demo.corpus import prompts
from pipeline.demo.pairs import PAIRS_DIR, shipped_pairs, weights_hash
from pipeline.loop.loop import Loop
from storage.engine.database import Database
from storage.labeling import queue
from storage.records import Annotator, Prompt
from storage.tables import iterations
from storage.tables import prompts as stored
from storage.tables.people.annotators import add
from storage.tables.runs import runs

DEMO = Config.load([CONFIGS / "demo.toml"])


def test_they_were_sampled_from_the_shipped_model() -> None:
    manifest = json.loads((PAIRS_DIR / "manifest.json").read_text())
    assert manifest["model"] == weights_hash()
    assert manifest["pairs"] == len(pd.read_parquet(PAIRS_DIR / "comparisons.parquet"))


def test_they_answer_the_shipped_train_prompts() -> None:
    train = {Prompt.make(m, role=role).id for role, m, _ in prompts() if role == "train"}
    completions = pd.read_parquet(PAIRS_DIR / "completions.parquet")
    assert set(completions["prompt"]) <= train
    assert set(completions["policy"]) == {"sft-1"}
    assert completions["text"].str.len().gt(0).mean() > 0.99


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        ({"model.name": "other"}, 10),
        ({"sampling.top_p": "0.8"}, 10),
        ({"seed": "5"}, 10),
        ({}, 10_000),
    ],
)
def test_they_are_not_taken_where_sampling_would_differ(
    override: dict[str, str], wanted: int
) -> None:
    assert shipped_pairs(DEMO.override(override), wanted=wanted) is None


def test_a_fresh_demo_is_ready_to_label_without_a_worker(tmp_path: Path) -> None:
    with Database.open(tmp_path / "workspace") as db:
        stored.add(db, [Prompt.make(m, role=r, category=c) for r, m, c in prompts()])
        loop = Loop(db, DEMO)
        phases = [loop.advance() for _ in range(4)]
        for run in runs.listing(db):
            if run.status == "running":
                loop.cancel(run.id)
        assert phases[-1] == "labeling", "a worker was needed"
        assert [(r.stage, r.status) for r in runs.listing(db)] == [("sampling", "succeeded")]
        current = iterations.latest(db)
        assert current is not None
        assert current.policy_sampled == "sft-1"
        ann = Annotator(id="a-1", name="ann")
        add(db, ann)
        assert len(queue.lease(db, ann.id, 4).pairs) == 4
