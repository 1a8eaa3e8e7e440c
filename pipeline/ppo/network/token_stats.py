"""Log-probabilities and entropies of tokens from hidden states, a few tokens at a time.

The logits of N tokens over a vocabulary of V take 4·N·V bytes in fp32, and training through them needs
several tensors of that size: 1.2 GB each for 2,048 tokens of Qwen3's 151,936.  `chunked_stats` makes
the logits of one chunk, reduces them to two numbers a token, and drops them; its backward pass makes
them again and writes the gradient of the weights in place, as liger-kernel's fused linear losses do
(arXiv 2410.10989).  The cost is one more product with the output layer.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pipeline.ppo.network.distributed import is_sharded

CHUNK_BYTES = 2**26
"""Bytes of fp32 logits that are alive at a time; fewer logits than that are kept for the backward
pass, which is faster."""
FORBIDDEN = -1e30
"""A logit of probability 0; finite, so that 0 · log 0 is 0."""
_PROBED = 4
"""Tokens of the text with which `output_head` compares its logits with the model's."""


class TokenStats(NamedTuple):
    """Of N tokens: log-probabilities, and entropies of their distributions (nats), each (N,)."""

    logprobs: Tensor
    entropies: Tensor | None


@dataclass(frozen=True, kw_only=True)
class OutputHead:
    """How a model makes logits from hidden states h: scale · cap · tanh(W·h + b / cap), or
    scale · (W·h + b) without a cap."""

    layer: nn.Linear
    cap: float | None = None
    scale: float = 1.0
    shares_gradient: bool = False
    """Whether the gradient of a tied weight is added up in place, as `share_gradient` arranges."""

    def finish(self, logits: Tensor) -> Tensor:
        """The model's logits from the output layer's."""
        if self.cap is not None:
            logits = self.cap * torch.tanh(logits / self.cap)
        return logits * self.scale


def is_small(tokens: int, vocabulary: int) -> bool:
    """Whether the logits of so many tokens fit one chunk."""
    return 4 * tokens * vocabulary <= CHUNK_BYTES


def output_head(model: Any, device: torch.device) -> OutputHead | None:
    """The model's output head; None if it is not a plain layer with a known cap and scale.

    A short text decides: whatever a model does between its output layer and its logits, what is
    returned here gives the same logits.
    """
    layer = model.get_output_embeddings()
    if type(layer) is not nn.Linear or is_sharded(model):
        return None
    config = model.config.get_text_config()
    divided = getattr(config, "logits_scaling", None)
    scale = 1 / divided if divided else getattr(config, "logit_scale", None) or 1.0
    cap = getattr(config, "final_logit_softcapping", None)
    head = OutputHead(layer=layer, cap=cap, scale=scale)
    made: list[Tensor] = []

    def keep(_layer: nn.Module, _inputs: Any, output: Any) -> None:
        made.append(output.clone())  # a model may change its logits in place

    hook = layer.register_forward_hook(keep)
    ids = torch.arange(_PROBED, device=device)[None] % layer.out_features
    try:
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False, return_dict=True).logits.float()
    finally:
        hook.remove()
    same = len(made) == 1 and torch.allclose(head.finish(made[0].float()), logits, atol=1e-5)
    return head if same else None


def share_gradient(model: Any, head: OutputHead) -> OutputHead:
    """Let output layer and embedding add to one gradient, if they are tied and trained.

    Autograd makes a gradient of the whole embedding for each of them and adds the second to the first:
    for 151,936 tokens of width 1,024, 620 MB more.
    """
    weight = head.layer.weight
    if not weight.requires_grad:
        return head
    embedding = model.get_input_embeddings()
    plain = type(embedding) is nn.Embedding and not embedding.sparse and embedding.max_norm is None
    if not plain or embedding.weight is not weight:
        return head
    if not isinstance(embedding.forward, _SharedEmbedding):
        embedding.forward = _SharedEmbedding(embedding)
    return replace(head, shares_gradient=True)


class _SharedEmbedding:
    """The forward of an embedding whose gradient is added up in place."""

    def __init__(self, embedding: nn.Embedding) -> None:
        self.embedding = embedding

    def __call__(self, input: Tensor) -> Tensor:
        weight, padding = self.embedding.weight, self.embedding.padding_idx
        return _Lookup.apply(input, weight, padding)  # type: ignore[return-value]


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, padding: int | None) -> Tensor:
        ctx.padding = padding
        ctx.save_for_backward(ids, weight)
        return nn.functional.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        ids, weight = ctx.saved_tensors
        rows = gradients[0].flatten(0, -2)
        if ctx.padding is not None:  # as nn.Embedding, which does not train its padding row
            rows = rows.masked_fill((ids == ctx.padding).flatten()[:, None], 0)
        _gradient_of(weight).index_add_(0, ids.flatten(), rows.to(weight.dtype))
        return None, None, None


def _gradient_of(weight: Tensor) -> Tensor:
    """A parameter's gradient, made if there is none."""
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    return weight.grad


def token_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probability of each chosen token: (N, V) logits and (N,) ids to (N,)."""
    # The fused kernel is five times as fast as gather and logsumexp.
    return -cross_entropy(logits, tokens, reduction="none")


def forbid_ends(logits: Tensor, ends: Tensor, early: Tensor | None = None) -> Tensor:
    """(N, V) logits with probability 0 for the tokens `ends` (E,), in the rows `early` (N,) or all.

    Every pass over tokens that were sampled with `min_new_tokens` must apply it; otherwise their
    log-probabilities are those of another distribution.
    """
    if early is None:
        return logits.index_fill(1, ends, FORBIDDEN)
    return logits.index_copy(1, ends, logits[:, ends].masked_fill(early[:, None], FORBIDDEN))


def entropy(logits: Tensor) -> Tensor:
    """Entropy of each row's distribution, nats: (N, V) to (N,)."""
    # The clamp avoids 0 · −∞ for logits of −∞.
    logprobs = logits.log_softmax(-1).clamp_min(torch.finfo(logits.dtype).min)
    return -(logprobs.exp() * logprobs).sum(-1)


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """N sampled tokens: `ids` (N,), and where `ends` (E,) had probability 0: `early` (N,) or None."""

    ids: Tensor
    ends: Tensor
    early: Tensor | None = None


def chunked_stats(
    head: OutputHead, hidden: Tensor, tokens: Tokens, *, temperature: float, wants_entropy: bool
) -> TokenStats:
    """`token_logprobs` and `entropy` of the logits of `hidden` (N, hidden) at a temperature."""
    layer = head.layer
    logprobs, entropies = _Chunked.apply(
        hidden, layer.weight, layer.bias, head, tokens, temperature, wants_entropy
    )  # type: ignore[misc]
    return TokenStats(logprobs, entropies if wants_entropy else None)


class _Chunked(torch.autograd.Function):
    """Matrix products in autocast's precision, everything else in fp32 (fp64 for fp64 weights)."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        head: OutputHead,
        tokens: Tokens,
        temperature: float,
        wants_entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        kind = hidden.device.type
        cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        ctx.head, ctx.tokens, ctx.temperature = head, tokens, temperature
        ctx.cast, ctx.wants_entropy = cast, wants_entropy
        ctx.save_for_backward(hidden, weight, bias)
        logprobs = torch.empty(len(hidden), dtype=_wide(weight), device=hidden.device)
        entropies = torch.zeros_like(logprobs)
        for rows, _, logits in _chunks(ctx, hidden, weight, bias):
            logprobs[rows] = token_logprobs(logits, tokens.ids[rows])
            if wants_entropy:
                entropies[rows] = entropy(logits)
            del logits  # before the next chunk is made
        ctx.mark_non_differentiable(*([] if wants_entropy else [entropies]))
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        of_logprobs, of_entropies = gradients
        hidden, weight, bias = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        d_hidden = torch.empty_like(hidden) if wants_hidden else None
        shared = wants_weight and ctx.head.shares_gradient
        d_weight = (
            _gradient_of(weight) if shared else torch.zeros_like(weight) if wants_weight else None
        )
        d_bias = torch.zeros_like(bias) if wants_bias else None
        with torch.autocast(hidden.device.type, enabled=False):
            cast = weight.to(ctx.cast)
            for rows, raw, logits in _chunks(ctx, hidden, weight, bias):
                found = _logit_gradient(ctx, logits, rows, of_logprobs, of_entropies)
                del logits
                found *= ctx.head.scale / ctx.temperature
                if raw is not None:
                    found *= 1 - torch.tanh(raw / ctx.head.cap).square()
                if d_bias is not None:
                    d_bias += found.sum(0)
                found = found.to(ctx.cast)
                if d_hidden is not None:
                    d_hidden[rows] = (found @ cast).to(hidden.dtype)
                if d_weight is None:
                    pass
                elif ctx.cast == weight.dtype:
                    d_weight.addmm_(found.T, hidden[rows].to(ctx.cast))
                else:
                    d_weight += found.T @ hidden[rows].to(ctx.cast)
                del raw, found
        return d_hidden, None if shared else d_weight, d_bias, None, None, None, None


def _wide(weight: Tensor) -> torch.dtype:
    return torch.promote_types(weight.dtype, torch.float32)


def _chunks(
    ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None
) -> Iterator[tuple[slice, Tensor | None, Tensor]]:
    """The rows of each chunk, the output layer's results if a cap needs them in the backward pass, and
    the logits of the distribution."""
    cast, tokens = weight.to(ctx.cast), ctx.tokens
    step = max(1, CHUNK_BYTES // (4 * weight.shape[0]))
    with torch.autocast(hidden.device.type, enabled=False):
        for start in range(0, len(hidden), step):
            rows = slice(start, start + step)
            raw = None
            logits = nn.functional.linear(
                hidden[rows].to(ctx.cast), cast, None if bias is None else bias.to(ctx.cast)
            ).to(_wide(weight))
            if ctx.head.cap is None:
                logits = logits.mul_(ctx.head.scale / ctx.temperature)
            else:
                raw, logits = logits, ctx.head.finish(logits).div_(ctx.temperature)
            if tokens.early is not None:
                logits = forbid_ends(logits, tokens.ends, tokens.early[rows])
            yield rows, raw, logits
            del raw, logits


def _logit_gradient(
    ctx: Any, logits: Tensor, rows: slice, of_logprobs: Tensor, of_entropies: Tensor
) -> Tensor:
    """The gradient of the loss by the logits z, with p = softmax(z) and entropy H:
    ∂ log p_i / ∂z = 1_i − p, and ∂H / ∂z = −p · (log p + H)."""
    logprobs = logits.log_softmax(-1)
    ids, weights = ctx.tokens.ids[rows, None], of_logprobs[rows, None]
    if not ctx.wants_entropy:
        return logprobs.exp_().mul_(-weights).scatter_add_(1, ids, weights.to(logprobs.dtype))
    found = logprobs.exp()
    logprobs.clamp_min_(FORBIDDEN)  # −∞ times a probability of 0 is not a number
    negative = (found * logprobs).sum(-1, keepdim=True)  # −H
    logprobs.sub_(negative).mul_(of_entropies[rows, None]).add_(weights)
    return found.mul_(logprobs).neg_().scatter_add_(1, ids, weights.to(found.dtype))
