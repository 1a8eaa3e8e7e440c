"""Log-probabilities, entropies and exact KLs of tokens from hidden states, a few tokens at a time.

The logits of N tokens over a vocabulary of V take 4·N·V bytes in fp32, and training through them needs
several tensors of that size: 1.2 GB each for 2,048 tokens of Qwen3's 151,936.  `chunked_stats` makes
the logits of one chunk, reduces them to a few numbers a token, and drops them; its backward pass makes
them again and writes the gradient of the weights in place, as liger-kernel's fused linear losses do
(arXiv 2410.10989).  The cost is one more product with the output layer, and with a reference one more
with the reference's.

A sharded model has the weight of its output layer only within its forward and backward passes.  Its
statistics are therefore computed inside the forward pass (`ActorCritic.forward`), whose results start
the backward pass that gathers the weight again.  In bf16 that weight is gathered rounded; its gradient is
summed over chunks in fp32, and rounded once.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pipeline.ppo.network.distributed import Processes

CHUNK_BYTES = 2**26
"""Bytes of fp32 logits that are alive at a time; fewer logits than that are kept for the backward
pass, which is faster."""
FORBIDDEN = -1e30
"""A logit of probability 0; finite, so that 0 · log 0 is 0."""
_PROBED = 4
"""Tokens of the text with which `output_head` compares its logits with the model's."""


class TokenStats(NamedTuple):
    """Of N tokens, each (N,): log-probabilities; entropies of their distributions and KLs to the
    reference's, nats; and log-probabilities under the reference, without gradient."""

    logprobs: Tensor
    entropies: Tensor | None = None
    kl: Tensor | None = None
    ref_logprobs: Tensor | None = None


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


def output_head(model: Any, processes: Processes) -> OutputHead | None:
    """The model's output head; None if it is not a plain layer with a known cap and scale.

    A short text decides, in the first process, which may be the only one with weights: whatever a
    model does between its output layer and its logits, what is returned here gives the same logits.
    The model must be in one precision, and not sharded yet.
    """
    layer = model.get_output_embeddings()
    if type(layer) is not nn.Linear:
        return None
    config = model.config.get_text_config()
    divided = getattr(config, "logits_scaling", None)
    scale = 1 / divided if divided else getattr(config, "logit_scale", None) or 1.0
    cap = getattr(config, "final_logit_softcapping", None)
    head = OutputHead(layer=layer, cap=cap, scale=scale)
    return head if processes.first(lambda: _makes_logits(head, model)) else None


def _makes_logits(head: OutputHead, model: Any) -> bool:
    """Whether the head gives the model's logits of a short text."""
    layer = head.layer
    made: list[Tensor] = []

    def keep(_layer: nn.Module, _inputs: Any, output: Any) -> None:
        made.append(output.clone())  # a model may change its logits in place

    hook = layer.register_forward_hook(keep)
    ids = torch.arange(_PROBED, device=layer.weight.device)[None] % layer.out_features
    try:
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False, return_dict=True).logits.float()
    finally:
        hook.remove()
    return len(made) == 1 and torch.allclose(head.finish(made[0].float()), logits, atol=1e-5)


def head_for(model: Any, processes: Processes, *, tokens: int) -> OutputHead | None:
    """The output head for passes of at most so many tokens; None if their logits are small, or it is
    not known."""
    if is_small(tokens, model.get_output_embeddings().weight.shape[0]):
        return None
    head = output_head(model, processes)
    return None if head is None else share_gradient(model, head)


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
        if not _adds_exactly(weight):
            return nn.functional.embedding(input, weight, padding)
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


def _adds_exactly(weight: Tensor) -> bool:
    """Whether a gradient in the weight's precision is one to add to; not that of a bf16 weight, in
    which a sum over many tokens stops growing."""
    return weight.dtype == _wide(weight)


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


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The model that a KL is taken to: its output head and hidden states (N, width), without gradient."""

    head: OutputHead
    hidden: Tensor


def chunked_stats(
    head: OutputHead,
    hidden: Tensor,
    tokens: Tokens,
    *,
    temperature: float,
    wants_entropy: bool,
    reference: Reference | None = None,
) -> TokenStats:
    """`token_logprobs` and `entropy` of the logits of `hidden` (N, width) at a temperature, and with a
    reference `full_kl`."""
    kind, layer = hidden.device.type, head.layer
    task = _Task(
        head=head,
        tokens=tokens,
        temperature=temperature,
        wants_entropy=wants_entropy,
        reference=None if reference is None else reference.head,
        precision=torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None,
    )
    other: tuple[Tensor | None, ...] = (None, None, None)
    if reference is not None:
        of_reference = reference.head.layer
        other = reference.hidden, of_reference.weight, of_reference.bias
    logprobs, entropies, kl, ref_logprobs = _Chunked.apply(
        task, hidden, layer.weight, layer.bias, *other
    )  # type: ignore[misc]
    return TokenStats(
        logprobs,
        entropies if wants_entropy else None,
        *((None, None) if reference is None else (kl, ref_logprobs)),
    )


@dataclass(frozen=True, kw_only=True)
class _Task:
    """What to compute; `reference` is its head, `precision` autocast's, in which products are made."""

    head: OutputHead
    tokens: Tokens
    temperature: float
    wants_entropy: bool
    reference: OutputHead | None
    precision: torch.dtype | None


class _Chunked(torch.autograd.Function):
    """Matrix products in autocast's precision, everything else in fp32 (fp64 for fp64 weights)."""

    @staticmethod
    def forward(
        ctx: Any,
        task: _Task,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *reference: Tensor | None,
    ) -> tuple[Tensor, ...]:
        ctx.task = task
        ctx.save_for_backward(hidden, weight, bias, *reference)
        policy, other = _readouts(task, (hidden, weight, bias, *reference))
        size, kind = len(hidden), {"dtype": _wide(weight), "device": hidden.device}
        found = [torch.zeros(size, **kind) for _ in TokenStats._fields]
        with torch.autocast(hidden.device.type, enabled=False):
            for rows in policy.chunks():
                for result, part in zip(found, _stats(task, rows, policy, other), strict=True):
                    if part is not None:
                        result[rows] = part
        wanted = True, task.wants_entropy, other is not None, False
        ctx.mark_non_differentiable(*(x for x, w in zip(found, wanted, strict=True) if not w))
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        task: _Task = ctx.task
        hidden, weight, bias = ctx.saved_tensors[:3]
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[1:4]
        d_hidden = torch.empty_like(hidden) if wants_hidden else None
        shared = wants_weight and task.head.shares_gradient and _adds_exactly(weight)
        d_weight = _gradient_of(weight) if shared else _sum_for(weight) if wants_weight else None
        d_bias = _sum_for(bias) if wants_bias else None
        policy, other = _readouts(task, ctx.saved_tensors)
        with torch.autocast(hidden.device.type, enabled=False):
            for rows in policy.chunks():
                found = _layer_gradient(task, rows, policy, other, gradients)
                if d_bias is not None:
                    d_bias += found.sum(0)
                found = found.to(policy.weight.dtype)
                if d_hidden is not None:
                    d_hidden[rows] = (found @ policy.weight).to(hidden.dtype)
                if d_weight is None:
                    pass
                elif policy.weight.dtype == d_weight.dtype:
                    d_weight.addmm_(found.T, policy.inputs(rows))
                else:
                    d_weight += found.T @ policy.inputs(rows)
                del found  # before the next chunk is made
        return None, d_hidden, None if shared else d_weight, d_bias, None, None, None


def _wide(weight: Tensor) -> torch.dtype:
    return torch.promote_types(weight.dtype, torch.float32)


def _sum_for(weight: Tensor) -> Tensor:
    """Zeros to add the chunks' gradients to; autograd rounds the sum to the weight's precision."""
    return torch.zeros_like(weight, dtype=_wide(weight))


class _Readout:
    """Makes the logits of chunks of hidden states with a head whose weights are rounded once."""

    def __init__(
        self,
        task: _Task,
        head: OutputHead,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
    ) -> None:
        self.task, self.head, self.hidden = task, head, hidden
        self.wide = _wide(weight)
        self.weight = weight.to(task.precision or weight.dtype)
        self.bias = None if bias is None else bias.to(self.weight.dtype)

    def chunks(self) -> list[slice]:
        """The rows of each chunk; with a reference, half as many, because two models' logits are alive."""
        models = 1 if self.task.reference is None else 2
        step = max(1, CHUNK_BYTES // (4 * models * self.weight.shape[0]))
        return [slice(start, start + step) for start in range(0, len(self.hidden), step)]

    def inputs(self, rows: slice) -> Tensor:
        return self.hidden[rows].to(self.weight.dtype)

    def __call__(self, rows: slice) -> tuple[Tensor, Tensor | None]:
        """The logits of the distribution, and the output layer's results if there is a cap."""
        tokens, temperature, raw = self.task.tokens, self.task.temperature, None
        logits = nn.functional.linear(self.inputs(rows), self.weight, self.bias).to(self.wide)
        if self.head.cap is None:
            logits = logits.mul_(self.head.scale / temperature)
        else:
            raw, logits = logits, self.head.finish(logits).div_(temperature)
        if tokens.early is not None:
            logits = forbid_ends(logits, tokens.ends, tokens.early[rows])
        return logits, raw


def _readouts(task: _Task, tensors: tuple[Tensor | None, ...]) -> tuple[_Readout, _Readout | None]:
    """Those of the policy and of the reference, from their hidden states, weights and biases."""
    policy = _Readout(task, task.head, *tensors[:3])  # type: ignore[arg-type]
    if task.reference is None:
        return policy, None
    other = _Readout(task, task.reference, *tensors[3:])  # type: ignore[arg-type]
    if task.reference.layer is task.head.layer:  # adapters are off: one rounded copy is enough
        other.weight = policy.weight
    return policy, other


def _stats(
    task: _Task, rows: slice, policy: _Readout, reference: _Readout | None
) -> tuple[Tensor | None, ...]:
    """A chunk's log-probabilities, entropies, KLs, and log-probabilities under the reference."""
    ids, logits = task.tokens.ids[rows], policy(rows)[0]
    logprobs = token_logprobs(logits, ids)
    entropies = entropy(logits) if task.wants_entropy else None
    if reference is None:
        return logprobs, entropies, None, None
    everywhere = logits.log_softmax(-1).clamp_min_(FORBIDDEN)
    del logits
    ref_logits = reference(rows)[0]
    ref_logprobs = token_logprobs(ref_logits, ids)
    log_ratio = _log_ratio(everywhere, ref_logits)
    return logprobs, entropies, everywhere.exp_().mul_(log_ratio).sum(-1), ref_logprobs


def _log_ratio(logprobs: Tensor, ref_logits: Tensor) -> Tensor:
    """log p − log q of every token of the vocabulary, (n, V), if neither is −∞."""
    return ref_logits.log_softmax(-1).clamp_min_(FORBIDDEN).neg_().add_(logprobs)


def _layer_gradient(
    task: _Task,
    rows: slice,
    policy: _Readout,
    reference: _Readout | None,
    gradients: tuple[Tensor, ...],
) -> Tensor:
    """The gradient of the loss by the output layer's results in a chunk."""
    logits, raw = policy(rows)
    logprobs = logits.log_softmax(-1)
    del logits
    found = _logit_gradient(task, rows, logprobs, reference, gradients)
    found *= task.head.scale / task.temperature
    if task.head.cap is not None and raw is not None:
        found *= 1 - torch.tanh(raw / task.head.cap).square()
    return found


def _logit_gradient(
    task: _Task,
    rows: slice,
    logprobs: Tensor,
    reference: _Readout | None,
    gradients: tuple[Tensor, ...],
) -> Tensor:
    """The gradient of the loss by the logits z, with p = softmax(z), entropy H and reference q:
    ∂ log p_i / ∂z = 1_i − p, ∂H / ∂z = −p · (log p + H), and ∂KL / ∂z = p · (log p − log q − KL).

    `logprobs` is overwritten.
    """
    ids = task.tokens.ids[rows, None]
    weights, of_entropies, of_kl = (gradient[rows, None] for gradient in gradients[:3])
    if reference is None and not task.wants_entropy:
        return logprobs.exp_().mul_(-weights).scatter_add_(1, ids, weights)
    found, factor = logprobs.exp(), weights  # the gradient is weights · 1_i − p · factor
    logprobs.clamp_min_(FORBIDDEN)  # −∞ times a probability of 0 is not a number
    if reference is not None:
        log_ratio = _log_ratio(logprobs, reference(rows)[0])
        kl = (found * log_ratio).sum(-1, keepdim=True)
        factor = log_ratio.sub_(kl).mul_(-of_kl).add_(factor)
    if task.wants_entropy:
        negative = (found * logprobs).sum(-1, keepdim=True)  # −H
        factor = logprobs.sub_(negative).mul_(of_entropies).add_(factor)
    return found.mul_(factor).neg_().scatter_add_(1, ids, weights)
