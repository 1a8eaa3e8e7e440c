"""What an update learns from, and how it is cut into batches."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from pipeline.ppo.algorithm import length_mask
from pipeline.ppo.rollout import Rollout


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Prompts and responses as the models read them in training.

    `input_ids` (B, L) holds prompt and response right-padded, so that causal
    attention needs no mask and positions count from 0; `prompt_lengths` and
    `lengths` are (B,).  `tokens` (B, T) are the responses alone.
    """

    input_ids: Tensor
    prompt_lengths: Tensor
    lengths: Tensor
    tokens: Tensor

    def take(self, rows: list[int]) -> "Texts":
        """Those rows, cut to the longest of them."""
        index = torch.tensor(rows, device=self.lengths.device)
        lengths, prompt_lengths = self.lengths[index], self.prompt_lengths[index]
        # The last token is predicted, never read.
        width = int((prompt_lengths + lengths).max()) - 1
        return Texts(
            input_ids=self.input_ids[index, :width],
            prompt_lengths=prompt_lengths,
            lengths=lengths,
            tokens=self.tokens[index, : int(lengths.max())],
        )

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
        before_end = length_mask(self.prompt_lengths + self.lengths - 1, width)
        return before_end & ~length_mask(self.prompt_lengths - 1, width)


def join_texts(prompts: Sequence[Sequence[int]], rollout: Rollout, *, pad: int) -> Texts:
    """Put each response behind its prompt."""
    device = rollout.tokens.device
    rows = [
        [*prompt, *response]
        for prompt, response in zip(prompts, rollout.token_lists(), strict=True)
    ]
    width = max(map(len, rows))
    return Texts(
        input_ids=torch.tensor([row + [pad] * (width - len(row)) for row in rows], device=device),
        prompt_lengths=torch.tensor([len(prompt) for prompt in prompts], device=device),
        lengths=rollout.lengths,
        tokens=rollout.tokens,
    )


@dataclass(frozen=True, kw_only=True)
class Experience:
    """Per-token quantities recorded at rollout time, each (B, T) and without gradient.

    `importance` are the weights that correct for a sampler other than the policy; None for 1.
    """

    logprobs: Tensor
    reference_logprobs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor
    importance: Tensor | None = None

    def take(self, rows: list[int], width: int) -> "Experience":
        """Those rows, cut to `width` tokens."""
        index = torch.tensor(rows, device=self.logprobs.device)
        kept = {item.name: getattr(self, item.name) for item in fields(self)}
        cut = {name: c[index, :width] for name, c in kept.items() if c is not None}
        return Experience(**cut)


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
