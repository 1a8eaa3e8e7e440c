"""What a run used of the machine, as charts over the time that its worker ran. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from labeler.html import components
from labeler.html.components import Markup
from labeler.research.charts import Chart, Limit, Series, group
from storage.tables.runs.run_resources import GpuHistory, ResourceHistory

_GB = 1e9
_MOST_LINES = 4
"""GPUs with a line of their own."""
_UNITS = ((3 * 3600, 3600, "hour"), (180, 60, "minute"), (0, 1, "second"))
"""Seconds from which the axis has a unit, its length, and its name."""


def charts(found: ResourceHistory | None) -> Markup:
    """CPU, memory and, if the run used any, GPUs."""
    if found is None:
        return components.empty("No samples", "A run's worker writes one every ten seconds.")
    last = found.seconds[-1]
    length, unit = next((length, unit) for limit, length, unit in _UNITS if last >= limit)
    steps = [round(seconds / length, 4) for seconds in found.seconds]
    machine = (
        [Limit(found.total / _GB, f"all of {found.total / _GB:.1f} GB")] if found.total else []
    )
    drawn = [
        Chart(
            "CPU",
            [Series("CPU", steps, found.cpu)],
            "Cores that the worker and its processes keep busy.",
            y_title="cores",
        ),
        Chart(
            "Memory",
            [Series("memory", steps, _scaled(found.memory, 1 / _GB))],
            "Resident memory of the worker and its processes.",
            machine,
            y_title="GB",
        ),
    ]
    if found.gpus:
        drawn += _gpu_charts(found.gpus, steps)
    return group(drawn, x_title=unit, columns=True)


def _gpu_charts(gpus: Sequence[GpuHistory], steps: Sequence[float]) -> list[Chart]:
    least = min(gpu.total for gpu in gpus) / _GB
    names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus))
    return [
        Chart(
            "GPU utilisation",
            _lines(gpus, steps, [_scaled(gpu.utilisation, 100) for gpu in gpus]),
            f"Share of the time in which a kernel ran, by NVML. {names}.",
            y_title="%",
        ),
        Chart(
            "GPU memory",
            _lines(gpus, steps, [_scaled(gpu.memory, 1 / _GB) for gpu in gpus]),
            f"Memory in use on the device, by all programs. {names}.",
            [Limit(least, f"all of {least:.1f} GB")],
            y_title="GB",
        ),
    ]


def _lines(
    gpus: Sequence[GpuHistory], steps: Sequence[float], values: Sequence[Sequence[float]]
) -> list[Series]:
    """A line for each GPU; of many, the lowest, the mean and the highest."""
    if len(gpus) == 1:
        return [Series(gpus[0].name, steps, values[0])]
    if len(gpus) <= _MOST_LINES:
        return [Series(f"GPU {i}", steps, each) for i, each in enumerate(values)]
    known = [[v for v in at if not math.isnan(v)] for at in zip(*values, strict=True)]
    return [
        Series("lowest", steps, [min(at, default=math.nan) for at in known]),
        Series("mean", steps, [sum(at) / len(at) if at else math.nan for at in known]),
        Series("highest", steps, [max(at, default=math.nan) for at in known]),
    ]


def _scaled(values: Sequence[float], factor: float) -> list[float]:
    return [value * factor for value in values]
