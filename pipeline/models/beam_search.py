"""Beam search, with transformers' `generate`.  For evaluation only.

Its responses are chosen and not sampled, so probability ratios and estimates of the KL do not apply
to them: never train on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig

from pipeline.ppo.rollouts.backends import without_generation_defaults
from pipeline.ppo.rollouts.decoding import left_padded
from pipeline.ppo.rollouts.rollout import truncate_at_end


@torch.no_grad()
def beam_search(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    beams: int,
    eos_token_ids: Sequence[int],
    pad_token_id: int,
    max_new_tokens: int,
    length_penalty: float = 1.0,
) -> list[list[int]]:
    """The best response found to each prompt of token ids, with its end-of-text if it has one.

    The best response has the highest log-probability / length**`length_penalty`, end-of-text
    counted.  A prompt is done once it has `beams` finished responses.  One beam is greedy decoding.
    `model` is a causal LM in eval mode; all prompts × `beams` rows are decoded together, and the
    model's own generation settings are ignored.
    """
    ids, mask = left_padded(prompts, pad_token_id, model.device)
    settings = GenerationConfig(
        num_beams=beams,
        do_sample=False,
        early_stopping=True,
        length_penalty=length_penalty,
        max_new_tokens=max_new_tokens,
        eos_token_id=list(eos_token_ids),
        pad_token_id=pad_token_id,
    )
    with without_generation_defaults(model):
        texts = model.generate(input_ids=ids, attention_mask=mask, generation_config=settings)
    return [truncate_at_end(row, eos_token_ids) for row in texts[:, ids.shape[1] :].tolist()]
