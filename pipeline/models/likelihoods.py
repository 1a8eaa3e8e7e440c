"""Log-probabilities of given responses, and the exact KL between two models on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pipeline.models.generate import Response
from pipeline.models.padding import pad_right
from pipeline.models.text import Encoded
from pipeline.ppo.algorithm import full_kl, length_mask
from pipeline.ppo.batch import micro_batches
from pipeline.ppo.network.model import run_model
from pipeline.ppo.network.token_stats import token_logprobs


@torch.no_grad()
def response_logprobs(model: Any, texts: Sequence[Encoded], *, pad_id: int) -> list[list[float]]:
    """The log-probability, nats, of each response token of each text, end-of-text included."""
    device = next(model.parameters()).device
    found: list[list[float]] = [[] for _ in texts]
    for rows, ids, responses in _batches(texts, pad_id, device, token_budget=4096, slack=256):
        output = run_model(model, ids, _predicting(responses), use_cache=False)
        logprobs = token_logprobs(output.logits, ids[responses])
        parts = logprobs.split(responses.sum(1).tolist())
        for row, part in zip(rows, parts, strict=True):
            found[row] = part.tolist()
    return found


@torch.no_grad()
def sequence_kl(
    policy: Any,
    reference: Any,
    responses: Sequence[Response],
    *,
    temperature: float,
    pad_id: int,
) -> list[float]:
    """KL(policy ‖ reference) along each response, nats.

    Sums the KL of the two next-token distributions over all positions, exact over the vocabulary:
    it has the same expectation as the sampled log-ratio, with far less noise.
    """
    device = next(policy.parameters()).device
    vocabulary = policy.get_output_embeddings().weight.shape[0]
    texts = [Encoded([*r.prompt_ids, *r.ids], len(r.prompt_ids)) for r in responses]
    totals = [0.0] * len(responses)
    budget = max(1, _LOGITS_AT_ONCE // vocabulary)
    for rows, ids, mask in _batches(texts, pad_id, device, token_budget=budget, slack=1024):
        ours, theirs = (
            run_model(model, ids, _predicting(mask), use_cache=False).logits / temperature
            for model in (policy, reference)
        )
        parts = full_kl(ours, theirs).split(mask.sum(1).tolist())
        for row, part in zip(rows, parts, strict=True):
            totals[row] = part.sum().item()
    return totals


class TokenLikelihood(NamedTuple):
    """One token under two models; nats."""

    logprob: float
    reference_logprob: float
    kl: float
    """KL(policy ‖ reference) of the distributions of this token, over the whole vocabulary."""


@torch.no_grad()
def token_likelihoods(
    policy: Any, reference: Any, text: Encoded, *, temperature: float
) -> list[TokenLikelihood]:
    """Each response token of a text under both models, whose distributions have this temperature.

    ValueError if the models have different vocabularies.
    """
    device = next(policy.parameters()).device
    ids = torch.tensor([text.ids], device=device)
    places = torch.zeros_like(ids, dtype=torch.bool)
    places[:, text.prompt_tokens - 1 : -1] = True
    ours, theirs = (
        run_model(model, ids, places, use_cache=False).logits.float() / temperature
        for model in (policy, reference)
    )
    if ours.shape != theirs.shape:
        raise ValueError(
            f"the models have {ours.shape[-1]} and {theirs.shape[-1]} tokens in their vocabularies, "
            "so their distributions cannot be compared"
        )
    sampled = ids[0, text.prompt_tokens :]
    columns = (
        token_logprobs(ours, sampled),
        token_logprobs(theirs, sampled),
        full_kl(ours, theirs),
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [TokenLikelihood(*row) for row in rows]


def _batches(
    texts: Sequence[Encoded], pad_id: int, device: torch.device, *, token_budget: int, slack: int
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Batches as (numbers of the texts, (B, L) ids, (B, L) mask of response tokens)."""
    lengths = [len(text.ids) for text in texts]
    for rows in micro_batches(range(len(texts)), lengths, token_budget=token_budget, slack=slack):
        ids = pad_right([texts[row].ids for row in rows], pad_id)["input_ids"].to(device)
        starts = torch.tensor([texts[row].prompt_tokens for row in rows], device=device)
        ends = torch.tensor([lengths[row] for row in rows], device=device)
        width = ids.shape[1]
        yield rows, ids, length_mask(ends, width) & ~length_mask(starts, width)


def _predicting(responses: Tensor) -> Tensor:
    """The mask of the positions whose logits predict the masked tokens: shifted one to the left."""
    return responses.roll(-1, dims=1)


_LOGITS_AT_ONCE = 2**26
"""Logits held in memory at once for the exact KL: 256 MB per model."""
