"""Which method makes the policy, and the settings of those other than PPO.  Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

from pipeline.config.openrlhf import Cluster
from pipeline.ppo.config import PPOConfig
from pipeline.ppo.settings import Section, require, setting, toml

ENGINE_METHODS: Mapping[str, Mapping[str, Any]] = {
    "ppo": {},
    "grpo": {"baseline": "group_mean", "group_scaling": "std", "whiten_advantages": False},
    "rloo": {"baseline": "leave_one_out", "group_scaling": "none", "whiten_advantages": False},
    "reinforce++": {"baseline": "return_to_go", "group_scaling": "none", "whiten_advantages": True},
}
"""The methods of the PPO engine, and the settings of `ppo` that each one determines.

docs/algorithm.md (*Methods without a critic*) has their formulas and sources.
"""
MOVED = {
    "optimize.rloo_beta": "ppo.kl_weight",
    "optimize.rloo_lr": "ppo.lr",
    "optimize.rloo_updates": "ppo.updates",
    "optimize.rloo_batch": "ppo.rollouts",
    "optimize.rloo_generations": "ppo.samples_per_prompt",
}
"""Settings of earlier versions, in which TRL's trainer ran RLOO, and what the engine reads instead."""


def without_moved(optimize: Mapping[str, Any]) -> dict[str, Any]:
    """The section `optimize` of an earlier version: without the settings that only RLOO read."""
    return {name: value for name, value in optimize.items() if f"optimize.{name}" not in MOVED}


def still_settings(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Stored overrides without those of `MOVED`."""
    return {name: value for name, value in overrides.items() if name not in MOVED}


def moved(name: str) -> str:
    """The sentence on a setting that is named but moved."""
    return f"{name} is no longer a setting: rloo runs in PPO's engine and reads {MOVED[name]}"


def require_no_moved(file: object, optimize: object) -> None:
    """ValueError for a settings file that chooses RLOO with settings that are not read any more."""
    if not isinstance(optimize, Mapping):
        return  # `build` says what a section is
    found = [name for name in MOVED if name.removeprefix("optimize.") in optimize]
    require(
        optimize.get("method") != "rloo" or not found,
        f"{file} sets {', '.join(found)} for rloo, which runs in PPO's engine now; set "
        f"{', '.join(MOVED[name] for name in found)} instead, and remove them",
    )


def engine_settings(method: str, ppo: PPOConfig) -> PPOConfig:
    """The engine's settings for one of `ENGINE_METHODS`.

    Raises ValueError if a setting that the method determines has another value than its default.
    """
    determined = ENGINE_METHODS[method]
    defaults = {f.name: f.default for f in fields(ppo)}
    for name, value in determined.items():
        given = getattr(ppo, name)
        require(
            given in (value, defaults[name]),
            f"ppo.{name}={toml(given)} contradicts optimize.method={method}, which sets it to "
            f"{toml(value)}; leave it out, or set optimize.method=ppo",
        )
    return replace(ppo, **determined)


@dataclass(frozen=True, kw_only=True)
class OptimizeConfig(Section):
    """The method that improves the policy, and the settings of methods outside the engine.

    Settings of all methods are under `ppo`: start_from, temperature, max_new_tokens,
    min_new_tokens, top_k, top_p, max_prompt_tokens and missing_eos_penalty.
    """

    section: ClassVar[str] = "optimize"

    method: Literal["ppo", "grpo", "reinforce++", "dpo", "rloo", "best-of-n", "openrlhf"] = setting(
        "ppo",
        "Method that makes the policy: ppo; grpo, rloo or reinforce++ (PPO's engine without a critic; "
        "settings under ppo); dpo (directly on the judgments); "
        "best-of-n (the reward model chooses among samples of SFT; no training); or openrlhf (PPO of "
        "OpenRLHF as a job of a Ray cluster, for models of more than about 14B parameters).",
    )
    best_of: int = setting(
        16, "Samples of which best-of-n takes the one with the highest reward.", low=2, high=256
    )
    snapshots: int = setting(
        0,
        "Intermediate policies to keep; `launch.py compare` draws curves from them.",
        low=0,
        high=100,
    )
    dpo_beta: float = setting(
        0.1, "DPO's β; higher values keep the policy closer to SFT (DPO paper, TRL: 0.1).", above=0
    )
    dpo_lr: float = setting(
        1e-6,
        "DPO's peak learning rate, linear to 0 after warm-up (DPO paper, TRL: 1e-6).",
        above=0,
    )
    dpo_epochs: float = setting(1.0, "DPO's passes over the judgments (Zephyr: 1 to 3).", above=0)
    dpo_batch: int = setting(
        16, "Comparisons per step of DPO (DPO paper: 64, on larger data sets).", low=1
    )
    openrlhf_nodes: int = setting(1, "Nodes of the Ray cluster that OpenRLHF trains on.", low=1)
    openrlhf_gpus: int = setting(8, "GPUs that OpenRLHF uses on each node.", low=1)
    openrlhf_tensor_parallel: int = setting(
        1, "GPUs over which OpenRLHF's vLLM divides the policy; must divide openrlhf_gpus.", low=1
    )
    openrlhf_python: str = setting(
        "",
        "The Python on the cluster's nodes that has OpenRLHF and Kitestring; empty for worker.python, "
        "and without that for the path of the stage's own Python.",
    )
    openrlhf_options: tuple[str, ...] = setting(
        (),
        "Further options of OpenRLHF's train_ppo_ray, such as --ds.packing_samples. They override "
        "those that follow from other settings.",
    )

    @property
    def openrlhf_cluster(self) -> Cluster:
        """The GPUs of a job of OpenRLHF."""
        return Cluster(self.openrlhf_nodes, self.openrlhf_gpus, self.openrlhf_tensor_parallel)
