"""What a node gets: the run directory, and the models and files that the job names.

A node has a workspace of its own, of the same name.  What the job names in the workspace has the same
place there; anything else on the studio's machine is put below `elsewhere/`, and the node's job.json
names it so.  Models of the Hugging Face hub and the demo's own files are not sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.runs.rundir import RunDirectory

_WORKSPACE, _INSTALLATION = "$WORKSPACE", "$KITESTRING"
_FILES = ("references", "classifier")
"""The settings of `shaping` that name a file or a folder."""
_SENT = ("inputs", "outputs", "checkpoint")
"""The folders of a run directory that a worker reads; a first attempt has only inputs."""


@dataclass(kw_only=True)
class NodeFiles:
    """Local files by their paths in the node's workspace."""

    job: str
    """The text of the node's job.json."""
    own: dict[str, Path] = field(default_factory=dict)
    """Files of the run, which are sent for this attempt."""
    models: dict[str, Path] = field(default_factory=dict)
    """Files that do not change, which are sent once."""


def node_files(directory: RunDirectory) -> NodeFiles:
    """The files of a run that is about to start."""
    run, workspace = f"runs/{directory.path.name}", directory.path.resolve().parents[1]
    job = json.loads((directory.path / "job.json").read_text())
    found, moved = NodeFiles(job=""), {}
    for named in sorted(set(_named(job))):
        if named.startswith(f"{_WORKSPACE}/"):
            place = named.removeprefix(f"{_WORKSPACE}/")
            found.models |= _files(workspace / place, place)
        elif not named.startswith(f"{_INSTALLATION}/"):
            place = f"elsewhere/{len(moved) + 1}/{Path(named).name}"
            found.models |= _files(Path(named), place)
            moved[named] = f"{_WORKSPACE}/{place}"
    for name in _SENT:
        found.own |= _files(directory.path / name, f"{run}/{name}")
    found.own |= _files(directory.events, f"{run}/{directory.events.name}")
    found.job = json.dumps(_replaced(job, moved), indent=2)
    return found


def _named(job: dict[str, Any]) -> Iterator[str]:
    """The models and files that a job names and that are on this machine."""
    for model in job["models"].values():
        if model and (model.startswith("$") or Path(model).is_absolute()) and _is_here(model):
            yield model
    for name in _FILES:
        file = job["config"].get("shaping", {}).get(name)
        if file and _is_here(file):
            yield file


def _is_here(named: str) -> bool:
    return named.startswith("$") or Path(named).exists()


def _files(path: Path, place: str) -> dict[str, Path]:
    """The file, or the visible files of the folder, by their paths on the node."""
    if path.is_file():
        return {place: path}
    found = sorted(file for file in path.rglob("*") if file.is_file())
    below = {file.relative_to(path): file for file in found}
    return {
        f"{place}/{name.as_posix()}": file
        for name, file in below.items()
        if not any(part.startswith(".") for part in name.parts)
    }


def _replaced(value: Any, moved: dict[str, str]) -> Any:
    """A copy of a JSON value with other paths."""
    if isinstance(value, dict):
        return {key: _replaced(each, moved) for key, each in value.items()}
    if isinstance(value, list):
        return [_replaced(each, moved) for each in value]
    return moved.get(value, value) if isinstance(value, str) else value
