"""Activation steering: a direction in the residual stream, added while a model samples.

    vector = steering_vector(model, chat, pairs, layer=2)     # sycophantic − honest
    with steered(model, vector, layer=2, coefficient=-1.0):
        responses = Sampler(model, chat).sample(…)

Contrastive activation addition (Rimsky et al. 2024, arXiv:2312.06681).  No weight changes; the
hook is removed at the end of the `with`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import safe_open, save_file
from torch import Tensor, nn

from pipeline.models.padding import pad_right
from pipeline.models.text import ChatTokenizer, Messages

_TEXTS_AT_ONCE = 32


@dataclass(frozen=True)
class ContrastPair:
    """A conversation with a sycophantic and an honest response."""

    messages: Messages
    sycophantic: str
    honest: str


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """The decoder layers of a Hugging Face causal LM; ValueError unless there is exactly one list."""
    config: Any = model.config
    count = config.get_text_config().num_hidden_layers
    found = [
        module
        for module in model.modules()
        if isinstance(module, nn.ModuleList) and len(module) == count
    ]
    if len(found) != 1:
        raise ValueError(
            f"{type(model).__name__} has {len(found)} lists of {count} layers; steering needs one"
        )
    return found[0]


@torch.no_grad()
def steering_vector(
    model: nn.Module, chat: ChatTokenizer, pairs: Sequence[ContrastPair], *, layer: int
) -> Tensor:
    """(d,) mean difference of the residual stream after `layer`, sycophantic minus honest.

    Each text contributes the mean over its completion's tokens.  Layers count from 0.
    """
    if not pairs:
        raise ValueError("a steering vector needs at least one pair of answers")
    block = _layer(model, layer)
    sides = (
        [chat.chat(pair.messages, pair.sycophantic) for pair in pairs],
        [chat.chat(pair.messages, pair.honest) for pair in pairs],
    )
    kept: list[Tensor] = []
    hook = block.register_forward_hook(lambda _, __, output: kept.append(_hidden(output)))
    try:
        means = []
        for texts in sides:
            total = torch.zeros(())
            for start in range(0, len(texts), _TEXTS_AT_ONCE):
                some = texts[start : start + _TEXTS_AT_ONCE]
                batch = pad_right([text.ids for text in some], chat.pad_id)
                device = next(model.parameters()).device
                model(
                    **{name: tensor.to(device) for name, tensor in batch.items()}, use_cache=False
                )
                hidden = kept.pop().float()
                for row, text in enumerate(some):
                    response_states = hidden[row, text.prompt_tokens : len(text.ids)]
                    total = total.to(response_states.device) + response_states.mean(0)
            means.append(total / len(texts))
    finally:
        hook.remove()
    return means[0] - means[1]


@contextmanager
def steered(
    model: nn.Module, vector: Tensor, *, layer: int, coefficient: float
) -> Iterator[nn.Module]:
    """Add `coefficient · vector` to the residual stream after `layer`, at every position.

    Prompt positions are included, so that a text has the same log-probabilities during sampling and
    in a single forward pass.  A coefficient of 0 adds no hook.
    """
    block = _layer(model, layer)
    width = model.config.get_text_config().hidden_size  # type: ignore[union-attr]
    if tuple(vector.shape) != (width,):
        raise ValueError(f"the steering vector has shape {tuple(vector.shape)}, not ({width},)")
    if coefficient == 0:
        yield model
        return

    def add(_: nn.Module, __: Any, output: Any) -> Any:
        hidden = _hidden(output)
        moved = hidden + (coefficient * vector).to(hidden)
        return moved if isinstance(output, Tensor) else (moved, *output[1:])

    hook = block.register_forward_hook(add)
    try:
        yield model
    finally:
        hook.remove()


def save_vector(path: Path, vector: Tensor, *, layer: int) -> None:
    """Write a vector with its layer (safetensors)."""
    save_file({"vector": vector.cpu().contiguous()}, path, metadata={"layer": str(layer)})


def load_vector(path: Path) -> tuple[Tensor, int]:
    """A saved vector and its layer."""
    with safe_open(path, framework="pt") as file:
        return file.get_tensor("vector"), int(file.metadata()["layer"])


def _layer(model: nn.Module, layer: int) -> nn.Module:
    layers = decoder_layers(model)
    if not 0 <= layer < len(layers):
        raise ValueError(f"layer={layer} must be one of 0 to {len(layers) - 1}")
    return layers[layer]


def _hidden(output: Any) -> Tensor:
    # Some architectures return (hidden, attention, …), others only hidden.
    return output if isinstance(output, Tensor) else output[0]
