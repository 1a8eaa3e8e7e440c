"""Token lists of different lengths as one padded batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def pad_right(texts: Sequence[Sequence[int]], pad_id: int) -> dict[str, Tensor]:
    """`input_ids` and `attention_mask`, (N, L); the mask is made from lengths, not from ids."""
    rows = [torch.tensor(ids) for ids in texts]
    return {
        "input_ids": pad_sequence(rows, batch_first=True, padding_value=pad_id),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in rows], batch_first=True),
    }
