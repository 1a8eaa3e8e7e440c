"""Frozen linear layers in 4 bits, for LoRA on large models (QLoRA, arXiv:2305.14314).

NF4 stores blocks of 64 weights with a scale each, and the scales in 8 bits: 4.13 bits a weight.  A
layer makes its weights again for each pass.  bitsandbytes packs and unpacks; its own layer is not
used, because in evaluation it computes in another precision on some CPUs, and rounds biases.
"""

from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D


@cache
def bitsandbytes(setting: str) -> Any:
    """The bitsandbytes package; ValueError with the name of the setting that needs it."""
    try:
        return import_module("bitsandbytes")  # slow to import, and few runs need it
    except ImportError as error:
        raise ValueError(
            f"{setting} needs bitsandbytes, which is not installed "
            "(pip install 'kitestring[quantized]')"
        ) from error


def _kernels() -> Any:
    return bitsandbytes("ppo.quantization='nf4'").functional


class NF4Linear(nn.Linear):
    """A frozen linear layer whose `weight` is packed, two values a byte.

    An `nn.Linear` to PEFT, which reads `in_features` and `out_features`.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, transposed: bool) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = weight.shape
        self.transposed = transposed
        """Whether it replaces a `Conv1D`, which stores (in, out)."""
        packed, self._state = _kernels().quantize_4bit(
            weight.detach().float().contiguous(), quant_type="nf4", compress_statistics=True
        )
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    def unpacked(self, dtype: torch.dtype) -> Tensor:
        """(out, in) the weights of every pass."""
        return _kernels().dequantize_4bit(self.weight.data, self._state).to(dtype)

    def forward(self, input: Tensor) -> Tensor:
        kind = input.device.type
        if torch.is_autocast_enabled(kind):
            input = input.to(torch.get_autocast_dtype(kind))
        with torch.autocast(kind, enabled=False):
            output: Tensor = _Product.apply(input, self)
            return output if self.bias is None else output + self.bias.to(output.dtype)

    def dense(self) -> nn.Module:
        """The layer that this one replaced, with the unpacked weights in fp32 on the CPU."""
        weight = self.unpacked(torch.float32).cpu()
        if self.transposed:
            layer: Any = Conv1D(self.out_features, self.in_features)
            weight = weight.T.contiguous()
        else:
            layer = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None)
        layer.weight = nn.Parameter(weight, requires_grad=False)
        if self.bias is not None:
            layer.bias = nn.Parameter(self.bias.float().cpu(), requires_grad=False)
        return layer


class _Product(torch.autograd.Function):
    """x·Wᵀ that unpacks W again in the backward pass, instead of keeping it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: NF4Linear) -> Tensor:
        ctx.layer = layer
        return functional.linear(x, layer.unpacked(x.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        return gradient @ ctx.layer.unpacked(gradient.dtype), None


def quantize(model: Any, device: torch.device) -> None:
    """Replace every linear layer but the output by one in 4 bits, on `device`, one after another."""
    output = model.get_output_embeddings()
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.Linear | Conv1D) and layer is not output:
                layer.to(device)
                transposed = isinstance(layer, Conv1D)
                weight: Tensor = layer.weight.T if transposed else layer.weight  # type: ignore[assignment]
                setattr(parent, name, NF4Linear(weight, layer.bias, transposed=transposed))
