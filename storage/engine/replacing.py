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
from storage.engine.workspace import BACKUPS, DATABASE, JOURNAL, SETTINGS, WAL, holds_data, stamp
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


def is_settled(workspace: Path) -> bool:
    """Whether no replacement was interrupted.

    Ask before reporting that a file is missing: an interrupted replacement may have moved it.
    """
    return not (workspace / MARKER).exists() and _moved_without_marker(workspace) is None


def require_settled(workspace: Path) -> None:
    """Raise ReplacementUnfinished, naming the two ways out, where a replacement was interrupted.

    Raises StorageDamaged, naming the files to move by hand, where its marker cannot be read, or is
    gone while the database and the journal are both moved away.
    """
    if not is_settled(workspace):
        what = _read(workspace).what
        raise ReplacementUnfinished(
            f"{what} was interrupted, and {workspace} is part old and part new: "
            f"`{_command(workspace)} --finish` completes it, `{_command(workspace)} --undo` puts "
            "the old files back"
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

    Raises NotFound when there is none, and StorageDamaged, with nothing moved, when a new file is
    gone.
    """
    plan = _read(workspace)
    aside = workspace / plan.aside
    if gone := _gone_new(workspace, plan):
        raise _stuck(workspace, plan) or StorageDamaged(
            f"{gone[0]} is gone, so that {plan.what} cannot be completed; "
            f"`{_command(workspace)} --undo` puts the old files back"
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
    """Put the old files back.

    Raises NotFound when no replacement was interrupted, and StorageDamaged, with nothing moved,
    when an old file is gone: the new ones are then all that is left.
    """
    plan = _read(workspace)
    aside = workspace / plan.aside
    if gone := _gone_old(workspace, plan):
        raise _stuck(workspace, plan) or StorageDamaged(
            f"{gone[0]} is gone, so that the old files cannot be put back; "
            f"`{_command(workspace)} --finish` completes {plan.what}"
        )
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
    return (
        name in plan.present
        and (workspace / name).exists()
        and not _was_moved(workspace, plan, name)
    )


def _is_new(workspace: Path, plan: Replacement, name: str) -> bool:
    """Whether NAME is the file that has taken the place of another."""
    return _is_alone(workspace, name) and (
        name not in plan.present or _was_moved(workspace, plan, name)
    )


def _was_moved(workspace: Path, plan: Replacement, name: str) -> bool:
    """Whether the old NAME was moved aside, also where it has been deleted there since.

    Old files are moved in one order and put back in the reverse order, and new ones have their
    names only while all the old ones are aside.
    """
    aside = workspace / plan.aside
    order = [n for n in (*plan.outdated, *plan.files) if n in plan.present]
    return any((aside / n).exists() for n in order[order.index(name) :]) or any(
        _is_alone(workspace, n) and (n not in plan.present or (aside / n).exists())
        for n in plan.files
    )


def _is_alone(workspace: Path, name: str) -> bool:
    """Whether there is a NAME and no NAME.new."""
    return (workspace / name).exists() and not new(workspace, name).exists()


def _gone_new(workspace: Path, plan: Replacement) -> list[Path]:
    """The new files that are neither beside the old ones nor in their place."""
    return [
        new(workspace, name)
        for name in plan.files
        if not new(workspace, name).exists() and not _is_new(workspace, plan, name)
    ]


def _gone_old(workspace: Path, plan: Replacement) -> list[Path]:
    """The old files that are neither in their place nor aside."""
    aside = workspace / plan.aside
    return [
        aside / name
        for name in plan.present
        if not (aside / name).exists() and not _is_old(workspace, plan, name)
    ]


def _stuck(workspace: Path, plan: Replacement) -> StorageDamaged | None:
    """What to say where neither the new files nor the old ones are complete."""
    gone_old, gone_new = _gone_old(workspace, plan), _gone_new(workspace, plan)
    if not (gone_old and gone_new):
        return None
    return StorageDamaged(
        f"{plan.what} was interrupted and can be neither completed nor undone: "
        f"{', '.join(f'{path} is gone' for path in (*gone_old, *gone_new))}. Put one of them back, or restore a backup "
        "into a new directory with `python launch.py restore`"
    )


def _command(workspace: Path) -> str:
    return f"python launch.py restore --workspace {workspace}"


def _moved_without_marker(workspace: Path) -> Path | None:
    """Where the old files are, if database and journal were moved and the marker does not say so.

    No stop leaves that, as the marker is on the disk before a file is moved, but a marker may be
    deleted.  A workspace opened then would begin empty.
    """
    if holds_data(workspace) or not any(new(workspace, n).exists() for n in (DATABASE, JOURNAL)):
        return None
    replaced = sorted((workspace / BACKUPS).glob("replaced-*"), reverse=True)
    return next((aside for aside in replaced if holds_data(aside)), None)


def _read(workspace: Path) -> Replacement:
    path = workspace / MARKER
    if not path.exists():
        if aside := _moved_without_marker(workspace):
            raise StorageDamaged(
                f"{workspace} has no {DATABASE} and no {JOURNAL}: a restore or rebuild was "
                f"interrupted, and {path}, which notes how far it came, is gone. The old files are in "
                f"{aside}, the new ones end in .new: put either under their names"
            )
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
