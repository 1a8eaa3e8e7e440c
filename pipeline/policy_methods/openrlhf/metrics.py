"""OpenRLHF's metrics, from the TensorBoard files that it writes, under our names.

Only metrics whose definitions agree are renamed to those of the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing import event_accumulator as reading

from pipeline.policy_methods.openrlhf.reward import SCORE

_PREFIX = "train/"
NAMES = {
    "return": "reward/total",
    "kl": "openrlhf/kl_per_token",
    "policy_loss": "policy/loss",
    "ppo_clip_ratio": "policy/clip_fraction",
    "critic_loss": "value/loss",
    "actor_lr": "optim/lr",
    "critic_lr": "optim/critic_lr",
    "actor_grad_norm": "openrlhf/grad_norm",
    "rollout/reward_std": "openrlhf/reward_std",
    "rollout/response_length_mean": "completion/length_mean",
    "timing/generation": "speed/rollout_seconds",
    "timing/ppo_train": "speed/update_seconds",
}
"""OpenRLHF's name of a metric, and ours.  What the reward function logs has our name already."""
_TRUNCATED = "rollout/truncated_rate"
KL, REWARD = NAMES["kl"], SCORE


def translated(values: dict[str, float], *, kl_weight: float) -> dict[str, float]:
    """The metrics of an update under our names, without those that are not finite."""
    values = {name: value for name, value in values.items() if isfinite(value)}
    found = {NAMES[name]: value for name, value in values.items() if name in NAMES}
    found |= {name: value for name, value in values.items() if name.startswith("reward/")}
    if _TRUNCATED in values:
        found["completion/eos_rate"] = 1 - values[_TRUNCATED]
    return found | {"kl/coefficient": kl_weight}


class ScalarReader:
    """Reads the scalars of a folder as they are written, step by step."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._events: Any = None
        self._last = 0

    def complete(self, *, ended: bool) -> Iterator[tuple[int, dict[str, float]]]:
        """(step, values) of further steps; the newest one only if no more is written."""
        if not self._folder.is_dir():
            return
        steps = self._by_step()
        for step in sorted(steps):
            if step > self._last and (ended or step < max(steps)):
                self._last = step
                yield step, steps[step]

    def _by_step(self) -> dict[int, dict[str, float]]:
        if self._events is None:
            self._events = reading.EventAccumulator(
                str(self._folder), size_guidance={reading.SCALARS: 0}
            )
        self._events.Reload()
        steps: dict[int, dict[str, float]] = {}
        for tag in self._events.Tags()[reading.SCALARS]:
            if tag.startswith(_PREFIX):
                for scalar in self._events.Scalars(tag):
                    steps.setdefault(scalar.step, {})[tag.removeprefix(_PREFIX)] = scalar.value
        return steps
