"""How likely a model finds given responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pipeline.ppo.experience import micro_batches
from pipeline.ppo.model import run_model, token_logprobs
from pipeline.reward.data import pad_right
from pipeline.text import Encoded


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
