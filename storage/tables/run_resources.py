"""What the workers of runs used of the machine, from the files that they wrote."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from storage.engine.database import Database
from storage.records import Run

_READ = 1_048_576
"""Bytes of a file that are read: about two days of samples."""


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

    `cpu`, `memory` and `gpus` are the newest sample, `peak` the most memory of any.
    """

    samples: int
    cpu: float
    mean_cpu: float
    memory: int
    peak: int
    gpus: tuple[GpuUse, ...]


def used(db: Database, run: Run) -> ResourceUse | None:
    """What a run uses, or used until its end; None if no sample was taken."""
    found: list[dict[str, Any]] = []
    with suppress(OSError), (db.workspace / run.directory / "resources.jsonl").open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _READ))
        for line in file:
            with suppress(ValueError):  # cut off
                found.append(json.loads(line))
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
    )
