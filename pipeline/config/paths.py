"""Files and models that settings name by path: what a researcher may name.  Loads no torch.

Whether a file exists is told to nobody who may not have it read: what is not allowed is refused with
one sentence, unseen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from pipeline.config.studio import Config

OPEN_FOLDERS = ("files", "runs")
"""Folders of a workspace whose files a researcher may name: what the operator puts there, and what
training writes."""
_HUB_ID = re.compile(r"(?!\.)[\w.-]+/(?!\.+$)[\w.-]+", re.ASCII)


def named(config: Config) -> set[tuple[str, str]]:
    """(setting, name) of everything that the settings name by path, or may so name."""
    shaping = config.shaping
    found = {("shaping.references", shaping.references), ("shaping.classifier", shaping.classifier)}
    found |= {("shaping.extra_reward_models", name) for name in shaping.extra_reward_models}
    found.add(("model.name", config.model.name))
    return {(setting, name) for setting, name in found if name is not None}


def require_open(
    config: Config, *, workspace: Path, models: Iterable[str], held: Iterable[Config]
) -> None:
    """ValueError where a researcher may not name what the settings name.

    They may name the files of `OPEN_FOLDERS`, `models` by their ids, models of the Hugging Face hub,
    and what one of `held` names: the settings of the operator.
    """
    allowed = {name for one in held for _, name in named(one)} | {*models, "demo"}
    for setting, name in sorted(named(config)):
        if name in allowed or _is_open(name, workspace):
            continue
        if setting in ("shaping.extra_reward_models", "model.name") and _is_of_the_hub(
            name, workspace
        ):
            continue
        raise ValueError(
            f"{setting} names {name!r}: researchers may name what lies in {workspace / 'files'} or "
            "what config.toml names there; the operator may name others in config.toml or on the command line"
        )


def _is_open(name: str, workspace: Path) -> bool:
    """Whether an absolute path leads into one of the open folders, links followed."""
    if not Path(name).is_absolute():
        return False
    place = Path(name).resolve()
    return any(place.is_relative_to((workspace / each).resolve()) for each in OPEN_FOLDERS)


def _is_of_the_hub(name: str, workspace: Path) -> bool:
    """Whether no local folder is meant: an id with an owner, or a word that names nothing here."""
    is_id = "/" not in name or _HUB_ID.fullmatch(name) is not None
    if not is_id or name.startswith((".", "~")) or "\\" in name:
        return False
    return not (Path(name).exists() or (workspace / name).exists())
