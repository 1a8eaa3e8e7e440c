"""Settings and metrics as the researcher's pages show them.  No torch here."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pipeline.config import Config
from pipeline.settings import plain, toml
from storage.records import Iteration

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


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A setting as the researcher's form shows it (fulfils labeler.ports.Setting)."""

    name: str
    value: Any
    default: Any
    help: str
    choices: tuple[str, ...] | None
    kind: Literal["int", "float", "str", "bool"]
    basic: bool


def form(config: Config) -> list[Setting]:
    """Every setting with its current value; those of the unfolded form come first."""
    listed = [
        Setting(
            name=s.name,
            value=_shown(s.value),
            default=_shown(s.default),
            help=s.help,
            choices=s.choices,
            kind=_kind(s.value),
            basic=s.name in BASIC_SETTINGS,
        )
        for s in config.settings()
    ]
    order = {name: i for i, name in enumerate(BASIC_SETTINGS)}
    return sorted(listed, key=lambda s: order.get(s.name, len(order)))


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


def overridden(
    base: Config, iteration: Iteration, by: Mapping[str, str]
) -> tuple[Iteration, Config]:
    """An iteration with further settings, and all settings it then has.

    Raises ValueError for a wrong one, before anything changes.
    """
    merged = dict(iteration.settings) | dict(by)
    return replace(iteration, settings=merged), base.override(merged)
