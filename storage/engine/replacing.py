"""Replacing files of a workspace, so that an interruption at any moment loses nothing.

The new files are written beside the old ones as NAME.new.  When they are complete, a marker file is
written.  Then the old files move to `backups/replaced-TIME/`, the new ones take their names, and
the marker is removed::

    NAME (old), NAME.new  ──▶  backups/…/NAME (old), NAME.new  ──▶  backups/…/NAME (old), NAME (new)

Each step is one rename, so the existing files show how many steps are done.  `finish` does the
remaining steps, and `undo` reverts the completed ones.  While the marker exists,
`refuse_pending_replacement` refuses the workspace.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from storage.engine.files import make_folder, move, remove, sync, write_file
from storage.engine.workspace import BACKUPS, DATABASE, JOURNAL, SETTINGS, WAL, holds_data, stamp
from storage.errors import NotFound, ReplacementUnfinished, StorageDamaged

MARKER = "replacing.json"
_REPLACEABLE = frozenset({DATABASE, WAL, JOURNAL, SETTINGS})


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """The content of the marker."""

    what: str
    """The operation, for messages: "restoring /backups/monday"."""
    files: tuple[str, ...]
    """Names that get new content."""
    outdated: tuple[str, ...]
    """Names that get no new content: a write-ahead log belongs to one database file."""
    present: tuple[str, ...]
    """Those of `outdated` and `files`, in this order, that existed before."""
    aside: str
    """Folder of the old files, relative to the workspace."""

    def renames(self, workspace: Path) -> list[tuple[Path, Path]]:
        """All steps in order: the old files move aside, then the new ones take their names."""
        aside = workspace / self.aside
        return [
            *((workspace / name, aside / name) for name in self.present),
            *((replacement_path(workspace, name), workspace / name) for name in self.files),
        ]


_MARKER_CONTENT = TypeAdapter(Replacement)


def replacement_path(workspace: Path, name: str) -> Path:
    """Where the new content of a file is written before the file is replaced."""
    return workspace / f"{name}.new"


def replacement_pending(workspace: Path) -> bool:
    """Whether a replacement was interrupted and neither finished nor undone.

    Check this before you report a missing file: an interrupted replacement may have moved it.
    """
    return (workspace / MARKER).exists() or _moved_without_marker(workspace) is not None


def refuse_pending_replacement(workspace: Path) -> None:
    """Raise ReplacementUnfinished, naming both repair commands, if a replacement was interrupted.

    Raises StorageDamaged, naming the files to rename by hand, if the marker cannot be read, or if
    marker, database and journal are all missing.
    """
    if replacement_pending(workspace):
        what = _read(workspace).what
        raise ReplacementUnfinished(
            f"{what} was interrupted, and {workspace} contains old and new files: "
            f"`{_command(workspace)} --finish` completes it, `{_command(workspace)} --undo` puts "
            "the old files back"
        )


def replace(
    workspace: Path, names: Sequence[str], *, outdated: Sequence[str] = (), what: str
) -> Path | None:
    """Put NAME.new in place of each of `names`; returns the folder of the old files, None if there
    were none.

    The caller holds the workspace's lock.  `what` completes the sentence "… was interrupted".
    """
    for name in names:
        sync(replacement_path(workspace, name))
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
                f"{workspace / BACKUPS} is on another filesystem than {workspace}, so files cannot "
                "be renamed into it; make it a directory of the workspace"
            )
    try:
        write_file(workspace / MARKER, json.dumps(asdict(plan)))
    except OSError:
        if present and not (workspace / MARKER).exists():
            aside.rmdir()
        raise
    return finish(workspace)


def finish(workspace: Path) -> Path | None:
    """Complete an interrupted replacement; returns the folder of the old files, None if there were
    none.

    Raises NotFound if no replacement was interrupted, and StorageDamaged, before anything is moved,
    if a new file is gone.
    """
    plan = _read(workspace)
    done, gone_old, gone_new = _progress(workspace, plan)
    if gone_new:
        raise _incomplete(workspace, plan, gone_old, gone_new)
    for source, target in plan.renames(workspace)[done:]:
        if source.exists():  # an old file may have been deleted
            move(source, target)
    remove(workspace / MARKER)
    return workspace / plan.aside if plan.present else None


def undo(workspace: Path) -> None:
    """Put the old files back.

    Raises NotFound if no replacement was interrupted, and StorageDamaged, before anything is moved,
    if an old file is gone: then only the new ones are complete.
    """
    plan = _read(workspace)
    done, gone_old, gone_new = _progress(workspace, plan)
    if gone_old:
        raise _incomplete(workspace, plan, gone_old, gone_new)
    for source, target in reversed(plan.renames(workspace)[:done]):
        if target.exists():  # a new file may have been deleted
            move(target, source)
    remove(workspace / MARKER)
    for name in plan.files:
        remove(replacement_path(workspace, name))
    if (workspace / plan.aside).is_dir():
        (workspace / plan.aside).rmdir()


def _progress(workspace: Path, plan: Replacement) -> tuple[int, list[Path], list[Path]]:
    """How many renames are done, and which old and which new files have been deleted since.

    The number is the smallest one that is consistent with the place of every existing file.
    """
    renames = plan.renames(workspace)
    existing = {path for rename in renames for path in rename if path.exists()}
    for done in range(len(renames) + 1):
        places = [target if n < done else source for n, (source, target) in enumerate(renames)]
        if existing <= {*places}:
            old, new = places[: len(plan.present)], places[len(plan.present) :]
            return done, _gone(old), _gone(new)
    raise StorageDamaged(
        f"{plan.what} was interrupted, and files have been moved since. {_manual_repair(workspace)}"
    )


def _gone(places: list[Path]) -> list[Path]:
    return [path for path in places if not path.exists()]


def _incomplete(
    workspace: Path, plan: Replacement, gone_old: list[Path], gone_new: list[Path]
) -> StorageDamaged:
    """The error for deleted files; it names the other command if its files are complete."""
    if gone_old and gone_new:
        return StorageDamaged(
            f"{plan.what} was interrupted and can be neither completed nor undone: "
            f"{', '.join(f'{path} is gone' for path in (*gone_old, *gone_new))}. Put one of them "
            "back, or restore a backup into a new directory with `python launch.py restore`"
        )
    if gone_new:
        return StorageDamaged(
            f"{gone_new[0]} is gone, so {plan.what} cannot be completed; "
            f"`{_command(workspace)} --undo` puts the old files back"
        )
    return StorageDamaged(
        f"{gone_old[0]} is gone, so the old files cannot be put back; "
        f"`{_command(workspace)} --finish` completes {plan.what}"
    )


def _command(workspace: Path) -> str:
    return f"python launch.py restore --workspace {workspace}"


def _manual_repair(workspace: Path) -> str:
    return (
        f"The old files are in the newest {workspace / BACKUPS}/replaced-*, the new ones end in "
        f".new: rename either set to the original names, then remove {workspace / MARKER}"
    )


def _moved_without_marker(workspace: Path) -> Path | None:
    """The folder of the old files if database and journal were moved and the marker was deleted.

    No interruption causes this, because the marker is on the disk before a file is moved.  But to
    open the workspace in this state would create an empty one.
    """
    if holds_data(workspace) or not any(
        replacement_path(workspace, n).exists() for n in (DATABASE, JOURNAL)
    ):
        return None
    replaced = sorted((workspace / BACKUPS).glob("replaced-*"), reverse=True)
    return next((aside for aside in replaced if holds_data(aside)), None)


def _read(workspace: Path) -> Replacement:
    path = workspace / MARKER
    if not path.exists():
        if aside := _moved_without_marker(workspace):
            raise StorageDamaged(
                f"{workspace} has no {DATABASE} and no {JOURNAL}: a restore or rebuild was "
                f"interrupted, and its marker {path} is gone. The old files are in {aside}, the "
                "new ones end in .new: rename either set to the original names"
            )
        raise NotFound(f"no replacement of the files of {workspace} was interrupted")
    try:
        plan = _MARKER_CONTENT.validate_json(path.read_bytes())
    except ValidationError:
        plan = None
    if plan is None or not _is_safe(plan):
        raise StorageDamaged(f"{path} cannot be read. {_manual_repair(workspace)}")
    return plan


def _is_safe(plan: Replacement) -> bool:
    """Whether the marker names only files of a workspace: it determines which files are moved."""
    names = {*plan.files, *plan.outdated, *plan.present}
    aside = Path(plan.aside)
    return names <= _REPLACEABLE and aside.parent == Path(BACKUPS) and aside.name != ".."
