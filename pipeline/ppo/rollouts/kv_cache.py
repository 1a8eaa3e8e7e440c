"""Keys and values of the tokens read so far, in buffers that are allocated once.

transformers' own cache is concatenated for every token, which copies all of it: as many bytes as the
weights of a small model.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

_ATTENTION = (DynamicLayer, DynamicSlidingWindowLayer)


class PreallocatedLayer(DynamicLayer):
    """One layer's keys and values, (B, heads, L, width): views of buffers with `capacity` tokens.

    A sliding window is in the attention mask, and older tokens stay in the buffers.
    """

    # transformers then makes the mask without reading it, which would wait for the GPU.
    is_compileable = True

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the buffers in the shape and precision of the first keys and values."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self._buffers = [_buffer(x, self.capacity) for x in (key_states, value_states)]
        self._show(0, len(key_states))
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values, and return all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        before, added = self._length, key_states.shape[2]
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[: self._rows].narrow(2, before, added).copy_(new)
        return self._show(before + added, self._rows)

    def get_seq_length(self) -> int:
        """Tokens in the cache."""
        return self._length if self.is_initialized else 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep these rows, in this order; no row may move behind its place.

        Rows move within the buffers, and only those that change places are copied.
        """
        rows = len(beam_idx)
        moved = (beam_idx != torch.arange(rows, device=beam_idx.device)).nonzero().squeeze(1)
        for buffer in self._buffers:
            seen = buffer.narrow(2, 0, self._length)
            seen[moved] = seen[beam_idx[moved]]
        self._show(self._length, rows)

    def _show(self, length: int, rows: int) -> tuple[Tensor, Tensor]:
        self._length, self._rows = length, rows
        keys, values = (x[:rows].narrow(2, 0, length) for x in self._buffers)
        self.keys, self.values = keys, values
        return keys, values


def _buffer(like: Tensor, capacity: int) -> Tensor:
    rows, heads, _, width = like.shape
    return like.new_empty(rows, heads, capacity, width)


def make_cache(model: Any, capacity: int) -> Cache | None:
    """An empty cache for `capacity` tokens a row; None for a model with other layers than attention,
    which makes its own."""
    own = DynamicCache(config=model.config).layers
    if not own or any(type(layer) not in _ATTENTION for layer in own):
        return None
    return Cache(layers=[PreallocatedLayer(capacity) for _ in own])  # type: ignore[arg-type]
