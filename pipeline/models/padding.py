"""Token lists of different lengths as one padded batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def pad_right(texts: Sequence[Sequence[int]], pad_id: int) -> dict[str, Tensor]:
    """`input_ids` and `attention_mask`, (N, L); the mask is made from lengths, not from ids."""
    width = max(map(len, texts))
    lengths = torch.tensor([len(ids) for ids in texts])
    ids = torch.tensor([[*ids, *[pad_id] * (width - len(ids))] for ids in texts])
    return {
        "input_ids": ids,
        "attention_mask": (torch.arange(width) < lengths.unsqueeze(1)).long(),
    }
