"""The settings of a workspace: created once from a preset, read by every command.

In order of increasing precedence: class defaults, the preset (demo.toml for the demo, default.toml
for other models; copied into config.toml when the workspace is created), config.toml, `--config`
files, `--set`, and for one iteration the *Train* form or `retry --set` (`overridden` in
settings_view.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.config.sections import CONFIGS, Config
from pipeline.models import hub
from pipeline.ppo.settings import assignments
from pipeline.runs.rundir import write_atomically
from pipeline.shaping import require_available
from storage.engine.replacing import refuse_pending_replacement
from storage.engine.workspace import SETTINGS, holds_data, make_private


def load_settings(workspace: Path, files: Sequence[Path], sets: Sequence[str]) -> Config:
    """The workspace's own settings, then further files, then --set."""
    require_settings(workspace)
    own = workspace / SETTINGS
    return Config.load([*([own] if own.exists() else []), *files], assignments(sets))


def preset_for(model: str) -> Path:
    """The preset whose settings a new workspace for this model gets."""
    return CONFIGS / ("demo.toml" if model == "demo" else "default.toml")


def fresh_config(model: str) -> Config:
    """The settings of a new workspace for this model."""
    return Config.load([preset_for(model)], {"model.name": model})


def require_settings(workspace: Path) -> None:
    """ValueError if the workspace has data but no settings, because a preset might not fit the
    data.

    ReplacementUnfinished if a restore was interrupted, which may have moved the settings.
    """
    refuse_pending_replacement(workspace)
    if holds_data(workspace) and not (workspace / SETTINGS).exists():
        raise ValueError(
            f"{workspace / SETTINGS} is missing; put it back, or create a new one with "
            "`python launch.py init --model NAME` for the model of this workspace"
        )


def prepare(
    workspace: Path, model: str | None, files: Sequence[Path], sets: Sequence[str]
) -> Config:
    """Create the workspace and its config.toml if they do not exist; return the settings."""
    refuse_pending_replacement(workspace)
    own = workspace / SETTINGS
    if own.exists():
        config = load_settings(workspace, files, sets)
        if model and model != config.model.name:
            raise ValueError(
                f"{workspace} was created for the model {config.model.name}; "
                f"give --workspace another directory for {model}"
            )
        require_available(config.shaping)
        return config
    if not model:
        require_settings(workspace)
    preset = preset_for(model or "demo")
    chosen = assignments(sets) | ({"model.name": model} if model else {})
    config = Config.load([preset, *files], chosen)
    if config.model.name != "demo":
        hub.require_model(config.model.name)
    require_available(config.shaping)
    make_private(workspace)
    write_atomically(own, config.to_toml())
    return config
