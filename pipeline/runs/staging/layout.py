"""What the studio and a node exchange in the store, below `URL/runs/JOB/` for one attempt.

::

    in.json          from the studio, written last: the files that the node gets
    in/000001        those of this run; models are in URL/models/, by their SHA-256, for all runs
    cancel, over     from the studio: the researcher asked to stop; this attempt was given up
    beat.json        from the node, every two seconds: its heartbeat, and how far each stream was sent
    streams/…        from the node: events, log and resources as they grow
    files/000001     from the node: checkpoints while it works, then what the stage made
    out.json         from the node: the files of its newest checkpoint; at the end all files and the outcome

An attempt has a folder of its own, so one that was given up cannot touch the files of the next.
"""

from __future__ import annotations

from pathlib import PurePosixPath

EVERY = 2.0
"""Seconds between two exchanges."""
RETURNED = ("outputs", "model", "checkpoint", "snapshots", "trackers")
"""The folders of a run directory that a node fills."""
PARTS = ("in.json", "in", "cancel", "files", "streams", "out.json", "beat.json")
"""All names in the folder of an attempt but `over`."""
OUTCOMES = ("result.json", "error.json")
LAST_WORDS = "kitestring: "
"""How the last line begins that a node prints if it cannot use the store."""
GROWING = ("events.jsonl", "log.txt", "resources.jsonl")


def folder(job: str) -> str:
    """The folder of an attempt, by the name of its job."""
    return f"runs/{job}"


def amount(moved: int, total: int) -> str:
    """How much of the bytes has arrived: ``1.2 of 3.4 GB``."""
    unit, size = ("GB", 1e9) if total >= 1e9 else ("MB", 1e6)
    return f"{moved / size:.1f} of {total / size:.1f} {unit}"


def require_inside(name: str, folders: tuple[str, ...] | None = None) -> str:
    """`name`, a path below a run directory; ValueError for one that leads elsewhere.

    Whoever can write to the store could otherwise replace any file of the reader.
    """
    path = PurePosixPath(name)
    leaves = path.is_absolute() or ".." in path.parts or "\\" in name or not path.parts
    if leaves or (folders is not None and (len(path.parts) < 2 or path.parts[0] not in folders)):
        raise ValueError(f"the store names the file {name!r}, which a run does not have")
    return name
