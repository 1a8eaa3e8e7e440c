"""The settings of PPO as options of OpenRLHF 0.11, and those that it cannot follow.

Every setting of `ppo` is in `DIRECT`, in `DERIVED`, in `OWN`, or must have its default.  Does not
import torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.ppo.config import PPOConfig
from pipeline.ppo.settings import require, toml

DIRECT = {
    "lr": ("--actor.adam.lr",),
    "adam_eps": ("--actor.adam.eps", "--critic.adam.eps"),
    "max_grad_norm": ("--actor.max_norm", "--critic.max_norm"),
    "schedule": ("--actor.lr_scheduler", "--critic.lr_scheduler"),
    "epochs": ("--train.max_epochs",),
    "minibatch": ("--train.batch_size",),
    "gamma": ("--algo.advantage.gamma",),
    "lam": ("--algo.advantage.lambd",),
    "kl_weight": ("--algo.kl.init_coef",),
    "temperature": ("--rollout.temperature",),
    "top_p": ("--rollout.top_p",),
    "max_new_tokens": ("--rollout.max_new_tokens",),
    "vllm_memory": ("--vllm.gpu_memory_utilization",),
}
"""Settings whose value is that of the options."""

DERIVED = {
    "updates": "rows of the prompts file",
    "rollouts": "--rollout.batch_size",
    "samples_per_prompt": "--rollout.n_samples_per_prompt",
    "critic_lr": "--critic.adam.lr",
    "clip": "--actor.eps_clip_low_high",
    "clip_high": "--actor.eps_clip_low_high",
    "dual_clip": "--actor.dual_clip",
    "value_clip": "--critic.value_clip",
    "entropy_weight": "--actor.entropy_coef",
    "loss_mean": "--actor.loss_agg_mode",
    "value_warmup": "--critic.freezing_steps",
    "gradient_checkpointing": "--actor.gradient_checkpointing_enable",
    "checkpoint_every": "--ckpt.save_steps",
    "max_prompt_tokens": "--data.max_len",
    "seed": "--train.seed",
    "precision": "--ds.param_dtype",
}
"""Settings that are converted, and the options that they become."""

OWN = ("missing_eos_penalty", "score_clip")
"""Settings that the reward function applies itself."""

_LOSS_MEANS = {"token": "token-mean", "response": "seq-mean-token-mean"}
_NO_CLIP = 10**9
RESERVED = (
    "--actor.model_name_or_path", "--critic.model_name_or_path", "--reward.model_name_or_path",
    "--reward.remote_url", "--reward.clip_range", "--train.agent_func_path", "--train.async_enable",
    "--data.prompt_dataset", "--data.prompt_split", "--data.prompt_probs", "--data.max_samples",
    "--data.input_key", "--data.label_key", "--data.input_template", "--data.apply_chat_template",
    "--train.num_episodes", "--ckpt.output_dir", "--ckpt.path", "--ckpt.load_enable",
    "--algo.advantage.estimator", "--logger.tensorboard_dir", "--logger.wandb.run_name",
    "--logger.logging_steps", "--ds.lora.rank",
)  # fmt: skip
"""Options that Kitestring sets, or that would change what it exchanges with OpenRLHF."""


@dataclass(frozen=True)
class Cluster:
    """The GPUs of a job: all models share all of them."""

    nodes: int
    gpus: int
    """GPUs of each node."""
    tensor_parallel: int
    """GPUs over which one engine of vLLM divides the policy."""

    @property
    def all(self) -> int:
        return self.nodes * self.gpus


def check(ppo: PPOConfig, cluster: Cluster, *, snapshots: int, options: Sequence[str]) -> None:
    """ValueError for settings that OpenRLHF has no counterpart of, all in one sentence."""
    without = list(_without_counterpart(ppo))
    if snapshots:
        without.append(f"optimize.snapshots={snapshots} (default 0)")
    require(
        not without,
        f"optimize.method=openrlhf has no counterpart of {', '.join(without)}; set "
        f"{'it to its default' if len(without) == 1 else 'them to their defaults'}",
    )
    require(
        cluster.gpus % cluster.tensor_parallel == 0,
        f"optimize.openrlhf_tensor_parallel={cluster.tensor_parallel} must divide "
        f"optimize.openrlhf_gpus={cluster.gpus}",
    )
    require(
        ppo.minibatch % cluster.all == 0,
        f"ppo.minibatch={ppo.minibatch} must be a multiple of the {cluster.all} GPUs of "
        "optimize.openrlhf_nodes and optimize.openrlhf_gpus",
    )
    require(
        not options or options[0].startswith("--"),
        f"optimize.openrlhf_options names {options[0] if options else ''!r}; an option begins with --",
    )
    for option in options:
        name = option.partition("=")[0]
        # OpenRLHF's parser also accepts the beginning of a name.
        taken = next(
            (each for each in RESERVED if name.startswith("--") and each.startswith(name)), ""
        )
        require(
            not taken,
            f"optimize.openrlhf_options names {name}, but Kitestring sets {taken} itself",
        )


def _without_counterpart(ppo: PPOConfig) -> Iterator[str]:
    for field in dataclasses.fields(ppo):
        value = getattr(ppo, field.name)
        known = field.name in DIRECT or field.name in DERIVED or field.name in OWN
        impossible = {"loss_mean": "constant", "precision": "fp32"}.get(field.name)
        if value == impossible if known else value != field.default:
            yield f"ppo.{field.name}={toml(value)} (default {toml(field.default)})"


def prompts_per_update(ppo: PPOConfig) -> int:
    return ppo.rollouts // ppo.group_size


def arguments(ppo: PPOConfig, cluster: Cluster, *, longest: int, seed: int) -> list[str]:
    """The options that follow from settings; `longest` prompt and response have so many tokens."""
    found: list[str] = []
    for name, options in DIRECT.items():
        for option in options:
            found += [option, str(getattr(ppo, name))]
    for option, values in _derived(ppo, longest=longest, seed=seed).items():
        found += [option, *map(str, values)]
    return [*found, *_placed(cluster)]


def _derived(ppo: PPOConfig, *, longest: int, seed: int) -> dict[str, Sequence[Any]]:
    options: dict[str, Sequence[Any]] = {
        "--rollout.batch_size": [prompts_per_update(ppo)],
        "--rollout.n_samples_per_prompt": [ppo.group_size],
        "--critic.adam.lr": [ppo.critic_lr or 10 * ppo.lr],
        "--actor.eps_clip_low_high": [ppo.clip, ppo.clip_high or ppo.clip],
        "--critic.value_clip": [ppo.value_clip or _NO_CLIP],
        "--actor.loss_agg_mode": [_LOSS_MEANS[ppo.loss_mean]],
        # The policy is trained in steps above this number, and the first step is 0.
        "--critic.freezing_steps": [ppo.value_warmup - 1],
        "--ckpt.save_steps": [ppo.checkpoint_every or -1],
        "--data.max_len": [longest],
        "--train.seed": [seed],
        "--ds.param_dtype": ["bf16"],
        # What the engine does always.
        "--actor.adam.betas": [0.9, 0.999],
        "--critic.adam.betas": [0.9, 0.999],
        "--actor.lr_warmup_ratio": [0],
        "--critic.lr_warmup_ratio": [0],
        "--algo.kl.estimator": ["k1"],
        "--algo.advantage.estimator": ["gae"],
        # Scores are clipped by the reward function; OpenRLHF would clip at 10.  Its parser reads
        # -1e9 as an option.
        "--reward.clip_range": [-_NO_CLIP, _NO_CLIP],
    }
    if ppo.dual_clip:
        options["--actor.dual_clip"] = [ppo.dual_clip]
    if ppo.entropy_weight:
        options["--actor.entropy_coef"] = [ppo.entropy_weight]
    if ppo.gradient_checkpointing:
        options["--actor.gradient_checkpointing_enable"] = []
    return options


def _placed(cluster: Cluster) -> list[str]:
    """All models on all GPUs, each asleep while another one works."""
    found = ["--train.colocate_all", "--vllm.enable_sleep", "--ds.enable_sleep"]
    for role in ("actor", "ref", "critic", "reward"):
        found += [f"--{role}.num_nodes", str(cluster.nodes)]
        found += [f"--{role}.num_gpus_per_node", str(cluster.gpus)]
    engines = cluster.all // cluster.tensor_parallel
    found += ["--vllm.num_engines", str(engines)]
    found += ["--vllm.tensor_parallel_size", str(cluster.tensor_parallel)]
    return [*found, "--ds.zero_stage", "3"]
