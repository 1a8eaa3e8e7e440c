"""Inputs and outputs of the engine's stage: prompts, the shaped reward, reported samples.

`read_prompts` leaves out prompts that are too long, with a warning in the run.  `job_reward` is the
reward: the reward models' score, combined (`shaping.ensemble`) and limited below (`shaping.floor`),
plus the weighted components of pipeline/shaping.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from pydantic import model_serializer

from pipeline.config.shaping import ShapingConfig
from pipeline.models.text import ChatTokenizer, name_rows, read_messages
from pipeline.ppo import PPOConfig
from pipeline.ppo.network.distributed import Processes
from pipeline.reward.ensemble import Ensemble
from pipeline.runs.parquet import write_rows
from pipeline.runs.rundir import Job, RunDirectory
from pipeline.shaping import load, require_prompts
from storage.records import Message

ShapedReward = Callable[[Sequence[int], Sequence[str]], dict[str, list[float]]]
"""(numbers of prompts, texts) → each component's scores of the texts, by name."""

SAMPLES = 4
"""Responses reported in an update whose samples are shown."""
_SAMPLED_UPDATES = 20

_SAMPLE_COLUMNS = ("step", "prompt", "text", "reward", "kl", "length", "finish_reason")


@dataclass(frozen=True, kw_only=True)
class PolicySummary:
    """The summary of a policy stage with a method of the engine."""

    method: str
    """``optimize.method``."""
    metrics: Mapping[str, float]
    """Metrics of the last update, by name; docs/algorithm.md defines them."""
    updates: int
    stopped: str | None = None
    """Why the engine ended early: ``kl_budget`` or ``reward_collapse``."""
    kl_weight: float | None = None
    """`ppo.kl_weight`; None in runs of earlier versions with TRL's RLOO."""

    @model_serializer(mode="wrap")
    def _flat(self, fields: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Put the metrics at the top level of result.json."""
        found = fields(self)
        metrics = found.pop("metrics")
        return found | metrics


def shows_samples(step: int, total: int) -> bool:
    """Whether samples of update `step` of `total` are reported: about 20, with the first and last."""
    return step % max(1, total // _SAMPLED_UPDATES) == 0 or step in (1, total)


@dataclass(frozen=True)
class PolicyPrompt:
    """A prompt of the stage's inputs with its token ids, rendered for chat."""

    id: str
    messages: tuple[Message, ...]
    ids: list[int]
    category: str = ""


def read_prompts(
    directory: RunDirectory, chat: ChatTokenizer, config: PPOConfig, context: int | None
) -> tuple[list[PolicyPrompt], str | None]:
    """The prompts of inputs/prompts.parquet that fit, and a sentence about those that do not.

    Raises ValueError when none fits.
    """
    frame = pd.read_parquet(directory.inputs / "prompts.parquet")
    limit = config.max_prompt_tokens
    if context is not None:
        # One more, because the reward model appends an end-of-text to a truncated answer.
        limit = min(limit, context - config.max_new_tokens - 1)
    if "category" not in frame:
        frame["category"] = ""
    prompts: list[PolicyPrompt] = []
    long: list[tuple[str, int]] = []
    for id, text, category in frame[["id", "messages", "category"]].itertuples(index=False):
        messages = read_messages(text)
        ids = chat.prompt(messages)
        if len(ids) <= limit:
            prompts.append(PolicyPrompt(id, messages, ids, category))
        else:
            long.append((id, len(ids)))
    sentence = (
        f"{len(long)} of {len(frame)} prompts are longer than {limit} tokens "
        "(ppo.max_prompt_tokens, or the context minus ppo.max_new_tokens and an end-of-text): "
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
    """(reward, weights): the named scores of texts, and each score's weight in the reward.

    ``score`` is the reward models' score; the others are shaping components and, with several reward
    models, figures on them, of weight 0.  Raises ValueError for components that are not available
    or that score none of these conversations.
    """
    components = load(shaping.weights, shaping, device=device)
    require_prompts(components, conversations)

    def reward(indices: Sequence[int], texts: Sequence[str]) -> dict[str, list[float]]:
        asked = [conversations[i] for i in indices]
        judged = judges(asked, texts)
        scores = judged.scores
        if shaping.floor is not None:
            scores = [max(score, shaping.floor) for score in scores]
        shaped = {name: score(asked, texts) for name, score in components.items()}
        return {"score": scores} | judged.figures | shaped

    unweighted = dict.fromkeys(judges.figures, 0.0)
    return reward, {"score": shaping.reward_weight} | unweighted | shaping.weights


def job_reward(
    job: Job,
    prompts: Sequence[PolicyPrompt],
    *,
    device: torch.device,
    processes: Processes | None = None,
) -> tuple[ShapedReward, dict[str, float]]:
    """`shaped_reward` by the reward models and settings of a job, on its prompts.

    With `processes`, the reward models are sharded among them, and they must score together.
    """
    return shaped_reward(
        Ensemble.load(
            job,
            device=device,
            asked={prompt.id: prompt.messages for prompt in prompts},
            answer=job.config.ppo.max_new_tokens,
            offload=job.config.ppo.offload == "frozen",
            processes=processes,
        ),
        job.config.shaping,
        [prompt.messages for prompt in prompts],
        device=device,
    )


def write_samples(directory: RunDirectory) -> None:
    """Write outputs/samples.parquet: the samples in the event log, of all attempts."""
    rows: list[dict[str, Any]] = []
    with directory.events.open(encoding="utf-8") as events:
        for line in events:
            event = json.loads(line)
            if event["kind"] == "note" and event["note"] == "sample":
                rows.append(event["payload"] | {"step": event["step"], "text": event["message"]})
    write_rows(directory.outputs / "samples.parquet", rows, _SAMPLE_COLUMNS)
