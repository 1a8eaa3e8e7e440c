"""The settings of an open workspace: what config.toml says, what is in use, and saving changes.

config.toml is not all: files and assignments of the command line take precedence while the studio
runs, and the *Train* form sets values for one iteration.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline import canary
from pipeline.config import paths
from pipeline.config.plugins import named_in, require_allowed
from pipeline.config.policy import still_settings
from pipeline.config.problems import named, problems
from pipeline.config.sections import Config
from pipeline.loop import settings_file
from pipeline.loop.settings_file import SettingsFile
from pipeline.loop.settings_view import OPERATOR_SETTINGS, applies, listing, shown, written
from pipeline.loop.workspace_config import fresh_config, preset_for
from pipeline.ppo.settings import assignments
from pipeline.shaping import require_available
from storage.engine.database import Database
from storage.errors import Conflict
from storage.records import Iteration
from storage.reports import InvalidSettings, SettingView, WorkspaceSettings
from storage.tables import audit, iterations, models

_OPERATOR_ONLY = (
    "only the operator can change it, with `launch.py settings --set` or in config.toml"
)


@dataclass(frozen=True)
class Layers:
    """What `serve` was given on top of config.toml."""

    files: Sequence[Path] = ()
    sets: Sequence[str] = ()

    def values(self) -> dict[str, Any]:
        """The settings that these set."""
        found: dict[str, Any] = {}
        for file in self.files:
            for section, value in tomllib.loads(file.read_text(encoding="utf-8-sig")).items():
                inner = isinstance(value, dict)
                found |= (
                    {f"{section}.{k}": v for k, v in value.items()} if inner else {section: value}
                )
        return found | assignments(self.sets)


class SettingsStore:
    """Reads and changes the config.toml of a workspace; the caller serializes `save`."""

    def __init__(self, db: Database, layers: Layers) -> None:
        self._db = db
        self._layered = layers.values()

    def view(self, running: Config) -> WorkspaceSettings:
        """All settings of config.toml; `running` are those that the studio runs with."""
        file = settings_file.read(self._db.workspace)
        own, current = _parse(file), iterations.latest(self._db)
        fresh = fresh_config(own.model.name)
        referenced = models.newest(self._db, "sft") is not None
        in_use = {s.name: shown(s.name, s.value) for s in running.settings()}
        return WorkspaceSettings(
            file=str(file.path),
            version=file.version,
            preset=preset_for(own.model.name).stem,
            settings=tuple(
                replace(
                    each,
                    why_fixed=_why_fixed(each.name, referenced),
                    note=_note(each, in_use[each.name], current, self._layered.keys()),
                )
                for each in listing(own, fresh, referenced=referenced)
            ),
        )

    def save(
        self, changes: Mapping[str, str], version: str, running: Config, *, by_operator: bool
    ) -> Config:
        """Write `changes` to config.toml and return the settings to run with.

        InvalidSettings names every wrong setting; Conflict if the file no longer has this version.
        Only the operator may name functions and files that the settings do not name already.
        """
        file = settings_file.read(self._db.workspace)
        if version != file.version:
            raise Conflict(settings_file.CHANGED)
        own = _parse(file)
        config = self._checked(own, changes, running, by_operator=by_operator)
        before = {s.name: s.value for s in own.settings()}
        values = {s.name: s.value for s in config.settings()}
        changed = {name: text for name, text in changes.items() if values[name] != before[name]}
        if changed:
            settings_file.write(file, settings_file.changed(file, config, changed), config)
            shown_changes = {
                name: f"{_written(name, before[name])} → {_written(name, values[name])}"
                for name in changed
            }
            audit.note(self._db, "settings.saved", settings_file.SETTINGS, settings=shown_changes)
        loaded = config.override(self._layered)
        # These are read when the studio starts.
        return replace(loaded, live=running.live, serving=running.serving, plugins=running.plugins)

    def _checked(
        self, own: Config, changes: Mapping[str, str], running: Config, *, by_operator: bool
    ) -> Config:
        """config.toml's settings with the changes; InvalidSettings if they are not permitted."""
        wrong = problems(lambda some: self._used(own.override(some)), changes)
        referenced = models.newest(self._db, "sft") is not None
        for name in changes:
            if why := _why_fixed(name, referenced, by_operator=by_operator):
                wrong[name] = f"{name} cannot be changed: {why}"
        if wrong:
            raise InvalidSettings(wrong)
        config = own.override(changes)
        try:
            if not by_operator:
                self._require_permitted(config, (own, running))
            if config.shaping != own.shaping:
                require_available(config.shaping)
            if config.gate.canary != own.gate.canary:
                canary.require_available(config.gate.canary)
        except ValueError as error:
            functions = ("shaping.", "gate.canary")
            about = named(str(error), changes) or {n for n in changes if n.startswith(functions)}
            raise InvalidSettings(dict.fromkeys(sorted(about), str(error))) from None
        return config

    def _used(self, config: Config) -> Config:
        """The settings that the current iteration has with this config.toml."""
        current = iterations.latest(self._db)
        layered = config.override(self._layered)
        return layered.override(still_settings(current.settings)) if current else layered

    def _require_permitted(self, config: Config, operator_configs: Sequence[Config]) -> None:
        require_allowed(config.functions, allowed_functions(operator_configs))
        paths.require_open(
            config,
            workspace=self._db.workspace,
            models=[model.id for model in models.listing(self._db)],
            operator_configs=operator_configs,
        )


def allowed_functions(operator_configs: Sequence[Config]) -> set[str]:
    """The functions that a researcher may use: those that the operator's settings name or allow,
    and the demo's canary."""
    allowed = {name for one in operator_configs for name in one.plugins.allowed}
    return named_in(one.functions for one in operator_configs) | allowed | {canary.BUILT_IN}


def _parse(file: SettingsFile) -> Config:
    return Config.load([file.path]) if file.version else Config()


def _written(name: str, value: object) -> str:
    return written(shown(name, value))


def _why_fixed(name: str, referenced: bool, *, by_operator: bool = False) -> str | None:
    """Why nobody, or only the operator, can change a setting of config.toml; None if all can."""
    if name == "model.name":
        return "the model is chosen when a workspace is created"
    if applies(name, referenced=referenced) == "workspace":
        return "the SFT model of this workspace is trained, and all policies start from it"
    if name in OPERATOR_SETTINGS and not by_operator:
        return _OPERATOR_ONLY
    return None


def refuse_operator_settings(changes: Iterable[str]) -> None:
    """InvalidSettings if a researcher changes a setting of a run that only the operator may change."""
    wrong = {
        name: f"{name} cannot be changed: {_OPERATOR_ONLY}"
        for name in changes
        if name in OPERATOR_SETTINGS
    }
    if wrong:
        raise InvalidSettings(wrong)


def _note(
    setting: SettingView, running: object, current: Iteration | None, layered: Collection[str]
) -> str:
    """Which other value is in use, and why; empty if config.toml's value is in use."""
    name = setting.name
    if current and name in current.settings and current.settings[name] != written(setting.value):
        return f"Iteration {current.number} uses {current.settings[name]}, set when it was trained."
    if running == setting.value:
        return ""
    if name in layered:
        return f"The studio was started with {running}, which takes precedence over config.toml."
    if setting.applies == "restart":
        return f"The studio runs with {running} until it is restarted."
    return (
        f"The studio runs with {running}: config.toml was edited after it started. Save to apply."
    )
