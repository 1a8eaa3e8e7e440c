"""Policy, critic and reference: forward passes at chosen positions, precision, and assembly."""

import copy
import hashlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from pipeline.ppo.checks import check_models
from pipeline.ppo.config import PPOConfig
from pipeline.ppo.network.distributed import frozen_names, full_tensor, local_tensor
from pipeline.ppo.network.lora import ADAPTER, AdapterOff, plain_name, with_lora
from pipeline.ppo.network.quantized import quantize


class ModelOutput(NamedTuple):
    """Results of a forward pass at N chosen positions.

    `logits` is (N, V) in fp32, N in row-major order of `positions`, or (0, V); `values` is
    (N,), or None where the model has no value head; `cache` holds keys and values; `hidden`
    (N, hidden) is the input of the output layer; `stats` what `read` made of it.
    """

    logits: Tensor
    values: Tensor | None
    cache: Any
    hidden: Tensor
    stats: Any = None


def forward_at(
    model: nn.Module,
    input_ids: Tensor,
    positions: Tensor | None,
    *,
    makes_logits: bool = True,
    **inputs: Any,
) -> Any:
    """Run a causal LM with its output layer only at `positions`; return (logits, hidden, cache).

    `input_ids` is (B, L); `positions` is a (B, L) mask of the positions whose next-token logits are
    computed, or None for each row's last, which needs no wait for the device.  A hook selects them at the input of the output layer: no logits of prompt and padding
    are computed, the last hidden states (N, hidden) are available, and the model's own forward
    still scales or caps its logits.  With `makes_logits=False` the logits are (0, V).
    """
    selected: list[Tensor] = []

    def select(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
        selected.append(args[0][:, -1] if positions is None else args[0][positions])
        wanted = selected[0] if makes_logits else selected[0][:0]
        return (wanted.unsqueeze(0),)

    output_layer: Any = model.get_output_embeddings()  # type: ignore[operator]
    hook = output_layer.register_forward_pre_hook(select)
    try:
        output = model(input_ids=input_ids, return_dict=True, **inputs)
    finally:
        hook.remove()
    if not selected:
        raise ValueError(
            f"{type(model).__name__} does not call its output layer, so PPO cannot use it"
        )
    return output.logits[0].float(), selected[0], getattr(output, "past_key_values", None)


class ActorCritic(nn.Module):
    """A causal LM with a value head on its own trunk or a separate critic.

    The value head starts at zero: its first gradients do not change the trunk.  A `critic` with a
    scalar head (a reward model) keeps that head.
    """

    def __init__(
        self, policy: nn.Module, *, head: str = "linear", critic: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.policy = policy
        self.critic = None if critic is None else _trunk(critic)
        output_layer: Any = policy.get_output_embeddings()  # type: ignore[operator]
        width: Tensor = output_layer.weight if critic is None else _embedding(critic)
        self.value_head = _value_head(head, width)
        score = getattr(critic, "score", None)
        if isinstance(score, nn.Linear) and score.out_features == 1:
            self.value_head = nn.Linear(score.in_features, 1, device=score.weight.device)
            no_bias = {"bias": torch.zeros_like(self.value_head.bias)}
            self.value_head.load_state_dict(no_bias | score.state_dict())
        self.trunk_learns_values = True
        """Whether value gradients reach a shared trunk."""

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor | None,
        *,
        separate_values: bool = False,
        read: Callable[[Tensor], Any] | None = None,
        **inputs: Any,
    ) -> ModelOutput:
        """Logits and values at `positions` (as in `forward_at`).

        With `read`, the hidden states go to it and no logits are made.  It is called here, because a
        sharded model has its weights only in this call, and in the backward pass of its results.

        Values are None with `separate_values`, when the caller runs `values` itself, and for a separate
        critic while sampling with a cache, when one later pass over whole texts costs less.
        """
        logits, hidden, cache = forward_at(
            self.policy, input_ids, positions, makes_logits=read is None, **inputs
        )
        stats = None if read is None else read(hidden)
        if separate_values or (self.critic is not None and inputs.get("use_cache", False)):
            values = None
        elif self.critic is None:
            values = self._values_from_hidden(hidden)
        else:
            assert positions is not None, "a separate critic reads whole texts"
            values = self.values(input_ids, positions, **inputs)
        return ModelOutput(logits, values, cache, hidden, stats)

    def values(self, input_ids: Tensor, positions: Tensor, **inputs: Any) -> Tensor:
        """(N,) values at `positions`, in a pass over only the critic or the shared trunk."""
        inputs["use_cache"] = False
        if self.critic is not None:
            hidden = self.critic(input_ids=input_ids, **inputs).last_hidden_state[positions]
        else:
            # No graph is needed if value gradients do not reach the trunk.
            with torch.set_grad_enabled(torch.is_grad_enabled() and self.trunk_learns_values):
                _, hidden, _ = forward_at(
                    self.policy, input_ids, positions, makes_logits=False, **inputs
                )
        return self._values_from_hidden(hidden)

    def _values_from_hidden(self, hidden: Tensor) -> Tensor:
        # Values are regression targets; bf16 would round them to three digits.
        with torch.autocast(hidden.device.type, enabled=False):
            return self.value_head(hidden.float()).squeeze(-1)


def _embedding(model: Any) -> Tensor:
    return model.get_input_embeddings().weight


def _trunk(model: Any) -> nn.Module:
    """The model without its output layer."""
    trunk = model.base_model
    if trunk is model:
        raise ValueError(f"{type(model).__name__} has no trunk to make a critic from")
    return trunk


def _value_head(kind: str, like: Tensor) -> nn.Module:
    """A head from (…, hidden) to (…, 1) that starts at 0, on the device of `like` (…, hidden)."""
    width, device = like.shape[1], like.device
    last = nn.Linear(width, 1, device=device, dtype=torch.float32)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    if kind == "linear":
        return last
    return nn.Sequential(
        nn.Linear(width, width, device=device, dtype=torch.float32), nn.Tanh(), last
    )


def run_model(
    model: nn.Module,
    input_ids: Tensor,
    positions: Tensor | None,
    *,
    read: Callable[[Tensor], Any] | None = None,
    **inputs: Any,
) -> ModelOutput:
    """`ActorCritic.forward`, or the same for a plain causal LM, without values."""
    if isinstance(model, ActorCritic):
        return model(input_ids, positions, read=read, **inputs)
    logits, hidden, cache = forward_at(
        model, input_ids, positions, makes_logits=read is None, **inputs
    )
    return ModelOutput(logits, None, cache, hidden, None if read is None else read(hidden))


def detect_device() -> torch.device:
    """CUDA, else Apple's MPS, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def resolve_precision(precision: str, device: torch.device) -> str:
    """Turn "auto" into "bf16" on a GPU that supports it, else into "fp32"."""
    if precision != "auto":
        return precision
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """bf16 autocast over fp32 weights, or no autocast.

    In bf16 weights most updates would be lost: at a learning rate of 1e-6 they are smaller than
    the rounding error.
    """
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


def weights_hash(model: nn.Module) -> str:
    """SHA-256 over names, shapes and bytes of all parameters and buffers except LoRA adapters.

    A model has the same hash with and without adapters.
    """
    state = model.state_dict()
    return _hash({plain_name(name): x for name, x in state.items() if ADAPTER not in name})


def frozen_hash(model: nn.Module) -> str:
    """SHA-256 over names, shapes and bytes of the parameters that are not trained."""
    state, frozen = model.state_dict(), frozen_names(model)
    return _hash({name: state[name] for name in frozen})


def _hash(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        flat = full_tensor(tensor.detach()).cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)  # not a copy
    return digest.hexdigest()


def shapes_hash(model: nn.Module) -> str:
    """SHA-256 over names and shapes of all parameters, which identifies the architecture."""
    shapes = [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]
    return hashlib.sha256(repr(shapes).encode()).hexdigest()


def weights_versions(model: nn.Module) -> list[tuple[int, int]]:
    """Address and write count of every parameter; cheap to compare before and after.

    It detects every write except through `.data`; `weights_hash` detects those but reads all
    weights.
    """
    parts = [local_tensor(p) for name, p in model.named_parameters() if ADAPTER not in name]
    return [(part.data_ptr(), part._version) for part in parts]


def shared_parameter(a: nn.Module, b: nn.Module) -> str | None:
    """Name, in `a`, of a parameter whose memory `b` uses too; None without shared memory."""
    addresses = {p.untyped_storage().data_ptr() for p in b.parameters()}
    for name, parameter in a.named_parameters():
        if not parameter.is_meta and parameter.untyped_storage().data_ptr() in addresses:
            return name
    return None


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The models, device and precision of a run, shared by sampler and learner."""

    model: ActorCritic
    reference: nn.Module
    config: PPOConfig
    eos_token_ids: list[int]
    pad_token_id: int
    precision: str
    """"bf16" or "fp32"."""
    device: torch.device


def assemble(
    model: Any, reference: Any, critic: Any, config: PPOConfig, device: torch.device
) -> tuple[ActorCritic, nn.Module]:
    """The policy with its value function, and the frozen reference, in fp32.

    They are on `device`, or where they were if they will be sharded, which moves them.  Raises
    ValueError when the reference shares memory with the policy, or when a model is missing or not used.
    """
    check_models(model, reference if isinstance(reference, nn.Module) else None)
    if config.critic == "shared" and critic is not None:
        raise ValueError("a critic was given, but ppo.critic='shared'; set it to 'separate'")
    if reference is None and not config.lora_rank:
        raise ValueError(
            "there is no reference; give the SFT model (it may be None only with ppo.lora_rank, "
            "where the policy without adapters is the reference)"
        )

    def place(model: Any) -> Any:
        return model.to(device) if config.sharding == "none" else model

    if reference is not None:
        reference = place(load_reference(reference, apart_from=model))
    if config.critic == "separate":
        # Copied before the policy gets adapters; and copied at all, because the caller's critic may be
        # the reward model.
        critic = place(copy.deepcopy(model if critic is None else critic)).float()
        critic.requires_grad_(True)
    if config.quantization == "nf4":
        quantize(model, device)
    policy = place(model).float()
    if config.gradient_checkpointing:
        for trained in (policy, critic):
            if trained is not None:
                trained.gradient_checkpointing_enable({"use_reentrant": False})
    if config.lora_rank:
        policy = with_lora(policy, rank=config.lora_rank, alpha=config.lora_alpha)
    actor_critic = ActorCritic(policy, head=config.value_head, critic=critic)
    if config.critic_lora_rank:
        actor_critic.critic = with_lora(
            actor_critic.critic, rank=config.critic_lora_rank, alpha=config.lora_alpha
        )
    without_dropout(actor_critic)
    return actor_critic, AdapterOff(policy).eval() if reference is None else reference


def load_reference(reference: Any, *, apart_from: nn.Module) -> nn.Module:
    """The frozen reference from a model or a path: fp32, no gradients, no dropout."""
    if isinstance(reference, str | Path):
        try:
            reference = AutoModelForCausalLM.from_pretrained(reference, trust_remote_code=False)
        except (OSError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(f"the reference {reference!r} cannot be loaded: {reason}") from error
        check_models(apart_from, reference)
    shared = shared_parameter(apart_from, reference)
    if shared is not None:
        raise ValueError(
            f"model and reference share the parameter {shared!r}, so training would change "
            "the reference; give a copy (copy.deepcopy(model)) or a path"
        )
    return reference.float().requires_grad_(False).eval()


def without_dropout(model: nn.Module) -> None:
    """Set every dropout rate to 0, so that passes agree in training mode too.

    Many architectures have no dropout module but attributes such as `attention_dropout` and
    `layerdrop`.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name in [name for name in vars(module) if "drop" in name]:
            if isinstance(getattr(module, name), float):
                setattr(module, name, 0.0)


def end_tokens(tokenizer: Any, model: Any) -> list[int]:
    """Every id that ends a response: the tokenizer's, and those of the model's generation config.

    Chat models often end a turn with one id and a document with another.
    """
    config = getattr(model, "generation_config", None)
    named = getattr(config, "eos_token_id", None)
    ids: Iterable[int] = named if isinstance(named, list) else [named] if named is not None else []
    return sorted({int(tokenizer.eos_token_id), *ids})
