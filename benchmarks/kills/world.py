"""A workspace in its labeling phase, and a disk that fills up."""

from __future__ import annotations

import random
import resource
import subprocess
from pathlib import Path
from typing import Protocol

from storage.engine.database import Database
from storage.records import Annotator, Comparison, Completion, Iteration, ModelVersion, Prompt
from storage.tables import comparisons, completions, iterations, models, prompts
from storage.tables.people import annotators, tokens


def fill(workspace: Path, *, clients: int, pairs: int, seed: int) -> dict[str, str]:
    """Make a workspace with `pairs` to judge and one account per client.

    Returns the API tokens by annotator.
    """
    coin = random.Random(seed)
    with Database.open(workspace) as db:
        models.add(db, ModelVersion(id="sft-1", role="sft", name="SFT", path="demo"))
        asked = [Prompt.make(f"Question {n}?", role="train") for n in range(pairs)]
        texts = [
            Completion(id=f"r-{n}-{side}", prompt=p.id, policy="sft-1", text=f"Answer {n} {side}.")
            for n, p in enumerate(asked)
            for side in ("x", "y")
        ]
        made = [
            Comparison(
                id=f"c-{n}",
                prompt=p.id,
                first=f"r-{n}-x",
                second=f"r-{n}-y",
                iteration=1,
                arm="random",
                wanted=2 if coin.random() < 0.1 else 1,
                position=coin.randrange(2**62),
            )
            for n, p in enumerate(asked)
        ]
        prompts.add(db, asked)
        completions.add(db, texts)
        comparisons.add(db, made)
        labeling = Iteration(
            number=1, phase="labeling", policy_sampled="sft-1", labels_wanted=10**6
        )
        iterations.save(db, labeling)
        names = [f"a-{n}" for n in range(clients)]
        for name in names:
            annotators.add(db, Annotator(id=name, name=f"sim-{name}", kind="simulated"))
        return {name: tokens.issue(db, name, "api", lifetime=None) for name in names}


class Disk(Protocol):
    """The disk of a workspace, which can be made nearly full while a process writes to it."""

    def fill(self, pid: int, left: int) -> None:
        """Leave `left` bytes."""

    def free(self, pid: int) -> None:
        """Give the space back."""


class SmallDisk:
    """A tmpfs of 64 MiB that a file fills up, so that no file on it can grow."""

    def __init__(self, folder: Path) -> None:
        self.ballast = folder / "ballast"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=64m,mode=0700", "kitestring", folder]
        subprocess.run(command, check=True, timeout=60)

    def fill(self, pid: int, left: int) -> None:  # noqa: ARG002 (the disk is shared)
        # Leave twice as much at first, because the process continues to write meanwhile.
        with self.ballast.open("wb", buffering=0) as file:
            block = b"\0" * 65536
            try:
                while file.write(block) == len(block):
                    pass
            except OSError:
                pass
            file.truncate(max(0, file.tell() - left))

    def free(self, pid: int) -> None:  # noqa: ARG002
        self.ballast.unlink(missing_ok=True)


class FileLimit:
    """For systems without mounts: a kernel limit on the size of the process's files."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace

    def fill(self, pid: int, left: int) -> None:
        longest = max(path.stat().st_size for path in self.workspace.iterdir())
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (longest + left, resource.RLIM_INFINITY))

    def free(self, pid: int) -> None:
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
