"""A workspace's config.toml: read with its version, and changed without touching the rest of it."""

from __future__ import annotations

import hashlib
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Item

from pipeline.config.sections import Config
from pipeline.ppo.settings import plain
from pipeline.runs.rundir import write_atomically
from storage.engine.files import sync
from storage.engine.workspace import SETTINGS
from storage.errors import Conflict

_BOM = "\ufeff"


@dataclass(frozen=True)
class SettingsFile:
    """The text of config.toml and its SHA-256; both are empty if there is no file."""

    path: Path
    text: str
    version: str


def read(workspace: Path) -> SettingsFile:
    """The settings file of a workspace; ValueError if it is not UTF-8 text."""
    return _read((workspace / SETTINGS).resolve())  # a link stays a link


def _read(path: Path) -> SettingsFile:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return SettingsFile(path, "", "")
    try:
        return SettingsFile(path, data.decode(), hashlib.sha256(data).hexdigest())
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from None


def changed(file: SettingsFile, config: Config, changes: Mapping[str, str]) -> str:
    """The text with other values for the settings in `changes`; comments and order stay.

    `config` has the new values, and `changes` has them as they were typed.  A setting is added to its
    section, and a section to the end.  TOML has no none, so a setting without a value is removed.
    """
    try:
        document = tomlkit.parse(file.text.removeprefix(_BOM))
    except TOMLKitError as error:
        raise ValueError(f"{file.path} is not valid TOML: {error}") from None
    values = {s.name: s for s in config.settings()}
    for name, typed in changes.items():
        section, _, key = name.rpartition(".")
        if section and section not in document:
            document[section] = tomlkit.table()
        table: Any = document[section] if section else document
        if values[name].value is None:
            table.pop(key, None)
        elif key in table or values[name].value != values[name].default:
            table[key] = _item(plain(values[name].value), typed)
    begin = _BOM if file.text.startswith(_BOM) else ""
    return begin + tomlkit.dumps(document)


def write(file: SettingsFile, text: str, config: Config) -> None:
    """Replace the file in one step.

    Conflict if it changed since it was read; ValueError if the text does not hold `config`.
    """
    if Config.from_dict(tomllib.loads(text.removeprefix(_BOM))) != config:
        raise ValueError(
            f"{file.path} cannot be changed here, because of how it is written; edit the file"
        )
    if _read(file.path).version != file.version:
        raise Conflict(CHANGED)
    mode = file.path.stat().st_mode if file.version else None
    write_atomically(file.path, text)
    if mode is not None:
        file.path.chmod(stat.S_IMODE(mode))
    sync(file.path.parent)


CHANGED = "config.toml changed on disk after it was read. Reload, check the values and save again."


def _item(value: Any, typed: str) -> Item:
    """The value as TOML, as it was typed if that is TOML for it."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            item = tomlkit.value(typed.strip())
        except (TOMLKitError, ValueError):
            return tomlkit.item(value)
        return (
            item if type(item.unwrap()) in (int, float) and item == value else tomlkit.item(value)
        )
    return tomlkit.item(value)
