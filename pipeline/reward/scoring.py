"""A trained reward model as a callable: text in, score out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from pipeline.ppo.model import autocast, resolve_precision
from pipeline.reward.data import pad_right
from pipeline.reward.network import load_network
from pipeline.text import ChatTokenizer, Messages

_TOKENS_AT_ONCE = 16_384


class RewardModel:
    """Scores responses with the model's own tokenizer, whatever the policy's is."""

    def __init__(self, network: Any, chat: ChatTokenizer, device: torch.device | str) -> None:
        self.network = network.to(device).eval()
        self.chat = chat
        self.device = torch.device(device)

    @classmethod
    def load(cls, path: str | Path, *, device: torch.device | str = "cpu") -> RewardModel:
        """From a saved directory; raises ModelUnavailable when it holds no reward model."""
        return cls(load_network(path), ChatTokenizer.load(str(path)), device)

    @property
    def members(self) -> int:
        """Rewards that one pass gives each text."""
        return self.network.score.out_features

    def __call__(
        self, conversations: Sequence[Messages], completions: Sequence[str]
    ) -> list[float]:
        """The reward of each completion of its conversation; the mean over members."""
        return _mean(self.member_scores(conversations, completions))

    def member_scores(
        self, conversations: Sequence[Messages], completions: Sequence[str]
    ) -> list[list[float]]:
        """(K, B): the rewards that each of K members gives B completions of their conversations.

        Rendered by the function that rendered the judgments it was trained on.
        """
        texts = zip(conversations, completions, strict=True)
        return self._rewards([self.chat.chat(messages, text).ids for messages, text in texts])

    def score(self, texts: Sequence[Sequence[int]]) -> list[float]:
        """The reward of each text of token ids; the mean over members."""
        return _mean(self._rewards(texts))

    @torch.no_grad()
    def _rewards(self, texts: Sequence[Sequence[int]]) -> list[list[float]]:
        """(K, B) rewards of texts of token ids; texts of like length share a batch."""
        rewards = [[0.0] * len(texts) for _ in range(self.members)]
        precision = resolve_precision("auto", self.device)
        for rows in _by_length(texts):
            batch = pad_right([texts[row] for row in rows], self.chat.pad_id)
            with autocast(precision, self.device):
                output = self.network(**{k: v.to(self.device) for k, v in batch.items()})
            for member, found in zip(rewards, output.logits.T.tolist(), strict=True):
                for row, reward in zip(rows, found, strict=True):
                    member[row] = reward
        return rewards


def _mean(members: Sequence[Sequence[float]]) -> list[float]:
    return [fmean(scores) for scores in zip(*members, strict=True)]


def _by_length(texts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Row numbers in batches of at most `_TOKENS_AT_ONCE` padded tokens, longest first."""
    batches: list[list[int]] = []
    room = 0
    for row in sorted(range(len(texts)), key=lambda row: -len(texts[row])):
        if room < 1:
            batches.append([])
            room = max(1, _TOKENS_AT_ONCE // len(texts[row]))
        batches[-1].append(row)
        room -= 1
    return batches
