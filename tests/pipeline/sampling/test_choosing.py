"""Pairs that a reward model chooses in the sampling stage, and what happens where it cannot."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.models.generate import Response, Sampler
from pipeline.models.text import ChatTokenizer, read_messages
from pipeline.reward.likelihood import Likelihood
from pipeline.reward.network import from_language_model
from pipeline.reward.scoring import RewardModel
from pipeline.runs.rundir import Job, Report, RunDirectory
from pipeline.sampling import reward_selection
from pipeline.sampling.acquisition import Candidates, bald, choose, outcome_probabilities
from pipeline.sampling.pairs import Pool, Side
from storage.records import RANDOM_STREAM
from tests.helpers.stage_inputs import make_job, make_prompts, rows_of, tiny_models
from tests.pipeline.stages.test_sampling import sample


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Policy, reference and previous, and two reward models of unlike heads and thresholds."""
    root = tmp_path_factory.mktemp("models")
    made = tiny_models(root)
    for seed, key in enumerate(("reward", "reward_2")):
        chat = ChatTokenizer.load(made["reference"])
        network = from_language_model(made["reference"], chat)
        torch.manual_seed(seed)
        torch.nn.init.normal_(network.score.weight)
        torch.nn.init.constant_(network.ties.raw, seed - 1.0)
        network.save_pretrained(root / key)
        chat.tokenizer.save_pretrained(root / key)
        made[key] = str(root / key)
    return made


def without(models: dict[str, str], *keys: str) -> dict[str, str]:
    return {key: path for key, path in models.items() if key not in keys}


def plan(arm: str = "bald", *, chosen: int = 4, spare: int = 4, random: int = 3) -> list[Any]:
    """Prompts that owe a chosen pair, spare ones, and some of the random arm."""
    asked = [(arm, 1)] * chosen + [(arm, 0)] * spare + [("random", 1)] * random
    rows = zip(make_prompts(len(asked)), asked, strict=True)
    return [row | {"arm": arm, "pairs": pairs} for row, (arm, pairs) in rows]


def notes(directory: RunDirectory) -> list[dict[str, Any]]:
    events = map(json.loads, directory.events.read_text().splitlines())
    return [e for e in events if e["kind"] == "note" and e["name"] == "selection"]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Candidates, list[int]]]:
    """What was chosen from, and what."""
    found: list[tuple[Candidates, list[int]]] = []

    def watched(arm: str, candidates: Candidates, count: int, **options: Any) -> list[int]:
        chosen = choose(arm, candidates, count, **options)
        found.append((candidates, chosen))
        return chosen

    monkeypatch.setattr(reward_selection, "choose", watched)
    return found


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many completions were sampled at a time."""
    counts: list[int] = []
    original = Sampler.sample

    def counted(self: Sampler, conversations: Any, **settings: Any) -> list[Response]:
        counts.append(len(conversations))
        return original(self, conversations, **settings)

    monkeypatch.setattr(Sampler, "sample", counted)
    return counts


def test_bald_pairs_are_two_of_the_policys_four_answers_to_a_prompt(
    models: dict[str, str], tmp_path: Path, seen: Any, asked: list[int]
):
    directory, summary = sample(make_job("sampling", models), tmp_path / "run", plan())
    assert summary.arms == {"bald": 4, "random": 3}
    # Two temperatures: 2 of 4 answers to each of 8 prompts, and one side of 3 random pairs.
    assert asked == [19, 19]
    [(candidates, chosen)] = seen
    assert len(candidates.prompts) == 8 * 6
    completions = {row["id"]: row for row in rows_of(directory.outputs / "completions.parquet")}
    pairs = [
        row for row in rows_of(directory.outputs / "comparisons.parquet") if row["arm"] == "bald"
    ]
    offered = {row["id"] for row in plan() if row["arm"] == "bald"}
    assert len({row["prompt"] for row in pairs} & offered) == len(pairs) == 4
    sides = [completions[row[side]] for row in pairs for side in ("first", "second")]
    assert {side["policy"] for side in sides} == {"policy-1"}
    assert len(completions) == 2 * 7  # what was not chosen is not kept

    # The pair that was stored is the one that was scored.
    asked_of = {row["id"]: read_messages(row["messages"]) for row in plan()}
    # Either way round: the canonical order is not that of the sides.
    scored = [sorted(candidates.probabilities[:, i, 0].tolist()) for i in chosen]
    scored += [sorted(candidates.probabilities[:, i, 1].tolist()) for i in chosen]
    judges = [RewardModel.load(models[key]) for key in ("reward", "reward_2")]
    for row in pairs:
        texts = [completions[row[side]]["text"] for side in ("first", "second")]
        wins = []
        for judge in judges:
            first, second = judge([asked_of[row["prompt"]]] * 2, texts)
            theta = judge.network.ties().item()
            wins.append(1 / (1 + math.exp(theta - (first - second))))
        assert any(sorted(wins) == pytest.approx(found, abs=1e-4) for found in scored)


def test_random_pairs_need_two_answers_and_no_reward_model(
    models: dict[str, str], tmp_path: Path, asked: list[int]
):
    # A reward model that were loaded would end the stage.
    named = models | {"reward": str(tmp_path / "gone"), "reward_2": str(tmp_path / "gone, too")}
    job = make_job("sampling", named)
    assert job.config.sampling.selection == "random"
    directory, summary = sample(job, tmp_path / "run", plan(chosen=0, spare=0, random=7))
    assert summary.arms == {"random": 7}
    assert asked == [7, 7]  # at two temperatures
    assert len(rows_of(directory.outputs / "completions.parquet")) == 14
    assert notes(directory) == []


def test_the_figures_say_what_choosing_gained(models: dict[str, str], tmp_path: Path, seen: Any):
    directory, _ = sample(make_job("sampling", models), tmp_path / "run", plan())
    events = map(json.loads, directory.events.read_text().splitlines())
    values = next(e["values"] for e in events if "sampling/bald" in e.get("values", {}))
    [(candidates, chosen)] = seen
    scores = bald(candidates.probabilities)
    assert values["sampling/bald"] == pytest.approx(scores.mean().item())
    assert values["sampling/bald_chosen"] == pytest.approx(scores[chosen].mean().item())
    assert values["sampling/bald_chosen"] > values["sampling/bald"]
    assert notes(directory)[0]["message"] == "bald chose 4 of 48 pairs that 2 members scored"


def test_a_stage_run_again_chooses_the_same(models: dict[str, str], tmp_path: Path):
    job = make_job("sampling", models)
    tables = [
        rows_of(sample(job, tmp_path / name, plan())[0].outputs / "comparisons.parquet")
        for name in ("a", "b")
    ]
    assert tables[0] == tables[1]


@pytest.mark.parametrize("arm", ["uncertainty", "d_optimal"])
def test_arms_that_need_no_disagreement_work_with_one_member(
    models: dict[str, str], tmp_path: Path, seen: Any, arm: str
):
    job = make_job("sampling", without(models, "reward_2"))
    _, summary = sample(job, tmp_path / "run", plan(arm))
    assert summary.arms == {arm: 4, "random": 3}
    [(candidates, _)] = seen
    assert candidates.members == 1
    if arm == "d_optimal":
        # The head is linear in the features, so it gives the differences of rewards.
        network = RewardModel.load(models["reward"]).network
        differences = candidates.features @ network.score.weight.detach().T
        expected = outcome_probabilities(differences.T, network.ties().item())
        torch.testing.assert_close(candidates.probabilities, expected, rtol=1e-3, atol=1e-3)


def test_each_reward_model_ties_as_it_was_fitted(models: dict[str, str], tmp_path: Path, seen: Any):
    """Davidson's P(tie)² / (P(first) P(second)) is ν² at any difference; Rao and Kupper's is not."""
    davidson = RewardModel.load(models["reward"])
    davidson.network.likelihood = Likelihood(tie_model="davidson", both_bad="tie")
    davidson.save(tmp_path / "davidson")
    job = make_job("sampling", models | {"reward": str(tmp_path / "davidson")})
    sample(job, tmp_path / "run", plan())
    [(candidates, _)] = seen
    first, second, tie = candidates.probabilities.unbind(-1)
    squares = tie**2 / (first * second)
    nu = davidson.network.ties().item()
    torch.testing.assert_close(squares[0], torch.full_like(squares[0], nu**2))
    assert squares[1].std() > 0.01
    assert candidates.tie_models == ["davidson", "rao_kupper"]


@pytest.mark.parametrize(
    ("missing", "kind", "why"),
    [
        (("reward", "reward_2"), "info", "there is no reward model yet"),
        (("reward_2",), "warning", "reward-1 has only one"),
    ],
)
def test_where_nobody_can_choose_pairs_are_random_and_it_is_said(
    models: dict[str, str], tmp_path: Path, asked: list[int], missing: Any, kind: str, why: str
):
    job = make_job("sampling", without(models, *missing))
    directory, summary = sample(job, tmp_path / "run", plan())
    assert summary.arms == {"random": 7}
    assert asked == [7, 7]  # nothing is sampled on the spare prompts, and two answers per pair
    [note] = notes(directory)
    assert note["note"] == kind
    assert "4 pairs were taken at random" in note["message"]
    assert why in note["message"]


def test_a_plan_without_choosing_arms_loads_no_reward_model(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(RewardModel, "load", lambda *_, **__: pytest.fail("loaded"))
    directory, summary = sample(
        make_job("sampling", models), tmp_path / "run", plan(chosen=0, spare=0)
    )
    assert (summary.arms, notes(directory)) == ({"random": 3}, [])


def test_near_duplicates_are_not_chosen_and_others_stand_in(
    models: dict[str, str], tmp_path: Path, seen: Any
):
    # So cold, all four answers are one text.
    cold = make_job("sampling", models, sampling__temperatures=[1e-6, 1e-6])
    directory, summary = sample(cold, tmp_path / "cold", plan())
    assert [chosen for _, chosen in seen] == [[]]
    assert summary.arms == {"repeated": 7}
    policies = Counter(row["policy"] for row in rows_of(directory.outputs / "completions.parquet"))
    assert policies == {"policy-1": 7, "sft-1": 7}
    assert notes(directory)[0]["message"].endswith(
        "; 4 others are random, because too few prompts had different responses"
    )


def test_a_pair_that_stands_in_for_a_chosen_one_is_of_the_random_arm(
    models: dict[str, str], tmp_path: Path
):
    row, *_ = make_prompts(1)
    response = Response(prompt_ids=[1], ids=[2], text="the same", finish_reason="stop")
    sides = tuple(Side("policy-1", 1.0, f"completion-{n}", response=response) for n in range(4))
    pool = Pool(row["id"], read_messages(row["messages"]), "bald", sides, pairs=1)
    job = make_job("sampling", models)
    with Report(RunDirectory.create(tmp_path / "run", job)) as report:
        [draft] = reward_selection.choose_pairs(
            [pool], job, report, ChatTokenizer.load(models["policy"])
        )
    assert (draft.arm, draft.prompt, draft.sides) == ("random", row["id"], sides[:2])


def test_a_pair_of_texts_nearly_the_same_is_never_chosen(
    models: dict[str, str], tmp_path: Path, seen: Any
):
    job: Job = make_job("sampling", models, sampling__near_duplicate=0.25)
    chat = ChatTokenizer.load(models["policy"])
    directory, summary = sample(job, tmp_path / "run", plan(chosen=12, spare=12, random=0))
    texts = {r["id"]: r["text"] for r in rows_of(directory.outputs / "completions.parquet")}
    ratios = [
        reward_selection.are_near_duplicates(
            texts[row["first"]], texts[row["second"]], chat.plain, 0.25
        )
        for row in rows_of(directory.outputs / "comparisons.parquet")
    ]
    assert ratios == [False] * summary.comparisons
    [(candidates, chosen)] = seen
    best = choose("bald", candidates, 12, seed=0)
    assert {*best} - {*chosen}  # some of the best by score were passed over


def test_the_random_stream_is_all_arms_that_no_reward_model_chose():
    assert set(reward_selection.CHOOSING_ARMS) == {"bald", "uncertainty", "d_optimal"}
    assert not set(reward_selection.CHOOSING_ARMS) & set(RANDOM_STREAM)
