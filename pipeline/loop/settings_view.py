"""Settings as forms and commands show them: which are locked, and when a change applies.

`applies` and `locked_reason` follow from the groups of settings below: who reads which setting, and
when.  Does not import torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

from pipeline.config.labels import group, label
from pipeline.config.policy import still_settings
from pipeline.config.sections import CLUSTER_SETTINGS, Config
from pipeline.ppo.settings import plain, toml
from storage.records import Iteration, Stage
from storage.reports import Applies, InvalidSettings, SettingValue, SettingView
from storage.tables.runs.run_settings import READ_BY, reads

_FIRST = ("optimize.method", "ppo.start_from")
BASIC_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "ppo": (*_FIRST, "ppo.updates", "ppo.kl_weight", "ppo.lr", "reward.epochs"),
    "grpo": (
        *_FIRST, "ppo.updates", "ppo.kl_weight", "ppo.lr", "ppo.samples_per_prompt",
    ),
    "reinforce++": (*_FIRST, "ppo.updates", "ppo.kl_weight", "ppo.lr", "reward.epochs"),
    "rloo": (
        *_FIRST, "ppo.updates", "ppo.kl_weight", "ppo.lr", "ppo.samples_per_prompt",
    ),
    "dpo": (
        *_FIRST, "optimize.dpo_epochs", "optimize.dpo_beta", "optimize.dpo_lr", "reward.epochs",
    ),
    "best-of-n": (
        "optimize.method", "optimize.best_of", "ppo.temperature", "ppo.max_new_tokens",
        "reward.epochs", "reward.lr",
    ),
    "openrlhf": (
        "optimize.method", "ppo.updates", "ppo.kl_weight", "ppo.lr", "optimize.openrlhf_nodes",
        "optimize.openrlhf_gpus",
    ),
}  # fmt: skip
"""The six settings that the "Train" form shows first for each method, in this order."""

_REFERENCE_SETTINGS = ("model.name", "sft")
_PAIR_SETTINGS = ("sampling", "labeling", "gate.labels", "gate.most")
_STARTUP_SETTINGS = ("plugins", "serving", "live")
"""Read when the studio starts."""
OPERATOR_SETTINGS = (
    "plugins.allowed", "serving.engine", "serving.url", "sampling.url",
    "optimize.openrlhf_python", "optimize.openrlhf_options",
    *(f"worker.{name}" for name in CLUSTER_SETTINGS if name not in ("nodes", "cpus", "gpus")),
)  # fmt: skip
"""Settings that only the operator changes: they run code, name an address, or say who gets a key."""
_FORM_SETTINGS = tuple(
    f"labeling.{name}"
    for name in ("scale", "strength", "criteria", "reasons", "rationale", "safety", "marks")
)
_LIVE_SETTINGS = (
    *_FORM_SETTINGS,
    *(
        f"labeling.{name}"
        for name in (
            "auto_train", "autopilot", "autopilot_wait", "gold_share", "gold_first", "reask_share", "reask_after", "practice",
            "practice_mark",
        )
    ),
)  # fmt: skip
"""Read whenever an annotator asks for a pair, and in each step of the loop."""
_REWARD_MODEL_SETTINGS = ("reward", "sampling.batch")
"""DPO learns from the judgments that the reward model learned from, so `reward` affects it too.  The
reward stage samples responses with `sampling.batch` to center rewards."""


def form(
    config: Config,
    preset: Config | None = None,
    *,
    last: Mapping[str, Any] | None = None,
    again: Stage | None = None,
) -> list[SettingView]:
    """Every setting with its current value; `last` has the values of the last training.

    If `again` is a stopped stage, the settings that it reads are `offered`.
    """
    last = last or {}
    return [
        replace(
            each,
            basic={
                m: names.index(each.name)
                for m, names in BASIC_SETTINGS.items()
                if each.name in names
            },
            last=shown(each.name, last[each.name]) if each.name in last else None,
            why_fixed=locked_reason(each.name, again),
            offered=again is None
            or (reads(again, each.name) and not locked_reason(each.name, again)),
        )
        for each in listing(config, preset)
    ]


def listing(
    config: Config, preset: Config | None = None, *, referenced: bool = True
) -> list[SettingView]:
    """Every setting in the order of the sections, with its value in `preset`.

    `referenced` says whether the workspace has its SFT reference.
    """
    presets = {s.name: shown(s.name, s.value) for s in preset.settings()} if preset else {}
    return [
        SettingView(
            name=s.name,
            value=shown(s.name, s.value),
            default=shown(s.name, s.default),
            help=s.help,
            choices=s.choices,
            kind=_kind(s.default),
            label=label(s.name),
            group=group(s.name),
            preset=presets.get(s.name),
            applies=applies(s.name, referenced=referenced),
            applies_text=applies_text(s.name, referenced=referenced),
        )
        for s in config.settings()
    ]


def applies(name: str, *, referenced: bool = True) -> Applies:
    """When a change of this setting in config.toml applies to a studio that runs.

    `referenced` says whether the workspace has its SFT reference, which is created once.
    """
    kinds = (name, name.partition(".")[0])
    if any(kind in _STARTUP_SETTINGS for kind in kinds):
        return "restart"
    if name in _LIVE_SETTINGS:
        return "now"
    if any(kind in _REFERENCE_SETTINGS for kind in kinds):
        return "workspace" if referenced else "stage"
    of_pairs = any(kind in _PAIR_SETTINGS for kind in kinds)
    return "iteration" if of_pairs and name not in _REWARD_MODEL_SETTINGS else "stage"


_STAGE_NAMES: Mapping[Stage, str] = {
    "sft": "SFT",
    "sampling": "sampling",
    "reward": "reward model",
    "policy": "policy",
    "evaluate": "evaluation",
}


def applies_text(name: str, *, referenced: bool = True) -> str:
    """`applies` as a sentence without a period, with the stages that read the setting."""
    match applies(name, referenced=referenced):
        case "now":
            return "Applies now"
        case "iteration":
            return "Applies from the next iteration"
        case "restart":
            return "Applies after a restart"
        case "workspace":
            return "Applies to new workspaces"
    due: list[Stage] = [stage for stage in READ_BY if not (stage == "sft" and referenced)]
    stages = [_STAGE_NAMES[stage] for stage in due if reads(stage, name)]
    if len(stages) == len(due):
        return "Applies from the next stage"
    listed = " or ".join(filter(None, (", ".join(stages[:-1]), stages[-1])))
    return f"Applies from the next {listed} stage"


def shown(name: str, value: Any) -> SettingValue:
    """A value as pages show it: lists and tables as TOML text, "none" for None, no passwords."""
    if value is None:
        return "none"
    if name in ("serving.url", "sampling.url") and "@" in value:
        parts = urlsplit(value)
        return urlunsplit(parts._replace(netloc="•••@" + parts.netloc.rpartition("@")[2]))
    return value if isinstance(value, (int, float, str, bool)) else toml(plain(value))


def _kind(value: Any) -> Literal["int", "float", "str", "bool"]:
    for kind, name in ((bool, "bool"), (int, "int"), (float, "float")):
        if isinstance(value, kind):
            return name  # type: ignore[return-value]
    return "str"


def as_lines(found: SettingView) -> str:
    """Lines on a setting, with values in the syntax of `--set`."""
    value, default = written(found.value), written(found.default)
    other = f"  (default: {default})" if value != default else ""
    choices = f" One of {', '.join(found.choices)}." if found.choices else ""
    lines = [f"{found.name}={value}{other}", f"    {found.label}. {found.help}{choices}"]
    if found.preset is not None:
        preset = f" The preset has {written(found.preset)}." if changed(found) else ""
        lines.append(f"    {found.applies_text}.{preset}{found.note and ' ' + found.note}")
    return "\n".join(lines)


def changed(found: SettingView) -> bool:
    """Whether the value differs from that of a new workspace for the same model."""
    return found.value != (found.default if found.preset is None else found.preset)


def matches(found: SettingView, search: str) -> bool:
    """Whether name, label, section or help contain every word of the search, in any case."""
    text = f"{found.name} {found.label} {found.group} {found.help}".lower()
    return all(word in text for word in search.lower().split())


def written(value: SettingValue) -> str:
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
    if applies(name) == "restart":
        return (
            f"{name} is read when the studio starts; set it in the workspace's config.toml, or with "
            "`serve --set`"
        )
    if name in OPERATOR_SETTINGS and kinds[1] in ("worker", "optimize"):
        what = "where stages run" if kinds[1] == "worker" else "what a cluster runs"
        return (
            f"{name} says {what}; the operator sets it with `launch.py settings --set` or in the "
            "workspace's config.toml"
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
    """InvalidSettings if some of these settings are locked."""
    if locked := {name: reason for name in names if (reason := locked_reason(name, due))}:
        raise InvalidSettings(locked)


def overridden(
    base: Config, iteration: Iteration, by: Mapping[str, str], *, due: Stage | None
) -> tuple[Iteration, Config]:
    """The iteration with further settings `by`, and its full settings; `due` is its next stage.

    Raises InvalidSettings, which names each setting that is invalid or locked.
    """
    merged = still_settings(iteration.settings) | dict(by)
    try:
        config = base.override(merged)
    except InvalidSettings as refused:
        locked = {name: why for name in by if (why := locked_reason(name, due))}
        raise InvalidSettings(refused.problems | locked) from None
    check_unlocked(by, due)
    wanted = config.labeling.labels if _unsampled(due) else iteration.labels_wanted
    return replace(iteration, settings=merged, labels_wanted=wanted), config
