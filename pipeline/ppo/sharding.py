"""FSDP2: weights, gradients and optimizer states cut among the processes.

A forward pass fetches each layer's weights when it comes to it, so all processes must make as
many passes: a minibatch's uneven rest is filled with passes that count nothing.  Sampling makes
hundreds of passes of one token, and fetches all weights once instead.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def shard(model: nn.Module) -> None:
    """Cut every transformer layer, and what is around them, among the processes."""
    modules = list(model.modules())
    layers = {name for m in modules for name in getattr(m, "_no_split_modules", None) or ()}
    for module in modules:
        if type(module).__name__ in layers:
            fully_shard(module)
    fully_shard(model)
    if hasattr(model, "values"):  # the second way into the policy with its critic
        register_fsdp_forward_method(model, "values")


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Inside, every process has the whole weights, and passes exchange nothing."""
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(True, recurse=False)
            part.reshard()


def is_sharded(model: nn.Module) -> bool:
    return isinstance(model, FSDPModule)


def whole(tensor: Tensor) -> Tensor:
    """A tensor with every process's part; all must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def own(tensor: Tensor) -> Tensor:
    """This process's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def model_state(model: nn.Module) -> dict[str, Any]:
    """The whole state, on the first process; all must ask."""
    return get_model_state_dict(model, options=_WHOLE) if is_sharded(model) else model.state_dict()


def frozen_names(model: nn.Module) -> set[str]:
    """Names, in its state, of the weights that training leaves alone."""
    named = model.state_dict(keep_vars=True).items()
    return {name for name, x in named if isinstance(x, nn.Parameter) and not x.requires_grad}


def trained_state(model: nn.Module) -> dict[str, Any]:
    """What training may change, on the first process; all must ask.

    Without the frozen weights: those under LoRA adapters are nearly all of a model.
    """
    frozen = frozen_names(model)
    return {name: x for name, x in model_state(model).items() if name not in frozen}


def part_state(model: nn.Module, part: str) -> dict[str, Any] | None:
    """A part's whole state by its own names, on the first process; None where it has it itself."""
    if not is_sharded(model):
        return None
    state, prefix = model_state(model), f"{part}."
    return {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}


def optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The whole state, on the first process; all must ask."""
    if is_sharded(model):
        return get_optimizer_state_dict(model, optimizer, options=_WHOLE)
    return optimizer.state_dict()


def load_states(model: nn.Module, optimizer: torch.optim.Optimizer, states: dict[str, Any]) -> None:
    """Put back what `trained_state` and `optimizer_state` gave, on every process."""
    if not is_sharded(model):
        found = model.load_state_dict(states["model"], strict=False)
        assert set(found.missing_keys) <= frozen_names(model), found.missing_keys
        assert not found.unexpected_keys, found.unexpected_keys
        optimizer.load_state_dict(states["optimizer"])
        return
    whole_state = StateDictOptions(full_state_dict=True, strict=not frozen_names(model))
    set_model_state_dict(model, states["model"], options=whole_state)
    set_optimizer_state_dict(
        model, optimizer, optim_state_dict=states["optimizer"], options=whole_state
    )
