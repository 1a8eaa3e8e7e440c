"""What a node sends: files as they grow, complete checkpoints, and at the end all that the stage made."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.runs.rundir import RunDirectory
from pipeline.runs.staging.layout import GROWING, OUTCOMES
from pipeline.runs.staging.model_cache import ModelCache
from pipeline.runs.staging.store import Store, Stored, StoreError
from pipeline.runs.staging.streams import Sender
from pipeline.runs.tensorboard import TRACKERS

_RESULTS = ("outputs", "snapshots", "trackers")

Identity = tuple[int, int, int]


class Outbox:
    """The files of one run directory, in the store below `folder`.

    `report` tells the studio how far the growing files are: a checkpoint counts once the events before
    it have arrived.  `counted` is told the bytes of other files as they go.  A model that was made here
    is kept in `models`.
    """

    def __init__(
        self,
        store: Store,
        folder: str,
        directory: RunDirectory,
        *,
        report: Callable[[], None],
        counted: Callable[[int], None],
        models: ModelCache,
    ) -> None:
        self._store, self._folder, self._directory = store, folder, directory
        self._models = models
        self._report, self._counted = report, counted
        self._senders: dict[str, Sender] = {}
        self._streaming = threading.Lock()
        self._sent: dict[str, tuple[Identity, Stored]] = {}
        self._listed: dict[str, Identity] = {}
        self._objects = 0

    def received(self, file: Path, stored: Stored) -> None:
        """Note that a file of the run directory came from the store, which has it already."""
        self._sent[self._name(file)] = (_identity(file), stored)

    def open_streams(self) -> None:
        """Send what the files grow by from now on; the studio has the events of earlier attempts."""
        events = self._directory.events
        with self._streaming:
            for name in GROWING:
                has = name == events.name and events.exists()
                self._add_sender(name, sent=events.stat().st_size if has else 0)

    def send_streams(self) -> dict[str, Any]:
        """Send what the growing files got; return how far each is."""
        with self._streaming:
            for file in self._directory.path.glob(f"{TRACKERS}/**/*tfevents*"):
                if (name := self._name(file)) not in self._senders:
                    self._add_sender(name)
            for sender in self._senders.values():
                sender.send()
            return {name: each.position() for name, each in self._senders.items()}

    def send_checkpoint(self, scratch: Path) -> None:
        """Send the checkpoints if they have changed and none is being written."""
        listed = self._listing("checkpoint")
        if listed == self._listed or listed != self._listing("checkpoint"):
            return
        with self._kept(listed, scratch) as files:
            self._report()
            self._send_files(files)
            self._write_out(listed, outcome={})
        self._listed = listed

    def send_all(self, *, worked: bool) -> None:
        """Send all files that the stage made and the outcome.

        If the worker did not start, only the outcome: the checkpoints here may be incomplete, and the
        studio has all of them.
        """
        outcome = {
            name: (self._directory.path / name).read_text()
            for name in OUTCOMES
            if (self._directory.path / name).exists()
        }
        made = (*_RESULTS, "model" if "result.json" in outcome else "checkpoint")
        folders = made if worked else ()
        listed = {name: each for at in folders for name, each in self._listing(at).items()}
        self._send_files({name: self._directory.path / name for name in listed})
        self._report()
        self._write_out(listed, outcome=outcome)
        self._report()

    def _add_sender(self, name: str, *, sent: int = 0) -> None:
        file, stream = self._directory.path / name, f"streams/{len(self._senders) + 1}"
        self._senders[name] = Sender(self._store, self._folder, stream, file, sent=sent)

    def _send_files(self, files: Mapping[str, Path]) -> None:
        for name, file in files.items():
            identity = _identity(file)
            known = self._sent.get(name)
            if known is not None and known[0] == identity:
                continue
            if name.startswith("model/"):
                stored = self._store.put_model(file, self._counted)
                self._models.keep(stored, file)
            else:
                self._objects += 1
                object = f"{self._folder}/files/{self._objects:06d}"
                stored = self._store.put(file, object, self._counted)
            if _identity(file) != identity:
                raise StoreError(f"{name} changed while it was sent")
            self._sent[name] = (identity, stored)

    def _write_out(self, names: Mapping[str, Any], *, outcome: Mapping[str, str]) -> None:
        """Say which files there are; then remove what is no longer one of them."""
        files = {name: self._sent[name][1] for name in names}
        self._store.write(
            f"{self._folder}/out.json",
            {
                "files": {name: stored.to_json() for name, stored in files.items()},
                "outcome": dict(outcome),
            },
        )
        for name in [name for name in self._sent if name not in files]:
            stored = self._sent.pop(name)[1]
            if stored.name.startswith(f"{self._folder}/files/"):
                with suppress(StoreError):  # the studio removes the whole folder at the end
                    self._store.remove(stored.name)

    def _listing(self, at: str) -> dict[str, Identity]:
        """The visible files of a folder of the run."""
        found: dict[str, Identity] = {}
        for file in sorted((self._directory.path / at).rglob("*")):
            name = self._name(file)
            hidden = any(part.startswith(".") for part in Path(name).parts)
            if hidden or name in self._senders or not file.is_file():
                continue
            with suppress(FileNotFoundError):
                found[name] = _identity(file)
        return found

    @contextmanager
    def _kept(self, listed: Mapping[str, Identity], scratch: Path) -> Iterator[dict[str, Path]]:
        """Links to the files of checkpoints, which the stage may delete meanwhile."""
        with TemporaryDirectory(dir=scratch) as links:
            kept = {name: Path(links, str(number)) for number, name in enumerate(listed)}
            for name, link in kept.items():
                link.hardlink_to(self._directory.path / name)
            yield kept

    def _name(self, file: Path) -> str:
        return file.relative_to(self._directory.path).as_posix()


def _identity(file: Path) -> Identity:
    """What tells whether a file is the one that was sent."""
    found = file.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns
