"""Sampling: the order of prompts, and a decoding loop with a KV cache that records values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.ppo.algorithm import length_mask
from pipeline.ppo.model import ModelOutput, run_model
from pipeline.ppo.token_stats import entropy, forbid_ends, token_logprobs


class PromptSampler:
    """Draws prompt indices in shuffled rounds; a round has each prompt once.

    A batch may span several rounds.
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
    """B responses of up to T tokens, in the order of their prompts; (B, T) tensors are 0 on padding.

    Log-probabilities and entropies are those of the full distribution at the sampling temperature,
    without end-of-text in the first `min_new_tokens`.
    """

    tokens: Tensor
    """(B, T), right-padded with the padding id."""
    lengths: Tensor
    """(B,) sampled tokens, end-of-text included; masks are made only from these."""
    logprobs: Tensor
    entropies: Tensor | None
    """None from other samplers."""
    values: Tensor | None
    """Value of the state before each token; None from other samplers and without a value head."""
    finish_reasons: list[str]
    """"stop" for a response with an end-of-text, "length" for one that was cut off."""

    @property
    def mask(self) -> Tensor:
        """(B, T), True on sampled tokens."""
        return length_mask(self.lengths, self.tokens.shape[1])

    def token_lists(self) -> list[list[int]]:
        """The responses without padding, with the end-of-text that was sampled."""
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
    """Sample one response to each prompt of token ids.

    `model` is an `ActorCritic` or any causal LM on one device; its `generation_config` is ignored,
    and the caller sets autocast.  `temperature=0` is greedy, with log-probabilities at temperature
    1.  `top_k=0` and `top_p=1` are off; recorded log-probabilities ignore both.

    Each row has its own random numbers, drawn in advance from `generator` (a CPU generator on every
    device), so a response does not depend on the other rows in its batch.  `uniforms` (B,
    `max_new_tokens`) in float64 replaces them.  `batch_size=0` decodes all rows together.

    Raises ValueError for no prompts, an empty prompt, or settings out of range.
    """
    _check_request(prompts, eos_token_ids, max_new_tokens, temperature, top_k, top_p)
    if uniforms is None:
        size = (len(prompts), max_new_tokens)
        uniforms = torch.rand(size, generator=generator, dtype=torch.float64)
    device = next(model.parameters()).device
    decoder = _Decoder(
        model=model,
        uniforms=on_device(uniforms, device),
        eos=torch.tensor(sorted(set(eos_token_ids)), device=device),
        pad=pad_token_id,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_new_tokens=min_new_tokens,
    )
    was_training = model.training
    model.eval()
    try:
        step = batch_size or len(prompts)
        for start in range(0, len(prompts), step):
            decoder.decode(prompts[start : start + step], start)
    finally:
        model.train(was_training)
    return decoder.rollout()


@dataclass(kw_only=True)
class _Decoder:
    """Decodes rows in batches; a row leaves its batch when its response ends."""

    model: nn.Module
    uniforms: Tensor
    eos: Tensor
    pad: int
    temperature: float
    top_k: int
    top_p: float
    min_new_tokens: int

    def __post_init__(self) -> None:
        rows, steps = self.uniforms.shape
        self.device = self.uniforms.device
        self.tokens = torch.full((rows, steps), self.pad, device=self.device)
        self.lengths = torch.full((rows,), steps, device=self.device)
        self.ended = torch.zeros(rows, dtype=torch.bool, device=self.device)
        self.logprobs = torch.zeros(rows, steps, device=self.device)
        self.entropies = torch.zeros(rows, steps, device=self.device)
        self.values: Tensor | None = None

    def decode(self, prompts: Sequence[Sequence[int]], first: int) -> None:
        """Fill the result tensors of the rows starting at `first`, one column per step."""
        live = torch.arange(first, first + len(prompts), device=self.device)
        ids, mask = left_padded(prompts, self.pad, self.device)
        cache: Any = None
        for step in range(self.tokens.shape[1]):
            output = forward_with_cache(self.model, ids, mask, cache)
            cache, drawn = output.cache, self._draw(output, live, step)
            stopped = torch.isin(drawn, self.eos)
            self.tokens[live, step] = drawn
            self.lengths[live[stopped]] = step + 1
            self.ended[live[stopped]] = True
            if stopped.any():
                keep = (~stopped).nonzero().squeeze(1)
                if not len(keep):
                    return
                live, drawn, mask = live[keep], drawn[keep], mask[keep]
                # The only way to select rows that every kind of cache layer supports.
                cache.reorder_cache(keep)
            ids = drawn.unsqueeze(1)
            mask = torch.cat([mask, mask.new_ones(len(live), 1)], dim=1)

    def _draw(self, output: ModelOutput, live: Tensor, step: int) -> Tensor:
        """Draw the next token of each live row; record its log-probability in column `step`."""
        logits = output.logits / (self.temperature or 1.0)
        if step < self.min_new_tokens:
            logits = forbid_ends(logits, self.eos)
        if self.temperature == 0:
            drawn = logits.argmax(-1)
        else:
            allowed = truncate(logits, top_k=self.top_k, top_p=self.top_p)
            drawn = sample_tokens(allowed.softmax(-1), self.uniforms[live, step])
        self.logprobs[live, step] = token_logprobs(logits, drawn)
        self.entropies[live, step] = entropy(logits)
        if output.values is not None:
            if self.values is None:
                self.values = torch.zeros_like(self.logprobs)
            self.values[live, step] = output.values
        return drawn

    def rollout(self) -> Rollout:
        """The results, as wide as the longest response."""
        width = int(self.lengths.max())
        return Rollout(
            tokens=self.tokens[:, :width],
            lengths=self.lengths,
            logprobs=self.logprobs[:, :width],
            entropies=self.entropies[:, :width],
            values=None if self.values is None else self.values[:, :width],
            finish_reasons=["stop" if ended else "length" for ended in self.ended.tolist()],
        )


def forward_with_cache(model: nn.Module, ids: Tensor, mask: Tensor, cache: Any) -> ModelOutput:
    """Run new tokens (B, L) after those in `cache`; return the output at each row's last token.

    `mask` (B, all tokens so far) is 0 on left padding.
    """
    positions = torch.zeros_like(ids, dtype=torch.bool)
    positions[:, -1] = True
    # Positions count real tokens only, because left padding shifts a row.
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

    It is twenty times as fast as `torch.multinomial` on a CPU, and each row has its own random
    number.  The uniforms need fp64: with 24 bits, tokens of probability below 6e-8 cannot be drawn.
    """
    cumulative = probs.cumsum(-1, dtype=_precise(probs.device))
    # The last sum is the total and may differ from 1; right=True skips tokens of probability 0.
    total = cumulative[:, -1:].contiguous()
    drawn = torch.searchsorted(cumulative, uniforms.unsqueeze(1) * total, right=True)
    # A product rounded up to the total would be past the last token with a probability.
    drawn = torch.minimum(drawn, torch.searchsorted(cumulative, total)).squeeze(1)
    return drawn.clamp_max(probs.shape[1] - 1)  # NaN sorts last; the caller checks for it


def _precise(device: torch.device) -> torch.dtype:
    """The dtype of sums over a vocabulary; in fp32 they would lose rare tokens."""
    return torch.float32 if device.type == "mps" else torch.float64  # MPS has no fp64


def on_device(uniforms: Tensor, device: torch.device) -> Tensor:
    """Random numbers on `device`, in its most precise dtype."""
    return uniforms.to(_precise(device)).to(device)


def truncate(logits: Tensor, *, top_k: int, top_p: float) -> Tensor:
    """Set to −∞ all but the `top_k` likeliest tokens, then all but the `top_p` nucleus.

    The nucleus is the smallest set of likeliest tokens with a probability of at least `top_p`; it
    always contains the likeliest token.
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
    """(B, P) ids with left padding, and the (B, P) mask of real tokens, as 0 and 1."""
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
