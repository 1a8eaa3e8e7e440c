"""Which files and models a researcher may name in settings.  Does not import torch.

A refusal does not reveal whether a file exists.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from pipeline.config.sections import Config

OPEN_FOLDERS = ("files", "runs")
"""Folders of a workspace whose files a researcher may name."""
_HUB_ID = re.compile(r"(?!\.)[\w.-]+/(?!\.+$)[\w.-]+", re.ASCII)


def named(config: Config) -> set[tuple[str, str]]:
    """(setting, name) of all settings that name a path or a model."""
    shaping = config.shaping
    found = {("shaping.references", shaping.references), ("shaping.classifier", shaping.classifier)}
    found |= {("shaping.extra_reward_models", name) for name in shaping.extra_reward_models}
    found.add(("model.name", config.model.name))
    return {(setting, name) for setting, name in found if name is not None}


def require_open(
    config: Config, *, workspace: Path, models: Iterable[str], operator_configs: Iterable[Config]
) -> None:
    """ValueError if the settings name a path or model that a researcher may not name.

    They may name files in `OPEN_FOLDERS`, `models` by id, models on the Hugging Face hub, and
    everything that appears in `operator_configs`, the operator's settings.
    """
    allowed = {name for one in operator_configs for _, name in named(one)} | {*models, "demo"}
    for setting, name in sorted(named(config)):
        if name in allowed or _is_open(name, workspace):
            continue
        if setting in ("shaping.extra_reward_models", "model.name") and _is_hub_id(name, workspace):
            continue
        raise ValueError(
            f"{setting} names {name!r}: researchers may name files in {workspace / 'files'} and "
            "anything in config.toml; the operator may name others there or on the command line"
        )


def _is_open(name: str, workspace: Path) -> bool:
    """Whether an absolute path, with links resolved, is in one of the open folders."""
    if not Path(name).is_absolute():
        return False
    place = Path(name).resolve()
    return any(place.is_relative_to((workspace / each).resolve()) for each in OPEN_FOLDERS)


def _is_hub_id(name: str, workspace: Path) -> bool:
    """Whether the name is a hub id and not a local path."""
    is_id = "/" not in name or _HUB_ID.fullmatch(name) is not None
    if not is_id or name.startswith((".", "~")) or "\\" in name:
        return False
    return not (Path(name).exists() or (workspace / name).exists())
