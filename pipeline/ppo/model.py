"""Policy, value and reference as one forward pass each over the tokens that matter."""

import copy
import hashlib
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from pipeline.ppo.checks import check_models
from pipeline.ppo.config import PPOConfig
from pipeline.ppo.distributed import frozen_names, own, whole
from pipeline.ppo.lora import ADAPTER, AdapterOff, plain_name, with_lora


class ModelOutput(NamedTuple):
    """Results of a forward pass at N chosen positions.

    `logits` is (N, V) in fp32, N in row-major order of `positions`; `values` is
    (N,), or None where the model has no value head; `cache` holds keys and values.
    """

    logits: Tensor
    values: Tensor | None
    cache: Any


def forward_at(
    model: nn.Module,
    input_ids: Tensor,
    positions: Tensor,
    *,
    makes_logits: bool = True,
    **inputs: Any,
) -> Any:
    """Run a causal LM, its output layer at `positions` only; return (logits, hidden, cache).

    `input_ids` is (B, L); `positions` is a (B, L) mask of the positions whose
    next-token logits are wanted.  The selection happens where the output layer
    reads its input, which has two merits over slicing: logits of prompt and
    padding are never made, whatever the row lengths, and the trunk's last
    hidden state comes without storing all the others.  Whatever a model does to
    logits afterwards (caps, scales) still happens, since it is its own forward.
    Unless it `makes_logits` the output layer is given no positions, and (0, V) logits come.
    """
    selected: list[Tensor] = []

    def select(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
        selected.append(args[0][positions])
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
            f"{type(model).__name__} does not call its output layer; PPO cannot use it"
        )
    return output.logits[0].float(), selected[0], getattr(output, "past_key_values", None)


class ActorCritic(nn.Module):
    """A causal LM with a value for every state, from its own trunk or from a separate critic.

    The head starts at zero, so that the first advantages are those of no baseline at all and
    its first gradients do not change the trunk.  A `critic` that scores already (a reward model)
    brings its own head.
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
            self.value_head.load_state_dict({"bias": torch.zeros(1)} | score.state_dict())
        self.trunk_learns_values = True
        """Whether value gradients reach a shared trunk."""

    def forward(
        self, input_ids: Tensor, positions: Tensor, *, apart: bool = False, **inputs: Any
    ) -> ModelOutput:
        """Logits and values at `positions`.

        Wrappers (FSDP2) act on the root's forward: a call into the trunk alone would bypass
        them.  A separate critic is left out while sampling with a cache (one pass over whole
        texts costs less).  With `apart` there are no values: `values` is asked on its own.
        """
        logits, hidden, cache = forward_at(self.policy, input_ids, positions, **inputs)
        if apart or (self.critic is not None and inputs.get("use_cache", False)):
            values = None
        elif self.critic is None:
            values = self._valued(hidden)
        else:
            values = self.values(input_ids, positions, **inputs)
        return ModelOutput(logits, values, cache)

    def values(self, input_ids: Tensor, positions: Tensor, **inputs: Any) -> Tensor:
        """(N,) values at `positions`, in a pass over the critic or the shared trunk alone."""
        inputs["use_cache"] = False
        if self.critic is not None:
            hidden = self.critic(input_ids=input_ids, **inputs).last_hidden_state[positions]
        else:
            # A trunk that learns nothing from values needs no graph.
            with torch.set_grad_enabled(torch.is_grad_enabled() and self.trunk_learns_values):
                _, hidden, _ = forward_at(
                    self.policy, input_ids, positions, makes_logits=False, **inputs
                )
        return self._valued(hidden)

    def _valued(self, hidden: Tensor) -> Tensor:
        # Values are regression targets; bf16 would round them to three digits.
        with torch.autocast(hidden.device.type, enabled=False):
            return self.value_head(hidden.float()).squeeze(-1)


def _embedding(model: Any) -> Tensor:
    return model.get_input_embeddings().weight


def _trunk(model: Any) -> nn.Module:
    """The model below its output layer."""
    trunk = model.base_model
    if trunk is model:
        raise ValueError(f"{type(model).__name__} has no trunk to make a critic of")
    return trunk


def _value_head(kind: str, like: Tensor) -> nn.Module:
    """A head of (…, hidden) to (…, 1) that returns 0 at first, on the device of `like` (…, hidden)."""
    width, device = like.shape[1], like.device
    last = nn.Linear(width, 1, device=device, dtype=torch.float32)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    if kind == "linear":
        return last
    return nn.Sequential(
        nn.Linear(width, width, device=device, dtype=torch.float32), nn.Tanh(), last
    )


def run_model(model: nn.Module, input_ids: Tensor, positions: Tensor, **inputs: Any) -> ModelOutput:
    """`ActorCritic.forward`, or the same for a plain causal LM, which has no values."""
    if isinstance(model, ActorCritic):
        return model(input_ids, positions, **inputs)
    logits, _, cache = forward_at(model, input_ids, positions, **inputs)
    return ModelOutput(logits, None, cache)


def token_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probability of each chosen token: (N, V) logits and (N,) ids to (N,)."""
    # The fused kernel takes a fifth of the time of gather and logsumexp.
    return -cross_entropy(logits, tokens, reduction="none")


FORBIDDEN = -1e30
"""A logit of probability 0.  Finite, so that 0 · log 0 is 0 and a division by a temperature stays so."""


def not_ending(logits: Tensor, ends: Tensor, early: Tensor | None = None) -> Tensor:
    """(N, V) logits that give the tokens `ends` (E,) probability 0, in the rows `early` (N,) or all.

    What `min_new_tokens` takes out of the sampling distribution must be out of every other pass
    over these tokens, or their log-probabilities are of a distribution that was not sampled.
    """
    if early is None:
        return logits.index_fill(1, ends, FORBIDDEN)
    return logits.index_copy(1, ends, logits[:, ends].masked_fill(early[:, None], FORBIDDEN))


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
    """SHA-256 over the names, shapes and bytes of all parameters and buffers but LoRA adapters.

    Names are those without adapters: a model hashes alike before and under them.
    """
    state = model.state_dict()
    return _hash({plain_name(name): x for name, x in state.items() if ADAPTER not in name})


def frozen_hash(model: nn.Module) -> str:
    """SHA-256 over the names, shapes and bytes of the parameters that are not trained."""
    state, frozen = model.state_dict(), frozen_names(model)
    return _hash({name: state[name] for name in frozen})


def _hash(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        flat = whole(tensor.detach()).cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def shapes_hash(model: nn.Module) -> str:
    """SHA-256 over the names and shapes of all parameters: which architecture this is."""
    shapes = [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]
    return hashlib.sha256(repr(shapes).encode()).hexdigest()


def weights_versions(model: nn.Module) -> list[tuple[int, int]]:
    """Address and write count of every parameter: free to read, and changed by any write.

    Writes through `.data` escape it; `weights_hash` misses nothing but reads it all.
    """
    named = model.named_parameters()
    parts = [own(p) for name, p in named if ADAPTER not in name]
    return [(part.data_ptr(), part._version) for part in parts]


def shared_parameter(a: nn.Module, b: nn.Module) -> str | None:
    """Name, in `a`, of a parameter whose memory `b` uses too; None when they are apart."""
    addresses = {p.untyped_storage().data_ptr() for p in b.parameters()}
    for name, parameter in a.named_parameters():
        if parameter.untyped_storage().data_ptr() in addresses:
            return name
    return None


def assemble(
    model: Any, reference: Any, critic: Any, config: PPOConfig, device: torch.device
) -> tuple[ActorCritic, nn.Module]:
    """The policy with its values, and the frozen reference, on `device` in fp32.

    Raises ValueError when the reference shares memory with what will be trained, or when
    parts are missing or not used.
    """
    check_models(model, reference if isinstance(reference, nn.Module) else None)
    policy = model.to(device).float()
    if config.critic == "shared" and critic is not None:
        raise ValueError("a critic was given, but ppo.critic='shared'; set it to 'separate'")
    if reference is None and not config.lora_rank:
        raise ValueError(
            "there is no reference; give the SFT model (only with ppo.lora_rank can the policy "
            "be its own, adapters off)"
        )
    if reference is not None:
        reference = load_reference(reference, apart_from=model).to(device)
    if config.critic == "separate":
        # Before the adapters: a critic is trained whole.  A copy, since the caller's own may be
        # the reward model that scores.
        critic = copy.deepcopy(policy if critic is None else critic).to(device).float()
        critic.requires_grad_(True)
    if config.gradient_checkpointing:
        for trained in (policy, critic):
            if trained is not None:
                trained.gradient_checkpointing_enable({"use_reentrant": False})
    if config.lora_rank:
        policy = with_lora(policy, rank=config.lora_rank, alpha=config.lora_alpha)
    actor_critic = ActorCritic(policy, head=config.value_head, critic=critic)
    without_dropout(actor_critic)
    return actor_critic, AdapterOff(policy).eval() if reference is None else reference


def load_reference(reference: Any, *, apart_from: nn.Module) -> nn.Module:
    """The frozen reference, a model or a path to one: fp32, no gradients, no dropout."""
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
            f"model and reference share the parameter {shared!r}, so training would move "
            "the reference; give it a copy (copy.deepcopy(model)) or a path"
        )
    return reference.float().requires_grad_(False).eval()


def without_dropout(model: nn.Module) -> None:
    """Set every dropout rate to 0: two passes over one text must agree, in training mode too.

    Many architectures have no module for it but call the function at a rate they keep by names
    such as `attention_dropout` and `layerdrop`.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name in [name for name in vars(module) if "drop" in name]:
            if isinstance(getattr(module, name), float):
                setattr(module, name, 0.0)


def end_tokens(tokenizer: Any, model: Any) -> list[int]:
    """Every id that ends a response: the tokenizer's, and those the model's own config names.

    Chat models often end a turn with one id and a document with another.
    """
    config = getattr(model, "generation_config", None)
    named = getattr(config, "eos_token_id", None)
    ids: Iterable[int] = named if isinstance(named, list) else [named] if named is not None else []
    return sorted({int(tokenizer.eos_token_id), *ids})
