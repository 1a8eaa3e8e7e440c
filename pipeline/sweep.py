"""A sweep over β: the same PPO run at several KL weights, on one plot of reward against KL.

It repeats the newest PPO run of a workspace (its prompts, models and settings) outside the loop:
nothing of the database changes, and it runs beside a live server.  Each run is a worker of its
own in ``sweeps/NAME/kl_weight=…``; a sweep that was stopped goes on where it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from pipeline.rundir import RunDirectory, write_atomically
from pipeline.studies import (
    copy_inputs,
    folder_of,
    held,
    newest_ppo_run,
    run_to_end,
    save_svg,
    svg_figure,
    tidy,
)

SMOOTHED = 5
"""Updates over which reward and KL are averaged before they are compared."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One run of the sweep: reward and KL by update, and samples of its end."""

    kl_weight: float
    reward: list[float]
    kl: list[float]
    spread: float
    """Standard deviation of the rewards of the first update: the SFT policy's."""
    samples: list[dict[str, Any]]

    def smoothed(self) -> list[tuple[float, float]]:
        """(KL, reward), each the mean of a window of updates."""
        starts = range(max(1, len(self.reward) - SMOOTHED + 1))
        return [
            (fmean(self.kl[i : i + SMOOTHED]), fmean(self.reward[i : i + SMOOTHED])) for i in starts
        ]

    def best_within(self, budget: float) -> float | None:
        """The highest reward reached at a KL of at most `budget`; None if it never was so near."""
        return max((reward for kl, reward in self.smoothed() if kl <= budget), default=None)

    @property
    def gain(self) -> float:
        """How far the reward rose from the first window to the last, in SFT standard deviations."""
        points = self.smoothed()
        return (points[-1][1] - points[0][1]) / max(self.spread, 1e-9)

    @property
    def unmoved(self) -> bool:
        """Whether β held the policy where it was: hardly any KL, and no gain to speak of."""
        return self.smoothed()[-1][0] < 0.1 and self.gain < 0.1


def sweep(
    workspace: Path,
    kl_weights: Sequence[float],
    *,
    name: str,
    overrides: dict[str, str],
    progress: Callable[[str], None],
) -> list[Curve]:
    """Run PPO at each β that has not run yet; the curves in the order of the weights."""
    folder, source = folder_of(workspace / "sweeps", name), newest_ppo_run(workspace)
    job = source.job()
    config = job.config.override({"optimize.method": "ppo"} | overrides)
    chosen = [config.override({"ppo.kl_weight": kl_weight}) for kl_weight in kl_weights]
    curves = []
    with held(folder):
        for number, (kl_weight, settings) in enumerate(zip(kl_weights, chosen, strict=True), 1):
            title = f"β = {kl_weight:g} ({number} of {len(kl_weights)})"
            directory = run_to_end(
                folder / f"kl_weight={kl_weight:g}",
                replace(job, run=f"sweep-{name}-{kl_weight:g}", config=settings),
                fill=copy_inputs(source),
                progress=lambda text, title=title: progress(f"{title}: {text}"),
            )
            curves.append(curve_of(directory, kl_weight))
    return curves


def curve_of(directory: RunDirectory, kl_weight: float) -> Curve:
    """Read a finished run's events."""
    events = [json.loads(line) for line in directory.events.read_text().splitlines()]
    updates = [e["values"] for e in events if e["kind"] == "metrics"]
    notes = [e for e in events if e["kind"] == "note" and e["note"] == "sample"]
    last = max((e["step"] for e in notes), default=0)
    return Curve(
        kl_weight=kl_weight,
        reward=[u["reward/mean"] for u in updates],
        kl=[u["kl/reference"] for u in updates],
        spread=updates[0]["reward/std"],
        samples=[
            {"text": e["message"], "reward": e["payload"]["reward"], "kl": e["payload"]["kl"]}
            for e in notes
            if e["step"] == last
        ],
    )


def summary(curves: Sequence[Curve], budget: float) -> dict[str, Any]:
    """What the sweep says, as plain values."""
    rows = []
    for curve in curves:
        kl, reward = curve.smoothed()[-1]
        rows.append(
            {
                "kl_weight": curve.kl_weight,
                "reward": reward,
                "kl": kl,
                "gain": curve.gain,
                "reward_within_budget": curve.best_within(budget),
                "unmoved": curve.unmoved,
                "samples": curve.samples,
            }
        )
    within = [row for row in rows if row["reward_within_budget"] is not None]
    best = max(within, key=lambda row: row["reward_within_budget"]) if within else None
    return {"kl_budget": budget, "best": best and best["kl_weight"], "runs": rows}


def write_report(folder: Path, curves: Sequence[Curve], found: dict[str, Any]) -> Path:
    """sweep.json and sweep.svg in the sweep's folder; returns the plot's path."""
    write_atomically(folder / "sweep.json", json.dumps(found, indent=1))
    figure = svg_figure(width=7, height=4.5)
    axes = figure.subplots()
    for curve in curves:
        points = curve.smoothed()
        (line,) = axes.plot(*zip(*points, strict=True), label=f"β = {curve.kl_weight:g}")
        best = curve.kl_weight == found["best"]
        axes.plot(*points[-1], "*" if best else "o", color=line.get_color(), ms=12 if best else 5)
    axes.axvline(found["kl_budget"], color="0.6", ls="--", lw=1, label="KL budget")
    axes.set(xlabel="KL to the reference, nats per response", ylabel="reward")
    tidy(axes)
    return save_svg(figure, folder / "sweep.svg")
