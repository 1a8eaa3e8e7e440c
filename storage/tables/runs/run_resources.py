"""What the workers of runs used of the machine, from the files that they wrote."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any, BinaryIO

from storage.engine.database import Database
from storage.records import Run

_READ = 1_048_576
"""Bytes of a file that are read: about a day of samples."""
_POINTS = 240
"""Points of a history, at most, without its pauses."""
_LINES = 4 * _POINTS
"""Lines that are read of a longer file, at even distances."""
_PAUSE = 60.0
"""Seconds without a sample after which a worker is taken to have ended, at least."""

Sample = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class GpuUse:
    """A GPU in the newest sample, in bytes; `utilisation` is a share, None without NVML."""

    name: str
    memory: int
    total: int
    peak: int
    utilisation: float | None


@dataclass(frozen=True, kw_only=True)
class ResourceUse:
    """What a run used: CPU in cores, memory in bytes.

    `cpu`, `memory` and `gpus` are the newest sample, `peak` the most memory of any. `cores`, `total`
    and `available` memory are the machine's; None in runs of older versions.
    """

    samples: int
    cpu: float
    mean_cpu: float
    memory: int
    peak: int
    gpus: tuple[GpuUse, ...]
    cores: int | None = None
    total: int | None = None
    available: int | None = None


@dataclass(frozen=True, kw_only=True)
class GpuHistory:
    """A GPU over time: memory in bytes, utilisation as a share; NaN where unknown."""

    name: str
    total: int
    memory: Sequence[float]
    utilisation: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class ResourceHistory:
    """What a run used over time; all sequences are as long as `seconds`.

    `seconds` count the time that a worker ran. Between two attempts, every other value is NaN.
    """

    seconds: Sequence[float]
    cpu: Sequence[float]
    """In cores."""
    memory: Sequence[float]
    """In bytes."""
    gpus: tuple[GpuHistory, ...]
    total: int | None
    """The machine's memory in bytes."""


def used(db: Database, run: Run) -> ResourceUse | None:
    """What a run uses, or used until its end; None if no sample was taken."""
    found: list[Sample] = []
    with suppress(OSError), _file(db, run).open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _READ))
        found = list(_parsed(file))
    if not found:
        return None
    newest = found[-1]
    return ResourceUse(
        samples=len(found),
        cpu=newest["cpu"],
        mean_cpu=round(sum(each["cpu"] for each in found) / len(found), 3),
        memory=newest["memory"],
        peak=max(each["memory"] for each in found),
        gpus=tuple(
            GpuUse(
                name=gpu["name"],
                memory=gpu["memory"],
                total=gpu["total"],
                peak=max(e["gpus"][i]["memory"] for e in found if len(e["gpus"]) > i),
                utilisation=gpu.get("utilisation"),
            )
            for i, gpu in enumerate(newest["gpus"])
        ),
        cores=newest.get("cores"),
        total=newest.get("total"),
        available=newest.get("available"),
    )


def version(db: Database, run: Run) -> int:
    """A number that changes with every sample of a run."""
    with suppress(OSError):
        return _file(db, run).stat().st_size
    return 0


def history(db: Database, run: Run) -> ResourceHistory | None:
    """What a run used over time, in at most `_POINTS` points; None if no sample was taken."""
    found: list[Sample] = []
    with suppress(OSError), _file(db, run).open("rb") as file:
        found = list(_parsed(_spread(file)))
    if not found:
        return None
    at, parts = _working_time(found)
    width = math.ceil(len(found) / _POINTS)
    # Each point is a range of samples; None is a pause.
    points: list[range | None] = []
    for part in parts:
        points += [None] if points else []
        points += [part[i : i + width] for i in range(0, len(part), width)]
    devices = max((each["gpus"] for each in found), key=len)
    return ResourceHistory(
        seconds=[round(x, 3) for x in _positions(points, at)],
        cpu=_means(points, [each["cpu"] for each in found]),
        memory=_highest(points, [each["memory"] for each in found]),
        gpus=tuple(
            GpuHistory(
                name=gpu["name"],
                total=gpu["total"],
                memory=_highest(points, _of_gpu(found, i, "memory")),
                utilisation=_means(points, _of_gpu(found, i, "utilisation")),
            )
            for i, gpu in enumerate(devices)
        ),
        total=found[-1].get("total"),
    )


def _file(db: Database, run: Run) -> Path:
    return db.workspace / run.directory / "resources.jsonl"


def _parsed(lines: Iterator[bytes] | BinaryIO) -> Iterator[Sample]:
    for line in lines:
        with suppress(ValueError):  # cut off
            yield json.loads(line)


def _spread(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file; of a long one some at even distances, with the last ones."""
    size = file.seek(0, 2)
    file.seek(0)
    if size <= _READ:
        yield from file
        return
    read_to = 0
    for i in range(_LINES):
        place = i * size // _LINES
        if place < read_to:
            continue
        file.seek(place)
        if place:
            file.readline()  # the rest of a line
        yield file.readline()
        read_to = file.tell()
    yield from file


def _working_time(found: Sequence[Sample]) -> tuple[list[float], list[range]]:
    """The seconds that a worker had run at each sample, and the ranges of samples of each attempt."""
    times = [float(each["time"]) for each in found]
    steps = [late - early for early, late in pairwise(times)]
    usual = max(median(steps), 0.001) if steps else 0.0
    at, starts = [0.0], [0]
    for i, step in enumerate(steps, start=1):
        paused = not 0 < step <= max(_PAUSE, 5 * usual)  # or the clock was set back
        if paused:
            starts.append(i)
        at.append(at[-1] + (usual if paused else step))
    ends = [*starts[1:], len(found)]
    return at, [range(start, end) for start, end in zip(starts, ends, strict=True)]


def _positions(points: Sequence[range | None], at: Sequence[float]) -> Iterator[float]:
    """The time of each point; of a pause, the middle between the samples beside it."""
    last = 0
    for each in points:
        if each is None:
            yield (at[last] + at[last + 1]) / 2
        else:
            last = each[-1]
            yield fmean(at[i] for i in each)


def _of_gpu(found: Sequence[Sample], index: int, name: str) -> list[float]:
    return [
        math.nan
        if len(each["gpus"]) <= index or (value := each["gpus"][index].get(name)) is None
        else value
        for each in found
    ]


def _means(points: Sequence[range | None], values: Sequence[float]) -> list[float]:
    return [fmean(known) if (known := _known(each, values)) else math.nan for each in points]


def _highest(points: Sequence[range | None], values: Sequence[float]) -> list[float]:
    return [max(_known(each, values), default=math.nan) for each in points]


def _known(point: range | None, values: Sequence[float]) -> list[float]:
    return [values[i] for i in point or () if not math.isnan(values[i])]
