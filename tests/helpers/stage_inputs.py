"""Small inputs for the stages, shared by their tests."""

from __future__ import annotations

import json
import random
import weakref
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from pipeline.config.sections import Config
from pipeline.models import generate
from pipeline.models.text import ChatTokenizer
from pipeline.reward import scoring
from pipeline.reward.network import from_language_model
from pipeline.runs.rundir import Job, Report, RunDirectory
from pipeline.stages import policy as ppo_stage
from storage.records import Prompt, messages_json
from tests.helpers.tiny import save_tiny

SETTINGS = {
    "worker.threads": 1,
    "worker.nice": 1,
    "sft.lr": 1e-2,
    "sft.batch": 4,
    "sampling.max_new_tokens": 6,
    "sampling.batch": 16,
    "reward.lr": 3e-3,
    "reward.batch": 8,
    "ppo.updates": 3,
    "ppo.rollouts": 4,
    "ppo.minibatch": 4,
    "ppo.epochs": 1,
    "ppo.max_new_tokens": 5,
    "ppo.max_prompt_tokens": 64,
    "ppo.checkpoint_every": 1,
    "evaluate.max_new_tokens": 6,
}
NAMES = {
    "policy": "policy-1",
    "reference": "sft-1",
    "previous": "sft-0",
    "reward": "reward-1",
    "reward_2": "reward-0",
}


def tiny_models(root: Path) -> dict[str, str]:
    """Policy, reference and previous with different weights."""
    return {
        key: str(save_tiny(root / key, seed=seed))
        for seed, key in enumerate(("policy", "reference", "previous"))
    }


def tiny_models_and_reward(root: Path) -> dict[str, str]:
    """Those, and a reward model whose head is random instead of zero."""
    made = tiny_models(root)
    save_random_reward(made["reference"], root / "reward", seed=0)
    return made | {"reward": str(root / "reward")}


def save_random_reward(reference: str, to: Path, *, seed: int) -> None:
    """A reward model of one member, whose head is random."""
    chat = ChatTokenizer.load(reference)
    reward = from_language_model(reference, chat)
    torch.manual_seed(seed)
    torch.nn.init.normal_(reward.score.weight)
    reward.save_pretrained(to)
    chat.tokenizer.save_pretrained(to)


def make_job(stage: Any, models: dict[str, str], **overrides: Any) -> Job:
    settings = {name.replace("__", "."): value for name, value in overrides.items()}
    return Job(
        run="run-1",
        stage=stage,
        iteration=2,
        config=Config().override(SETTINGS | settings),
        seed=7,
        models=models,
        names={key: NAMES[key] for key in models},
    )


def make_prompts(count: int) -> list[dict[str, Any]]:
    """Rows id and messages; every third is a chat with a system message."""
    rows = []
    for i in range(count):
        turns: Any = f"Say {i}"
        if i % 3 == 0:
            turns = [{"role": "system", "content": "Brief."}, {"role": "user", "content": turns}]
        prompt = Prompt.make(turns, role="train")
        rows.append({"id": prompt.id, "messages": messages_json(prompt.messages)})
    return rows


def make_judgments(
    count: int, *, prompts: int = 24, ties: float = 0.2, seed: int = 0, longest: int = 12
) -> list[dict[str, Any]]:
    """Judgments that prefer the text with more z in it, and tie at the given rate."""
    coin = random.Random(seed)
    asked = make_prompts(prompts)
    rows = []
    for i in range(count):
        plain, liked = (
            "".join(coin.choices(letters, k=coin.randint(6, longest)))
            for letters in ("abcdefgh", "abczzzzz")
        )
        first, second = (liked, plain) if coin.random() < 0.5 else (plain, liked)
        won = "first" if first is liked else "second"
        rows.append(
            asked[i % prompts]
            | {
                "judgment": f"j-{i}",
                "comparison": f"c-{i}",
                "prompt": asked[i % prompts]["id"],
                "first": f"r-{i}-first",
                "second": f"r-{i}-second",
                "first_text": first,
                "second_text": second,
                "outcome": coin.choice(["tie", "both_bad"]) if coin.random() < ties else won,
                "strength": None,
                "annotator": "a-1",
                "shown_swapped": False,
            }
        )
    return rows


def live_models(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Filled as models are loaded: each one's folder, and how many there are in memory with it."""
    loads: list[tuple[str, int]] = []
    seen: list[weakref.ref[Any]] = []

    def watch(module: Any, name: str) -> None:
        load = getattr(module, name)

        def watched(path: str, *args: Any, **options: Any) -> Any:
            model = load(path, *args, **options)
            seen.append(weakref.ref(model))
            loads.append((Path(path).name, sum(ref() is not None for ref in seen)))
            return model

        monkeypatch.setattr(module, name, watched)

    watch(generate, "load_causal_lm")
    watch(scoring, "load_network")
    return loads


def give(directory: RunDirectory, name: str, rows: list[dict[str, Any]]) -> None:
    pd.DataFrame(rows).to_parquet(directory.inputs / name, index=False)


def first_update(models: dict[str, str], path: Path, **settings: Any) -> dict[str, float]:
    """Metrics of the first update of a run of the PPO stage."""
    job = make_job("policy", models, ppo__updates=1, **settings)
    directory = RunDirectory.create(path, job)
    give(directory, "prompts.parquet", make_prompts(8))
    with Report(directory) as report:
        ppo_stage.run(job, report, directory)
    events = map(json.loads, directory.events.read_text().splitlines())
    return next(event["values"] for event in events if event["kind"] == "metrics")


def rows_of(path: Path) -> list[dict[str, Any]]:
    return pd.read_parquet(path).to_dict("records")
