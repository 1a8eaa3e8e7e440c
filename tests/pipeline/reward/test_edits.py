"""Edited responses in the reward stage: learned from, and in no set that measures a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.reward import RewardConfig
from pipeline.models.text import ChatTokenizer
from pipeline.reward.data import job_pairs, resolved, split_judgments
from pipeline.reward.likelihood import FIRST, UNSTATED
from pipeline.runs.rundir import Report, RunDirectory
from pipeline.stages import reward
from tests.helpers.judged_pairs import pair
from tests.helpers.stage_inputs import (
    give,
    make_job,
    make_judgments,
    make_prompts,
    rows_of,
    tiny_models,
)


def test_an_edit_is_in_no_set_that_stops_or_measures_the_training():
    judged = [
        pair(FIRST, prompt=f"p-{n}", name=f"j-{n}", arm="random", audit=n % 5 == 0)
        for n in range(150)
    ]
    edits = [
        pair(FIRST, prompt=f"p-{n}", name=f"j-{n}", arm="written", side=0, edited=True)
        for n in range(150)
    ]
    config = RewardConfig(held_out_share=0.25, audit_share=0.2, stopping_judgments=20)

    split = split_judgments([*judged, *edits], config, seed=3)

    assert split == split_judgments(judged, config, seed=3)._replace(learned=split.learned)
    learned = {each.prompt for each in split.learned if not each.edited}
    assert {each.prompt for each in split.learned if each.edited} == learned
    assert len(split.unseen) >= 40  # of prompts with an edit each
    assert not any(each.edited for each in (*split.unseen, *split.measured))


def test_edits_have_no_say_in_the_model_of_ties():
    stated = [pair(FIRST, name=f"j-{n}", strength=2) for n in range(4)]
    edits = [pair(FIRST, name=f"e-{n}", strength=UNSTATED, edited=True) for n in range(9)]
    assert resolved(RewardConfig(), [*stated, *edits]).tie_model == "ordinal"


def test_no_figure_of_an_annotator_uses_edits(tmp_path: Path):
    models = tiny_models(tmp_path / "models")
    rows = make_judgments(160, prompts=40)
    for n, row in enumerate(rows):
        row["annotator"] = f"a-{n % 2}"
    edits = [
        row | {"first": f"edit-{row['judgment']}", "first_text": "zzzz", "edited": True,
               "outcome": "first", "arm": "written", "annotator": "a-0"}
        for row in rows
    ]  # fmt: skip
    job = make_job(
        "reward", models, reward__epochs=1, reward__members=1, reward__held_out_share=0.3,
        reward__audit_share=0.2,
    )  # fmt: skip
    directory = RunDirectory.create(tmp_path / "run", job)
    give(directory, "judgments.parquet", rows)
    give(directory, "prompts.parquet", make_prompts(4))
    give(directory, "edits.parquet", edits)
    with Report(directory) as report:
        summary = reward.run(job, report, directory)
    assert summary.counts.pairs > 160  # edits were learned from
    assert summary.annotators is not None
    found = summary.annotators.annotators
    # An audit model measures the judgments that were learned from, so every judgment is measured.
    assert [(each.annotator, each.judgments, each.measured) for each in found] == [
        ("a-0", 80, 80),
        ("a-1", 80, 80),
    ]
    decided = [row for row in rows if row["outcome"] in ("first", "second")]
    assert sum(each.decided for each in found) == len(decided)


@pytest.mark.parametrize("asked", [True, False])
def test_the_stage_learns_from_edits_only_if_they_were_written(tmp_path: Path, asked: bool):
    models = tiny_models(tmp_path / "models")
    rows = make_judgments(48)
    edits = [
        row | {"first_text": "zzzz", "second_text": row["second_text"], "edited": True,
               "outcome": "first", "arm": "written"}
        for row in rows[:10]
    ]  # fmt: skip
    job = make_job("reward", models, reward__epochs=1, reward__members=1)
    directory = RunDirectory.create(tmp_path / "run", job)
    give(directory, "judgments.parquet", rows)
    give(directory, "prompts.parquet", make_prompts(4))
    if asked:
        give(directory, "edits.parquet", edits)
    with Report(directory) as report:
        chat = ChatTokenizer.load(models["reference"])
        found = job_pairs(job, report, directory, chat, models["reference"])
        summary = reward.run(job, report, directory)
    assert sum(each.edited for each in found) == 10 * asked
    # What annotators read about their judgments is about those that they gave, not about edits.
    split = split_judgments(found, job.config.reward, seed=job.config.seed)
    learned = [each.judgment for each in split.learned if not each.edited]
    written = rows_of(directory.outputs / "learned.parquet")
    assert [row["judgment"] for row in written] == learned
    assert 0 < len(learned) < 48
    assert summary.counts.learned_by == {"a-1": len(learned)}
    assert summary.counts.pairs == len(learned) + sum(each.edited for each in split.learned)
    assert {each.side for each in found if each.edited} <= {0}
    assert {each.side for each in found if not each.edited} == {1}
