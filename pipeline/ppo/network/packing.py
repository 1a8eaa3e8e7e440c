"""Packing: several texts form one row without padding, for training passes.

Each text attends only to itself: an attention function registered with transformers splits the row
at the ends of the texts.  On a CPU this saves padding and the overhead of many passes.  On a GPU,
torch's variable-length attention reads a bf16 row in one kernel.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from pipeline.ppo.network.model import autocast

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # before torch 2.10
    varlen_attn = None

_NAME = "kitestring_packed"
_CAUSAL = (-1, 0)
"""A window over all earlier positions and no later one."""


class CannotPack(ValueError):
    """The model's attention has an option that packing does not support."""


class _Texts:
    """The texts of a packed row; `begun` as in `packed`."""

    def __init__(self, lengths: list[int], begun: Sequence[int] = ()) -> None:
        self.lengths = lengths
        self.begun = begun or [0] * len(lengths)
        self._bounds: Tensor | None = None

    def bounds(self, device: torch.device) -> Tensor:
        """(N + 1,) int32: where each text starts, and where the row ends."""
        if self._bounds is None:  # copied to the device once, not in every layer
            ends = torch.tensor([0, *self.lengths]).cumsum(0)
            self._bounds = ends.to(device, torch.int32)
        return self._bounds


_texts: ContextVar[_Texts] = ContextVar("texts")


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
    """Causal attention of (1, heads, ΣL, width) within each text, as (1, ΣL, heads, width)."""
    if attention_mask is not None or dropout or _unsupported(extra):
        raise CannotPack(f"packing does not support {_unsupported(extra) or 'a mask'}")
    texts = _texts.get()
    has_kernel = query.is_cuda and query.dtype == torch.bfloat16 and not any(texts.begun)
    attend = attend_in_one_kernel if has_kernel else attend_one_by_one
    return attend(query, key, value, texts, scaling), None


def attend_one_by_one(
    query: Tensor, key: Tensor, value: Tensor, texts: _Texts, scale: float | None
) -> Tensor:
    """A loop over texts, in fp32."""
    grouped = query.shape[1] != key.shape[1]
    # On a CPU, attention in bf16 is several times slower than in fp32.
    with torch.autocast(query.device.type, enabled=False):
        split = (x.float().split(texts.lengths, dim=2) for x in (query, key, value))
        found, before = [], None
        for (q, k, v), begun in zip(zip(*split, strict=True), texts.begun, strict=True):
            own: dict[str, Any] = {"is_causal": True}
            if begun and before:
                k, v = (
                    torch.cat([b[:, :, :begun], x], 2) for b, x in zip(before, (k, v), strict=True)
                )
                own = {"attn_mask": _causal_after(begun, q)}
            else:
                before = (k, v)
            found.append(
                scaled_dot_product_attention(q, k, v, **own, scale=scale, enable_gqa=grouped)
            )
    return torch.cat(found, dim=2).transpose(1, 2).to(query.dtype)


def _causal_after(begun: int, query: Tensor) -> Tensor:
    """(L, begun + L): query i sees the `begun` keys and the own ones up to i."""
    own = query.shape[2]
    return torch.ones(own, begun + own, dtype=torch.bool, device=query.device).tril(begun)


def attend_in_one_kernel(
    query: Tensor, key: Tensor, value: Tensor, texts: _Texts, scale: float | None
) -> Tensor:
    """torch's variable-length flash attention: all texts in one kernel, in bf16 on a GPU."""
    assert varlen_attn is not None, "use_packing checks it"
    times = query.shape[1] // key.shape[1]  # grouped heads need torch 2.12
    bounds, longest = texts.bounds(query.device), max(texts.lengths)
    found: Any = varlen_attn(
        query[0].transpose(0, 1),
        key[0].repeat_interleave(times, 0).transpose(0, 1),
        value[0].repeat_interleave(times, 0).transpose(0, 1),
        bounds,
        bounds,
        longest,
        longest,
        scale=scale,
        window_size=_CAUSAL,
    )
    return found[None]


def _unsupported(extra: dict[str, Any]) -> str:
    """Names of attention options that would change the result and are not supported."""
    options = ("softcap", "position_bias", "s_aux", "cache")
    return ", ".join(name for name in options if extra.get(name) is not None)


AttentionInterface.register(_NAME, _attend_within_texts)


@contextmanager
def packed(
    models: Sequence[nn.Module], lengths: list[int], begun: Sequence[int] = ()
) -> Iterator[None]:
    """Make these models treat their input as one row that packs texts of these lengths.

    A text with `begun` > 0 continues the first `begun` tokens of the last text that has 0.  The row
    and its lengths contain only the rest of it.
    """
    configs: list[Any] = [model.config.get_text_config() for model in models]  # type: ignore[operator]
    before = [config._attn_implementation for config in configs]
    token = _texts.set(_Texts(lengths, begun))
    try:
        for config in configs:
            config._attn_implementation = _NAME
        yield
    finally:
        _texts.reset(token)
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation = name


def pack(ids: Tensor, lengths: Tensor, *others: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Pack right-padded (B, L) rows: (1, ΣL) ids, (1, ΣL) positions from 0, and the others."""
    places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    real = places < lengths.unsqueeze(1)
    return ids[real][None], places[real][None], [other[real][None] for other in others]


@torch.no_grad()
def can_pack(model: Any, *, longest: int, output: str = "logits", precision: str = "fp32") -> bool:
    """Whether a model's packed `output` equals that of each text alone, tested on two texts.

    In bf16, the packed one may be twice as far from fp32's as each text alone.  False for models with
    recurrent state or unsupported attention options, and where texts are longer than a sliding window.
    """
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    if window is not None and longest > window:
        return False
    device, generator = next(model.parameters()).device, torch.Generator().manual_seed(0)
    texts = [torch.randint(config.vocab_size, (1, n), generator=generator) for n in (5, 9)]
    texts = [text.to(device) for text in texts]

    def alone() -> Tensor:
        read = [model(input_ids=text, use_cache=False) for text in texts]
        return torch.cat([getattr(found, output) for found in read], 1).float()

    exact = alone()
    with autocast(precision, device):
        noise = (alone() - exact).abs().max()
        try:
            together = getattr(_read_packed(model, texts), output).float()
        except CannotPack:
            return False
    return torch.allclose(together, exact, rtol=1e-3, atol=1e-4 + 2 * float(noise))


def _read_packed(model: Any, texts: Sequence[Tensor], begun: Sequence[int] = ()) -> Any:
    """The output for (1, L) texts in one row; `begun` as in `packed`."""
    lengths, device = [text.shape[1] for text in texts], texts[0].device
    spans = zip(begun or [0] * len(texts), lengths, strict=True)
    places = torch.cat([torch.arange(b, b + length, device=device) for b, length in spans])[None]
    with packed([model], lengths, begun):
        return model(input_ids=torch.cat(list(texts), 1), position_ids=places, use_cache=False)


def use_packing(
    wanted: str,
    models: Mapping[str, nn.Module | None],
    *,
    longest: int,
    device: torch.device,
    precision: str,
) -> bool:
    """Whether training passes of these named models pack their texts; `wanted` is `ppo.packing`.

    Raises ValueError if it is "on" and a model cannot be packed.
    """
    if wanted == "off" or (wanted == "auto" and device.type != "cpu"):
        return False
    if device.type == "cuda" and not _has_kernel():
        raise ValueError(
            "ppo.packing='on' needs torch 2.11 or newer on a GPU; install it, or set it to auto"
        )
    for name, model in models.items():
        output = "last_hidden_state" if name == "critic" else "logits"
        if model is None or can_pack(model, longest=longest, output=output, precision=precision):
            continue
        if wanted == "on":
            raise ValueError(
                f"ppo.packing='on', but the {name} gives different results when texts are packed; "
                "set it to auto or off"
            )
        return False
    return True


def _has_kernel() -> bool:
    """Whether torch's variable-length attention has the window that makes it causal."""
    return varlen_attn is not None and "window_size" in inspect.signature(varlen_attn).parameters


def last_states(trunk: Any, texts: Sequence[Sequence[int]]) -> Tensor:
    """(B, hidden): a trunk's last hidden state of each text, all texts packed in one pass."""
    device = next(trunk.parameters()).device
    rows = [torch.tensor([text], device=device) for text in texts]
    ends = torch.tensor([len(text) for text in texts], device=device).cumsum(0)
    return _read_packed(trunk, rows).last_hidden_state[0, ends - 1]


def last_states_of_pairs(trunk: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """(2N, hidden): a trunk's last hidden state of N first and N second texts.

    `ids` and `mask` (2N, L) are right-padded: first texts, then second ones.  All are packed in one
    pass, and the tokens with which both texts of a pair begin, as their prompt, are read once (Wang
    and Hegde 2024, *Accelerating Direct Preference Optimization with Prefix Sharing*).
    """
    rows = [text[: int(length)][None] for text, length in zip(ids, mask.sum(1), strict=True)]
    first, second = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    begun = [_common_beginning(a, b) for a, b in zip(first, second, strict=True)]
    texts = [part for a, b, n in zip(first, second, begun, strict=True) for part in (a, b[:, n:])]
    ends = torch.tensor([text.shape[1] for text in texts], device=ids.device).cumsum(0) - 1
    hidden = _read_packed(trunk, texts, [n for each in begun for n in (0, each)]).last_hidden_state
    return hidden[0, torch.cat([ends[::2], ends[1::2]])]


def _common_beginning(first: Tensor, second: Tensor) -> int:
    """The number of tokens with which two (1, L) texts begin alike, without the last of `second`."""
    most = min(first.shape[1], second.shape[1] - 1)
    return int((first[:, :most] == second[:, :most]).cumprod(1).sum())
