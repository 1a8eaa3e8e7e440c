"""The reward function that OpenRLHF calls: the reward of the engine, for one response at a time.

OpenRLHF loads a file with ``reward_func(queries, prompts, labels)`` in each process that samples, and
calls it in threads.  A query is the prompt with the response as text with control tokens.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from pipeline.models.devices import pick_device
from pipeline.models.text import ChatTokenizer
from pipeline.policy_methods.inputs import PolicyPrompt, ShapedReward, job_reward
from pipeline.policy_methods.openrlhf.exchange import exact_prompts, rendering
from pipeline.ppo.rewards import RunningMoments, scale_scores
from pipeline.runs.rundir import RunDirectory

SCORE = "reward/mean"
"""OpenRLHF averages what the function logs over the responses of an update, under these names."""


class RunReward:
    """The reward of a run directory: reward models, shaping, clip and penalty as its job says.

    Models are loaded at the first call, after vLLM has taken its part of the GPU's memory.
    """

    def __init__(self, path: str) -> None:
        self._directory = RunDirectory(Path(path))
        self._lock = threading.Lock()

    def __call__(
        self, queries: Sequence[str], prompts: Sequence[str], labels: Sequence[str]
    ) -> dict[str, Any]:
        """Rewards of queries, which begin with their prompts; a label is the prompt's id."""
        del prompts  # known by their ids
        with self._lock, torch.no_grad():
            numbers = [self._numbers[label] for label in labels]
            found = [self._response(i, query) for i, query in zip(numbers, queries, strict=True)]
            reward, weights = self._reward
            named = reward(numbers, [text for text, _ in found])
        columns = {name: torch.tensor(values) for name, values in named.items()}
        scores = torch.stack([weights[name] * values for name, values in columns.items()]).sum(0)
        ended = torch.tensor([end for _, end in found])
        rewards = scale_scores(
            scores, ended=ended, moments=RunningMoments(), config=self._job.config.ppo
        )
        logs = {SCORE: scores} | {f"reward/{name}": values for name, values in columns.items()}
        return {"rewards": rewards, "scores": rewards, "extra_logs": logs}

    @cached_property
    def _job(self) -> Any:
        return self._directory.job()

    @cached_property
    def _chat(self) -> ChatTokenizer:
        return ChatTokenizer.load(self._job.model("policy"))

    @cached_property
    def _prompts(self) -> list[PolicyPrompt]:
        return exact_prompts(self._job, self._directory, self._chat)[0]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {prompt.id: i for i, prompt in enumerate(self._prompts)}

    @cached_property
    def _reward(self) -> tuple[ShapedReward, dict[str, float]]:
        device = pick_device(self._job.config.worker.device)
        return job_reward(self._job, self._prompts, device=device)

    def _response(self, number: int, query: str) -> tuple[str, bool]:
        """The response as the engine's reward reads it, and whether end-of-text was sampled."""
        prompt = rendering(self._chat, self._prompts[number].ids)
        if not query.startswith(prompt):
            raise ValueError(
                f"the text from OpenRLHF does not begin with prompt {self._prompts[number].id}"
            )
        text = query[len(prompt) :]
        ids = self._chat.tokenizer(text, add_special_tokens=False)["input_ids"]
        return self._chat.decode(ids), bool(ids) and ids[-1] in self._chat.stop_ids
