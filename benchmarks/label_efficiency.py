"""How many labels does an arm need?  Gold gain against labels, in a simulated world.

    python -m benchmarks.label_efficiency --world workshop [--seeds 0 1 2 …] [--arms naive full ceiling]
        [--labels 50 100 200 400 800] [--folder DIR] [--plot FILE] [--report]

`ARMS` is the table of arms; all have the settings of `benchmarks.whole_loop` with smaller PPO steps, so
each policy has 60 updates from SFT (except in `steps`), and an arm divides its labels among its iterations:

* `naive`: one iteration; plain Bradley-Terry, dropped ties, one network, random pairs;
* `full`: two iterations with the default features and `sampling.selection=hybrid`;
* `random`: the same with random pairs, today's default;
* `steps`: four iterations, whose policies continue from the one before with half the updates;
* `best-of-n`: the same as `random`, but the reward model chooses among 16 samples of SFT;
* `ceiling`: PPO on the hidden gold, once per seed.

Choose ingredients in the world `workshop`; the world `exam` is for final figures, on seeds that were
not looked at while choosing (`pipeline/simulation/worlds.py`).

Writes one JSON file per seed to benchmarks/results/label_efficiency/WORLD after each run.  Runs that
are in it are not repeated, so several processes can divide the seeds.  The report has the gold gain
by labels with 95% intervals over seeds, and the labels that an arm needs for the gain of the naive
arm with 400 and with 800 labels: by linear interpolation on the logarithm of the labels, on mean
curves made monotone (isotonic regression), with a 95% bootstrap interval over seeds that both arms
have.  The exit status is 1 if the full arm, over sixteen seeds or more, needs more than .4 of the
labels, or the interval is not below .6.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression

from benchmarks import whole_loop
from benchmarks.common import ROOT, exit_status, markdown
from benchmarks.seeds import labels_needed, run_seeds
from benchmarks.whole_loop import ANNOTATORS, CEILING_LABELS, FULL, ceiling, gains, run
from pipeline.simulation.trials import NAIVE, Estimate, TrialArm
from pipeline.simulation.worlds import WORLDS, World
from pipeline.studies.plots import COLORS, INK, add_legend, columns, mark, save_svg, svg_figure

RESULTS = ROOT / "benchmarks" / "results" / "label_efficiency"
SETTINGS = {**whole_loop.SETTINGS, "ppo.lr": 2e-4}
"""Settings of all arms.  At the whole loop's learning rate, PPO on the gold itself gains less in the
world `workshop` (.43 instead of .71, seed 0) at more KL (6.8 instead of 2.4 nats)."""
LABELS = (50, 100, 200, 400, 800)
GOALS = (400, 800)
"""Labels of the naive arm whose gain is to be reached."""
CEILING = "ceiling"
BASELINE = "naive"
WANTED, WANTED_HIGH, SEEDS_NEEDED = 0.4, 0.6, 16
DRAWS = 2000


RANDOM = {"sampling.selection": "random"}
SMALL_STEPS = {"ppo.start_from": "previous", "ppo.updates": 30}


@dataclass(frozen=True, kw_only=True)
class CurveArm(TrialArm):
    """An arm whose labels are divided among `iterations`, and its name in the plot."""

    iterations: int = 1
    title: str = ""


ARMS: dict[str, CurveArm] = {
    arm.name: arm
    for arm in (
        CurveArm(name="naive", settings=NAIVE.settings, title="naive (plain Bradley-Terry)"),
        CurveArm(name="full", settings=FULL.settings, iterations=2, title="chosen pairs (hybrid)"),
        CurveArm(name="random", settings=RANDOM, iterations=2, title="random pairs (default)"),
        CurveArm(
            name="best-of-n",
            settings=RANDOM | {"optimize.method": "best-of-n"},
            iterations=2,
            title="best of 16 samples",
        ),
        CurveArm(
            name="steps", settings=RANDOM | SMALL_STEPS, iterations=4, title="four small steps"
        ),
    )
}
"""The arms of the curves; an ingredient is measured by adding an arm with its settings."""
DEFAULT_ARMS = (BASELINE, FULL.name, CEILING)


@dataclass(frozen=True, kw_only=True)
class Cell(CurveArm):
    """One run of a seed: an arm with a number of labels; the ceiling has none."""

    arm: str
    labels: int = 0


def cells(world: World, arms: Sequence[str], labels: Sequence[int]) -> list[Cell]:
    """The runs of a seed, the cheapest first; ``ValueError`` if an arm cannot divide its labels."""
    found: list[Cell] = []
    if CEILING in arms:
        found.append(Cell(arm=CEILING, name=CEILING, settings=ceiling(world).settings))
    for each in sorted(labels):
        for name in arms:
            if name == CEILING:
                continue
            arm = ARMS[name]
            if each % arm.iterations:
                raise ValueError(
                    f"the arm {name} cannot divide {each} labels among {arm.iterations} iterations; "
                    f"give --labels that are multiples of {arm.iterations}"
                )
            fields = asdict(replace(arm, name=cell_name(name, each)))
            found.append(Cell(arm=name, labels=each, **fields))
    return found


def cell_name(arm: str, labels: int) -> str:
    """The name of a run in a seed's file."""
    return f"{arm}, {labels} labels"


def run_cell(cell: Cell, seed: int, world: World, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The report of a run, with the definition of its arm."""
    size = (cell.iterations, cell.labels // cell.iterations) if cell.labels else (1, CEILING_LABELS)
    return run(cell, seed, SETTINGS | dict(settings), size, world) | {"arm": definition(cell)}


def definition(arm: CurveArm) -> dict[str, Any]:
    """What an arm was when it ran."""
    return {"iterations": arm.iterations, "settings": dict(arm.settings)}


def require_same_arms(held: Sequence[Mapping[str, Any]], wanted: Sequence[Cell]) -> None:
    """``ValueError`` if a stored run was made by another definition of its arm."""
    for results in held:
        for cell in wanted:
            made = results["arms"].get(cell.name)
            if made and made["arm"] != definition(cell):
                raise ValueError(
                    f"seed {results['seed']} has the run {cell.name!r} of another definition of its arm "
                    f"({made['arm']}); give the arm another name, or delete the run"
                )


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The gold gains of an arm: (seeds, budgets) at `labels` (budgets,)."""

    arm: str
    seeds: tuple[int, ...]
    labels: np.ndarray
    gains: np.ndarray

    @classmethod
    def of(cls, held: Sequence[Mapping[str, Any]], arm: str, labels: Sequence[int]) -> Curve:
        """The gains at those of `labels` that the arm has runs with, of the seeds that have them all."""
        runs = {each: gains(held, cell_name(arm, each)) for each in sorted(labels)}
        by_labels = {each: by_seed for each, by_seed in runs.items() if by_seed}
        seeds = sorted(set.intersection(*map(set, by_labels.values()))) if by_labels else []
        found = np.array([[by_seed[seed] for by_seed in by_labels.values()] for seed in seeds])
        return cls(
            arm=arm,
            seeds=tuple(seeds),
            labels=np.array([*by_labels]),
            gains=found.reshape(len(seeds), len(by_labels)),
        )

    def at(self, seeds: Sequence[int]) -> np.ndarray:
        """(len(seeds), budgets) gains of these seeds."""
        return self.gains[[self.seeds.index(seed) for seed in seeds]]


@dataclass(frozen=True, kw_only=True)
class Needed:
    """The labels that an arm needs for the baseline's gain with `goal` labels.

    `ratio` is relative to `goal`; infinity if the curve never reaches the gain.
    """

    arm: str
    goal: int
    labels: float
    ratio: float
    low: float
    high: float
    seeds: int


def needed(ours: Curve, theirs: Curve, goal: int) -> Needed | None:
    """The labels that `ours` needs for the gain of `theirs` with `goal` labels, over common seeds.

    Both mean curves are made monotone, and interpolated on the logarithm of the labels.  None without a common seed, or if `theirs` has no runs with `goal` labels.
    """
    seeds = [seed for seed in ours.seeds if seed in theirs.seeds]
    if not seeds or goal not in theirs.labels:
        return None
    mine, plain = ours.at(seeds), theirs.at(seeds)
    place = int(np.flatnonzero(theirs.labels == goal)[0])

    def labels_of(rows: np.ndarray) -> float:
        aim = float(rising(plain[rows].mean(0))[place])
        return math.exp(labels_needed(np.log(ours.labels), rising(mine[rows].mean(0)), aim))

    coin = np.random.default_rng(0)
    draws = coin.integers(len(seeds), size=(DRAWS, len(seeds)))
    low, high = np.quantile([labels_of(d) for d in draws], [0.025, 0.975], method="nearest")
    reached = labels_of(np.arange(len(seeds)))
    return Needed(
        arm=ours.arm,
        goal=goal,
        labels=reached,
        ratio=reached / goal,
        low=float(low) / goal,
        high=float(high) / goal,
        seeds=len(seeds),
    )


def rising(means: np.ndarray) -> np.ndarray:
    """A mean curve made monotone: the nearest one that never falls (isotonic regression)."""
    return isotonic_regression(means).x


def gain_table(curves: Sequence[Curve], top: Estimate | None) -> str:
    """Gold gain by arm and labels, in Markdown."""
    labels = sorted({int(each) for curve in curves for each in curve.labels})

    def cells_of(curve: Curve) -> list[Any]:
        means = dict(zip(curve.labels, map(Estimate.of, curve.gains.T.tolist()), strict=True))
        return [means.get(each, "") for each in labels]

    rows: list[tuple[Any, ...]] = [(c.arm, len(c.seeds), *cells_of(c)) for c in curves if c.seeds]
    if top:
        rows.append((CEILING, top.n, *[""] * len(labels), top))
    rows = [(*row, "")[: len(labels) + 3] for row in rows]
    return markdown(("arm", "seeds", *(f"{n} labels" for n in labels), "gold itself"), rows)


def needed_table(found: Sequence[Needed]) -> str:
    """Labels needed, in Markdown."""
    rows = [
        (
            each.arm,
            each.seeds,
            f"{BASELINE} with {each.goal}",
            "never" if math.isinf(each.labels) else f"{each.labels:.0f}",
            f"{_ratio(each.ratio)} [{_ratio(each.low)}, {_ratio(each.high)}]"
            if each.seeds > 1
            else _ratio(each.ratio),
        )
        for each in found
    ]
    return markdown(("arm", "seeds", "for the gain of", "labels needed", "ratio (95%)"), rows)


def _ratio(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:.2f}"


def missed(found: Sequence[Needed]) -> list[str]:
    """A sentence for each target that the full arm does not meet, over enough seeds."""
    return [
        f"full needs {_ratio(each.ratio)} [{_ratio(each.low)}, {_ratio(each.high)}] of the labels of "
        f"naive with {each.goal} (wanted: {WANTED}, below {WANTED_HIGH})"
        for each in found
        if each.arm == FULL.name
        and each.seeds >= SEEDS_NEEDED
        and not (each.ratio <= WANTED and each.high < WANTED_HIGH)
    ]


def plot(curves: Sequence[Curve], top: Estimate | None, world: World, path: Path) -> Path:
    """Draw gold gain against labels with intervals, as SVG."""
    drawn = [curve for curve in curves if curve.seeds]
    counts = sorted({len(curve.seeds) for curve in drawn})
    seeds = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    figure = svg_figure(
        width=8,
        height=5,
        title="Gold gain against labels",
        subtitle=f"World {world.name}; means over {seeds} seeds; bars: 95% interval of the mean",
    )
    (axes,) = columns(figure, 1, legend=1)
    handles = []
    for number, (curve, color) in enumerate(zip(drawn, cycle(COLORS), strict=False)):
        estimates = [Estimate.of([*column]) for column in curve.gains.T]
        # Shifted a little, so that bars do not cover each other.
        places = curve.labels * 1.02 ** (number - (len(drawn) - 1) / 2)
        means = [each.mean for each in estimates]
        half = [(each.high - each.mean) if each.high is not None else 0.0 for each in estimates]
        axes.errorbar(places, means, half, fmt="o-", color=color, ms=5, lw=1.8, elinewidth=1.1)
        handles.append(mark(ARMS[curve.arm].title, color=color, marker="o", ls="-", lw=1.8))
    if top:
        axes.axhline(top.mean, color=INK, ls="--", lw=1.4)
        if top.low is not None and top.high is not None:
            axes.axhspan(top.low, top.high, color=INK, alpha=0.07, lw=0)
        handles.append(mark("ceiling: PPO on the gold", ls="--", lw=1.4))
    labels = sorted({int(n) for curve in drawn for n in curve.labels})
    axes.set_xscale("log")
    axes.set_xticks(labels, [str(n) for n in labels])
    axes.minorticks_off()
    axes.set_xlabel("labels (logarithmic scale)")
    axes.set_ylabel("gold gain over SFT, standard deviations")
    add_legend(figure, handles, rows=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    return save_svg(figure, path)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--world", choices=list(WORLDS), default="workshop")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(SEEDS_NEEDED)))
    parser.add_argument("--arms", nargs="+", choices=[*ARMS, CEILING], default=list(DEFAULT_ARMS))
    parser.add_argument("--labels", type=int, nargs="+", default=list(LABELS))
    parser.add_argument("--folder", type=Path, help="default: benchmarks/results/…/WORLD")
    parser.add_argument("--set", action="append", default=[], help="override a setting of all arms")
    parser.add_argument("--plot", type=Path, help="also write the curves to this SVG file")
    parser.add_argument("--report", action="store_true", help="only print stored results")
    args = parser.parse_args()
    if min(args.labels) < 1:
        parser.error("--labels must be positive")
    world, settings = WORLDS[args.world], dict(item.split("=", 1) for item in args.set)
    try:
        wanted = cells(world, args.arms, sorted(set(args.labels)))
    except ValueError as error:
        parser.error(str(error))
    conditions = {
        "world": world.name, "annotators": ANNOTATORS, "bad": world.population.bad,
        "settings": SETTINGS | settings,
    }  # fmt: skip
    folder = args.folder or RESULTS / world.name

    def all_runs(*, only_report: bool) -> list[dict[str, Any]]:
        return run_seeds(
            lambda cell, seed: run_cell(cell, seed, world, settings),
            wanted, args.seeds, folder, conditions=conditions, only_report=only_report,
        )  # fmt: skip

    held = all_runs(only_report=True)
    try:
        require_same_arms(held, wanted)
    except ValueError as error:
        sys.exit(str(error))
    return report(args, held if args.report else all_runs(only_report=False), world)


def report(args: argparse.Namespace, held: Sequence[Mapping[str, Any]], world: World) -> int:
    """Print the tables and draw the plot; return 1 if a target is missed."""
    labels = sorted(set(args.labels))
    names = [name for name in args.arms if name != CEILING]
    curves = [Curve.of(held, name, labels) for name in names]
    best = gains(held, CEILING)
    top = Estimate.of([*best.values()]) if best else None
    if not any(curve.seeds for curve in curves) and top is None:
        sys.exit(f"no seed has all of {', '.join(map(str, labels))} labels; choose with --labels")
    print(gain_table(curves, top) if curves else f"ceiling: {top}")
    found = []
    if plain := next((curve for curve in curves if curve.arm == BASELINE), None):
        reached = (needed(ours, plain, goal) for goal in GOALS for ours in curves if ours.seeds)
        found = [each for each in reached if each]
    if found:
        print("", needed_table(found), sep="\n")
    if args.plot:
        print(f"\n{plot(curves, top, world, args.plot)}")
    return exit_status(missed(found))


if __name__ == "__main__":
    sys.exit(main())
