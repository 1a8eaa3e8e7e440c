"""Putting new files in place of a workspace's, so that a stop at any moment loses neither.

The new files are written beside the old ones as NAME.new, and a marker file is written when they
are complete.  Then the old files move to `backups/replaced-TIME/`, the new ones take their names,
and the marker goes::

    NAME (old), NAME.new  ──▶  backups/…/NAME (old), NAME.new  ──▶  backups/…/NAME (old), NAME (new)

Each step is one rename, so the marker and the names say how far it came: `finish` goes on from
there and `undo` goes back.  While the marker is there, `require_settled` refuses the workspace.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from storage.engine.files import make_folder, move, remove, sync_file, write_file
from storage.engine.workspace import BACKUPS, DATABASE, JOURNAL, SETTINGS, WAL, stamp
from storage.errors import NotFound, ReplacementUnfinished, StorageDamaged

MARKER = "replacing.json"
_REPLACEABLE = frozenset({DATABASE, WAL, JOURNAL, SETTINGS})


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """What the marker says.  `files` get new content, `outdated` lose their old content for good
    (a write-ahead log belongs to one database file), and `present` are those of both that there
    were before.  Old files go to `aside`."""

    what: str
    files: tuple[str, ...]
    outdated: tuple[str, ...]
    present: tuple[str, ...]
    aside: str


def new(workspace: Path, name: str) -> Path:
    """Where the new content of a file is written before it takes its place."""
    return workspace / f"{name}.new"


def require_settled(workspace: Path) -> None:
    """Raise ReplacementUnfinished, naming the two ways out, where a replacement was interrupted."""
    if (workspace / MARKER).exists():
        command = f"python launch.py restore --workspace {workspace}"
        raise ReplacementUnfinished(
            f"{_read(workspace).what} was interrupted, and {workspace} is part old and part new: "
            f"`{command} --finish` completes it, `{command} --undo` puts the old files back"
        )


def replace(
    workspace: Path, names: Sequence[str], *, outdated: Sequence[str] = (), what: str
) -> Path | None:
    """Put NAME.new in place of each of `names`; returns where the old files are, None without any.

    The caller holds the workspace's lock.  `what` names the act in a sentence.
    """
    for name in names:
        sync_file(new(workspace, name))
    present = tuple(name for name in (*outdated, *names) if (workspace / name).exists())
    aside = workspace / BACKUPS / f"replaced-{stamp()}"
    plan = Replacement(
        what=what,
        files=tuple(names),
        outdated=tuple(outdated),
        present=present,
        aside=str(aside.relative_to(workspace)),
    )
    if present:
        make_folder(aside)
        if aside.stat().st_dev != workspace.stat().st_dev:
            aside.rmdir()
            raise ValueError(
                f"{workspace / BACKUPS} is on another filesystem than {workspace}, so that files "
                "cannot be moved there in one step; make it a directory of the workspace"
            )
    write_file(workspace / MARKER, json.dumps(asdict(plan)))
    return finish(workspace)


def finish(workspace: Path) -> Path | None:
    """Complete an interrupted replacement; returns where the old files are, None without any.

    Raises NotFound when there is none.
    """
    plan = _read(workspace)
    aside = workspace / plan.aside
    lost = [
        n for n in plan.files if not new(workspace, n).exists() and not _is_new(workspace, plan, n)
    ]
    if lost:
        raise StorageDamaged(
            f"{new(workspace, lost[0])} is gone, so that {plan.what} cannot be completed; "
            f"`python launch.py restore --workspace {workspace} --undo` puts the old files back"
        )
    # The log first: it must never lie beside a database file that is not its own.
    for name in (*plan.outdated, *plan.files):
        if _is_old(workspace, plan, name):
            move(workspace / name, aside / name)
    for name in plan.files:
        if new(workspace, name).exists():
            move(new(workspace, name), workspace / name)
    remove(workspace / MARKER)
    return aside if plan.present else None


def undo(workspace: Path) -> None:
    """Put the old files back.  Raises NotFound when no replacement was interrupted."""
    plan = _read(workspace)
    aside = workspace / plan.aside
    for name in plan.files:
        if _is_new(workspace, plan, name):
            move(workspace / name, new(workspace, name))
    for name in reversed((*plan.outdated, *plan.files)):
        if (aside / name).exists():
            move(aside / name, workspace / name)
    remove(workspace / MARKER)
    for name in plan.files:
        remove(new(workspace, name))
    if aside.is_dir():
        aside.rmdir()


def _is_old(workspace: Path, plan: Replacement, name: str) -> bool:
    """Whether NAME is still the file that is to be replaced."""
    if name not in plan.present or (workspace / plan.aside / name).exists():
        return False
    return (workspace / name).exists()


def _is_new(workspace: Path, plan: Replacement, name: str) -> bool:
    """Whether NAME is the file that has taken the place of another."""
    if new(workspace, name).exists() or not (workspace / name).exists():
        return False
    return name not in plan.present or (workspace / plan.aside / name).exists()


def _read(workspace: Path) -> Replacement:
    path = workspace / MARKER
    if not path.exists():
        raise NotFound(f"no replacement of the files of {workspace} was interrupted")
    try:
        plan = Replacement(**{k: _tuple(v) for k, v in json.loads(path.read_text()).items()})
    except (ValueError, TypeError, AttributeError):
        plan = None
    if plan is None or not _is_ours(plan):
        raise StorageDamaged(
            f"{path} cannot be read. The old files are in the newest {workspace / BACKUPS}/replaced-*, "
            "the new ones end in .new: put either under their names, then remove the file"
        )
    return plan


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _is_ours(plan: Replacement) -> bool:
    """Whether it names files of a workspace and nothing else: it decides what is moved where."""
    names = {*plan.files, *plan.outdated, *plan.present}
    aside = Path(plan.aside)
    return names <= _REPLACEABLE and aside.parent == Path(BACKUPS) and aside.name != ".."
