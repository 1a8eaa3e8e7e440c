"""Packing: several texts form one row without padding, for training passes on a CPU.

Each text attends only to itself: an attention function registered with transformers splits the row
at the ends of the texts.  On a CPU this saves padding and the overhead of many passes; on a GPU the
loop over texts would be slow.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

_NAME = "kitestring_packed"
_lengths: ContextVar[list[int]] = ContextVar("lengths")


class CannotPack(ValueError):
    """The model's attention has an option that packing does not support."""


def _attend_within_texts(
    _: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **extra: Any,
) -> tuple[Tensor, None]:
    """Causal attention of (1, heads, ΣL, width) within each text."""
    if attention_mask is not None or dropout or _unsupported(extra):
        raise CannotPack(f"packing does not support {_unsupported(extra) or 'a mask'}")
    lengths, dtype = _lengths.get(), query.dtype
    grouped = query.shape[1] != key.shape[1]
    # On a CPU, attention in bf16 is several times slower than in fp32.
    with torch.autocast(query.device.type, enabled=False):
        parts = zip(*(x.float().split(lengths, dim=2) for x in (query, key, value)), strict=True)
        found = [
            scaled_dot_product_attention(*part, is_causal=True, scale=scaling, enable_gqa=grouped)
            for part in parts
        ]
    return torch.cat(found, dim=2).transpose(1, 2).to(dtype), None


def _unsupported(extra: dict[str, Any]) -> str:
    """Names of attention options that would change the result and are not supported."""
    options = ("softcap", "position_bias", "s_aux", "cache")
    return ", ".join(name for name in options if extra.get(name) is not None)


AttentionInterface.register(_NAME, _attend_within_texts)


@contextmanager
def packed(models: Sequence[nn.Module], lengths: list[int]) -> Iterator[None]:
    """Make these models treat their input as one row that packs texts of these lengths."""
    configs: list[Any] = [model.config.get_text_config() for model in models]  # type: ignore[operator]
    before = [config._attn_implementation for config in configs]
    token = _lengths.set(lengths)
    try:
        for config in configs:
            config._attn_implementation = _NAME
        yield
    finally:
        _lengths.reset(token)
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation = name


def pack(ids: Tensor, lengths: Tensor, *others: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Pack right-padded (B, L) rows: (1, ΣL) ids, (1, ΣL) positions from 0, and the others."""
    places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    real = places < lengths.unsqueeze(1)
    return ids[real][None], places[real][None], [other[real][None] for other in others]


@torch.no_grad()
def can_pack(model: Any, *, longest: int, output: str = "logits") -> bool:
    """Whether a model's packed `output` equals that of each text alone, tested on two texts.

    False for models with recurrent state or unsupported attention options, and where texts are
    longer than a sliding window.
    """
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    if window is not None and longest > window:
        return False
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(config.vocab_size, (1, n), generator=generator) for n in (5, 9)]
    device = next(model.parameters()).device
    read = [model(input_ids=text.to(device), use_cache=False) for text in texts]
    alone = torch.cat([getattr(found, output) for found in read], 1)
    places = torch.cat([torch.arange(text.shape[1]) for text in texts])[None].to(device)
    try:
        with packed([model], [text.shape[1] for text in texts]):
            row = torch.cat(texts, 1).to(device)
            together = model(input_ids=row, position_ids=places, use_cache=False)
    except CannotPack:
        return False
    return torch.allclose(getattr(together, output), alone, rtol=1e-3, atol=1e-4)


def use_packing(
    wanted: str, models: Mapping[str, nn.Module | None], *, longest: int, device: torch.device
) -> bool:
    """Whether training passes of these named models pack their texts; `wanted` is `ppo.packing`.

    Raises ValueError if it is "on" and a model cannot be packed.
    """
    if wanted == "off" or (wanted == "auto" and device.type != "cpu"):
        return False
    for name, model in models.items():
        output = "last_hidden_state" if name == "critic" else "logits"
        if model is None or can_pack(model, longest=longest, output=output):
            continue
        if wanted == "on":
            raise ValueError(
                f"ppo.packing='on', but the {name} gives different results when texts are packed; "
                "set it to auto or off"
            )
        return False
    return True


def last_states(trunk: Any, texts: Sequence[Sequence[int]]) -> Tensor:
    """(B, hidden): a trunk's last hidden state of each text, all texts packed in one pass."""
    device = next(trunk.parameters()).device
    lengths = [len(text) for text in texts]
    row = torch.tensor([[token for text in texts for token in text]], device=device)
    places = torch.cat([torch.arange(length, device=device) for length in lengths])[None]
    with packed([trunk], lengths):
        hidden = trunk(input_ids=row, position_ids=places, use_cache=False).last_hidden_state
    return hidden[0, torch.tensor(lengths, device=device).cumsum(0) - 1]
