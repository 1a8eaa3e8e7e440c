"""What a worker uses of the machine: written to resources.jsonl at a low rate, and summed up.

Not in events.jsonl: samples depend on time, and a resumed run must report the same events.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from pipeline.runs.rundir import RunDirectory

INTERVAL = 10.0
"""Seconds between samples."""
_FIRST = 1.0
"""Seconds before the first one."""


@contextmanager
def sampled(directory: RunDirectory, *, every: float = INTERVAL) -> Iterator[None]:
    """Sample what this process and its children use until the block ends; the end is a sample too."""
    ended = threading.Event()
    sampler = Sampler()

    def sample() -> None:
        pause = min(_FIRST, every)
        while not ended.wait(pause):
            _append(directory.resources, sampler.sample())
            pause = every

    thread = threading.Thread(target=sample, name="resources", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        _append(directory.resources, sampler.sample())


class Sampler:
    """Measures this process with its children."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._known: dict[int, psutil.Process] = {}
        self.sample()  # the first CPU value of a process is 0: there is no span to measure

    def sample(self) -> dict[str, Any]:
        """`cpu` is in cores, memory in bytes; `gpus` has the devices that torch uses.

        `cores`, `total` and `available` are the machine's.
        """
        found = [self._process, *self._process.children(recursive=True)]
        self._known = {each.pid: self._known.get(each.pid, each) for each in found}
        cpu = memory = 0.0
        for process in self._known.values():
            with suppress(psutil.Error):  # it has ended
                cpu += process.cpu_percent() / 100
                memory += process.memory_info().rss
        machine = psutil.virtual_memory()
        return {
            "time": time.time(),
            "cpu": round(cpu, 3),
            "memory": int(memory),
            "cores": psutil.cpu_count(),
            "total": machine.total,
            "available": machine.available,
            "gpus": _gpus(),
        }


def _gpus() -> list[dict[str, Any]]:
    """The GPUs, if the stage has imported torch and uses CUDA; utilisation needs NVML."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        gpu = {
            "name": torch.cuda.get_device_name(index), "memory": total - free, "total": total,
        }  # fmt: skip
        with suppress(Exception):  # pynvml is missing, or the driver does not say
            gpu["utilisation"] = torch.cuda.utilization(index) / 100
        found.append(gpu)
    return found


def _append(path: Path, sample: dict[str, Any]) -> None:
    with suppress(OSError), path.open("a", encoding="utf-8") as handle:  # a full disk: no sample
        handle.write(json.dumps(sample) + "\n")
