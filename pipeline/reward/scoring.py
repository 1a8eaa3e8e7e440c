"""A trained reward model as a callable from texts to scores."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from pipeline.models.loading import context_length
from pipeline.models.padding import pad_right
from pipeline.models.text import ChatTokenizer, Encoded, Messages, TooLong, name_rows
from pipeline.ppo.batch import micro_batches
from pipeline.ppo.network.distributed import Processes, gathered, is_sharded, shard
from pipeline.ppo.network.lora import round_frozen_weights
from pipeline.ppo.network.model import autocast, resolve_precision
from pipeline.ppo.network.offload import Offloaded
from pipeline.ppo.network.packing import last_states
from pipeline.reward.data import JudgedPair
from pipeline.reward.network import load_network, reads_packed

AUDIT = "audit"
"""The folder of a reward model that holds its audit model (`pipeline.reward.audit`)."""

_log = logging.getLogger(__name__)
_TOKENS_AT_ONCE = 16_384
_NETWORKS = "reward_networks"
"""Key of the saved configuration: the number of networks."""
_SLACK = 4096
"""Padding tokens that cost less than an additional forward pass."""


class RewardModel:
    """Scores responses with the model's own tokenizer.

    Its members are the heads of one network, or several networks with one head each, `network` and
    its `peers`.  All have the same ties and likelihood.

    With `processes`, each of them holds a shard of every network, and fetches one network at a time
    to score with it: all must score at the same time, each its own texts.
    """

    def __init__(
        self,
        network: Any,
        chat: ChatTokenizer,
        device: torch.device | str,
        *,
        peers: Sequence[Any] = (),
        processes: Processes | None = None,
    ) -> None:
        self.networks = [each.eval() for each in (network, *peers)]
        self.chat = chat
        self.device = torch.device(device)
        self._offloaded = Offloaded([], self.device)
        self._rows: dict[tuple[int, ...], int] = {}
        self._remembered: list[Tensor] = []
        self._precision = resolve_precision("auto", self.device)
        if processes is None:
            self.networks = [each.to(self.device) for each in self.networks]
            self._packs = reads_packed(self.network, self.device)
        else:
            # Before sharding, because one shard of a network cannot run alone.
            self._packs = processes.first(lambda: reads_packed(self.network, self.device))
            for each in self.networks:
                shard(each, self._precision, self.device, exact=each.exact_parts())

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        device: torch.device | str = "cpu",
        processes: Processes | None = None,
    ) -> RewardModel:
        """Load a saved directory; ModelUnavailable if it contains no reward model.

        With `processes`, only the first one loads weights.
        """
        source = "meta" if processes and processes.rank else "cpu"
        network = load_network(path, device=source)
        count = getattr(network.config, _NETWORKS, 1)
        peers = [
            load_network(Path(path) / _member(number), device=source)
            for number in range(2, count + 1)
        ]
        chat = ChatTokenizer.load(str(path))
        return cls(network, chat, device, peers=peers, processes=processes)

    def freeze(self, *, offload: bool = False) -> None:
        """Only score from now on: with the same rewards, but less memory.

        Weights that bf16 autocast rounds in every pass are rounded once.  With `offload`, all are in
        host memory while the model does not run.  The model must not be saved afterwards.
        """
        if any(map(is_sharded, self.networks)):  # gathered rounded, and only while they score
            return
        for network in self.networks:
            network.requires_grad_(False)
        if self._precision == "bf16":  # the heads always run in fp32
            round_frozen_weights(*(network.base_model for network in self.networks))
        if offload:
            self._offloaded = Offloaded(self.networks, self.device)

    def save(self, path: Path) -> None:
        """Save the network and the tokenizer in `path`, and each further network in a subfolder."""
        network, *peers = self.networks
        setattr(network.config, _NETWORKS, len(self.networks))
        network.save_pretrained(path)
        self.chat.tokenizer.save_pretrained(path)
        for number, peer in enumerate(peers, 2):
            peer.save_pretrained(path / _member(number))
            self.chat.tokenizer.save_pretrained(path / _member(number))

    @property
    def network(self) -> Any:
        """The first network."""
        return self.networks[0]

    @property
    def members(self) -> int:
        """The number of rewards per text."""
        return sum(network.members for network in self.networks)

    def __call__(
        self, conversations: Sequence[Messages], completions: Sequence[str]
    ) -> list[float]:
        """The rewards (B,) of completions of their conversations; the mean over members."""
        return _mean(self.member_scores(conversations, completions))

    def member_scores(
        self, conversations: Sequence[Messages], completions: Sequence[str]
    ) -> list[list[float]]:
        """(K, B) rewards by K members of B completions of their conversations."""
        return self.rewards(self._ids(conversations, completions))

    def score(self, texts: Sequence[Sequence[int]]) -> list[float]:
        """The reward of each text of token ids; the mean over members."""
        return _mean(self.rewards(texts))

    def both_sides(self, pairs: Sequence[JudgedPair]) -> tuple[list[float], list[float]]:
        """The rewards of each pair's first and second text; the mean over members."""
        if not pairs:
            return [], []
        rewards = self.score([p.first_ids for p in pairs] + [p.second_ids for p in pairs])
        return rewards[: len(pairs)], rewards[len(pairs) :]

    def rewards(self, texts: Sequence[Sequence[int]]) -> list[list[float]]:
        """(K, B) rewards of texts of token ids; ValueError if one is not finite."""
        found = []
        known = self._rows.keys() >= {tuple(text) for text in texts} if self._rows else False
        with torch.no_grad(), self._offloaded.on_device():
            for number, network in enumerate(self.networks):
                with gathered(network):
                    states = (
                        self._recalled(number, texts) if known else self._states(network, texts)
                    )
                    given = network.rewards(states)
                if not bool(given.isfinite().all()):
                    raise ValueError(
                        "the reward model's rewards are not finite: its training diverged; lower "
                        "reward.lr and train it again"
                    )
                found += given.T.tolist()
        return found

    def remember(self, texts: Iterable[Sequence[int]]) -> None:
        """Read these texts now, so that all later rewards of them need no pass.

        Heads may still be shifted and rescaled, but the trunks must not be trained any more.  Keeps
        `hidden` fp32 numbers per text and network in host memory.
        """
        unique = list(dict.fromkeys(tuple(text) for text in texts))
        self._remembered = []
        with torch.no_grad(), self._offloaded.on_device():
            for network in self.networks:
                with gathered(network):
                    self._remembered.append(self._states(network, unique).cpu())
        self._rows = {text: row for row, text in enumerate(unique)}

    def _recalled(self, number: int, texts: Sequence[Sequence[int]]) -> Tensor:
        """(B, hidden) of remembered texts in a network."""
        rows = [self._rows[tuple(text)] for text in texts]
        return self._remembered[number][rows].to(self.device)

    def states(self, conversations: Sequence[Messages], completions: Sequence[str]) -> Tensor:
        """(B, hidden) in fp32: the last states of the completions in the first network."""
        self._offloaded = Offloaded([], self.device)
        with gathered(self.network):
            return self._states(self.network, self._ids(conversations, completions)).cpu()

    def shift(self, by: Sequence[float]) -> None:
        """Add a constant to the rewards of each of K members; κ moves by their mean."""
        left = list(by)
        for network in self.networks:
            own, left = left[: network.members], left[network.members :]
            network.shift(torch.tensor(own), level=fmean(by))

    def rescale(self, by: float, *, thresholds: float = 1.0) -> None:
        """Multiply every reward by `by` > 0 and θ by `thresholds`, as `RewardHead.rescale` does."""
        for network in self.networks:
            network.rescale(by, thresholds=thresholds)

    def require_room(self, asked: Mapping[str, Messages], answer: int) -> None:
        """`TooLong` unless each prompt fits with `answer` tokens and their end; ids name prompts."""
        context = context_length(self.network) or sys.maxsize
        lengths = {id: len(self.chat.prompt(text)) + answer + 1 for id, text in asked.items()}
        long = [(id, length) for id, length in lengths.items() if length > context]
        if long:
            raise TooLong(
                f"{len(long)} prompts with answers of {answer} tokens exceed the reward model's "
                f"context of {context} tokens: {name_rows(long)}; lower ppo.max_new_tokens or "
                "remove them"
            )

    def _ids(
        self, conversations: Sequence[Messages], completions: Sequence[str]
    ) -> list[list[int]]:
        """Token ids, rendered as in training."""
        texts = zip(conversations, completions, strict=True)
        return [self._within(self.chat.chat(messages, text)) for messages, text in texts]

    def _within(self, text: Encoded) -> list[int]:
        """A text's ids, truncated to the context; `TooLong` if the prompt does not fit.

        A sampled response can have more tokens when its text is encoded again, for example if it
        contains invalid UTF-8.
        """
        context = context_length(self.network) or sys.maxsize
        if len(text.ids) <= context:
            return text.ids
        if text.prompt_tokens + 2 > context:
            raise TooLong(
                f"a prompt of {text.prompt_tokens} tokens leaves no room for an answer in the reward "
                f"model's context of {context}; remove it"
            )
        over = len(text.ids) - context
        _log.warning("an answer was scored without its last %d tokens, to fit the context", over)
        return [*text.ids[: context - 1], text.ids[-1]]

    @torch.no_grad()
    def _states(self, network: Any, texts: Sequence[Sequence[int]]) -> Tensor:
        """(B, hidden) in fp32 of texts of token ids, packed if the model allows it."""
        groups = micro_batches(
            range(len(texts)),
            [len(text) for text in texts],
            token_budget=_TOKENS_AT_ONCE,
            slack=None if self._packs else _SLACK,
        )
        with autocast(self._precision, self.device):
            found = [self._pass(network, [texts[row] for row in rows]).float() for rows in groups]
        order = torch.tensor([row for rows in groups for row in rows], device=self.device)
        return torch.cat(found)[order.argsort()]

    def _pass(self, network: Any, texts: Sequence[Sequence[int]]) -> Tensor:
        """(B, hidden) in one forward pass."""
        if self._packs:
            return last_states(network.base_model, texts)
        batch = pad_right(texts, self.chat.pad_id)
        return network.states(**{k: v.to(self.device) for k, v in batch.items()})


def audit_model(reward: str, *, device: torch.device) -> RewardModel | None:
    """The audit model saved with the reward model at `reward`, if there is one."""
    path = Path(reward) / AUDIT
    return RewardModel.load(path, device=device) if path.is_dir() else None


def _member(number: int) -> str:
    """The folder of a further network, from 2 on."""
    return f"member-{number}"


def _mean(members: Sequence[Sequence[float]]) -> list[float]:
    return [fmean(scores) for scores in zip(*members, strict=True)]
