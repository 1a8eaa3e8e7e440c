"""The settings of a workspace: made from a preset once, read by every command after."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.config.studio import CONFIGS, Config
from pipeline.models import hub
from pipeline.ppo.settings import assignments
from pipeline.runs.rundir import write_atomically
from pipeline.shaping import require_available
from storage.engine.replacing import require_settled
from storage.engine.workspace import SETTINGS, holds_data, make_private


def load_settings(workspace: Path, files: Sequence[Path], sets: Sequence[str]) -> Config:
    """The workspace's own settings, then further files, then --set."""
    require_settings(workspace)
    own = workspace / SETTINGS
    return Config.load([*([own] if own.exists() else []), *files], assignments(sets))


def require_settings(workspace: Path) -> None:
    """ValueError where there are data without settings: a preset would be taken for theirs.

    ReplacementUnfinished where a restore was interrupted, which may have moved them.
    """
    require_settled(workspace)
    if holds_data(workspace) and not (workspace / SETTINGS).exists():
        raise ValueError(
            f"{workspace / SETTINGS} is missing; put it back, or make a new one with "
            "`python launch.py init --model NAME`, the model that this workspace is for"
        )


def prepare(
    workspace: Path, model: str | None, files: Sequence[Path], sets: Sequence[str]
) -> Config:
    """Make the workspace with its config.toml unless it exists; return its settings."""
    require_settled(workspace)
    own = workspace / SETTINGS
    if own.exists():
        config = load_settings(workspace, files, sets)
        if model and model != config.model.name:
            raise ValueError(
                f"{workspace} was made for the model {config.model.name}; "
                f"give --workspace another directory for {model}"
            )
        require_available(config.shaping)
        return config
    if not model:
        require_settings(workspace)
    preset = CONFIGS / ("default.toml" if model and model != "demo" else "demo.toml")
    chosen = assignments(sets) | ({"model.name": model} if model else {})
    config = Config.load([preset, *files], chosen)
    if config.model.name != "demo":
        hub.require_model(config.model.name)
    require_available(config.shaping)
    make_private(workspace)
    write_atomically(own, config.to_toml())
    return config
