"""Frozen weights at the precision they are used in.

Under autocast a matrix product rounds its weights to bf16 each time, and remembers the rounded
ones only of weights that are trained.  Frozen ones rounded once give the same numbers, in half
the memory and without the work.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn


def hold_in_bf16(*models: nn.Module) -> dict[str, Tensor]:
    """Round the weights of frozen linear layers; what the first model's were, where it matters.

    Layers that share their weights with an embedding keep them: an embedding's output is not
    rounded under autocast.  The models then run under autocast alone.
    """
    exact: dict[str, Tensor] = {}
    for model in models:
        for name, layer in _frozen_layers(model):
            before, rounded = layer.weight.data, layer.weight.data.bfloat16()
            if model is models[0] and not torch.equal(rounded.float(), before):
                exact[f"{name}.weight"] = before.cpu()
            layer.weight.data = rounded
    return exact


def _frozen_layers(model: nn.Module) -> list[tuple[str, nn.Linear]]:
    embedded = {m.weight.data_ptr() for m in model.modules() if isinstance(m, nn.Embedding)}
    return [
        (name, layer)
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear)
        and not layer.weight.requires_grad
        and layer.weight.data_ptr() not in embedded
    ]


def merged(policy: Any, exact: dict[str, Tensor]) -> nn.Module:
    """A LoRA policy's copy in fp32 with its adapters merged into the weights that were rounded."""
    # A merge changes weights in place, so it is done on a copy.
    policy = copy.deepcopy(policy).float()
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if name in exact:
                weight.copy_(exact[name])
    return policy.merge_and_unload()
