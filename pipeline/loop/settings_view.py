"""Settings as forms and commands show them, and which are locked.  Does not import torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from pipeline.config.sections import Config
from pipeline.ppo.settings import plain, toml
from storage.records import Iteration, Stage
from storage.reports import SettingView

BASIC_SETTINGS = (
    "reward.tie_model",
    "reward.epochs",
    "reward.lr",
    "optimize.method",
    "ppo.updates",
    "ppo.kl_weight",
    "ppo.lr",
    "ppo.epochs",
    "ppo.rollouts",
    "ppo.target_kl",
    "ppo.start_from",
)
"""Settings that the "Train" form shows first, in this order."""

READ_BY: Mapping[Stage, tuple[str, ...]] = {
    "sft": ("model", "sft", "worker", "seed"),
    "sampling": ("sampling", "labeling", "gate.labels", "gate.most", "model.dtype", "worker", "seed"),
    "reward": (
        "reward", "sampling.batch", "ppo.temperature", "ppo.max_new_tokens", "model.dtype",
        "worker", "seed",
    ),
    "policy": (
        "optimize", "ppo", "shaping", "reward.learn_from", "gate.kl_raise", "model.dtype",
        "worker", "seed",
    ),
    "evaluate": (
        "evaluate", "ppo.temperature", "sampling", "shaping", "model.dtype", "worker", "seed",
    ),
}  # fmt: skip
"""The settings or sections that each stage reads; the page offers them for another attempt."""

_REFERENCE_SETTINGS = ("model.name", "sft")
_PAIR_SETTINGS = ("sampling", "labeling", "gate.labels", "gate.most")
_FORM_SETTINGS = tuple(
    f"labeling.{name}"
    for name in ("scale", "strength", "criteria", "reasons", "rationale", "safety", "marks")
)
_REWARD_MODEL_SETTINGS = ("reward", "sampling.batch")
"""DPO learns from the judgments that the reward model learned from, so `reward` affects it too.  The
reward stage samples responses with `sampling.batch` to center rewards."""


def form(config: Config, *, again: Stage | None = None) -> list[SettingView]:
    """Every setting with its current value, `BASIC_SETTINGS` first.

    If `again` is a stopped stage, the settings that it reads are `offered`.
    """
    listed = [
        SettingView(
            name=s.name,
            value=_displayed_value(s.value),
            default=_displayed_value(s.default),
            help=s.help,
            choices=s.choices,
            kind=_kind(s.value),
            basic=s.name in BASIC_SETTINGS,
            why_fixed=locked_reason(s.name, again),
            offered=again is None or (_read(s.name, again) and not locked_reason(s.name, again)),
        )
        for s in config.settings()
    ]
    order = {name: i for i, name in enumerate(BASIC_SETTINGS)}
    return sorted(listed, key=lambda s: order.get(s.name, len(order)))


def _read(name: str, stage: Stage) -> bool:
    return any(kind in READ_BY[stage] for kind in (name, name.partition(".")[0]))


def _displayed_value(value: Any) -> int | float | str | bool:
    """Lists and tables as TOML text."""
    return value if isinstance(value, (int, float, str, bool)) else toml(plain(value))


def _kind(value: Any) -> Literal["int", "float", "str", "bool"]:
    for kind, name in ((bool, "bool"), (int, "int"), (float, "float")):
        if isinstance(value, kind):
            return name  # type: ignore[return-value]
    return "str"


def as_lines(found: SettingView) -> str:
    """Two lines on a setting, with values in the syntax of `--set`."""
    value, default = written(found.value), written(found.default)
    other = f"  (default: {default})" if value != default else ""
    choices = f" One of {', '.join(found.choices)}." if found.choices else ""
    return f"{found.name}={value}{other}\n    {found.help}{choices}"


def written(value: int | float | str | bool) -> str:
    """A setting's value as `--set` reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def disagreeing(asked: Config, names: Collection[str], running: Sequence[SettingView]) -> list[str]:
    """The settings of these names that differ in a running loop, as "NAME=THE LOOP'S VALUE"."""
    wanted = {each.name: each.value for each in form(asked)}
    return [
        f"{each.name}={written(each.value)}"
        for each in running
        if each.name in names and each.value != wanted[each.name]
    ]


def locked_reason(name: str, due: Stage | None) -> str | None:
    """Why a setting cannot change if `due` is the next stage (None: training), or None.

    It is locked if what it controls exists already.
    """
    kinds = (name, name.partition(".")[0])
    if name.startswith(("plugins.", "serving.", "live.")):
        return (
            f"{name} is read when the studio starts; set it in the workspace's config.toml, or with "
            "`serve --set`"
        )
    if name in _FORM_SETTINGS:
        return (
            f"{name} belongs to the annotators' page and is read when the studio starts; change it on "
            "the Team page, in the workspace's config.toml or with `serve --set`"
        )
    if due != "sft" and any(kind in _REFERENCE_SETTINGS for kind in kinds):
        return (
            f"{name} is read when the SFT reference is created, once per workspace; set it in "
            "config.toml of a new workspace"
        )
    of_the_reward_model = any(kind in _REWARD_MODEL_SETTINGS for kind in kinds)
    if due in ("policy", "evaluate") and of_the_reward_model:
        return (
            f"{name} is read when the reward model is trained, and this iteration's reward "
            "model is already trained; set it when the next iteration is trained"
        )
    if of_the_reward_model or _unsampled(due):
        return None
    if any(kind in _PAIR_SETTINGS for kind in kinds):
        return (
            f"{name} is read when an iteration's pairs are sampled, before training; set it for the "
            "next iteration, in the workspace's config.toml or with `serve --set`"
        )
    return None


def _unsampled(due: Stage | None) -> bool:
    """Whether an iteration with the next stage `due` has no pairs yet."""
    return due in ("sft", "sampling")


def check_unlocked(names: Iterable[str], due: Stage | None) -> None:
    """ValueError if one of these settings is locked."""
    for name in names:
        if reason := locked_reason(name, due):
            raise ValueError(reason)


def overridden(
    base: Config, iteration: Iteration, by: Mapping[str, str], *, due: Stage | None
) -> tuple[Iteration, Config]:
    """The iteration with further settings `by`, and its full settings; `due` is its next stage.

    Raises ValueError for a setting that is invalid or locked.
    """
    merged = dict(iteration.settings) | dict(by)
    config = base.override(merged)
    check_unlocked(by, due)
    wanted = config.labeling.labels if _unsampled(due) else iteration.labels_wanted
    return replace(iteration, settings=merged, labels_wanted=wanted), config
