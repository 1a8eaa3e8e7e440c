"""Disk states that a power failure may leave after any number of recorded changes.

Fsynced data is durable.  Of the later writes to a file, any part may be on the disk: none, all, the
first writes with the last one torn, any blocks of 512 or 4,096 bytes, or only the length with zeros
as content.  A created, renamed or removed name is durable once its folder was fsynced.  Until then,
the changes of one folder may be lost from any point on, while those of another are kept (journaling
file systems keep the order within a folder, and rename atomically).  For similar models see Pillai
et al., "All File Systems Are Not Created Equal", OSDI 2014.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from benchmarks.powercuts import recording
from benchmarks.powercuts.recording import Record


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes at an offset; with `data` None the file is truncated or zero-extended to `offset`."""

    offset: int
    data: bytes | None


@dataclass(eq=False)
class File:
    """A file's durable content, and its changes since the last fsync."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[Write] = field(default_factory=list)

    def sync(self) -> None:
        """Make all writes durable."""
        for write in self.pending:
            apply(self.durable, write)
        self.pending.clear()


@dataclass(eq=False)
class Folder:
    """A folder's durable names, and the names as the programs saw them."""

    durable: dict[str, Node] = field(default_factory=dict)
    live: dict[str, Node] = field(default_factory=dict)


Node: TypeAlias = File | Folder


@dataclass(frozen=True, slots=True)
class Naming:
    """An atomic change of names: removed entries, and at most one added."""

    removed: tuple[tuple[Folder, str], ...]
    folder: Folder | None = None
    name: str = ""
    node: Node | None = None

    @property
    def folders(self) -> set[Folder]:
        """The folders whose fsync makes the change durable."""
        return {folder for folder, _ in self.removed} | ({self.folder} if self.folder else set())


def apply(content: bytearray, write: Write) -> None:
    """Apply a write or a truncation to `content`."""
    if write.data is None:
        del content[write.offset :]
        content.extend(bytes(write.offset - len(content)))
        return
    if len(content) < write.offset:
        content.extend(bytes(write.offset - len(content)))
    content[write.offset : write.offset + len(write.data)] = write.data


class Disk:
    """Everything below `root`, changed record by record."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.top = Folder()
        self._by_inode: dict[int, Node] = {root.stat().st_ino: self.top}
        self._namings: list[Naming] = []

    def do(self, record: Record) -> None:
        """Apply one more record."""
        if record.op == recording.OPEN:
            self._open(record)
        elif record.op == recording.WRITE:
            self._file(record).pending.append(Write(record.number, record.data))
        elif record.op == recording.TRUNCATE:
            self._file(record).pending.append(Write(record.number, None))
        elif record.op == recording.SYNC:
            self._sync(self._by_inode[record.inode])
        elif record.op == recording.MKDIR:
            self._put(record.path, Folder(), record.inode)
        elif record.op == recording.UNLINK:
            folder, name = self._find(record.path)
            del folder.live[name]
            self._namings.append(Naming(((folder, name),)))
        elif record.op == recording.RENAME and record.path and record.other:
            self._rename(record)
        elif record.op == recording.LINK and record.path and record.other:
            folder, name = self._find(record.path)
            self._put(record.other, folder.live[name], record.inode)
        else:
            raise ValueError(f"a change that cannot be replayed: {record}")

    def whole(self) -> dict[str, bytes | None]:
        """Every path with its content as the programs left it; None for a folder."""

        def content(file: File) -> bytes:
            data = bytearray(file.durable)
            for write in file.pending:
                apply(data, write)
            return bytes(data)

        return {
            path: content(node) if isinstance(node, File) else None
            for path, node in _walk(self.top, lambda folder: folder.live)
        }

    def cut(self, coin: random.Random) -> dict[str, bytes | None]:
        """One state that a power failure could leave now; None for a folder."""
        names = self._names_kept(coin)
        contents: dict[File, bytes] = {}  # one content for a file with two names
        state: dict[str, bytes | None] = {}
        for path, node in _walk(self.top, lambda folder: names.get(folder, folder.durable)):
            if isinstance(node, File):
                state[path] = contents.setdefault(node, _content_kept(node, coin))
            else:
                state[path] = None
        return state

    # -- changes ---------------------------------------------------------------------------

    def _open(self, record: Record) -> None:
        folder, name = self._find(record.path)
        node = folder.live.get(name)
        if node is None:
            node = self._put(record.path, File(), record.inode)
        elif node is not self._by_inode.get(record.inode):
            raise ValueError(f"the recorder did not see the creation of {record.path}")
        if isinstance(node, File) and record.number & os.O_TRUNC:
            node.pending.append(Write(0, None))
        if record.number & (os.O_DSYNC | os.O_SYNC):
            raise ValueError(
                f"{record.path} is opened for synchronous writing, which is not replayed"
            )

    def _file(self, record: Record) -> File:
        node = self._by_inode[record.inode]
        assert isinstance(node, File)
        return node

    def _find(self, path: str) -> tuple[Folder, str]:
        *parents, name = Path(path).relative_to(self.root).parts
        folder = self.top
        for part in parents:
            below = folder.live[part]
            assert isinstance(below, Folder)
            folder = below
        return folder, name

    def _put(self, path: str, node: Node, inode: int) -> Node:
        folder, name = self._find(path)
        folder.live[name] = node
        self._by_inode[inode] = node
        self._namings.append(Naming((), folder, name, node))
        return node

    def _rename(self, record: Record) -> None:
        (old, from_), (new, to) = self._find(record.path), self._find(record.other)
        node = old.live.pop(from_)
        new.live[to] = node
        self._namings.append(Naming(((old, from_),), new, to, node))

    def _sync(self, node: Node) -> None:
        """Make a file's content durable, or a folder's names with the name changes before them."""
        if isinstance(node, File):
            node.sync()
            return
        wanted, durable = {node}, []
        for naming in reversed(self._namings):
            if naming.folders & wanted:
                wanted |= naming.folders
                durable.append(naming)
        for naming in reversed(durable):
            _name(naming, lambda folder: folder.durable)
        self._namings = [naming for naming in self._namings if naming not in durable]

    # -- states after a power failure ------------------------------------------------------

    def _names_kept(self, coin: random.Random) -> dict[Folder, dict[str, Node]]:
        """The kept names of every folder whose names differ from the durable ones."""
        names: dict[Folder, dict[str, Node]] = {}

        def of(folder: Folder) -> dict[str, Node]:
            return names.setdefault(folder, dict(folder.durable))

        how = coin.choice(("none", "all", "first", "by folder"))
        first = {"none": 0, "first": coin.randint(0, len(self._namings))}.get(how)
        ends = coin.choice((0.02, 0.2, 0.5)) if how == "by folder" else 0.0
        ended: set[Folder] = set()
        for naming in self._namings[:first]:
            if naming.folders & ended or coin.random() < ends:
                ended |= naming.folders
            else:
                _name(naming, of)
        return names


def _name(naming: Naming, names_of: Callable[[Folder], dict[str, Node]]) -> None:
    for folder, name in naming.removed:
        names_of(folder).pop(name, None)
    if naming.folder is not None and naming.node is not None:
        names_of(naming.folder)[naming.name] = naming.node


def _walk(
    folder: Folder, names_of: Callable[[Folder], dict[str, Node]], above: str = ""
) -> Iterator[tuple[str, Node]]:
    for name, node in names_of(folder).items():
        yield above + name, node
        if isinstance(node, Folder):
            yield from _walk(node, names_of, f"{above}{name}/")


def _content_kept(file: File, coin: random.Random) -> bytes:
    """A file's durable content, with some of the later writes."""
    content, pending = bytearray(file.durable), file.pending
    if not pending:
        return bytes(content)
    how = coin.choice(("none", "all", "torn", "blocks", "length"))
    block = coin.choice((512, 4096))
    if how == "length":
        whole = bytearray(content)
        for write in pending:
            apply(whole, write)
        content.extend(bytes(max(0, len(whole) - len(content))))
    elif how == "torn":
        count = coin.randint(1, len(pending))
        for write in pending[: count - 1]:
            apply(content, write)
        pieces = list(_pieces(pending[count - 1], block))
        for piece in pieces[: coin.randint(0, len(pieces))]:
            apply(content, piece)
    elif how != "none":
        kept = 1.0 if how == "all" else coin.choice((0.1, 0.5, 0.9))
        for write in pending:
            for piece in _pieces(write, block):
                if coin.random() < kept:
                    apply(content, piece)
    return bytes(content)


def _pieces(write: Write, block: int) -> Iterator[Write]:
    """A write, split at the file's block boundaries."""
    if write.data is None:
        yield write
        return
    begin, end = write.offset, write.offset + len(write.data)
    while begin < end:
        border = min(end, begin - begin % block + block)
        yield Write(begin, write.data[begin - write.offset : border - write.offset])
        begin = border
