"""LoRA with PEFT's adapters, and frozen weights in bf16.

Memory traffic is most of the cost of PEFT's adapters on a small model.  Two changes reduce it:
training adds an adapter's product in place to the frozen layer's output, and sampling uses weights
with the adapters merged into them.

Autocast rounds weights to bf16 in every matrix product and caches the result only for trained
weights.  Frozen weights are therefore rounded once: the results are the same, with half the memory
and less work.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from pipeline.ppo.network.quantized import NF4Linear

ADAPTER = "lora_"
"""Part of the name of every LoRA weight."""


def plain_name(name: str) -> str:
    """The name of a weight without LoRA's prefixes."""
    bare = name.removeprefix("policy.").removeprefix("base_model.model.")
    return bare.replace(".base_layer.", ".")


def with_lora(model: Any, *, rank: int, alpha: float) -> Any:
    """A causal LM, or a critic's trunk, with LoRA adapters on every linear layer but the output."""
    peft = import_module("peft")  # slow to import, and few runs need it
    adapters = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules="all-linear",
        task_type=None if model.get_output_embeddings() is None else "CAUSAL_LM",
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
    )
    adapted = peft.get_peft_model(model, adapters)
    for layer in _adapted(adapted):
        layer.forward = _Fused(layer)
    return adapted


class AdapterOff(nn.Module):
    """The reference of a LoRA policy: the policy without its adapters, so no second model is loaded.

    `assemble` (model.py) uses it when the trainer has no `reference` argument; the policy stage
    passes none when policy and reference start from the same weights.
    """

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
    """The layers with an adapter."""
    layer = import_module("peft.tuners.lora").Linear
    return [module for module in policy.modules() if isinstance(module, layer)]


class _Fused:
    """The forward of an adapted layer: W·x + s·B·(A·x).

    PEFT allocates three tensors as large as the output; here one product scales B·(A·x) and adds it to
    W·x.
    """

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def __call__(self, x: Tensor) -> Tensor:
        layer = self.layer
        output = layer.base_layer(x)
        if layer.disable_adapters or layer.merged:
            return output
        (name,) = layer.active_adapters
        small, up = layer.lora_A[name](x), layer.lora_B[name].weight
        scale = layer.scaling[name]
        flat = torch.addmm(output.flatten(0, -2), small.flatten(0, -2), up.T, alpha=scale)
        return flat.view(output.shape)


@contextmanager
def merged_adapters(policy: nn.Module) -> Iterator[None]:
    """Merge the adapters: the weights are W + s·B·A inside, and W again afterwards, bit for bit.

    Saves a third of the sampling time.  Needs memory for a second copy of the adapted weights.
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


@torch.no_grad()
def merged_weights(policy: nn.Module, *, untied: bool = False) -> Iterator[tuple[str, Tensor]]:
    """The policy's weights by the names of a model without LoRA, with the adapters merged in.

    An adapted weight is a new tensor, W + s·B·A in fp32; the others are the policy's own.  One layer
    at a time, because a merged copy of the model would take as much memory as the model.  Weights
    that share memory are listed once, or under each of their names if `untied`.
    """
    layers = {id(layer.base_layer.weight): layer for layer in _adapted(policy)}
    for name, weight in policy.named_parameters(remove_duplicate=not untied):
        if ADAPTER in name:
            continue
        layer = layers.get(id(weight))
        if layer is None:
            yield plain_name(name), weight.detach()
        else:
            (adapter,) = layer.active_adapters
            yield plain_name(name), weight.float() + layer.get_delta_weight(adapter)


def round_frozen_weights(*models: nn.Module) -> dict[str, Tensor]:
    """Round the weights of frozen linear layers to bf16; return the first model's changed
    originals.

    Layers that share their weights with an embedding keep them, because autocast does not round an
    embedding's output.  Afterwards the models must run under autocast.
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
        and not isinstance(layer, NF4Linear)
        and not layer.weight.requires_grad
        and layer.weight.data_ptr() not in embedded
    ]


def merged(policy: Any, exact: dict[str, Tensor]) -> nn.Module:
    """A copy of a LoRA policy in fp32, with its adapters merged into the exact weights.

    Adapters of layers in 4 bits are merged into the unpacked weights, with which they were trained.
    """
    policy = copy.deepcopy(policy)
    for layer in _adapted(policy):
        if isinstance(layer.base_layer, NF4Linear):
            layer.fan_in_fan_out = layer.base_layer.transposed
            layer.base_layer = layer.base_layer.dense()
    policy = policy.cpu().float()
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if name in exact:
                weight.copy_(exact[name])
    return policy.merge_and_unload()
