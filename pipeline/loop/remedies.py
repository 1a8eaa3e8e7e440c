"""Settings to try first after a stage stopped, by its red flag.  Does not import torch.

The flags are those of `pipeline.ppo.metrics.red_flags`, "diverged" for a loss or gradient that is not
finite, and "canary_loss" (`pipeline.canary.training`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pipeline.config.policy import ENGINE_METHODS
from pipeline.config.sections import Config
from pipeline.ppo.settings import plain, toml
from storage.records import Run, RunNote
from storage.reports import Stopped

DEFAULT_KL_WEIGHT = 0.05


def _more_kl(config: Config) -> Mapping[str, float]:
    return {"ppo.kl_weight": 2 * config.ppo.kl_weight or DEFAULT_KL_WEIGHT}


def _lower_lr(config: Config) -> Mapping[str, float]:
    return {"ppo.lr": config.ppo.lr / 2}


_FIRST: Mapping[str, Callable[[Config], Mapping[str, float]]] = {
    "kl_high": _more_kl,
    "duplicates": _more_kl,
    "canary_loss": _more_kl,
    "no_kl_penalty": lambda _: {"ppo.kl_weight": DEFAULT_KL_WEIGHT},
    "entropy_collapse": _lower_lr,
    "clip_fraction_high": _lower_lr,
    "reward_falling": _lower_lr,
    "diverged": _lower_lr,
    "kl_negative": lambda _: {"ppo.top_k": 0, "ppo.top_p": 1.0},
    "explained_variance_negative": lambda c: {"ppo.value_weight": 2 * c.ppo.value_weight},
    "many_epochs": lambda _: {"ppo.epochs": 4},
}
"""Other flags have no such setting."""


def suggested(flag: str, *, ran: Config, now: Config) -> dict[str, str]:
    """Settings to try first after this flag, in the form of `--set`.

    `ran` are the settings of the run that raised it, `now` the current ones.  Empty if the flag has
    no such setting or the current settings have its value already.
    """
    find = _FIRST.get(flag)
    if find is None or ran.optimize.method not in ENGINE_METHODS:
        return {}
    current = {setting.name: setting.value for setting in now.settings()}
    return {name: toml(plain(value)) for name, value in find(ran).items() if value != current[name]}


def describe_stopped(
    run: Run, flags: Sequence[RunNote], *, resumable: bool, now: Config
) -> Stopped:
    """A stopped run with suggested remedies; `flags` are the red flags that it raised."""
    worst = max(flags, key=lambda n: (n.payload.get("level") == "stop", n.seq), default=None)
    try:
        ran = Config.from_dict(run.config) if run.config else now
    except ValueError:  # an older version's settings
        ran = now
    return Stopped(
        run=run.id,
        attempt=run.attempt,
        stage=run.stage,
        status=run.status,
        reason=run.reason or "",
        resumable=resumable,
        may_label=run.stage == "reward",
        method=ran.optimize.method,
        flag=worst.name if worst else "",
        remedy=str(worst.payload.get("remedy", "")) if worst else "",
        suggestion=suggested(worst.name, ran=ran, now=now) if worst else {},
    )
