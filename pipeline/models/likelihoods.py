"""How likely a model finds given responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pipeline.models.generate import Response
from pipeline.models.padding import pad_right
from pipeline.models.text import Encoded
from pipeline.ppo.algorithm import full_kl
from pipeline.ppo.batch import micro_batches
from pipeline.ppo.model import run_model, token_logprobs


@torch.no_grad()
def response_logprobs(model: Any, texts: Sequence[Encoded], *, pad_id: int) -> list[list[float]]:
    """The log-probability, nats, of each response token of each text, its end included."""
    device = next(model.parameters()).device
    lengths = [len(text.ids) for text in texts]
    found: list[list[float]] = [[] for _ in texts]
    for rows in micro_batches(range(len(texts)), lengths, token_budget=4096, slack=256):
        batch = pad_right([texts[row].ids for row in rows], pad_id)
        ids = batch["input_ids"].to(device)
        places = torch.arange(ids.shape[1], device=device)
        starts = torch.tensor([texts[r].prompt_tokens for r in rows], device=device).unsqueeze(1)
        ends = torch.tensor([lengths[r] for r in rows], device=device).unsqueeze(1)
        responses = (places >= starts) & (places < ends)
        # A token is predicted one place before it stands.
        output = run_model(model, ids, responses.roll(-1, dims=1), use_cache=False)
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

    At every position the divergence of the two next-token distributions is summed over the whole
    vocabulary: the same expectation as the sampled log-ratio, with far less noise.
    """
    device = next(policy.parameters()).device
    vocabulary = policy.get_output_embeddings().weight.shape[0]
    texts = [[*r.prompt_ids, *r.ids] for r in responses]
    totals = [0.0] * len(responses)
    groups = micro_batches(
        range(len(texts)),
        [len(ids) for ids in texts],
        token_budget=max(1, _LOGITS_AT_ONCE // vocabulary),
        slack=1024,
    )
    for rows in groups:
        batch = pad_right([texts[row] for row in rows], pad_id)
        mask = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
        for i, row in enumerate(rows):
            # The logits of a token stand one place before it.
            begin = len(responses[row].prompt_ids) - 1
            mask[i, begin : begin + len(responses[row].ids)] = True
        ids, positions = batch["input_ids"].to(device), mask.to(device)
        ours, theirs = (
            run_model(model, ids, positions, use_cache=False).logits / temperature
            for model in (policy, reference)
        )
        parts = full_kl(ours, theirs).split([len(responses[row].ids) for row in rows])
        for row, part in zip(rows, parts, strict=True):
            totals[row] = part.sum().item()
    return totals


_LOGITS_AT_ONCE = 2**26
"""Logits held in memory at once for the exact KL: a quarter of a gigabyte per model."""
