"""Prompts: listed with counts, added, retired, and given another category."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from storage.browsing.prompts import PromptFilter, add_prompt, browse_prompts, edit_prompt
from storage.engine.backup import rebuild, verify
from storage.engine.database import Database
from storage.errors import NotFound
from storage.importing.imports import default_role
from storage.labeling import judgments, model_judges, queue
from storage.records import Comparison, Iteration, Prompt
from storage.tables import comparisons, iterations, prompts
from storage.worker_files import (
    write_judgments_input,
    write_prompts_input,
    write_sampling_plan_input,
)
from tests.helpers.storage_world import fill


@pytest.fixture
def db(tmp_path: Path):
    """Three train prompts with a pair each, one judged, and a held-out prompt."""
    with Database.open(tmp_path / "w") as opened:
        fill(opened, 3)
        prompts.add(opened, [Prompt.make("Kept apart?", role="held-out", category="test")])
        queue.lease(opened, "ann", 1)
        judgments.judge(opened, id="j-1", comparison="c1-0", annotator="ann", outcome="a")
        yield opened


def prompt(n: int) -> str:
    return Prompt.make(f"question 1.{n}?", role="train").id


def test_prompts_are_listed_with_their_pairs_judgments_and_counts(db) -> None:
    seen = browse_prompts(db)
    rows = {row.id: row for row in seen.rows}
    assert (rows[prompt(0)].text, rows[prompt(0)].pairs, rows[prompt(0)].judgments) == (
        "question 1.0?",
        1,
        1,
    )
    assert (rows[prompt(1)].pairs, rows[prompt(1)].judgments) == (1, 0)
    assert {v.value: v.count for v in seen.roles} == {"train": 3, "held-out": 1}
    assert {v.value: v.count for v in seen.categories} == {"": 3, "test": 1}
    assert (seen.total, seen.retired, seen.after) == (4, 0, None)
    edit_prompt(db, prompt(1), retired=True, category="maths")
    found = lambda **wanted: {r.id for r in browse_prompts(db, PromptFilter(**wanted)).rows}  # noqa: E731
    assert found(retired=True) == found(category="maths") == {prompt(1)}
    assert found(role="train", retired=False) == {prompt(0), prompt(2)}
    assert found(text="1.2") == {prompt(2)}
    assert found(text="KEPT") == found(role="held-out")
    # A facet's own filter does not change its counts.
    other = browse_prompts(db, PromptFilter(role="held-out"))
    assert {v.value: v.count for v in other.roles} == {"train": 3, "held-out": 1}
    assert other.retired == 0


def test_pages_have_every_prompt_once_also_those_of_the_same_time(db) -> None:
    when = prompts.listing(db)[0].created_at
    prompts.add(
        db, [replace(Prompt.make(f"same {n}", role="train"), created_at=when) for n in range(5)]
    )
    seen, before = [], None
    while True:
        page = browse_prompts(db, before=before, limit=2)
        seen += [row.id for row in page.rows]
        if page.after is None:
            break
        before = page.after
    assert len(seen) == len(set(seen)) == 9
    assert seen == [row.id for row in browse_prompts(db).rows]


def test_a_retired_prompt_is_not_sampled(db, tmp_path) -> None:
    edit_prompt(db, prompt(2), retired=True)
    write_prompts_input(db, tmp_path, role="train")
    sampled = set(pd.read_parquet(tmp_path / "prompts.parquet")["id"])
    assert sampled == {prompt(0), prompt(1)}
    plan = {"pairs": 6, "shares": {}, "chosen": None, "prompts_per_pair": 1.0, "seed": 0}
    write_sampling_plan_input(db, tmp_path, **plan)
    assert set(pd.read_parquet(tmp_path / "prompts.parquet")["id"]) == {prompt(0), prompt(1)}
    assert prompts.counts(db) == {"held-out": 1, "train": 2}
    edit_prompt(db, prompt(2), retired=False)
    assert prompts.counts(db) == {"held-out": 1, "train": 3}


def test_the_pairs_of_a_retired_prompt_leave_the_queue_and_come_back(db) -> None:
    assert queue.unfinished(db) == 2
    edit_prompt(db, prompt(1), retired=True)
    assert [pair.comparison.id for pair in queue.lease(db, "bob", 5).pairs] == ["c1-2"]
    assert queue.unfinished(db) == 1
    assert [pair.id for pair in model_judges.open_pairs(db, annotator="m", limit=9)] == [
        "c1-0",
        "c1-2",
    ]
    edit_prompt(db, prompt(1), retired=False)
    assert sorted(pair.comparison.id for pair in queue.lease(db, "bob", 5).pairs) == [
        "c1-1",
        "c1-2",
    ]


def test_a_pair_that_an_annotator_has_on_the_screen_can_still_be_judged(db) -> None:
    [pair] = queue.lease(db, "bob", 1).pairs
    edit_prompt(db, pair.comparison.prompt, retired=True)
    judgments.judge(db, id="j-2", comparison=pair.comparison.id, annotator="bob", outcome="tie")
    assert db.read("SELECT 1 FROM current_judgments WHERE id = 'j-2'")


def test_pairs_of_a_retired_prompt_that_are_sampled_later_or_written_are_not_leased(db) -> None:
    edit_prompt(db, prompt(1), retired=True)
    queue.lease(db, "bob", 5)
    stored = {c["id"]: c for c in db.read("SELECT * FROM comparisons")}
    for arm, id in (("random", "late"), ("written", "written")):
        texts = stored["c1-1"]
        comparisons.add(
            db,
            [Comparison(id=id, prompt=prompt(1), first=texts["first"], second=texts["second"],
                        iteration=1 if arm == "random" else 0, arm=arm)],
        )  # fmt: skip
    assert queue.lease(db, "cat", 9).pairs == []
    iterations.save(db, Iteration(number=1, phase="labeling", labels_wanted=5))  # read again
    assert queue.lease(db, "cat", 9).pairs == []


def test_what_was_judged_stays(db, tmp_path) -> None:
    edit_prompt(db, prompt(0), retired=True)
    _, learned = write_judgments_input(db, tmp_path, iteration=1)
    assert learned == ["j-1"]


def test_an_added_prompt_gets_the_role_of_an_import_or_the_chosen_one(db) -> None:
    made = add_prompt(db, "  Why is the sky blue? ", category="facts")
    assert (made.messages[0].content, made.role) == ("Why is the sky blue?", default_role(made.id))
    chosen = add_prompt(db, "Why is grass green?", role="audit")
    stored = prompts.get_many(db, [made.id, chosen.id])
    assert (stored[made.id].category, stored[chosen.id].role) == ("facts", "audit")


@pytest.mark.parametrize(
    ("text", "role", "says"),
    [
        ("question 1.0?", "held-out", "with the role train, and a role never changes"),
        ("Kept apart?", "train", "with the role held-out, and a role never changes"),
        ("question 1.0?", "train", "is stored already, as p-"),
        ("question 1.0?", None, "is stored already, as p-"),
        ("kept   APART?", "train", "this is the held-out prompt p-.* would leak it"),
        ("Question  1.0? ", "held-out", "this is the train prompt p-"),
        (" ", "train", "not blank"),
        ("x" * 20_001, "train", "at most 20,000 characters"),
        ("Hm?", "live", "role='live' must be one of train, held-out, audit"),
    ],
)
def test_a_prompt_that_would_leak_or_is_not_valid_is_refused(db, text, role, says) -> None:
    with pytest.raises(ValueError, match=says):
        add_prompt(db, text, role=role)
    assert len(prompts.listing(db, retired=True)) == 4


def test_a_copy_in_another_case_is_allowed_on_the_same_side(db) -> None:
    assert add_prompt(db, "KEPT apart?", role="audit").role == "audit"


def test_a_category_is_set_everywhere_and_survives_a_rebuild_and_an_import(db, tmp_path) -> None:
    edit_prompt(db, prompt(0), category=" maths ", researcher="rosa")
    edit_prompt(db, prompt(0), retired=True)
    edit_prompt(db, prompt(2), category="maths")
    edit_prompt(db, prompt(2), category="")
    prompts.add(db, [Prompt.make("question 1.0?", role="train", category="other")])

    def seen(opened: Database) -> dict[str, tuple[str, bool]]:
        return {row.id: (row.category, row.retired) for row in browse_prompts(opened).rows}

    assert seen(db)[prompt(0)] == ("maths", True)
    assert seen(db)[prompt(2)] == ("", False)
    assert prompts.get_many(db, [prompt(0)])[prompt(0)].category == "maths"
    assert verify(db).same
    before = seen(db)
    db.close()
    rebuild(tmp_path / "w")
    with Database.open(tmp_path / "w") as again:
        assert seen(again) == before
        [edit] = again.read("SELECT * FROM prompt_edits WHERE prompt = $id", id=prompt(0))
        assert (edit["retired"], edit["category"]) == (True, "maths")


def test_edits_that_are_not_possible_are_refused(db) -> None:
    with pytest.raises(NotFound, match="no prompt 'p-9'"):
        edit_prompt(db, "p-9", retired=True)
    for category in ("two\nlines", "x" * 101):
        with pytest.raises(ValueError, match="one line of at most 100 characters"):
            edit_prompt(db, prompt(0), category=category)
    assert db.read("SELECT * FROM prompt_edits") == []
