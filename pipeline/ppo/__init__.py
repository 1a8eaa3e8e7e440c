"""Proximal policy optimization for language models, usable on its own.

    from pipeline.ppo import PPOConfig, PPOTrainer

    trainer = PPOTrainer(model, reference, tokenizer, prompts, reward, PPOConfig(updates=50))
    for update in trainer.run():
        print(update.step, update.metrics["reward/mean"], update.metrics["kl/reference"])
    trainer.save("policy")

Names are loaded when they are first asked for, so that `pipeline.ppo.config`
and `pipeline.ppo.metrics` can be read without loading torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.ppo.batch import Sample, SamplerMismatch, TrainingDiverged, UpdateResult
    from pipeline.ppo.config import PPOConfig
    from pipeline.ppo.metrics import METRICS, Flag, red_flags
    from pipeline.ppo.model import ActorCritic
    from pipeline.ppo.rollout import Rollout, generate
    from pipeline.ppo.trainer import PPOTrainer

__all__ = [
    "METRICS",
    "ActorCritic",
    "Flag",
    "PPOConfig",
    "PPOTrainer",
    "Rollout",
    "Sample",
    "SamplerMismatch",
    "TrainingDiverged",
    "UpdateResult",
    "generate",
    "red_flags",
]

_HOME = {
    "METRICS": "metrics",
    "ActorCritic": "model",
    "Flag": "metrics",
    "PPOConfig": "config",
    "PPOTrainer": "trainer",
    "Rollout": "rollout",
    "Sample": "batch",
    "SamplerMismatch": "batch",
    "TrainingDiverged": "batch",
    "UpdateResult": "batch",
    "generate": "rollout",
    "red_flags": "metrics",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
