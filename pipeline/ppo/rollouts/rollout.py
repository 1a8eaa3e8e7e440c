"""`generate` samples responses; a `Rollout` holds them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pipeline.ppo.algorithm import length_mask
from pipeline.ppo.network.model import Setup
from pipeline.ppo.rollouts.decoding import Choice, Decoder
from pipeline.ppo.rollouts.draws import on_device


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
    choice = Choice(
        ends=torch.tensor(sorted(set(eos_token_ids)), device=device),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_new_tokens=min_new_tokens,
    )
    decoder = Decoder(model, choice, on_device(uniforms, device), pad_token_id)
    was_training = model.training
    model.eval()
    try:
        step = batch_size or len(prompts)
        for start in range(0, len(prompts), step):
            decoder.decode(prompts[start : start + step], start)
    finally:
        model.train(was_training)
    return _rollout(decoder, pad_token_id)


def _rollout(decoder: Decoder, pad: int) -> Rollout:
    """The decoder's columns, as wide as the longest response, with padding after each end."""
    lengths, ended = decoder.lengths()
    width = int(lengths.max())
    mask = length_mask(lengths, width)
    logprobs, entropies, values = (
        None if column is None else torch.where(mask, column[:, :width], 0)
        for column in (decoder.logprobs, decoder.entropies, decoder.values)
    )
    assert logprobs is not None
    return Rollout(
        tokens=torch.where(mask, decoder.tokens[:, :width], pad),
        lengths=lengths,
        logprobs=logprobs,
        entropies=entropies,
        values=values,
        finish_reasons=["stop" if each else "length" for each in ended.tolist()],
    )


def truncate_at_end(tokens: list[int], eos_token_ids: Sequence[int]) -> list[int]:
    """The tokens up to and including the first end-of-text."""
    ends = (n for n, token in enumerate(tokens, 1) if token in eos_token_ids)
    return tokens[: next(ends, len(tokens))]


def as_rollout(
    tokens: Sequence[Sequence[int]], logprobs: Sequence[Sequence[float]], setup: Setup
) -> Rollout:
    """B responses and their tokens' log-probabilities as a rollout without values."""
    lengths = [len(row) for row in tokens]
    width, pad, device = max(lengths), setup.pad_token_id, setup.device
    padded = torch.tensor([[*row, *[pad] * (width - len(row))] for row in tokens], device=device)
    likely = torch.tensor([[*row, *[0.0] * (width - len(row))] for row in logprobs], device=device)
    assert likely.shape == padded.shape, "a log-probability for each token"
    count = torch.tensor(lengths, device=device)
    return Rollout(
        tokens=padded,
        lengths=count,
        logprobs=torch.where(length_mask(count, width), likely, 0),
        entropies=None,
        values=None,
        finish_reasons=["stop" if row[-1] in setup.eos_token_ids else "length" for row in tokens],
    )


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
