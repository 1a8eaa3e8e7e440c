"""The decoding loop: one forward pass a token, without waiting for the device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pipeline.ppo.algorithm import length_mask
from pipeline.ppo.network.model import ModelOutput, run_model
from pipeline.ppo.network.token_stats import forbid_ends
from pipeline.ppo.rollouts.draws import sample_tokens, truncate
from pipeline.ppo.rollouts.kv_cache import make_cache

_CHECK_EVERY = {"cpu": 1}
"""Tokens between two looks at which rows have ended, by device."""
_CHECK_EVERY_ELSEWHERE = 16
"""A look waits for the device, which then has nothing queued."""


class Step(NamedTuple):
    """One token of B rows, each (B,); values are None without a value head."""

    drawn: Tensor
    logprobs: Tensor
    entropies: Tensor
    values: Tensor | None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How a token is drawn from its logits."""

    ends: Tensor
    """(E,) ids of end-of-text."""
    temperature: float
    """0 is greedy, with log-probabilities at temperature 1."""
    top_k: int
    top_p: float
    min_new_tokens: int

    def draw(self, output: ModelOutput, uniforms: Tensor, step: int) -> Step:
        """Draw token number `step` of each row with its random number."""
        logits = output.logits
        if self.temperature not in (0, 1):
            logits = logits / self.temperature
        if step < self.min_new_tokens:
            logits = forbid_ends(logits, self.ends)
        logprobs = logits.log_softmax(-1)
        probs = logprobs.exp()
        if self.temperature == 0:
            drawn = logits.argmax(-1)
        elif self.top_k > 0 or self.top_p < 1:
            allowed = truncate(logits, top_k=self.top_k, top_p=self.top_p)
            drawn = sample_tokens(allowed.softmax(-1), uniforms)
        else:
            drawn = sample_tokens(probs, uniforms)
        # The clamp avoids 0 · −∞ for logits of −∞.
        finite = logprobs.clamp_min(torch.finfo(logprobs.dtype).min)
        return Step(
            drawn,
            logprobs.gather(1, drawn[:, None]).squeeze(1),
            -(probs * finite).sum(-1),
            output.values,
        )


class Decoder:
    """Decodes batches of prompts into (rows, steps) columns of `tokens`, `logprobs`, `entropies` and
    `values`; entries after a row's end-of-text have no meaning.

    `uniforms` (rows, steps) are on the model's device.
    """

    def __init__(self, model: nn.Module, choice: Choice, uniforms: Tensor, pad: int) -> None:
        self.model, self.choice, self.uniforms, self.pad = model, choice, uniforms, pad
        self.check_every = _CHECK_EVERY.get(uniforms.device.type, _CHECK_EVERY_ELSEWHERE)
        shape, device = uniforms.shape, uniforms.device
        self.tokens = torch.full(shape, pad, device=device)
        self.logprobs = torch.zeros(shape, device=device)
        self.entropies = torch.zeros(shape, device=device)
        self.values: Tensor | None = None

    def decode(self, prompts: Sequence[Sequence[int]], first: int) -> None:
        """Fill the rows that start at `first`."""
        steps, device = self.uniforms.shape[1], self.uniforms.device
        ids, real = left_padded(prompts, self.pad, device)
        width = ids.shape[1]
        batch = _Batch(
            rows=torch.arange(first, first + len(prompts), device=device),
            uniforms=self.uniforms[first : first + len(prompts)],
            mask=torch.cat([real, real.new_ones(len(prompts), steps)], dim=1),
            ids=ids,
            # Positions count real tokens only, because left padding shifts a row.
            places=(real.cumsum(1) - 1).clamp_min(0),
            cache=make_cache(_causal_lm(self.model), width + steps),
        )
        recent: list[Step] = []
        for step in range(steps):
            output = forward_with_cache(
                self.model, batch.ids, batch.mask[:, : width + step], batch.places, batch.cache
            )
            recent.append(self.choice.draw(output, batch.uniforms[:, step], step))
            batch.advance(recent[-1].drawn, output.cache)
            if (step + 1) % self.check_every == 0 or step + 1 == steps:
                self._store(batch.rows, recent, step + 1)
                recent = []
                if not batch.drop_ended(self._ended(batch.rows, step + 1)):
                    return

    def _store(self, rows: Tensor, recent: list[Step], stop: int) -> None:
        """Write the steps before `stop` into the columns."""
        columns = slice(stop - len(recent), stop)
        self.tokens[rows, columns] = torch.stack([step.drawn for step in recent], 1)
        self.logprobs[rows, columns] = torch.stack([step.logprobs for step in recent], 1)
        self.entropies[rows, columns] = torch.stack([step.entropies for step in recent], 1)
        values = [step.values for step in recent if step.values is not None]
        if values:
            if self.values is None:
                self.values = torch.zeros_like(self.logprobs)
            self.values[rows, columns] = torch.stack(values, 1)

    def _ended(self, rows: Tensor, stop: int) -> Tensor:
        return torch.isin(self.tokens[rows, :stop], self.choice.ends).any(1)

    def lengths(self) -> tuple[Tensor, Tensor]:
        """Of each row: tokens up to and with its end-of-text, and whether it has one."""
        ends = torch.isin(self.tokens, self.choice.ends)
        ended = ends.any(1)
        return torch.where(ended, ends.int().argmax(1) + 1, ends.shape[1]), ended


@dataclass(kw_only=True)
class _Batch:
    """The rows that are decoded together: their place in the result, and the inputs of their next
    pass."""

    rows: Tensor
    uniforms: Tensor
    mask: Tensor
    """1 on the tokens of prompt and response, 0 on left padding."""
    ids: Tensor
    places: Tensor
    cache: Any

    def advance(self, drawn: Tensor, cache: Any) -> None:
        """Make the drawn tokens the input of the next pass."""
        self.ids, self.places, self.cache = drawn[:, None], self.places[:, -1:] + 1, cache

    def drop_ended(self, ended: Tensor) -> bool:
        """Remove the rows that have ended; False if no row is left.  Waits for the device."""
        keep = (~ended).nonzero().squeeze(1)
        if len(keep) == 0:
            return False
        if len(keep) < len(ended):
            keep = _filling_gaps(keep)
            self.rows, self.uniforms, self.mask = (
                self.rows[keep],
                self.uniforms[keep],
                self.mask[keep],
            )
            self.ids, self.places = self.ids[keep], self.places[keep]
            self.cache.reorder_cache(keep)
        return True


def _filling_gaps(keep: Tensor) -> Tensor:
    """The kept rows (K,), in ascending order, reordered: rows below K stay in their places, and the
    others fill the gaps, so that few rows of the cache are copied."""
    order = torch.arange(len(keep), device=keep.device)
    stay = keep < len(keep)
    gaps = torch.ones_like(stay).index_fill(0, keep[stay], False)
    return order.masked_scatter(gaps, keep[~stay])


def _causal_lm(model: Any) -> Any:
    return getattr(model, "policy", model)


def forward_with_cache(
    model: nn.Module, ids: Tensor, mask: Tensor, places: Tensor, cache: Any
) -> ModelOutput:
    """Run new tokens (B, L) after those in `cache`; return the output at each row's last token.

    `mask` (B, all tokens so far) is 0 on left padding; `places` (B, L) are the new tokens' positions.
    """
    return run_model(
        model,
        ids,
        None,
        attention_mask=mask,
        position_ids=places,
        past_key_values=cache,
        use_cache=True,
    )


def forward_without_padding(model: nn.Module, ids: Tensor, read: int, cache: Any) -> ModelOutput:
    """`forward_with_cache` for rows without padding, of which `read` tokens are in the cache."""
    rows, added = ids.shape
    places = torch.arange(read, read + added, device=ids.device).expand(rows, added)
    mask = ids.new_ones(rows, read + added)
    return forward_with_cache(model, ids, mask, places, cache)


def left_padded(
    prompts: Sequence[Sequence[int]], pad: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """(B, P) ids with left padding, and the (B, P) mask of real tokens, as 0 and 1."""
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts], device=device)
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    return ids, length_mask(lengths, width).flip(1).long()
