"""The studio's side of an attempt: sends its files, then keeps the local run directory up to date.

A thread does this, because a model takes minutes: the loop, which asks every second, only reads what it
says.  Whatever fails is tried again two seconds later.  The outcome is written last, so
`pipeline.runs.jobs` reads the run directory as if the worker had written it.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pipeline.runs.rundir import RunDirectory, read_json, read_text, write_atomically
from pipeline.runs.staging.inputs import node_files
from pipeline.runs.staging.layout import (
    EVERY,
    GROWING,
    OUTCOMES,
    PARTS,
    RETURNED,
    amount,
    folder,
    require_inside,
)
from pipeline.runs.staging.store import Store, Stored, StoreError, checked
from pipeline.runs.staging.streams import Receiver, write_at

_CURSORS = "staged.json"
"""How much of the node's log was received: a restarted studio must not append it again."""


class StagedAttempt:
    """The files of one attempt, named `job`, in the store at `url`.

    `uploads` says whether the node's files are still to be sent.  After `close` nothing local is
    written any more.
    """

    def __init__(self, url: str, directory: RunDirectory, job: str, *, uploads: bool) -> None:
        self._url, self._directory, self._folder = url, directory, folder(job)
        self._opened: Store | None = None
        self.uploading = uploads
        self.finished = False
        """Whether the node's outcome is in the local run directory."""
        self.problem = ""
        """Why the last exchange failed; empty if it did not."""
        self._doing = ""
        self._moved = self._total = 0
        self._receivers: dict[str, Receiver] = {}
        self._checksums: dict[Path, tuple[int, int, str]] = {}
        self._told_to_stop = self._settling = self._settled = False
        self._closed: Literal["", "studio ends", "finished", "given up"] = ""
        self._writing = threading.RLock()
        self._wake = threading.Event()
        threading.Thread(target=self._work, name=f"staging {job}", daemon=True).start()

    def message(self) -> str | None:
        """What it does or why it cannot, if there is something to say."""
        if self.problem:
            return f"{self.problem}; it is tried again"
        if self._total:
            return f"{self._doing} ({amount(self._moved, self._total)})"
        return self._doing or None

    def settle(self) -> bool:
        """Fetch everything that an ended worker left; True if that was done since the first call."""
        if not self._settling:
            self._settling = True
            self.wake()
        return self._settled

    def unsettle(self) -> None:
        """Forget `settle`: the worker lives."""
        self._settling = self._settled = False

    def close(self, how: Literal["studio ends", "finished", "given up"]) -> None:
        """Write nothing local any more; unless the studio ends, remove the attempt's files."""
        with self._writing:
            self._closed = how
        self.wake()

    def wake(self) -> None:
        """Exchange files now."""
        self._wake.set()

    def _work(self) -> None:
        while self._closed != "studio ends":
            settling, closed = self._settling, self._closed
            try:
                if closed:
                    self._clear(closed)
                    return
                self._exchange(settling)
                self.problem = ""
                self._settled = self._settling and settling
            except StoreError as error:
                self.problem = str(error)
            except Exception as error:  # a full disk, or a file that a node should not have written
                self.problem = f"staging failed ({type(error).__name__}: {error})"
            self._wake.wait(EVERY)
            self._wake.clear()

    @property
    def _store(self) -> Store:
        if self._opened is None:
            self._opened = Store(self._url)
        return self._opened

    def _exchange(self, settling: bool) -> None:
        if self.uploading:
            self._upload()
            self.uploading = False
            return
        self._pass_on_cancel()
        self._pull(settling)

    # To the node

    def _upload(self) -> None:
        files = node_files(self._directory)
        everything = [*files.models.values(), *files.own.values()]
        self._begin(f"sends its files to {self._url}", sum(f.stat().st_size for f in everything))
        sent: dict[str, Stored] = {}
        for name, file in files.models.items():
            self._require_open()
            sent[name] = self._store.put_model(file, self._count, checksum=self._checksum(file))
        for number, (name, file) in enumerate(files.own.items(), 1):
            self._require_open()
            sent[name] = self._store.put(file, f"{self._folder}/in/{number:06d}", self._count)
        self._store.write(
            f"{self._folder}/in.json",
            {
                "workspace": self._directory.path.resolve().parents[1].name,
                "run": self._directory.path.name,
                "job": files.job,
                "files": {name: stored.to_json() for name, stored in sent.items()},
            },
        )
        self._begin("")

    def _checksum(self, file: Path) -> str:
        """SHA-256 of a model's file, computed once."""
        found = file.stat()
        known = self._checksums.get(file)
        if known is None or known[:2] != (found.st_size, found.st_mtime_ns):
            known = self._checksums[file] = (found.st_size, found.st_mtime_ns, checked(file)[1])
        return known[2]

    def _pass_on_cancel(self) -> None:
        if not self._told_to_stop and (when := read_text(self._directory.path / "cancel")):
            self._store.write(f"{self._folder}/cancel", {"when": when})
            self._told_to_stop = True

    # From the node

    def _pull(self, settling: bool) -> None:
        # Read first: what it names, and the events before it, are in the store already.
        out = self._read("out.json")
        beat = self._read("beat.json")
        if beat is not None:
            self._take_beat(beat)
        if out is not None and (settling or out["outcome"]):
            self._fetch(out)

    def _take_beat(self, beat: Mapping[str, Any]) -> None:
        self._begin(beat["doing"])
        for name, position in beat["streams"].items():
            self._receiver(name, position["name"]).receive(position["part"])
        self._write("heartbeat.json", json.dumps(beat["heartbeat"]))
        if read_json(self._directory.transfer) != (moved := {"bytes": beat["moved"]}):
            self._write(self._directory.transfer.name, json.dumps(moved))

    def _receiver(self, name: str, stream: str) -> Receiver:
        """The receiver of a file that grows."""
        if name not in self._receivers:
            if name not in GROWING:
                require_inside(name, ("trackers",))
            # The studio writes into these two as well, or an attempt before did.
            appended = name in ("log.txt", "resources.jsonl")
            write = self._append if appended else self._place
            self._receivers[name] = Receiver(
                self._store,
                f"{self._folder}/{require_inside(stream, ('streams',))}",
                lambda start, data: self._locally(lambda: write(name, start, data)),
            )
        return self._receivers[name]

    def _place(self, name: str, start: int, data: bytes) -> None:
        write_at(self._directory.path / name, start, data)

    def _append(self, name: str, start: int, data: bytes) -> None:
        path, job = self._directory.path / _CURSORS, self._folder
        known = read_json(path) or {}
        cursors = known.get(job, {})
        new = data[max(0, cursors.get(name, 0) - start) :]
        with (self._directory.path / name).open("ab") as file:
            file.write(new)
        received = max(cursors.get(name, 0), start + len(data))
        write_atomically(path, json.dumps({job: cursors | {name: received}}))

    def _fetch(self, out: Mapping[str, Any]) -> None:
        """Copy the node's files here, and then the outcome."""
        files = {
            require_inside(name, RETURNED): Stored(**stored)
            for name, stored in out["files"].items()
        }
        self._begin(f"fetches its files from {self._url}", sum(f.size for f in files.values()))
        for name, stored in files.items():
            self._fetch_file(stored, self._directory.path / name)
        self._locally(lambda: self._remove_old_checkpoints(files))
        for name, text in (out["outcome"] or {}).items():
            if name in OUTCOMES:
                self.finished = True  # before a poll can see the file
                self._write(name, text)
        self._begin("")

    def _fetch_file(self, stored: Stored, to: Path) -> None:
        self._require_open()
        if to.is_file() and to.stat().st_size == stored.size and checked(to)[1] == stored.sha256:
            self._count(stored.size)
            return
        name = stored.name
        ours = (f"{self._folder}/files/", f"{self._folder}/in/", "models/")
        if not name.startswith(ours) or ".." in name:
            raise ValueError(f"the store names the object {name!r}, which is not of this attempt")
        draft = self._directory.path / ".staged" / to.name
        self._store.fetch(stored, draft, self._count)
        self._locally(lambda: _move(draft, to))

    def _remove_old_checkpoints(self, kept: Mapping[str, Stored]) -> None:
        """Leave the checkpoints that the node had: a stage deletes older ones."""
        shutil.rmtree(self._directory.path / ".staged", ignore_errors=True)
        if not any(name.startswith("checkpoint/") for name in kept):
            return
        for file in sorted(self._directory.checkpoint.rglob("*"), reverse=True):
            if file.is_dir():
                with suppress(OSError):  # it is not empty
                    file.rmdir()
            elif file.relative_to(self._directory.path).as_posix() not in kept:
                file.unlink()

    # Both

    def _clear(self, closed: str) -> None:
        """Remove the attempt's files; tell a worker that was given up."""
        if closed == "given up":
            self._store.write(f"{self._folder}/over", {})
            for name in PARTS:
                self._store.remove(f"{self._folder}/{name}")
        else:
            self._store.remove(self._folder)

    def _read(self, name: str) -> dict[str, Any] | None:
        found = self._store.read(f"{self._folder}/{name}")
        return found[0] if found else None

    def _write(self, name: str, text: str) -> None:
        self._locally(lambda: write_atomically(self._directory.path / name, text))

    def _locally(self, write: Callable[[], None]) -> None:
        with self._writing:
            self._require_open()
            write()

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError("the attempt has ended")

    def _begin(self, doing: str, total: int = 0) -> None:
        self._doing, self._total, self._moved = doing, total, 0

    def _count(self, size: int) -> None:
        self._moved += size


def _move(draft: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    draft.replace(to)
