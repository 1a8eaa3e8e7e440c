"""One update's responses: what each step adds to them, how they are cut, what is reported of them."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_right

from pipeline.ppo.algorithm import length_mask
from pipeline.ppo.distributed import Processes
from pipeline.ppo.metrics import Flag, red_flags
from pipeline.ppo.rollout import Rollout


@dataclass(frozen=True, kw_only=True)
class RewardScores:
    """Weighted scores (B,) of the responses, each component's, and the texts that were scored."""

    total: Tensor
    components: dict[str, list[float]]
    texts: list[str]


@dataclass(frozen=True, kw_only=True)
class TokenRewards:
    """Rewards (B, T), with the log-ratio and the KL they are made from; 0 on padding."""

    token_rewards: Tensor
    log_ratio: Tensor
    """log π_old − log π_ref of each token."""
    kl: Tensor
    """The divergence that is charged: `log_ratio`, or the exact one with kl_estimator "full"."""
    scale: float
    """What whitening multiplied the rewards by; 1 without."""


@dataclass(frozen=True, kw_only=True)
class ReferencePass:
    """What the pass without gradients over the responses computed, each (B, T), 0 on padding.

    `kl` is the exact per-token KL, None unless the settings ask for it.  `logprobs`, `values` and
    `entropies` are the policy's own, None where sampling gave them.
    """

    ref_logprobs: Tensor
    kl: Tensor | None
    logprobs: Tensor | None
    values: Tensor | None
    entropies: Tensor | None


@dataclass(kw_only=True, eq=False, repr=False)
class Batch:
    """B responses, row by row; every step of an update adds its fields.

    Tensors have no gradient, and unless stated otherwise are (B, T): T response tokens,
    right-padded, 0 on padding.  Reading a field that no step has set yet raises AttributeError.
    """

    # From the rollout.
    prompt_indices: list[int]
    input_ids: Tensor
    """(B, L) prompt and response, right-padded, so that causal attention needs no mask and
    positions count from 0."""
    prompt_lengths: Tensor
    """(B,) tokens."""
    lengths: Tensor
    """(B,) sampled tokens, end-of-text included; the only source of masks."""
    tokens: Tensor
    """The responses alone."""
    finish_reasons: list[str]
    """"stop" or "length", as in `Rollout`."""
    sampler_logprobs: Tensor
    """By the arithmetic of the sampler."""
    old_logprobs: Tensor
    """log π_old: the policy's at rollout time, by the arithmetic of the trainer."""
    entropies: Tensor | None
    values: Tensor | None
    """V of the state before each token, at rollout time; with another baseline, that."""

    # From the reward and the reference.
    scores: RewardScores = field(init=False)
    ref_logprobs: Tensor = field(init=False)
    exact_kl: Tensor | None = field(init=False)
    importance_weights: Tensor | None = field(init=False)
    """Correct for a sampler other than the policy; None for 1."""

    # From shaping, and from GAE.
    rewards: TokenRewards = field(init=False)
    advantages: Tensor = field(init=False)
    returns: Tensor = field(init=False)

    @classmethod
    def of(
        cls,
        prompts: Sequence[Sequence[int]],
        rollout: Rollout,
        *,
        prompt_indices: Sequence[int],
        pad: int,
    ) -> "Batch":
        """Responses behind their prompts, padded with the token id `pad`."""
        device = rollout.tokens.device
        rows = [[*p, *r] for p, r in zip(prompts, rollout.token_lists(), strict=True)]
        width = max(map(len, rows))
        return cls(
            prompt_indices=list(prompt_indices),
            input_ids=torch.tensor(
                [row + [pad] * (width - len(row)) for row in rows], device=device
            ),
            prompt_lengths=torch.tensor([len(prompt) for prompt in prompts], device=device),
            lengths=rollout.lengths,
            tokens=rollout.tokens,
            finish_reasons=rollout.finish_reasons,
            sampler_logprobs=rollout.logprobs,
            old_logprobs=rollout.logprobs,
            entropies=rollout.entropies,
            values=rollout.values,
        )

    def take(self, rows: list[int]) -> "Batch":
        """Those rows, cut to the longest of them, without scores and rewards."""
        index = torch.tensor(rows, device=self.lengths.device)
        lengths, prompt_lengths = self.lengths[index], self.prompt_lengths[index]
        width = int(lengths.max())
        # The last token is predicted, never read.
        read = int((prompt_lengths + lengths).max()) - 1
        part = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                columns = (slice(read if name == "input_ids" else width),) * (value.dim() - 1)
                setattr(part, name, value[(index, *columns)])
            elif isinstance(value, list):
                setattr(part, name, [value[row] for row in rows])
            elif value is not None:  # no loss reads them
                delattr(part, name)
        return part

    @property
    def mask(self) -> Tensor:
        """(B, T), True on sampled tokens."""
        return length_mask(self.lengths, self.tokens.shape[1])

    @property
    def read_lengths(self) -> Tensor:
        """(B,) tokens a model reads: the last one is predicted only."""
        return self.prompt_lengths + self.lengths - 1

    @property
    def positions(self) -> Tensor:
        """(B, L), True where the next token is a sampled one."""
        width = self.input_ids.shape[1]
        before_end = length_mask(self.read_lengths, width)
        return before_end & ~length_mask(self.prompt_lengths - 1, width)

    def token_lists(self) -> list[list[int]]:
        """The responses without padding."""
        rows = zip(self.tokens.tolist(), self.lengths.tolist(), strict=True)
        return [row[:length] for row, length in rows]


def merge_recomputed(batch: Batch, found: ReferencePass) -> None:
    """Add what the reference pass computed; it replaces what sampling left out or got coarsely."""
    batch.ref_logprobs, batch.exact_kl = found.ref_logprobs, found.kl
    if found.logprobs is not None:
        batch.old_logprobs = found.logprobs
    if found.values is not None:
        batch.values = found.values
    if found.entropies is not None:
        batch.entropies = found.entropies


def gather_shares(share: Batch, processes: Processes) -> Batch:
    """The shares of all processes, scores included, as one batch: alike on every process.

    Rows are in the order in which their prompts were drawn.
    """
    if processes.size == 1:
        return share
    shares = processes.gather(_moved(share, torch.device("cpu")))
    whole = copy(shares[0])
    for name, value in vars(whole).items():
        parts = [getattr(share, name) for share in shares]
        if isinstance(value, Tensor):
            setattr(whole, name, _rows(parts, processes))
        elif isinstance(value, list):
            setattr(whole, name, processes.whole(parts))
    scores = [share.scores for share in shares]
    whole.scores = RewardScores(
        total=_rows([s.total for s in scores], processes),
        components={
            name: processes.whole([s.components[name] for s in scores])
            for name in scores[0].components
        },
        texts=processes.whole([s.texts for s in scores]),
    )
    return _moved(whole, share.tokens.device)


def _rows(parts: Sequence[Tensor], processes: Processes) -> Tensor:
    """The rows of all shares, (B,) or (B, widest)."""
    if parts[0].dim() > 1:
        width = max(part.shape[1] for part in parts)
        parts = [pad_right(part, (0, width - part.shape[1])) for part in parts]
    return torch.stack(processes.whole([list(part) for part in parts]))


def _moved(batch: Batch, device: torch.device) -> Batch:
    """The same with every tensor on `device`."""
    moved = copy(batch)
    for name, value in vars(batch).items():
        if isinstance(value, Tensor):
            setattr(moved, name, value.to(device))
    moved.scores = replace(batch.scores, total=batch.scores.total.to(device))
    return moved


def micro_batches(
    rows: Sequence[int], lengths: Sequence[int], *, token_budget: int, slack: int | None
) -> list[list[int]]:
    """Group rows of like length: at most `token_budget` padded tokens and `slack` padding each.

    `lengths[row]` is the tokens of prompt and response.  A row longer than the
    budget goes alone.  Less slack wastes less on padding and more on starting
    passes; on a GPU starting one costs thousands of tokens, on a CPU dozens.  With
    `slack=None` rows are packed: nothing is padded.
    """
    groups: list[list[int]] = []
    widest = padding = 0
    if slack is None:
        for row in rows:
            if not groups or widest + lengths[row] > token_budget:
                groups.append([])
                widest = 0
            groups[-1].append(row)
            widest += lengths[row]
        return groups
    for row in sorted(rows, key=lambda row: -lengths[row]):
        waste = widest - lengths[row]
        full = groups and (len(groups[-1]) + 1) * widest > token_budget
        if not groups or full or padding + waste > slack:
            groups.append([row])
            widest, padding = lengths[row], 0
        else:
            groups[-1].append(row)
            padding += waste
    return groups


def to_tokens(flat: Tensor, mask: Tensor) -> Tensor:
    """Lay (N,) per-token results out as (B, T), 0 on padding; gradients pass."""
    return flat.new_zeros(mask.shape).masked_scatter(mask, flat)


class TrainingDiverged(RuntimeError):
    """A number became NaN or infinite; the message names the checkpoint to resume from."""


class SamplerMismatch(RuntimeError):
    """The responses of an update were sampled by another model than the policy."""

    @classmethod
    def of(cls, history: Sequence[Mapping[str, float]]) -> Self:
        """The error for the flag on the last of these updates."""
        (flag,) = (flag for flag in red_flags(history) if flag.name == "sampler_mismatch")
        return cls(f"update {len(history)}: {flag.seen} {flag.why} {flag.remedy}")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A response of an update."""

    prompt_index: int
    text: str
    score: float
    """Weighted score as returned, before scaling, clipping, KL and penalties."""
    kl: float
    """Σ (log π − log π_ref) over its tokens, nats."""
    length: int
    """Tokens, end-of-text included."""
    finish_reason: str
    """"stop" or "length"."""


@dataclass(frozen=True, kw_only=True)
class UpdateResult:
    """What one update did."""

    step: int
    """Updates made so far, this one included."""
    metrics: dict[str, float]
    flags: list[Flag]
    samples: list[Sample]
    """Every response of the update, in sampling order."""
    checkpoint: Path | None
    """Where this update's checkpoint goes, written when the next update is asked for:
    so what the caller puts in `trainer.extra` on seeing this result is inside.  None
    when no checkpoint is due."""


def samples_of(batch: Batch) -> list[Sample]:
    """Every response of a batch that was scored and rewarded."""
    columns = zip(
        batch.prompt_indices,
        batch.scores.texts,
        batch.scores.total.tolist(),
        batch.rewards.log_ratio.sum(1).tolist(),
        batch.lengths.tolist(),
        batch.finish_reasons,
        strict=True,
    )
    names = ("prompt_index", "text", "score", "kl", "length", "finish_reason")
    return [Sample(**dict(zip(names, row, strict=True))) for row in columns]
