"""The responses of one update, with the fields that each step adds, and micro-batches."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_right

from pipeline.ppo.algorithm import length_mask
from pipeline.ppo.network.distributed import Processes
from pipeline.ppo.rollouts.rollout import Rollout


@dataclass(kw_only=True, eq=False, repr=False)
class Batch:
    """B responses; every step of an update adds its fields.

    Tensors have no gradient.  Unless stated otherwise they are (B, T): T response tokens,
    right-padded, 0 on padding.  Reading a field before its step has set it raises AttributeError.
    """

    # Rollout.
    prompt_indices: list[int]
    input_ids: Tensor
    """(B, L) prompt and response, right-padded: causal attention then needs no mask."""
    prompt_lengths: Tensor
    """(B,) tokens."""
    lengths: Tensor
    """(B,) sampled tokens, end-of-text included; masks are made only from these."""
    tokens: Tensor
    """The responses without prompts."""
    finish_reasons: list[str]
    """"stop" or "length", as in `Rollout`."""
    sampler_logprobs: Tensor
    """Log-probabilities computed by the sampler."""
    old_logprobs: Tensor
    """log π_old, computed by the trainer."""
    entropies: Tensor | None
    values: Tensor | None
    """V of the state before each token at rollout time, or another baseline."""

    # Score.
    texts: list[str] = field(init=False)
    scores: Tensor = field(init=False)
    """(B,) weighted sums of the components."""
    components: dict[str, list[float]] = field(init=False)
    """Each component's score of every response."""
    ref_logprobs: Tensor = field(init=False)
    exact_kl: Tensor | None = field(init=False)
    """Per-token KL over the whole vocabulary, with kl_estimator "full"."""
    importance_weights: Tensor | None = field(init=False)
    """Correction for a sampler whose probabilities differ from the policy's; None means 1."""

    # Shape.
    log_ratio: Tensor = field(init=False)
    """log π_old − log π_ref."""
    kl: Tensor = field(init=False)
    """The penalized divergence: `log_ratio`, or `exact_kl` if there is one."""
    token_rewards: Tensor = field(init=False)
    reward_scale: float = field(init=False)
    """The factor by which whitening multiplied the rewards; 1 without whitening."""

    # Advantages.
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
        """Prompts followed by their responses, padded with the token id `pad`."""
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
        """These rows, cut to the longest of them."""
        index = torch.tensor(rows, device=self.lengths.device)
        lengths, prompt_lengths = self.lengths[index], self.prompt_lengths[index]
        width = int(lengths.max())
        # The last token is only predicted, so the model does not read it.
        read = int((prompt_lengths + lengths).max()) - 1
        part = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                columns = (slice(read if name == "input_ids" else width),) * (value.dim() - 1)
                setattr(part, name, value[(index, *columns)])
            elif isinstance(value, list):
                setattr(part, name, [value[row] for row in rows])
            elif isinstance(value, dict):
                setattr(
                    part, name, {key: [each[row] for row in rows] for key, each in value.items()}
                )
        return part

    @property
    def mask(self) -> Tensor:
        """The loss mask (response mask): (B, T), True on sampled tokens, end-of-text included.

        Losses, whitening and metrics average only over these tokens; False is padding.
        """
        return length_mask(self.lengths, self.tokens.shape[1])

    @property
    def read_lengths(self) -> Tensor:
        """(B,) numbers of tokens that a model reads; the last token is only predicted."""
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


def gather_shares(share: Batch, processes: Processes) -> Batch:
    """The shares of all processes as one batch, equal on every process.

    Rows are in the order in which their prompts were drawn.
    """
    if processes.size == 1:
        return share
    shares = processes.gather(_moved(share, torch.device("cpu")))
    return _moved(merge(shares, processes.interleave), share.tokens.device)


def merge(batches: Sequence[Batch], order: Callable[[list[list[Any]]], list[Any]]) -> Batch:
    """The rows of scored batches as one batch; `order` puts lists of rows, one per batch, into one."""
    whole = copy(batches[0])
    for name, value in vars(whole).items():
        parts = [vars(each)[name] for each in batches]
        if isinstance(value, Tensor):
            rows = order([list(part) for part in _equally_wide(parts)])
            setattr(whole, name, torch.stack(rows))
        elif isinstance(value, list):
            setattr(whole, name, order(parts))
        elif isinstance(value, dict):
            merged = {key: order([part[key] for part in parts]) for key in value}
            setattr(whole, name, merged)
    return whole


def _equally_wide(parts: Sequence[Tensor]) -> Sequence[Tensor]:
    """(B,) tensors as they are; (B, T) ones padded to the width of the widest."""
    if parts[0].dim() == 1:
        return parts
    width = max(part.shape[1] for part in parts)
    return [pad_right(part, (0, width - part.shape[1])) for part in parts]


def _moved(batch: Batch, device: torch.device) -> Batch:
    """A copy with every tensor on `device`."""
    moved = copy(batch)
    for name, value in vars(batch).items():
        if isinstance(value, Tensor):
            setattr(moved, name, value.to(device))
    return moved


def micro_batches(
    rows: Sequence[int], lengths: Sequence[int], *, token_budget: int, slack: int | None
) -> list[list[int]]:
    """Group rows of similar length: at most `token_budget` padded tokens and `slack` padding each.

    `lengths[row]` counts the tokens of prompt and response.  A row longer than the budget forms a
    group of its own.  Less slack means less padding but more passes; starting a pass costs as much
    as thousands of tokens on a GPU, and dozens on a CPU.  `slack=None` is for packed rows, which
    have no padding; the order of `rows` is kept.
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
    """Arrange (N,) per-token results as (B, T), 0 on padding; differentiable."""
    return flat.new_zeros(mask.shape).masked_scatter(mask, flat)
