"""Limits of the charts of a PPO run: where its red flags are raised, and what its settings allow.

The thresholds of red flags are those of `_RULES` in `pipeline/ppo/metrics.py`.  Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from labeler.research.charts import Limit, Series

_ABOVE = "warning above {}"
_BELOW = "warning below {}"
_FIXED: Mapping[str, Sequence[tuple[float, str]]] = {
    "kl/reference": ((10, _ABOVE), (15, "cancel above {}")),
    "policy/clip_fraction": ((0.5, _ABOVE),),
    "policy/first_ratio_error": ((0.1, "cancel above {}"),),
    "rollout/mismatch_kl": ((0.05, "stops above {}"),),
    "value/explained_variance": ((0, _BELOW),),
    "reward/mean": ((-10, _BELOW),),
    "reward/std": ((0.01, _BELOW),),
    "completion/unique": ((0.5, _BELOW),),
    "completion/unseen_tokens": ((0.1, _ABOVE),),
    "optim/epochs": ((4, _ABOVE),),
}
_ENDS = 5
"""Updates at each end of the run that the flag for a falling reward compares."""


def limits(
    metric: str, found: Mapping[str, Series], config: Mapping[str, Any]
) -> tuple[Limit, ...]:
    """The limits of `metric` in a PPO run with this `config` and these series."""
    fixed = [Limit(value, label.format(_text(value))) for value, label in _FIXED.get(metric, ())]
    relative = _RELATIVE.get(metric)
    values = found[metric].values if metric in found else ()
    own = relative(values, found) if relative and values else []
    return (*fixed, *own, *_of_settings(metric, found, config))


def _text(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")


def _entropy(values: Sequence[float], _found: Mapping[str, Series]) -> list[Limit]:
    lowest = max(0.02, 0.2 * values[0])
    return [Limit(lowest, f"warning below {_text(lowest)}")]


def _length(values: Sequence[float], _found: Mapping[str, Series]) -> list[Limit]:
    low, high = values[0] / 2, 2 * values[0]
    return [Limit(low, f"warning below {_text(low)}"), Limit(high, f"warning above {_text(high)}")]


def _falling(values: Sequence[float], found: Mapping[str, Series]) -> list[Limit]:
    lowest = _collapsed(values, found, 1.0)
    return [] if lowest is None else [Limit(lowest, f"warning below {_text(lowest)}")]


_RELATIVE = {
    "policy/entropy": _entropy,
    "completion/length_mean": _length,
    "reward/mean": _falling,
}
"""Limits that depend on the first updates."""


def _collapsed(
    values: Sequence[float], found: Mapping[str, Series], deviations: float
) -> float | None:
    """The mean reward that counts as fallen by so many standard deviations; None before update 10."""
    spread = found.get("reward/std")
    if len(values) < 2 * _ENDS or spread is None:
        return None
    return fmean(values[:_ENDS]) - deviations * max(fmean(spread.values[:_ENDS]), 0.01)


def _of_settings(
    metric: str, found: Mapping[str, Series], config: Mapping[str, Any]
) -> list[Limit]:
    ppo, gate = config.get("ppo", {}), config.get("gate", {})
    if metric == "kl/reference":
        budget, target = ppo.get("kl_budget"), ppo.get("kl_target")
        made = [Limit(budget, f"KL budget {budget:g}: stops above", always=True)] if budget else []
        if ppo.get("kl_control") == "adaptive" and target:
            made.append(Limit(target, f"KL target {target:g}", always=True))
        return made
    if metric == "canary/pass_rate" and (loss := gate.get("canary_loss")) and metric in found:
        reference = found[metric].values[0]  # SFT's rate, at step 0
        return [Limit(reference - loss, "not promoted below", always=True)]
    if metric == "policy/approx_kl" and (end := ppo.get("target_kl")):
        return [Limit(end, f"update ends above {end:g}")]
    if metric == "reward/mean" and (deviations := ppo.get("reward_collapse")) and metric in found:
        lowest = _collapsed(found[metric].values, found, deviations)
        return [] if lowest is None else [Limit(lowest, f"stops below {_text(lowest)}")]
    return []
