"""Rows longer than the context of a model with absolute positions: named, or skipped, and never an IndexError."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from pipeline.models.loading import context_length, context_of, load_causal_lm
from pipeline.models.text import TooLong
from pipeline.reward.scoring import RewardModel
from pipeline.runs.rundir import RunDirectory
from storage.records import Prompt, messages_json
from tests.helpers.stage_inputs import (
    give,
    make_job,
    make_judgments,
    make_prompts,
    save_random_reward,
)
from tests.helpers.tiny import tiny_tokenizer
from tests.helpers.worker_runs import events, work

CONTEXT = 64
LONG = "a" * 80
"""One token a byte: longer than the context, and shorter than every setting's limit."""


def save_gpt2(path: Path, *, context: int = CONTEXT) -> str:
    """Two layers with learned positions: one more token than `context` is an IndexError."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=261, n_positions=context, n_embd=32, n_layer=2, n_head=2,
        eos_token_id=1, bos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    GPT2LMHeadModel(config).eval().save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("gpt2")
    model = save_gpt2(root / "model")
    save_random_reward(model, root / "reward", seed=0)
    return dict.fromkeys(("policy", "reference", "previous"), model) | {
        "reward": str(root / "reward")
    }


def test_the_models_context_is_known_before_it_is_loaded(models: dict[str, str]):
    assert context_of(models["policy"]) == CONTEXT
    model = load_causal_lm(models["policy"])
    assert context_length(model) == CONTEXT
    with pytest.raises(IndexError):  # what every stage here would end with
        model(torch.zeros(1, CONTEXT + 1, dtype=torch.long))


def a_prompt(text: str) -> dict[str, Any]:
    prompt = Prompt.make(text, role="train")
    return {"id": prompt.id, "messages": messages_json(prompt.messages)}


def ran(path: Path, stage: str, models: dict[str, str], inputs: Any, **settings: Any) -> Any:
    directory = RunDirectory.create(path / "run", make_job(stage, models, **settings))
    for name, rows in inputs.items():
        give(directory, f"{name}.parquet", rows)
    work(directory)
    return directory


def failure(directory: RunDirectory) -> str:
    assert directory.result() is None
    reason = directory.failure()
    assert "IndexError" not in reason
    return reason


def warning(directory: RunDirectory, name: str) -> str:
    assert directory.result() is not None, directory.failure()
    (found,) = [e for e in events(directory) if e["kind"] == "note" and e["name"] == name]
    return found["message"]


def demonstrations() -> list[dict[str, Any]]:
    rows = [row | {"prompt": row["id"], "response": "yes"} for row in make_prompts(8)]
    rows[5]["response"] = LONG
    return rows


def test_a_demonstration_that_is_too_long_is_named(models: dict[str, str], tmp_path: Path):
    rows = demonstrations()
    reason = failure(ran(tmp_path, "sft", models, {"examples": rows}))
    # "<|user|>Say 5<|assistant|>", 80 letters and the end of the turn
    assert f"row 6 (prompt {rows[5]['id']}) ({1 + 5 + 1 + 80 + 1} tokens)" in reason
    assert "64" in reason
    assert "model.long_rows=skip" in reason


def test_demonstrations_that_are_too_long_can_be_skipped(models: dict[str, str], tmp_path: Path):
    rows = demonstrations()
    run = ran(tmp_path, "sft", models, {"examples": rows}, model__long_rows="skip")
    assert rows[5]["id"] in warning(run, "long_rows")
    assert run.result()["examples"] == 7


def judged() -> dict[str, Any]:
    judgments = make_judgments(48)
    judgments[7]["second_text"] = LONG
    return {"judgments": judgments, "prompts": make_prompts(4)}


@pytest.mark.parametrize("method", ["reward", "dpo"])
def test_a_judged_answer_that_is_too_long_is_named(
    models: dict[str, str], tmp_path: Path, method: str
):
    stage, settings = ("reward", {}) if method == "reward" else ("ppo", {"optimize__method": "dpo"})
    reason = failure(ran(tmp_path, stage, models, judged(), **settings))
    assert f"judgment j-7 of prompt {judged()['judgments'][7]['prompt']}" in reason
    assert "model.long_rows=skip" in reason


@pytest.mark.parametrize("method", ["reward", "dpo"])
def test_judged_answers_that_are_too_long_can_be_skipped(
    models: dict[str, str], tmp_path: Path, method: str
):
    stage, settings = ("reward", {}) if method == "reward" else ("ppo", {"optimize__method": "dpo"})
    run = ran(tmp_path, stage, models, judged(), model__long_rows="skip", **settings)
    assert "j-7" in warning(run, "long_rows")


def asked(*, count: int = 6) -> list[dict[str, Any]]:
    return [*make_prompts(count), a_prompt("b" * 60)]


def test_a_prompt_without_room_for_an_answer_is_named_and_not_sampled(
    models: dict[str, str], tmp_path: Path
):
    plan = [row | {"arm": "random", "pairs": 1} for row in asked()]
    run = ran(tmp_path, "sampling", models, {"prompts": plan})
    assert plan[-1]["id"] in warning(run, "long_prompts")


@pytest.mark.parametrize("method", ["ppo", "rloo"])
def test_a_prompt_without_room_for_an_answer_is_named_and_not_trained_on(
    models: dict[str, str], tmp_path: Path, method: str
):
    settings = {"ppo__updates": 1, "optimize__method": method}
    run = ran(tmp_path, "policy", models, {"prompts": asked()}, **settings)
    assert asked()[-1]["id"] in warning(run, "long_prompts")


def test_a_held_out_prompt_without_room_for_an_answer_is_named(
    models: dict[str, str], tmp_path: Path
):
    reason = failure(ran(tmp_path, "evaluate", models, {"prompts": asked()}))
    assert f"{asked()[-1]['id']} ({62 + 6 + 1} tokens)" in reason
    assert "evaluate.max_new_tokens=6" in reason


@pytest.mark.parametrize("stage", ["sampling", "policy", "evaluate"])
def test_the_longest_answer_that_is_cut_off_can_still_be_scored(
    models: dict[str, str], tmp_path: Path, stage: str
):
    """A reward model reads the end of an answer, which one that was cut off does not have.

    A prompt of 57 tokens leaves room for 6 and that end; one of 58 for 6 alone.
    """
    rows = [a_prompt("c" * letters) | {"arm": "random", "pairs": 2} for letters in (55, 56)]
    run = ran(
        tmp_path, stage, models, {"prompts": rows},
        ppo__updates=1, ppo__max_new_tokens=6, ppo__min_new_tokens=6,
    )  # fmt: skip
    told = failure(run) if stage == "evaluate" else warning(run, "long_prompts")
    assert rows[1]["id"] in told
    assert rows[0]["id"] not in told


def test_a_reward_model_with_less_context_than_the_policy_says_so_before_anything_is_sampled(
    models: dict[str, str], tmp_path: Path
):
    small = save_gpt2(tmp_path / "small", context=32)
    save_random_reward(small, tmp_path / "reward", seed=0)
    rows = [*make_prompts(3), a_prompt("d" * 40)]
    given = models | {"reward": str(tmp_path / "reward")}
    reason = failure(ran(tmp_path, "policy", given, {"prompts": rows}))
    assert f"{rows[-1]['id']} ({42 + 5 + 1} tokens)" in reason
    assert "the reward model's context of 32 tokens" in reason


def test_an_answer_that_grew_beyond_the_context_is_scored_without_its_end(
    models: dict[str, str], caplog: pytest.LogCaptureFixture
):
    model = RewardModel.load(models["reward"])
    asked = [{"role": "user", "content": "e"}]  # 3 tokens; 61 are left for an answer and its end
    longer, fitting = model([asked, asked], ["f" * 90, "f" * 60])
    assert longer == pytest.approx(fitting)
    assert "without its last 30 tokens" in caplog.text
    with pytest.raises(TooLong, match="a prompt of 72 tokens leaves no room"):
        model([[{"role": "user", "content": "e" * 70}]], ["f"])
