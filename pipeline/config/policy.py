"""Which method makes the policy, and the settings of those other than PPO.  Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

from pipeline.ppo.config import PPOConfig
from pipeline.ppo.settings import Section, require, setting, toml

ENGINE_METHODS: Mapping[str, Mapping[str, Any]] = {
    "ppo": {},
    "grpo": {"baseline": "group_mean", "group_scaling": "std", "whiten_advantages": False},
    "reinforce++": {"baseline": "return_to_go", "group_scaling": "none", "whiten_advantages": True},
}
"""The methods of the PPO engine, and the settings of `ppo` that each one determines.

docs/algorithm.md (*Methods without a critic*) has their formulas and sources.
"""


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

    method: Literal["ppo", "grpo", "reinforce++", "dpo", "rloo", "best-of-n"] = setting(
        "ppo",
        "Method that makes the policy: ppo, grpo or reinforce++ (PPO's engine without a critic; settings "
        "under ppo), rloo (REINFORCE leave-one-out by TRL), dpo (directly on the judgments), or "
        "best-of-n (the reward model chooses among samples of SFT; no training).",
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
    rloo_beta: float = setting(
        0.05, "RLOO's penalty per nat of KL, in reward units (TRL: 0.05).", above=0
    )
    rloo_lr: float = setting(
        1e-6, "RLOO's peak learning rate, linear to 0 (RLOO paper, TRL: 1e-6).", above=0
    )
    rloo_updates: int = setting(
        100, "Updates of RLOO; each one samples, scores and takes one step.", low=1
    )
    rloo_batch: int = setting(64, "Responses sampled per update of RLOO.", low=2)
    rloo_generations: int = setting(
        4,
        "Responses per prompt; each is compared with the mean of the others. Must divide rloo_batch "
        "(RLOO paper: 2 and 4; TRL: 2).",
        low=2,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.rloo_batch % self.rloo_generations == 0,
            f"optimize.rloo_generations={self.rloo_generations} must divide "
            f"optimize.rloo_batch={self.rloo_batch}",
        )
