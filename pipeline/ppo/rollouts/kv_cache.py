"""Keys and values of the tokens read so far, in buffers that are allocated once.

transformers' own cache is concatenated for every token, which copies all of it: as many bytes as the
weights of a small model.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, StaticLayer

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
        """Allocate the buffers in the shape of the first keys and values."""
        self.dtype, self.device = precision_of(key_states), key_states.device
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

    def move_rows(self, sources: Tensor, targets: Tensor, rows: int) -> None:
        """Copy rows to others' places, and keep the first `rows`."""
        for buffer in self._buffers:
            seen = buffer.narrow(2, 0, self._length)
            seen[targets] = seen[sources]
        self._show(self._length, rows)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Refused: beam search is not used, and what transformers does here would replace the buffers."""
        raise NotImplementedError("use move_rows, which copies rows within the buffers")

    def _show(self, length: int, rows: int) -> tuple[Tensor, Tensor]:
        self._length, self._rows = length, rows
        keys, values = (x[:rows].narrow(2, 0, length) for x in self._buffers)
        self.keys, self.values = keys, values
        return keys, values


def _buffer(like: Tensor, capacity: int) -> Tensor:
    rows, heads, _, width = like.shape
    return like.new_empty(rows, heads, capacity, width, dtype=precision_of(like))


class FixedLayer(StaticLayer):
    """transformers' static layer, whose shapes never change, in the precision of attention."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write keys and values behind the earlier ones, and return the whole buffers."""
        dtype = precision_of(key_states)
        return super().update(key_states.to(dtype), value_states.to(dtype), *args, **kwargs)


def precision_of(states: Tensor) -> torch.dtype:
    """The precision in which attention reads keys and values: autocast rounds them there, and a cache
    that holds them rounded gives the same result with half the memory."""
    kind = states.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype


def has_attention_only(model: Any) -> bool:
    """Whether every layer that keeps a state of earlier tokens is attention."""
    layers = DynamicCache(config=model.config).layers
    return bool(layers) and all(type(layer) in _ATTENTION for layer in layers)


def make_cache(model: Any, capacity: int) -> Cache | None:
    """An empty cache for `capacity` tokens a row; None for a model with other layers than attention,
    which makes its own."""
    return cache_of(model, PreallocatedLayer, capacity) if has_attention_only(model) else None


def cache_of(model: Any, layer: type[PreallocatedLayer] | type[FixedLayer], capacity: int) -> Cache:
    """An empty cache of such layers."""
    layers = DynamicCache(config=model.config).layers
    return Cache(layers=[layer(capacity) for _ in layers])  # type: ignore[arg-type]


def filling_gaps(keep: list[int]) -> list[int]:
    """These ascending rows in another order: rows below their count stay in their places, and the
    others fill the gaps, so that few rows of a cache are copied."""
    stay = {row for row in keep if row < len(keep)}
    moving = iter(keep[len(stay) :])
    return [row if row in stay else next(moving) for row in range(len(keep))]


def keep_rows(cache: Cache, order: list[int], kept: Tensor) -> None:
    """Keep the rows `order` of a cache, in that order, given also as a tensor on its device."""
    moved = [(row, place) for place, row in enumerate(order) if row != place]
    if not isinstance(cache.layers[0], PreallocatedLayer):
        # The only way to select rows that every kind of layer supports.
        cache.reorder_cache(kept)  # type: ignore[arg-type]
        return
    sources, targets = host_tensor(moved, kept.device).view(-1, 2).unbind(1)
    for layer in cache.layers:
        assert isinstance(layer, PreallocatedLayer)
        layer.move_rows(sources, targets, len(order))


def host_tensor(numbers: Sequence[Any], device: torch.device) -> Tensor:
    """Integers of the host on `device`, without waiting for it."""
    found = torch.tensor(numbers, dtype=torch.long, pin_memory=device.type == "cuda")
    return found.to(device, non_blocking=True)
