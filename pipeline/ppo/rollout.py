"""Sampling: which prompts are asked, and a KV-cache loop that keeps what PPO needs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.ppo.algorithm import length_mask
from pipeline.ppo.model import ModelOutput, entropy, forbid_ends, run_model, token_logprobs


class PromptSampler:
    """Deals prompt indices in shuffled rounds, each prompt once a round.

    A batch may span rounds, so it can be larger than the number of prompts.
    """

    def __init__(self, prompts: int, generator: torch.Generator) -> None:
        self.prompts = prompts
        self.generator = generator
        self.order: list[int] = []
        self.cursor = 0

    def draw(self, count: int) -> list[int]:
        drawn: list[int] = []
        while len(drawn) < count:
            if self.cursor == len(self.order):
                self.order = torch.randperm(self.prompts, generator=self.generator).tolist()
                self.cursor = 0
            taken = self.order[self.cursor : self.cursor + count - len(drawn)]
            self.cursor += len(taken)
            drawn += taken
        return drawn

    def state_dict(self) -> dict[str, Any]:
        return {"order": self.order, "cursor": self.cursor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order, self.cursor = list(state["order"]), state["cursor"]


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """B responses of up to T tokens, in the order of their prompts.

    `tokens` (B, T) is right-padded; `lengths` (B,) counts sampled tokens, the
    end-of-text included, and is the only source of masks.  `logprobs` (B, T) are
    of the full distribution at the sampling temperature, without end-of-text where
    `min_new_tokens` forbids it; `entropies` (B, T) likewise; `values` (B, T) are of the state before each token, or None without
    a value head.  All are 0 on padding.  Other samplers return neither
    entropies nor values.
    """

    tokens: Tensor
    lengths: Tensor
    logprobs: Tensor
    entropies: Tensor | None
    values: Tensor | None
    finish_reasons: list[str]
    """"stop" for a response that ended itself, "length" for one that was cut off."""

    @property
    def mask(self) -> Tensor:
        """(B, T), True on sampled tokens."""
        return length_mask(self.lengths, self.tokens.shape[1])

    def token_lists(self) -> list[list[int]]:
        """The responses without padding; an end-of-text that was sampled is still there."""
        rows = zip(self.tokens.tolist(), self.lengths.tolist(), strict=True)
        return [row[:length] for row, length in rows]


@torch.no_grad()
def generate(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    *,
    eos_token_ids: Sequence[int],
    pad_token_id: int,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_new_tokens: int = 0,
    generator: torch.Generator | None = None,
    uniforms: Tensor | None = None,
    batch_size: int = 0,
) -> Rollout:
    """Sample one response to each prompt of token ids; repeat a prompt for more.

    `model` is an `ActorCritic` or any causal LM on one device; the caller sets
    autocast.  Nothing is taken from the model's `generation_config`.
    `temperature=0` is greedy, with log-probabilities at temperature 1.
    `top_k=0` and `top_p=1` are off; neither changes the recorded log-probabilities, which
    are of the full distribution.  `min_new_tokens` does: before them end-of-text is not in it.

    `generator` lives on the CPU on every device, and each row has random
    numbers of its own drawn beforehand, so a response does not depend on what is
    decoded beside it; `uniforms` (B, `max_new_tokens`) in float64 replaces them.
    `batch_size=0` decodes all rows together.

    Raises ValueError for no prompts or an empty one, or for settings out of range.
    """
    _check_request(prompts, eos_token_ids, max_new_tokens, temperature, top_k, top_p)
    if uniforms is None:
        size = (len(prompts), max_new_tokens)
        uniforms = torch.rand(size, generator=generator, dtype=torch.float64)
    was_training = model.training
    model.eval()
    try:
        parts = []
        step = batch_size or len(prompts)
        for start in range(0, len(prompts), step):
            decoder = _Decoder(
                model, prompts[start : start + step], uniforms[start : start + step], pad_token_id
            )
            decoder.temperature, decoder.top_k, decoder.top_p = temperature, top_k, top_p
            decoder.decode(torch.tensor(sorted(set(eos_token_ids))), min_new_tokens)
            parts.append(decoder)
    finally:
        model.train(was_training)
    return _joined(parts)


class _Decoder:
    """Decodes rows side by side, dropping each from the batch once it has ended."""

    temperature: float
    top_k: int
    top_p: float

    def __init__(
        self, model: nn.Module, prompts: Sequence[Sequence[int]], uniforms: Tensor, pad: int
    ) -> None:
        self.model = model
        self.device = next(model.parameters()).device
        self.uniforms = on_device(uniforms, self.device)
        rows, steps = uniforms.shape
        self.input_ids, self.attention_mask = left_padded(prompts, pad, self.device)
        self.tokens = torch.full((rows, steps), pad, device=self.device)
        self.lengths = torch.full((rows,), steps, device=self.device)
        self.ended = torch.zeros(rows, dtype=torch.bool, device=self.device)
        self.logprobs = torch.zeros(rows, steps, device=self.device)
        self.entropies = torch.zeros(rows, steps, device=self.device)
        self.values: Tensor | None = None

    def decode(self, eos: Tensor, min_new_tokens: int) -> None:
        """Fill the result tensors, one column a step, until every row has ended."""
        eos = eos.to(self.device)
        live = torch.arange(len(self.tokens), device=self.device)
        ids, mask, cache = self.input_ids, self.attention_mask, None
        for step in range(self.tokens.shape[1]):
            cache = self._forward(
                ids, mask, cache, live, step, forbidden=eos if step < min_new_tokens else None
            )
            drawn = self._draw(live, step)
            stopped = torch.isin(drawn, eos)
            self.tokens[live, step] = drawn
            self.lengths[live[stopped]] = step + 1
            self.ended[live[stopped]] = True
            if stopped.any():
                keep = (~stopped).nonzero().squeeze(1)
                if not len(keep):
                    return
                live, drawn, mask = live[keep], drawn[keep], mask[keep]
                # The one way to pick rows that every kind of cache layer knows.
                cache.reorder_cache(keep)
            ids = drawn.unsqueeze(1)
            mask = torch.cat([mask, mask.new_ones(len(live), 1)], dim=1)

    def _forward(
        self,
        ids: Tensor,
        mask: Tensor,
        cache: Any,
        live: Tensor,
        step: int,
        *,
        forbidden: Tensor | None,
    ) -> Any:
        """Run the model on new tokens; keep logits, entropies and values of column `step`."""
        output = read_on(self.model, ids, mask, cache)
        self.logits = output.logits / (self.temperature or 1.0)
        if forbidden is not None:
            self.logits = forbid_ends(self.logits, forbidden)
        self.entropies[live, step] = entropy(self.logits)
        if output.values is not None:
            if self.values is None:
                self.values = torch.zeros_like(self.logprobs)
            self.values[live, step] = output.values
        return output.cache

    def _draw(self, live: Tensor, step: int) -> Tensor:
        """Choose the next token of each live row and record its log-probability."""
        if self.temperature == 0:
            drawn = self.logits.argmax(-1)
        else:
            allowed = truncate(self.logits, top_k=self.top_k, top_p=self.top_p)
            drawn = sample_tokens(allowed.softmax(-1), self.uniforms[live, step])
        self.logprobs[live, step] = token_logprobs(self.logits, drawn)
        return drawn


def read_on(model: nn.Module, ids: Tensor, mask: Tensor, cache: Any) -> ModelOutput:
    """Read new tokens (B, L) behind what `cache` holds, and return the output at the last of each row.

    `mask` (B, all tokens so far) is 0 on the padding at the left.
    """
    positions = torch.zeros_like(ids, dtype=torch.bool)
    positions[:, -1] = True
    # Left padding shifts a row, so positions count its real tokens only.
    places = (mask.cumsum(1) - 1).clamp_min(0)[:, -ids.shape[1] :]
    return run_model(
        model,
        ids,
        positions,
        attention_mask=mask,
        position_ids=places,
        past_key_values=cache,
        use_cache=True,
    )


def sample_tokens(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Draw a token from each row of (B, V) by inverting its distribution at `uniforms` (B,).

    Twenty times faster than `torch.multinomial` on a CPU, and each row has a
    random number of its own.  Uniforms of 53 bits tell tokens apart down to 1e-16, those of 24
    bits to 6e-8 only, which is more than most tokens of a large vocabulary have.
    """
    cumulative = probs.cumsum(-1, dtype=_precise(probs.device))
    # The last sum, not 1, is the total; right=True passes over tokens of probability 0.
    total = cumulative[:, -1:].contiguous()
    drawn = torch.searchsorted(cumulative, uniforms.unsqueeze(1) * total, right=True)
    # A product that was rounded up to the total is past the last token that has a probability.
    drawn = torch.minimum(drawn, torch.searchsorted(cumulative, total)).squeeze(1)
    return drawn.clamp_max(probs.shape[1] - 1)  # NaN is past all; the caller finds it out


def _precise(device: torch.device) -> torch.dtype:
    """What sums over a vocabulary are taken in: fp32 ones lose its rare tokens."""
    return torch.float32 if device.type == "mps" else torch.float64  # MPS has no fp64


def on_device(uniforms: Tensor, device: torch.device) -> Tensor:
    """Random numbers on `device`, as precise as it can."""
    return uniforms.to(_precise(device)).to(device)


def truncate(logits: Tensor, *, top_k: int, top_p: float) -> Tensor:
    """Set to −∞ all but the `top_k` likeliest tokens, then all but the `top_p` nucleus.

    The nucleus is the smallest set of likeliest tokens that holds at least
    `top_p` of the mass; the likeliest is always in it.
    """
    if 0 < top_k < logits.shape[-1]:
        smallest = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    if top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        probs = ordered.softmax(-1)
        outside = probs.cumsum(-1, dtype=_precise(probs.device)) - probs >= top_p
        logits = logits.masked_fill(outside.scatter(1, order, outside), -torch.inf)
    return logits


def left_padded(
    prompts: Sequence[Sequence[int]], pad: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """(B, P) ids with padding on the left, and the (B, P) mask of what is real, as 0 and 1."""
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts], device=device)
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    return ids, length_mask(lengths, width).flip(1).long()


def _check_request(
    prompts: Sequence[Sequence[int]],
    eos_token_ids: Sequence[int],
    max_new_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
) -> None:
    if not prompts:
        raise ValueError("generate needs at least one prompt")
    for index, prompt in enumerate(prompts):
        if not prompt:
            raise ValueError(f"prompt {index} is empty; give it at least one token")
    if not eos_token_ids:
        raise ValueError("generate needs at least one end-of-text id in eos_token_ids")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens={max_new_tokens} must be at least 1")
    if temperature < 0 or top_k < 0 or not 0 < top_p <= 1:
        raise ValueError(
            f"temperature={temperature}, top_k={top_k}, top_p={top_p}: temperature and top_k "
            "must not be negative, and top_p must be above 0 and at most 1"
        )


def _joined(parts: list[_Decoder]) -> Rollout:
    """The parts as one rollout, as wide as its longest response."""
    lengths = torch.cat([part.lengths for part in parts])
    width = int(lengths.max())

    def columns(name: str) -> Tensor:
        return torch.cat([getattr(part, name) for part in parts])[:, :width]

    ended = torch.cat([part.ended for part in parts]).tolist()
    return Rollout(
        tokens=columns("tokens"),
        lengths=lengths,
        logprobs=columns("logprobs"),
        entropies=columns("entropies"),
        values=None if parts[0].values is None else columns("values"),
        finish_reasons=["stop" if done else "length" for done in ended],
    )
