"""Fresh pairs: arms, ids, sides and near-duplicates."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.models.generate import Response, Sampler
from pipeline.models.text import ChatTokenizer
from pipeline.runs.rundir import Job, Report, RunDirectory
from pipeline.sampling.pairs import Draft, Side, are_near_duplicates
from pipeline.stages.sample import mark_duplicates, read_plan, read_rows, run
from storage.records import Prompt, messages_json
from tests.helpers.stage_inputs import (
    give,
    live_models,
    make_job,
    make_prompts,
    rows_of,
    tiny_models,
)
from tests.helpers.tiny import tiny_model, tiny_tokenizer


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return tiny_models(tmp_path_factory.mktemp("models"))


def plan(arms: dict[str, int], *, pairs: int = 1) -> list[dict[str, Any]]:
    """That many prompts of each arm."""
    names = [arm for arm, count in arms.items() for _ in range(count)]
    rows = zip(make_prompts(len(names)), names, strict=True)
    return [row | {"arm": arm, "pairs": pairs} for row, arm in rows]


def long_rows(count: int) -> list[dict[str, Any]]:
    """Rows whose prompts, a token a byte, are beyond the tiny model's context of 4096."""
    made = [Prompt.make(f"{n} " * 2500, role="train") for n in range(count)]
    row = {"arm": "random", "pairs": 1}
    return [row | {"id": p.id, "messages": messages_json(p.messages)} for p in made]


def sample(job: Job, path: Path, rows: list[dict[str, Any]]) -> tuple[RunDirectory, dict[str, Any]]:
    directory = RunDirectory.create(path, job)
    give(directory, "prompts.parquet", rows)
    report = Report(directory)
    try:
        return directory, run(job, report, directory)
    finally:
        report.close()


def test_each_arm_puts_the_policy_against_its_opponent(models: dict[str, str], tmp_path: Path):
    arms = {"random": 6, "previous": 3, "reference": 2}
    job = make_job("sampling", models, sampling__temperatures=[1.0, 0.5])
    directory, summary = sample(job, tmp_path / "run", plan(arms))
    assert summary.arms == arms
    completions = {row["id"]: row for row in rows_of(directory.outputs / "completions.parquet")}
    met = Counter()
    for row in rows_of(directory.outputs / "comparisons.parquet"):
        sides = [completions[row["first"]], completions[row["second"]]]
        assert {side["prompt"] for side in sides} == {row["prompt"]}
        pair = sorted((side["policy"], side["temperature"]) for side in sides)
        met[row["arm"], *pair] += 1
    assert met == {
        ("random", ("policy-1", 0.5), ("policy-1", 1.0)): 6,
        ("previous", ("policy-1", 1.0), ("sft-0", 1.0)): 3,
        ("reference", ("policy-1", 1.0), ("sft-1", 1.0)): 2,
    }
    assert {row["finish_reason"] for row in completions.values()} <= {"stop", "length"}
    assert all(1 <= row["tokens"] <= 6 for row in completions.values())


def test_after_a_block_the_policy_that_waits_meets_the_reference(
    models: dict[str, str], tmp_path: Path
):
    job = make_job("sampling", models)
    job = replace(job, names={**job.names, "candidate": job.names["previous"]})
    directory, _ = sample(job, tmp_path / "run", plan({"reference": 2, "previous": 1, "random": 1}))
    completions = {row["id"]: row for row in rows_of(directory.outputs / "completions.parquet")}
    met = Counter(
        (row["arm"], *sorted(completions[row[side]]["policy"] for side in ("first", "second")))
        for row in rows_of(directory.outputs / "comparisons.parquet")
    )
    assert met == {
        ("reference", "sft-0", "sft-1"): 2,
        ("previous", "policy-1", "sft-0"): 1,
        ("random", "policy-1", "policy-1"): 1,
    }


def test_the_same_job_gives_the_same_completions_and_another_run_other_ids(
    models: dict[str, str], tmp_path: Path
):
    job = make_job("sampling", models)
    rows = plan({"random": 3, "reference": 1}, pairs=2)
    first, again, other = (
        rows_of(sample(j, tmp_path / name, rows)[0].outputs / "completions.parquet")
        for name, j in (("a", job), ("b", job), ("c", replace(job, run="run-2")))
    )
    assert first == again
    assert len({row["id"] for row in first}) == 16
    assert not {row["id"] for row in first} & {row["id"] for row in other}


def test_one_model_is_in_memory_at_a_time(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    loads = live_models(monkeypatch)
    job = make_job("sampling", models, sampling__temperatures=[1.0, 0.5])
    sample(job, tmp_path / "run", plan({"random": 2, "previous": 2, "reference": 2}))
    # Once for both temperatures, and not for the prompts that fit.
    assert loads == [("policy", 1), ("previous", 1), ("reference", 1)]


def test_canonical_order_says_nothing_about_the_policy(models: dict[str, str], tmp_path: Path):
    directory = RunDirectory.create(tmp_path, make_job("sampling", models))
    give(directory, "prompts.parquet", plan({"reference": 400}))
    rows = read_rows(directory.inputs / "prompts.parquet")
    drafts, _ = read_plan(rows, make_job("sampling", models))
    ours_first = sum(draft.canonical()[0] == draft.sides[0].id for draft in drafts)
    assert 150 < ours_first < 250  # 5 standard deviations about 200


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("Boil the eggs.", "  boil THE\neggs. ", 1.0),
        ("", "", 1.0),
        ("abcd", "wxyz", 0.0),
        # "abcd" and "abcx" share three bytes of eight: 2 · 3 / 8.
        ("abcd", "abcx", 0.75),
    ],
)
def test_similarity_is_of_tokens_whatever_case_and_spacing(a: str, b: str, expected: float):
    tokens = ChatTokenizer(tiny_tokenizer()).plain
    assert are_near_duplicates(a, b, tokens, expected)
    assert not are_near_duplicates(a, b, tokens, expected + 0.01)


def test_similarity_of_long_texts_does_not_ignore_frequent_tokens():
    # difflib's autojunk drops tokens that fill more than 1% of a text of 200 or more.
    tokens = ChatTokenizer(tiny_tokenizer()).plain
    assert are_near_duplicates("ab" * 150, "ab" * 150, tokens, 1.0)


def test_a_pair_is_a_duplicate_from_the_threshold_on():
    def draft(text: str) -> Draft:
        return Draft("p", (), "random", (side("abcd"), side(text)))

    def side(text: str) -> Side:
        response = Response(prompt_ids=[1], ids=[1], text=text, finish_reason="stop")
        return Side(model="policy", temperature=1.0, id=text, response=response)

    drafts = [draft("abcx"), draft("abcd"), draft("axyz")]
    chat = ChatTokenizer(tiny_tokenizer())
    assert mark_duplicates(drafts, chat, 0.75) == drafts[:2]
    assert [d.duplicate for d in drafts] == [True, True, False]


def test_near_duplicates_get_two_more_chances_and_a_stage_of_nothing_else_fails(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[int] = []
    original = Sampler.sample

    def counted(self: Sampler, conversations: Any, **settings: Any) -> list[Response]:
        asked.append(len(conversations))
        return original(self, conversations, **settings)

    monkeypatch.setattr(Sampler, "sample", counted)
    # At temperature .001 the model repeats itself, so no second chance helps.
    cold = make_job("sampling", models, sampling__temperatures=[0.001, 0.001])
    # Where the policy is the reference there is nobody else to ask.
    alone = replace(cold, names=cold.names | {"reference": cold.names["policy"]})
    with pytest.raises(
        ValueError, match=r"the same text in all 4 pairs; raise sampling\.temperatures or"
    ):
        sample(alone, tmp_path / "cold", plan({"random": 4}))
    assert asked == [8, 4, 4]
    directory = RunDirectory(tmp_path / "cold")
    assert "4 of 4 pairs are still near-duplicates" in directory.events.read_text()
    told = [e["message"] for e in directory.events_after(1, 0) if e["kind"] == "progress"]
    again = "sampled 4 of 4 completions again, for near-duplicates"
    assert told == ["sampled 8 of 8 completions", again, again]
    with pytest.raises(ValueError, match=r"all 1 pairs \(2 more had prompts too long"):
        sample(alone, tmp_path / "mixed", plan({"random": 1}) + long_rows(2))


def test_the_reference_answers_where_the_policy_repeats_itself(
    models: dict[str, str], tmp_path: Path
):
    cold = make_job("sampling", models, sampling__temperatures=[0.001, 0.001])
    arms = {"random": 4, "reference": 1}
    directory, summary = sample(cold, tmp_path / "cold", plan(arms))
    # Not the arm of the win rate: these are prompts on which the policy is sure.
    assert summary.arms == {"repeated": 4, "reference": 1}
    policies = Counter(row["policy"] for row in rows_of(directory.outputs / "completions.parquet"))
    assert policies == {"policy-1": 5, "sft-1": 5}
    assert "4 pairs are still near-duplicates" in directory.log.read_text()


def test_a_second_chance_saves_a_pair(models: dict[str, str], tmp_path: Path):
    # Bytes at random seldom agree in half their tokens, so a bar that low catches some pairs
    # the first time and few of them three times.
    job = make_job("sampling", models, sampling__near_duplicate=0.2)
    directory, summary = sample(job, tmp_path / "run", plan({"random": 40}))
    assert "sampling their second responses again" in directory.log.read_text()
    assert summary.comparisons > 0
    assert summary.comparisons + summary.near_duplicates == 40
    assert len(rows_of(directory.outputs / "comparisons.parquet")) == summary.comparisons


def test_prompts_beyond_the_context_are_left_out_and_said(models: dict[str, str], tmp_path: Path):
    job = make_job("sampling", models)
    _, summary = sample(job, tmp_path / "run", plan({"random": 2}) + long_rows(3))
    assert (summary.comparisons, summary.too_long) == (2, 3)


def test_prompts_that_are_all_too_long_are_named_as_the_reason(
    models: dict[str, str], tmp_path: Path
):
    job = make_job("sampling", models, sampling__max_new_tokens=4096)
    with pytest.raises(ValueError, match=r"lower sampling\.max_new_tokens=4096 and retry"):
        sample(job, tmp_path / "run", plan({"random": 2}))
    # A spare prompt, looked at for what it might teach, is nobody's pair.
    spare = [row | {"pairs": 0} for row in plan({"random": 1})]
    with pytest.raises(ValueError, match=r"lower sampling\.max_new_tokens=6 and retry"):
        sample(make_job("sampling", models), tmp_path / "spare", spare + long_rows(1))


def test_an_arm_without_its_model_is_refused(models: dict[str, str], tmp_path: Path):
    job = make_job("sampling", {"policy": models["policy"]})
    with pytest.raises(ValueError, match="was given no previous model"):
        sample(job, tmp_path / "run", plan({"previous": 1}))


def test_answers_do_not_depend_on_the_batch():
    chat = ChatTokenizer(tiny_tokenizer())
    sampler = Sampler(tiny_model(), chat)
    asked = [f"question {'x' * i}" for i in (5, 0, 9, 2, 7)]
    one, many = (
        sampler.sample(asked, temperature=1.0, max_new_tokens=8, seed=3, batch=batch)
        for batch in (5, 2)
    )
    assert one == many
    assert [r.prompt_ids for r in one] == [chat.prompt(text) for text in asked]
