"""Proximal policy optimization for language models, usable on its own.

    from pipeline.ppo import PPOConfig, PPOTrainer

    trainer = PPOTrainer(model, reference, tokenizer, prompts, reward, PPOConfig(updates=50))
    for update in trainer.run():
        print(update.step, update.metrics["reward/mean"], update.metrics["kl/reference"])
    trainer.save("policy")

Names are imported on first use, so that importing `pipeline.ppo.config` or `pipeline.ppo.metrics`
does not import torch.
"""

# ruff: noqa: F401 (the imports under TYPE_CHECKING are this module's exports)

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.ppo.config import PPOConfig
    from pipeline.ppo.metrics import METRICS, Flag, red_flags
    from pipeline.ppo.network.model import ActorCritic
    from pipeline.ppo.rollouts.rollout import Rollout, generate
    from pipeline.ppo.summary import Sample, SamplerMismatch, TrainingDiverged, UpdateResult
    from pipeline.ppo.trainer import PPOTrainer

_MODULES = {
    "METRICS": "metrics",
    "ActorCritic": "network.model",
    "Flag": "metrics",
    "PPOConfig": "config",
    "PPOTrainer": "trainer",
    "Rollout": "rollouts.rollout",
    "Sample": "summary",
    "SamplerMismatch": "summary",
    "TrainingDiverged": "summary",
    "UpdateResult": "summary",
    "generate": "rollouts.rollout",
    "red_flags": "metrics",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
