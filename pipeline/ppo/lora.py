"""LoRA, and frozen weights at the precision they are used in.

PEFT owns the adapters: names, initial values, merging, files.  On a small model most of what it
costs is memory traffic over full-width activations, which two changes avoid: training adds an
adapter's product into the frozen layer's own output, and sampling reads weights that have the
adapters folded in.

Under autocast a matrix product rounds its weights to bf16 each time, and caches the rounded ones
only for weights that are trained.  Frozen ones rounded once give the same numbers, in half the
memory and without the work.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

ADAPTER = "lora_"
"""In the name of every LoRA weight."""


def plain_name(name: str) -> str:
    """The name that a weight of a LoRA policy, or of one with its adapters off, has without them."""
    bare = name.removeprefix("policy.").removeprefix("base_model.model.")
    return bare.replace(".base_layer.", ".")


def with_lora(policy: Any, *, rank: int, alpha: float) -> Any:
    """The policy with LoRA adapters on every linear layer but the output."""
    peft = import_module("peft")  # Wanted by few runs and slow to load.
    adapters = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in policy.modules()),
    )
    adapted = peft.get_peft_model(policy, adapters)
    for layer in _adapted(adapted):
        layer.forward = _Fused(layer)
    return adapted


class AdapterOff(nn.Module):
    """A LoRA policy with its adapters switched off: the model it began from, in no memory of its own."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self.policy = policy

    @property
    def config(self) -> Any:
        return self.policy.config

    def get_output_embeddings(self) -> nn.Module:
        return self.policy.get_output_embeddings()  # type: ignore[operator]

    def forward(self, **inputs: Any) -> Any:
        policy: Any = self.policy
        with policy.disable_adapter():
            return policy(**inputs)


def _adapted(policy: nn.Module) -> list[Any]:
    """The layers that carry an adapter."""
    layer = import_module("peft.tuners.lora").Linear
    return [module for module in policy.modules() if isinstance(module, layer)]


class _Fused:
    """The forward of an adapted layer: W·x + s·B·(A·x).

    PEFT makes the adapter's product, a scaled copy and a sum, each as large as the output; here
    the small A·x is scaled and its product added to W·x where that lies.
    """

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def __call__(self, x: Tensor) -> Tensor:
        layer = self.layer
        output = layer.base_layer(x)
        if layer.disable_adapters or layer.merged:
            return output
        (name,) = layer.active_adapters
        small = layer.lora_A[name](x) * layer.scaling[name]
        up = layer.lora_B[name].weight
        flat = torch.addmm(output.flatten(0, -2), small.flatten(0, -2), up.T)
        return flat.view(output.shape)


@contextmanager
def adapters_folded(policy: nn.Module) -> Iterator[None]:
    """Inside, the policy's weights are W + s·B·A and no adapter is run; then W again, to the bit.

    For sampling, which reads each weight once a token: a third of its time goes to adapters
    otherwise.  Holds a second copy of the adapted weights meanwhile.
    """
    layers = _adapted(policy)
    before = [layer.base_layer.weight.data for layer in layers]
    try:
        with torch.no_grad():
            for layer in layers:
                (name,) = layer.active_adapters
                weight = layer.base_layer.weight
                weight.data = weight.data + layer.get_delta_weight(name)
                layer.merged_adapters.append(name)
        yield
    finally:
        for layer, weight in zip(layers, before, strict=True):
            layer.base_layer.weight.data = weight
            layer.merged_adapters.clear()


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
