"""The decoding loop: one forward pass a token, without waiting for the device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pipeline.ppo.algorithm import length_mask
from pipeline.ppo.network.model import ModelOutput, run_model
from pipeline.ppo.network.token_stats import entropy, forbid_ends, token_logprobs
from pipeline.ppo.rollouts.draws import sample_tokens, truncate
from pipeline.ppo.rollouts.kv_cache import filling_gaps, host_tensor, keep_rows, make_cache

CHECK_EVERY = 16
"""Tokens between two looks at which rows have ended, on a GPU."""


def check_interval(device: torch.device) -> int:
    """Tokens between two looks at which rows have ended.

    On a GPU a look waits until everything before it is computed.  On a CPU it costs nothing, and rows
    that have ended cost time.
    """
    return 1 if device.type == "cpu" else CHECK_EVERY


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

    def logits(self, logits: Tensor, *, early: bool) -> Tensor:
        """(B, V) logits at the temperature, without end-of-text where it is too `early`."""
        if self.temperature not in (0, 1):
            logits = logits / self.temperature
        return forbid_ends(logits, self.ends) if early else logits

    def token(self, logits: Tensor, uniforms: Tensor) -> Tensor:
        """Draw a token from each row of `logits` with its random number: (B,)."""
        if self.temperature == 0:
            return logits.argmax(-1)
        allowed = truncate(logits, top_k=self.top_k, top_p=self.top_p)
        return sample_tokens(allowed.softmax(-1), uniforms)

    def draw(self, output: ModelOutput, uniforms: Tensor, step: int) -> Step:
        """Draw token number `step` of each row."""
        logits = self.logits(output.logits, early=step < self.min_new_tokens)
        drawn = self.token(logits, uniforms)
        return Step(drawn, token_logprobs(logits, drawn), entropy(logits), output.values)


class Decoder:
    """Decodes batches of prompts into (rows, steps) columns of `tokens`, `logprobs`, `entropies` and
    `values`; entries after a row's end-of-text have no meaning.

    `uniforms` (rows, steps) are on the model's device.
    """

    def __init__(self, model: nn.Module, choice: Choice, uniforms: Tensor, pad: int) -> None:
        self.model, self.choice, self.uniforms, self.pad = model, choice, uniforms, pad
        self.check_every = check_interval(uniforms.device)
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
        """Remove the rows that have ended; False if no row is left.  Waits for the device, once."""
        keep = [row for row, over in enumerate(ended.tolist()) if not over]
        if not keep:
            return False
        if len(keep) < len(ended):
            order = filling_gaps(keep)
            kept = host_tensor(order, ended.device)
            self.rows, self.uniforms, self.mask = (
                self.rows[kept],
                self.uniforms[kept],
                self.mask[kept],
            )
            self.ids, self.places = self.ids[kept], self.places[kept]
            keep_rows(self.cache, order, kept)
        return True


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
