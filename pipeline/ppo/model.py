"""Policy, value and reference as one forward pass each over the tokens that matter."""

import hashlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM


class ModelOutput(NamedTuple):
    """What a forward pass says about N chosen positions.

    `logits` is (N, V) in fp32, N in row-major order of `positions`; `values` is
    (N,), or None where the model has no value head; `cache` holds keys and values.
    """

    logits: Tensor
    values: Tensor | None
    cache: Any


def forward_at(model: nn.Module, input_ids: Tensor, positions: Tensor, **inputs: Any) -> Any:
    """Run a causal LM, its output layer at `positions` only; return (logits, hidden, cache).

    `input_ids` is (B, L); `positions` is a (B, L) mask of the positions whose
    next-token logits are wanted.  The selection happens where the output layer
    reads its input, which has two merits over slicing: logits of prompt and
    padding are never made, whatever the row lengths, and the trunk's last
    hidden state comes without storing all the others.  Whatever a model does to
    logits afterwards (caps, scales) still happens, since it is its own forward.
    """
    selected: list[Tensor] = []

    def select(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
        selected.append(args[0][positions])
        return (selected[0].unsqueeze(0),)

    output_layer: Any = model.get_output_embeddings()  # type: ignore[operator]
    hook = output_layer.register_forward_pre_hook(select)
    try:
        output = model(input_ids=input_ids, return_dict=True, **inputs)
    finally:
        hook.remove()
    if not selected:
        raise ValueError(
            f"{type(model).__name__} does not call its output layer; PPO cannot use it"
        )
    return output.logits[0].float(), selected[0], getattr(output, "past_key_values", None)


class ActorCritic(nn.Module):
    """A causal LM with a linear value head on its trunk.

    The head starts at zero, so that the first advantages are those of no
    baseline at all and its first gradients leave the trunk alone.
    """

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self.policy = policy
        output_layer: Any = policy.get_output_embeddings()  # type: ignore[operator]
        weight: Tensor = output_layer.weight
        self.value_head = nn.Linear(weight.shape[1], 1, device=weight.device, dtype=torch.float32)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)

    def forward(self, input_ids: Tensor, positions: Tensor, **inputs: Any) -> ModelOutput:
        """Logits and values at `positions`; every use of the model comes through here.

        One entry point because wrappers (DDP, FSDP2) act on the root's forward:
        a call into the trunk alone would bypass them.
        """
        logits, hidden, cache = forward_at(self.policy, input_ids, positions, **inputs)
        # Values are regression targets; bf16 would round them to three digits.
        with torch.autocast(hidden.device.type, enabled=False):
            values = self.value_head(hidden.float()).squeeze(-1)
        return ModelOutput(logits, values, cache)


def run_model(model: nn.Module, input_ids: Tensor, positions: Tensor, **inputs: Any) -> ModelOutput:
    """`ActorCritic.forward`, or the same for a plain causal LM, which has no values."""
    if isinstance(model, ActorCritic):
        return model(input_ids, positions, **inputs)
    logits, _, cache = forward_at(model, input_ids, positions, **inputs)
    return ModelOutput(logits, None, cache)


def token_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probability of each chosen token: (N, V) logits and (N,) ids to (N,)."""
    return logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)


def entropy(logits: Tensor) -> Tensor:
    """Entropy of each row's distribution, nats: (N, V) to (N,)."""
    # The clamp keeps 0 · −∞ out where a model forbids tokens outright.
    logprobs = logits.log_softmax(-1).clamp_min(torch.finfo(logits.dtype).min)
    return -(logprobs.exp() * logprobs).sum(-1)


def detect_device() -> torch.device:
    """CUDA, else Apple's MPS, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def resolve_precision(precision: str, device: torch.device) -> str:
    """Turn "auto" into "bf16" on a GPU that has it and "fp32" anywhere else."""
    if precision != "auto":
        return precision
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """bf16 arithmetic over fp32 weights, or nothing.

    The weights stay fp32 because bf16 ones swallow updates: at a learning rate
    of 1e-6 most steps are smaller than the rounding.
    """
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


def weights_hash(model: nn.Module) -> str:
    """SHA-256 over the names, shapes and bytes of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy())
    return digest.hexdigest()


def weights_versions(model: nn.Module) -> list[tuple[int, int]]:
    """Address and write count of every parameter: free to read, and changed by any write.

    Writes through `.data` escape it; `weights_hash` misses nothing but reads it all.
    """
    return [(p.data_ptr(), p._version) for p in model.parameters()]


def shared_parameter(a: nn.Module, b: nn.Module) -> str | None:
    """Name, in `a`, of a parameter whose memory `b` uses too; None when they are apart."""
    addresses = {p.untyped_storage().data_ptr() for p in b.parameters()}
    for name, parameter in a.named_parameters():
        if parameter.untyped_storage().data_ptr() in addresses:
            return name
    return None


def load_reference(reference: Any, *, apart_from: nn.Module) -> nn.Module:
    """The frozen reference, a model or a path to one: fp32, no gradients, no dropout.

    Raises ValueError when it shares memory with the model to be trained.
    """
    if isinstance(reference, str | Path):
        reference = AutoModelForCausalLM.from_pretrained(reference)
    shared = shared_parameter(apart_from, reference)
    if shared is not None:
        raise ValueError(
            f"model and reference share the parameter {shared!r}, so training would move "
            "the reference; give it a copy (copy.deepcopy(model)) or a path"
        )
    return reference.float().requires_grad_(False).eval()


def with_lora(policy: Any, *, rank: int, alpha: float) -> Any:
    """The policy with LoRA adapters on every linear layer but the output."""
    peft = import_module("peft")  # Wanted by few runs and slow to load.
    adapters = peft.LoraConfig(
        r=rank, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    return peft.get_peft_model(policy, adapters)


def end_tokens(tokenizer: Any, model: Any) -> list[int]:
    """Every id that ends a response: the tokenizer's, and those the model's own config names.

    Chat models often end a turn with one id and a document with another.
    """
    config = getattr(model, "generation_config", None)
    named = getattr(config, "eos_token_id", None)
    ids: Iterable[int] = named if isinstance(named, list) else [named] if named is not None else []
    return sorted({int(tokenizer.eos_token_id), *ids})
