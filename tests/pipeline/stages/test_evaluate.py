"""Evaluation: KL by hand, diversity, the three policies side by side."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.config.metric_definitions import METRICS
from pipeline.models.beam_search import beam_search
from pipeline.models.generate import Response, Sampler
from pipeline.models.likelihoods import sequence_kl
from pipeline.models.text import ChatTokenizer, read_messages
from pipeline.reward.scoring import AUDIT
from pipeline.runs.rundir import Job, Report, RunDirectory
from pipeline.stages.evaluate import distinct_share, run
from tests.helpers.stage_inputs import (
    NAMES,
    give,
    live_models,
    make_job,
    make_prompts,
    rows_of,
    save_random_reward,
    tiny_models_and_reward,
)
from tests.helpers.tiny import tiny_model, tiny_tokenizer


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return tiny_models_and_reward(tmp_path_factory.mktemp("models"))


def evaluate(job: Job, path: Path, prompts: int) -> tuple[RunDirectory, dict[str, Any]]:
    directory = RunDirectory.create(path, job)
    give(directory, "prompts.parquet", make_prompts(prompts))
    report = Report(directory)
    try:
        return directory, run(job, report, directory)
    finally:
        report.close()


def test_three_policies_answer_the_same_prompts(models: dict[str, str], tmp_path: Path):
    job = make_job("evaluate", models, evaluate__completions=2, gate__kl_discount=0.5)
    directory, summary = evaluate(job, tmp_path, prompts=9)
    completions = rows_of(directory.outputs / "completions.parquet")
    rewards = {r["completion"]: r["reward"] for r in rows_of(directory.outputs / "scores.parquet")}
    assert len(completions) == len(rewards) == 3 * 9 * 2
    for role in ("policy", "reference", "previous"):
        mine = [row for row in completions if row["policy"] == NAMES[role]]
        assert sorted(r["prompt"] for r in mine) == sorted(2 * [p["id"] for p in make_prompts(9)])
        mean = sum(rewards[row["id"]] for row in mine) / len(mine)
        assert getattr(summary, role).reward == pytest.approx(mean, abs=1e-9)
        assert getattr(summary, role).length == sum(row["tokens"] for row in mine) / len(mine)
        assert (getattr(summary, role).kl > 0) == (role != "reference")
    against = {row["prompt"]: [] for row in completions}
    for row in completions:
        if row["policy"] != NAMES["previous"]:
            against[row["prompt"]].append(rewards[row["id"]])
    # Rows come policy by policy: two answers of the policy, then the reference's two.
    met = [pair for r in against.values() for pair in zip(r[:2], r[2:], strict=True)]
    wins = sum((a > b) + (a == b) / 2 for a, b in met)
    assert summary.win_rate_reward_model == pytest.approx(wins / 18)
    assert summary.win_rate_against_reference.prompts == 9
    # Half a nat's discount per nat of the policy's KL: at 2 nats, half of the lead would be left.
    assert summary.lead == pytest.approx(2 / (2 + summary.policy.kl))


def test_the_reference_is_loaded_once_and_gone_before_the_reward_model(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    loads = live_models(monkeypatch)
    evaluate(make_job("evaluate", models), tmp_path, prompts=2)
    # The divergence is measured between two of them.
    assert loads == [("reference", 1), ("policy", 2), ("previous", 2), ("reward", 1)]


@pytest.mark.parametrize(("own", "expected"), [(None, 0.7), (0.5, 0.5)])
def test_answers_are_sampled_as_ppo_samples_unless_told_otherwise(
    models: dict[str, str], tmp_path: Path, own: float | None, expected: float
):
    job = make_job("evaluate", models, ppo__temperature=0.7, evaluate__temperature=own)
    directory, _ = evaluate(job, tmp_path, prompts=2)
    rows = rows_of(directory.outputs / "completions.parquet")
    assert {row["temperature"] for row in rows} == {expected}


def test_a_stage_that_still_scores_is_not_at_its_end(models: dict[str, str], tmp_path: Path):
    judge = tmp_path / "reward"
    shutil.copytree(models["reward"], judge)
    save_random_reward(models["reference"], judge / AUDIT, seed=1)
    job = make_job("evaluate", models | {"reward": str(judge)})
    directory, _ = evaluate(job, tmp_path / "run", prompts=3)
    events = [json.loads(line) for line in directory.events.read_text().splitlines()]
    told = [(e["done"] / e["total"], e["message"]) for e in events if e["kind"] == "progress"]
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert [(round(done, 2), doing) for done, doing in told][-7:] == [
        (0.8, "loading the reward model"),
        (0.85, "policy: answers scored by the reward model"),
        (0.9, "reference: answers scored by the reward model"),
        (0.95, "previous: answers scored by the reward model"),
        (0.97, "policy: answers scored by the audit model"),
        (0.98, "reference: answers scored by the audit model"),
        (1.0, "previous: answers scored by the audit model"),
    ]
    assert told[-8][0] == 0.8  # all are sampled


def test_without_a_previous_policy_of_its_own_there_are_two(models: dict[str, str], tmp_path: Path):
    job = make_job("evaluate", models | {"previous": models["reference"]})
    job.names["previous"] = job.names["reference"]  # type: ignore[index]
    _, summary = evaluate(job, tmp_path, prompts=2)
    assert summary.previous is None
    assert summary.win_rate_against_previous is None


def test_a_policy_against_itself_ties_everywhere(models: dict[str, str], tmp_path: Path):
    job = make_job("evaluate", models | {"policy": models["reference"]})
    _, summary = evaluate(job, tmp_path, prompts=4)
    assert summary.win_rate_reward_model == 0.5
    assert summary.policy.kl == pytest.approx(0, abs=1e-6)


def test_beams_take_the_likeliest_answers(models: dict[str, str], tmp_path: Path):
    job = make_job("evaluate", models, evaluate__beams=3, evaluate__length_penalty=0.0)
    directory, summary = evaluate(job, tmp_path, prompts=5)
    rows = rows_of(directory.outputs / "completions.parquet")
    assert len(rows) == 15
    assert {row["temperature"] for row in rows} == {0.0}
    assert summary.policy.kl > 0
    for role in ("policy", "previous"):
        sampler = Sampler.load(models[role], device=torch.device("cpu"), dtype=torch.float32)
        found = {row["prompt"]: row["text"] for row in rows if row["policy"] == NAMES[role]}
        for prompt in make_prompts(5):
            (best,) = beam_search(
                sampler.model,
                [sampler.chat.prompt(read_messages(prompt["messages"]))],
                beams=3,
                eos_token_ids=sampler.chat.stop_ids,
                pad_token_id=sampler.chat.pad_id,
                max_new_tokens=6,
                length_penalty=0.0,
            )
            assert found[prompt["id"]] == sampler.chat.decode(best)


def test_a_search_honors_the_length_penalty():
    sampler = Sampler(tiny_model(), ChatTokenizer(tiny_tokenizer()))
    likely_end = torch.zeros(261)
    likely_end[sampler.chat.stop_ids] = 6.0
    sampler.model.lm_head.register_forward_hook(lambda _, __, out: out + likely_end)
    asked: Any = ["Say 1", "Hello"]
    short, long = (
        sampler.search(asked, beams=3, max_new_tokens=6, length_penalty=penalty, batch=4)
        for penalty in (0.0, 5.0)
    )
    # The end has about half the mass at every step: alone it is likeliest, per token it is not.
    assert [len(answer.ids) for answer in short] == [1, 1]
    assert all(len(answer.ids) > 1 for answer in long)
    assert {answer.finish_reason for answer in short} == {"stop"}


def test_too_long_a_prompt_is_said(models: dict[str, str], tmp_path: Path):
    job = make_job("evaluate", models, evaluate__max_new_tokens=4096)
    with pytest.raises(ValueError, match="3 held-out prompts exceed the model's context"):
        evaluate(job, tmp_path, prompts=3)


def test_kl_of_a_sequence_by_hand():
    # Both models give every position the same distribution over 261 tokens; the policy's is
    # tilted so that one token has probability ½ and the others share the rest:
    # KL per token = ½ log(½ · 261) + ½ log(½ · 261/260).
    policy, reference = tiny_model(), tiny_model()
    for model in (policy, reference):
        torch.nn.init.zeros_(model.lm_head.weight)
    bias = torch.zeros(261)
    bias[9] = math.log(260)
    policy.lm_head.register_forward_hook(lambda _, __, out: out + bias)
    per_token = 0.5 * math.log(0.5 * 261) + 0.5 * math.log(0.5 * 261 / 260)
    responses = [
        Response(prompt_ids=[5] * p, ids=[9] * n, text="", finish_reason="stop")
        for p, n in ((3, 1), (1, 4), (7, 2))
    ]
    found = sequence_kl(policy, reference, responses, temperature=1.0, pad_id=0)
    assert found == pytest.approx([per_token, 4 * per_token, 2 * per_token], rel=1e-4)
    # Twice the temperature: the tilt is halved to √260, of 260 + √260 in all.
    z = 260 + math.sqrt(260)
    p = math.sqrt(260) / z
    warm = p * math.log(p * 261) + (1 - p) * math.log((1 - p) / 260 * 261)
    found = sequence_kl(policy, reference, responses[:1], temperature=2.0, pad_id=0)
    assert found == pytest.approx([warm], rel=1e-4)


def test_kl_reads_the_places_before_the_response_tokens():
    policy, reference = tiny_model(seed=1), tiny_model(seed=2)
    ids = [7, 8, 9, 10, 11]
    p, q = (m(torch.tensor([ids])).logits.log_softmax(-1)[0] for m in (policy, reference))
    expected = (p[2:4].exp() * (p[2:4] - q[2:4])).sum().item()
    response = Response(prompt_ids=ids[:3], ids=ids[3:], text="", finish_reason="stop")
    other = Response(prompt_ids=[1], ids=[2] * 9, text="", finish_reason="stop")
    found = sequence_kl(policy, reference, [response, other], temperature=1.0, pad_id=0)
    assert found[0] == pytest.approx(expected, abs=1e-5)


def test_distinct_share_by_hand():
    # Bigrams: ab, bc, ab — two distinct of three.
    assert distinct_share([[1, 2, 3], [1, 2]]) == pytest.approx(2 / 3)
    assert distinct_share([[1]]) == 0.0


def test_every_metric_of_the_stages_is_defined_without_a_double():
    assert len(METRICS) == len(set(METRICS.values()))


def judged(count: int) -> list[dict[str, Any]]:
    return [
        {"prompt": row["id"], "messages": row["messages"], "learned": '["j-1"]'}
        for row in make_prompts(count)
    ]


def test_the_policy_answers_judged_prompts_as_pairs_are_sampled_and_no_figure_changes(
    models: dict[str, str], tmp_path: Path
):
    sampled = {"sampling__temperatures": [0.6, 0.9], "sampling__top_p": 0.8}
    job = make_job("evaluate", models, sampling__max_new_tokens=3, **sampled)
    without, figures = evaluate(job, tmp_path / "without", prompts=3)
    assert rows_of(without.outputs / "follow_ups.parquet") == []
    directory = RunDirectory.create(tmp_path / "with", job)
    give(directory, "prompts.parquet", make_prompts(3))
    give(directory, "follow_ups.parquet", judged(5))
    with Report(directory) as report:
        again = run(job, report, directory)
    assert again == figures
    for name in ("completions.parquet", "scores.parquet"):
        assert rows_of(directory.outputs / name) == rows_of(without.outputs / name)
    rows = rows_of(directory.outputs / "follow_ups.parquet")
    assert [row["prompt"] for row in rows] == [row["prompt"] for row in judged(5)]
    assert {(row["policy"], row["temperature"], row["top_p"]) for row in rows} == {
        (NAMES["policy"], 0.6, 0.8)
    }
    assert max(row["tokens"] for row in rows) <= 3
    assert len({row["id"] for row in rows}) == 5
    # The policy's own samples, which another model would not give.
    policy = Sampler.load(models["policy"], device=torch.device("cpu"), dtype=torch.float32)
    asked = [read_messages(row["messages"]) for row in judged(5)]
    expected = policy.sample(
        asked, temperature=0.6, top_p=0.8, max_new_tokens=3, seed=rows[0]["seed"]
    )
    assert [row["text"] for row in rows] == [response.text for response in expected]


def test_judged_prompts_that_do_not_fit_are_left_out_with_a_line_in_the_log(
    models: dict[str, str], tmp_path: Path
):
    job = make_job("evaluate", models, sampling__max_new_tokens=100_000)
    directory = RunDirectory.create(tmp_path, job)
    give(directory, "prompts.parquet", make_prompts(2))
    give(directory, "follow_ups.parquet", judged(2))
    with Report(directory) as report:
        run(job, report, directory)
    assert rows_of(directory.outputs / "follow_ups.parquet") == []
    assert "2 judged prompts exceed the model's context" in directory.log_tail(50)
