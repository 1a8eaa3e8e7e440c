"""What PPO and RLOO read and report alike: prompts, the shaped reward, samples."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from pipeline.config.shaping import ShapingConfig
from pipeline.models.text import ChatTokenizer, name_rows, read_messages
from pipeline.ppo import PPOConfig
from pipeline.reward.ensemble import Ensemble
from pipeline.runs.parquet import write_rows
from pipeline.runs.rundir import Job, RunDirectory
from pipeline.shaping import load, require_prompts
from storage.records import Message

ShapedReward = Callable[[Sequence[int], Sequence[str]], dict[str, list[float]]]
"""(numbers of prompts, texts) → each component's scores of the texts, by name."""

SAMPLES = 4
"""Responses shown whenever an update's samples are reported."""

_SAMPLE_COLUMNS = ("step", "prompt", "text", "reward", "kl", "length", "finish_reason")


@dataclass(frozen=True)
class AskedPrompt:
    """A prompt of the stage's inputs with its token ids, rendered for chat."""

    id: str
    messages: tuple[Message, ...]
    ids: list[int]
    category: str = ""


def read_prompts(
    directory: RunDirectory, chat: ChatTokenizer, config: PPOConfig, context: int | None
) -> tuple[list[AskedPrompt], str | None]:
    """The prompts of inputs/prompts.parquet that fit, and a sentence on those that do not.

    Raises ValueError when none fits.
    """
    frame = pd.read_parquet(directory.inputs / "prompts.parquet")
    limit = config.max_prompt_tokens
    if context is not None:
        # A reward model reads the end of an answer that was cut off, too.
        limit = min(limit, context - config.max_new_tokens - 1)
    if "category" not in frame:
        frame["category"] = ""
    prompts: list[AskedPrompt] = []
    long: list[tuple[str, int]] = []
    for id, text, category in frame[["id", "messages", "category"]].itertuples(index=False):
        messages = read_messages(text)
        ids = chat.prompt(messages)
        if len(ids) <= limit:
            prompts.append(AskedPrompt(id, messages, ids, category))
        else:
            long.append((id, len(ids)))
    sentence = (
        f"{len(long)} of {len(frame)} prompts are longer than {limit} tokens "
        "(ppo.max_prompt_tokens, or the context less ppo.max_new_tokens and one for the end): "
        f"{name_rows(long)}"
    )
    if not prompts:
        raise ValueError(
            f"{sentence}; raise ppo.max_prompt_tokens, lower ppo.max_new_tokens or add shorter prompts"
        )
    return prompts, f"{sentence}; they are left out" if long else None


def shaped_reward(
    judges: Ensemble,
    shaping: ShapingConfig,
    conversations: Sequence[Sequence[Message]],
    *,
    device: torch.device | str,
) -> tuple[ShapedReward, dict[str, float]]:
    """(reward, weights): named scores of texts that answer the conversations of these numbers.

    The reward models' own score is called ``score``; the others are shaping components, and with
    several reward models figures on them.  ValueError for components that cannot be had or have
    nothing to say about these conversations.
    """
    components = load(shaping.weights, shaping, device=device)
    require_prompts(components, conversations)

    def reward(indices: Sequence[int], texts: Sequence[str]) -> dict[str, list[float]]:
        asked = [conversations[i] for i in indices]
        verdict = judges(asked, texts)
        scores = verdict.scores
        if shaping.floor is not None:
            scores = [max(score, shaping.floor) for score in scores]
        shaped = {name: score(asked, texts) for name, score in components.items()}
        return {"score": scores} | verdict.figures | shaped

    # What is only watched is a component of weight 0.
    watched = dict.fromkeys(judges.figures, 0.0)
    return reward, {"score": shaping.reward_weight} | watched | shaping.weights


def job_reward(
    job: Job, prompts: Sequence[AskedPrompt], *, device: torch.device
) -> tuple[ShapedReward, dict[str, float]]:
    """`shaped_reward` by the reward models and settings of a job, on its prompts."""
    return shaped_reward(
        Ensemble.load(
            job,
            device=device,
            asked={prompt.id: prompt.messages for prompt in prompts},
            answer=job.config.ppo.max_new_tokens,
        ),
        job.config.shaping,
        [prompt.messages for prompt in prompts],
        device=device,
    )


def write_samples(directory: RunDirectory) -> None:
    """outputs/samples.parquet: the samples reported over all attempts.

    The event log is where a resume keeps them.
    """
    rows: list[dict[str, Any]] = []
    with directory.events.open(encoding="utf-8") as events:
        for line in events:
            event = json.loads(line)
            if event["kind"] == "note" and event["note"] == "sample":
                rows.append(event["payload"] | {"step": event["step"], "text": event["message"]})
    write_rows(directory.outputs / "samples.parquet", rows, _SAMPLE_COLUMNS)
