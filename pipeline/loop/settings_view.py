"""Settings and metrics as the researcher's pages show them.  No torch here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from pipeline.config.studio import Config
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
"""What the "Train" form shows unfolded."""

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
        "evaluate", "ppo.temperature", "shaping", "model.dtype", "worker", "seed",
    ),
}  # fmt: skip
"""What each stage reads, as settings or whole sections: what is offered when it is tried again."""

_OF_THE_REFERENCE = ("model.name", "sft")
_OF_THE_PAIRS = ("sampling", "labeling", "gate.labels", "gate.most")
_OF_THE_REWARD_MODEL = ("reward", "sampling.batch")
"""`reward` also says which judgments DPO learns from: those that the reward model did.  By
`sampling.batch` the reward stage samples what rewards are centred on."""


def form(config: Config, *, again: Stage | None = None) -> list[SettingView]:
    """Every setting with its current value; those of the unfolded form come first.

    `again` is a stage that stopped: offered is then what it would read if it is tried again.
    """
    listed = [
        SettingView(
            name=s.name,
            value=_shown(s.value),
            default=_shown(s.default),
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


def _shown(value: Any) -> int | float | str | bool:
    """Lists and tables as the text that `--set` would take."""
    return value if isinstance(value, (int, float, str, bool)) else toml(plain(value))


def _kind(value: Any) -> Literal["int", "float", "str", "bool"]:
    for kind, name in ((bool, "bool"), (int, "int"), (float, "float")):
        if isinstance(value, kind):
            return name  # type: ignore[return-value]
    return "str"


def as_lines(found: Mapping[str, Any]) -> str:
    """A `Setting` as its dict, for people: two lines, written as `--set` would take them."""
    value, default = (_written(found[key]) for key in ("value", "default"))
    other = f"  (default: {default})" if value != default else ""
    choices = f" One of {', '.join(found['choices'])}." if found["choices"] else ""
    return f"{found['name']}={value}{other}\n    {found['help']}{choices}"


def _written(value: int | float | str | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def disagreeing(
    asked: Config, names: Collection[str], running: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Of the settings of these names, those that a running loop has otherwise: "NAME=ITS OWN".

    `running` are its `Setting`s as dicts.
    """
    wanted = {each.name: each.value for each in form(asked)}
    return [
        f"{each['name']}={_written(each['value'])}"
        for each in running
        if each["name"] in names and each["value"] != wanted[each["name"]]
    ]


def locked_reason(name: str, due: Stage | None) -> str | None:
    """Why a setting is fixed where `due` is the next stage (None: training); else None.

    What it governs is made already, and what comes must go by the same.
    """
    kinds = (name, name.partition(".")[0])
    if name.startswith("plugins."):
        return (
            f"{name} is read when the studio starts; set it in the workspace's config.toml, or with "
            "`serve --set`"
        )
    if due != "sft" and any(kind in _OF_THE_REFERENCE for kind in kinds):
        return (
            f"{name} acts when the SFT reference is made, which is once in a workspace; set it in "
            "config.toml of a new one"
        )
    of_the_reward_model = any(kind in _OF_THE_REWARD_MODEL for kind in kinds)
    if due in ("policy", "evaluate") and of_the_reward_model:
        return (
            f"{name} acts when the reward model is trained, which this iteration's is; set it for the "
            "next iteration, when it is trained"
        )
    if of_the_reward_model or _unsampled(due):
        return None
    if any(kind in _OF_THE_PAIRS for kind in kinds):
        return (
            f"{name} acts when an iteration's pairs are sampled and labeled, which is before training; "
            "set it for the next iteration, in the workspace's config.toml or with `serve --set`"
        )
    return None


def _unsampled(due: Stage | None) -> bool:
    """Whether an iteration whose next stage is `due` has no pairs yet."""
    return due in ("sft", "sampling")


def check_unlocked(names: Iterable[str], due: Stage | None) -> None:
    """ValueError where one of these settings is fixed by then."""
    for name in names:
        if reason := locked_reason(name, due):
            raise ValueError(reason)


def overridden(
    base: Config, iteration: Iteration, by: Mapping[str, str], *, due: Stage | None
) -> tuple[Iteration, Config]:
    """An iteration with further settings, whose next stage is `due`, and all settings it then has.

    Raises ValueError for one that is wrong or too late, before anything changes.
    """
    merged = dict(iteration.settings) | dict(by)
    config = base.override(merged)
    check_unlocked(by, due)
    wanted = config.labeling.labels if _unsampled(due) else iteration.labels_wanted
    return replace(iteration, settings=merged, labels_wanted=wanted), config
