"""A sweep over β: the same PPO run at several KL weights, on one plot of reward against KL.

It repeats the newest PPO run of a workspace (its prompts, models and settings) outside the loop.  It
does not change the database, so the server may be running.  Each run is a separate worker in
``sweeps/NAME/kl_weight=…``; a stopped sweep can be continued.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from statistics import fmean
from typing import Any

from pipeline.runs.repeat import (
    copy_inputs,
    folder_of,
    newest_ppo_run,
    run_to_end,
    sweep_settings,
)
from pipeline.runs.rundir import RunDirectory, write_atomically
from pipeline.studies.plots import (
    COLORS,
    add_legend,
    budget_mark,
    columns,
    fit_kl,
    mark,
    save_svg,
    svg_figure,
)
from storage.analysis.intervals import NORMAL

SMOOTHED = 5
"""Updates over which reward and KL are averaged before they are compared."""
POINTS = 15
"""Approximate number of points of a curve on the plot."""


@dataclass(frozen=True, kw_only=True)
class SweepSample:
    """A response of a run's last update, with its reward and its KL in nats."""

    text: str
    reward: float
    kl: float


@dataclass(frozen=True, kw_only=True)
class WeightCurve:
    """One run of the sweep: reward and KL by update, and samples of the last update."""

    kl_weight: float
    reward: list[float]
    kl: list[float]
    std: list[float]
    """Standard deviation of an update's rewards."""
    responses: int
    """Responses in an update."""
    samples: list[SweepSample]

    def smoothed(self) -> list[tuple[float, float]]:
        """(KL, reward) means over each window of `SMOOTHED` updates."""
        starts = range(max(1, len(self.reward) - SMOOTHED + 1))
        return [
            (fmean(self.kl[i : i + SMOOTHED]), fmean(self.reward[i : i + SMOOTHED])) for i in starts
        ]

    def error(self, start: int, updates: int = SMOOTHED) -> float:
        """Standard error of a window's mean reward, from the spread within its updates."""
        window = [std**2 / self.responses for std in self.std[start : start + updates]]
        return math.sqrt(sum(window)) / len(window)

    def blocks(self, updates: int) -> list[tuple[float, float, float]]:
        """(KL, reward, its standard error) of disjoint windows, the last at the end."""
        ends = range(len(self.reward), 0, -updates)
        starts = [end - updates for end in ends if end >= updates][::-1]
        return [
            (
                fmean(self.kl[i : i + updates]),
                fmean(self.reward[i : i + updates]),
                self.error(i, updates),
            )
            for i in starts
        ]

    def best_within(self, budget: float) -> int | None:
        """The window with the highest reward at a KL of at most `budget`, or None."""
        points = self.smoothed()
        within = [i for i, (kl, _) in enumerate(points) if kl <= budget]
        return max(within, key=lambda i: points[i][1], default=None)

    @property
    def gain(self) -> float:
        """Rise of the reward from the first window to the last, in SFT standard deviations."""
        points = self.smoothed()
        return (points[-1][1] - points[0][1]) / max(self.std[0], 1e-9)

    @property
    def unmoved(self) -> bool:
        """Whether the policy hardly moved from its start: KL and gain below 0.1."""
        return self.smoothed()[-1][0] < 0.1 and self.gain < 0.1


def sweep(
    workspace: Path,
    kl_weights: Sequence[float],
    *,
    name: str,
    overrides: Mapping[str, str],
    progress: Callable[[str], None],
    source: RunDirectory | None = None,
) -> list[WeightCurve]:
    """Run PPO at each β that has not run yet; return the curves in the order of the weights.

    `source` is the run that is repeated, by default the newest PPO run.
    """
    folder, source = folder_of(workspace / "sweeps", name), source or newest_ppo_run(workspace)
    job = replace(source.job(), repeats=source.path.name)
    chosen = sweep_settings(source, kl_weights, overrides)
    curves = []
    for number, (kl_weight, settings) in enumerate(zip(kl_weights, chosen, strict=True), 1):
        title = f"β = {kl_weight:g} ({number} of {len(kl_weights)})"
        directory = run_to_end(
            folder / f"kl_weight={kl_weight:g}",
            replace(job, run=f"sweep-{name}-{kl_weight:g}", config=settings),
            fill=copy_inputs(source),
            progress=lambda text, title=title: progress(f"{title}: {text}"),
            apart=True,
        )
        curves.append(curve_of(directory, kl_weight))
    return curves


def curve_of(directory: RunDirectory, kl_weight: float) -> WeightCurve:
    """The curve of a finished run, from its events."""
    events = [json.loads(line) for line in directory.events.read_text().splitlines()]
    # Step 0 is before the first update: it has only the canary's rates.
    updates = [e["values"] for e in events if e["kind"] == "metrics" and e["step"] > 0]
    notes = [e for e in events if e["kind"] == "note" and e["note"] == "sample"]
    last = max((e["step"] for e in notes), default=0)
    return WeightCurve(
        kl_weight=kl_weight,
        reward=[u["reward/mean"] for u in updates],
        kl=[u["kl/reference"] for u in updates],
        std=[u["reward/std"] for u in updates],
        responses=directory.job().config.ppo.rollouts,
        samples=[
            SweepSample(text=e["message"], reward=e["payload"]["reward"], kl=e["payload"]["kl"])
            for e in notes
            if e["step"] == last
        ],
    )


@dataclass(frozen=True, kw_only=True)
class WeightResult:
    """One β of a sweep."""

    kl_weight: float
    reward: float
    """Mean over the last window of `SMOOTHED` updates."""
    reward_error: float
    """Its standard error."""
    kl: float
    """Mean over the same window."""
    gain: float
    """Rise of the reward, in SFT standard deviations."""
    reward_within_budget: float | None
    """The highest reward of a window at a KL within the budget; None without one."""
    error_within_budget: float | None
    unmoved: bool
    """Whether the policy hardly moved from its start."""
    samples: list[SweepSample]


@dataclass(frozen=True, kw_only=True)
class Lead:
    """The margin of the best β over the second best."""

    over: float
    """The second-best β."""
    by: float
    """Difference of their rewards within the budget."""
    error: float
    """Its standard error."""


@dataclass(frozen=True, kw_only=True)
class SweepReport:
    """The results of a sweep, in the order of the weights."""

    kl_budget: float
    best: float | None
    """The β with the highest reward within the budget, of those that moved the policy."""
    lead: Lead | None
    """None without a second β within the budget."""
    runs: list[WeightResult]


def summary(curves: Sequence[WeightCurve], budget: float) -> SweepReport:
    """The results at a KL budget in nats."""
    results = [_result(curve, budget) for curve in curves]
    ranked = [
        (each.reward_within_budget, each.error_within_budget, each.kl_weight)
        for each in results
        if each.reward_within_budget is not None
        and each.error_within_budget is not None
        and not each.unmoved
    ]
    ranked.sort(key=lambda each: -each[0])
    lead = None
    if len(ranked) > 1:
        (first, first_error, _), (second, second_error, over) = ranked[:2]
        lead = Lead(over=over, by=first - second, error=math.hypot(first_error, second_error))
    best = ranked[0][2] if ranked else None
    return SweepReport(kl_budget=budget, best=best, lead=lead, runs=results)


def _result(curve: WeightCurve, budget: float) -> WeightResult:
    (kl, reward), within = curve.smoothed()[-1], curve.best_within(budget)
    return WeightResult(
        kl_weight=curve.kl_weight,
        reward=reward,
        reward_error=curve.error(len(curve.smoothed()) - 1),
        kl=kl,
        gain=curve.gain,
        reward_within_budget=None if within is None else curve.smoothed()[within][1],
        error_within_budget=None if within is None else curve.error(within),
        unmoved=curve.unmoved,
        samples=curve.samples,
    )


def write_report(folder: Path, curves: Sequence[WeightCurve], found: SweepReport) -> Path:
    """Write sweep.json and sweep.svg to the sweep's folder; return the plot's path."""
    write_atomically(folder / "sweep.json", json.dumps(asdict(found), indent=1))
    shortest = min(len(curve.reward) for curve in curves)
    # About POINTS points, each averaged over at least SMOOTHED updates.
    updates = min(shortest, max(SMOOTHED, shortest // POINTS))
    figure = svg_figure(
        width=8,
        height=5,
        title="Reward against KL for each KL weight β",
        subtitle=f"PPO from the same start, {_means(updates)}; shaded: 95% interval of the mean "
        "reward; dot: last update",
    )
    rows = -(-(len(curves) + 2) // 4)
    (axes,) = columns(figure, 1, legend=rows)
    drawn = [curve.blocks(updates) for curve in curves]
    colors = islice(cycle(COLORS), len(curves))
    handles = [_draw(axes, *each) for each in zip(curves, drawn, colors, strict=True)]
    kls = [kl for blocks in drawn for kl, _, _ in blocks]
    budget = found.kl_budget
    if best := next((c for c in curves if c.kl_weight == found.best), None):
        place = best.smoothed()[best.best_within(budget) or 0]
        kls.append(place[0])
        color = handles[curves.index(best)].get_color()
        style = {"marker": "*", "mec": "white", "mew": 0.8, "color": color, "ls": "none"}
        axes.plot(*place, **style, ms=16, zorder=5)
        most = f"β = {best.kl_weight:g}: highest reward within the budget ({_means(SMOOTHED)})"
        handles.append(mark(most, **style, ms=11))
    shown = fit_kl(axes, kls, budget, to="the reference")
    handles.append(budget_mark(f"KL budget, {budget:g} nats", shown=shown))
    axes.set_ylabel("reward")
    add_legend(figure, handles, rows=rows)
    return save_svg(figure, folder / "sweep.svg")


def _means(updates: int) -> str:
    return f"means over {updates} updates" if updates > 1 else "one update"


def _draw(
    axes: Any, curve: WeightCurve, blocks: Sequence[tuple[float, float, float]], color: str
) -> Any:
    """Draw a curve with its band; return the line, for the legend."""
    kls, rewards, errors = zip(*blocks, strict=True)
    half = [NORMAL * error for error in errors]
    low = [reward - each for reward, each in zip(rewards, half, strict=True)]
    high = [reward + each for reward, each in zip(rewards, half, strict=True)]
    axes.fill_between(kls, low, high, color=color, alpha=0.13, lw=0)
    label = f"β = {curve.kl_weight:g}" + (" (unmoved)" if curve.unmoved else "")
    (line,) = axes.plot(kls, rewards, ".-", color=color, lw=1.6, ms=4, label=label)
    # The band has no width if the policy did not move.
    axes.errorbar(kls[-1], rewards[-1], half[-1], fmt="o", color=color, ms=6, capsize=3, lw=1.2)
    return line
