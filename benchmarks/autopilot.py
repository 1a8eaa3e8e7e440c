"""Simulates whether the forecast of the gate's test holds what its interval promises.

    python -m benchmarks.autopilot [--runs 1000] [--seed 20] [--json FILE]

Each run is a test of a policy against SFT with a true win rate and tie share.  After 0, 10, 20 and 40
judgments, as long as the test has not decided, the forecast is asked for its 90% interval.  An interval
without an upper end says "more than 500"; it holds the truth if the test decides after its lower end or
never within 500 judgments.

* *coverage* of the interval in judgments on the gate; *open* is the share of intervals without an upper
  end, and *closed coverage* the coverage of the others;
* *below* and *above*: how often the test decides before or after the interval (5% each at most);
* *width*: median width of the intervals that have an upper end;
* *bias*: mean forecast probability that the test decides within 60 judgments in all, less the share of
  tests that do;
* *in labels*: coverage of the interval in labels, for a queue of 260 labels in random order of which 78
  are on the gate.

Prints Markdown tables; the exit status is 1 if coverage is below .9, over all or at one of the four
points, by more than two standard errors.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import exit_status, markdown
from pipeline.promotion.power import Scenario
from pipeline.promotion.time_to_decision import (
    HORIZON,
    LEVEL,
    LabelsToDecision,
    Tally,
    leads,
    time_to_decision,
)
from pipeline.statistics.winrate import standard_error

WIN_RATES = (0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75)
TIES = (0.0, 0.1, 0.2, 0.3, 0.4)
ASKED_AFTER = (0, 10, 20, 40)
PLANNED = 60
"""Judgments on the gate of an iteration, as `gate.labels` has by default."""
QUEUE, ON_GATE = 260, 78
"""Labels of the queue, and those on the gate: 200 labels with a surplus of 1.3, of which 30%."""
PROMISES = (0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Bounds of the groups of probabilities."""
ENOUGH = 200
"""Forecasts of a scenario that its coverage needs."""
_NEVER = 10**9
Columns = Mapping[str, np.ndarray]
"""The forecasts, one in each row of the columns."""


@dataclass(frozen=True)
class Gates:
    """Simulated tests: counts after each judgment, and when the test decides; (runs, …)."""

    wins: np.ndarray
    ties: np.ndarray
    losses: np.ndarray
    decided: np.ndarray
    """Judgments; `_NEVER` if the test does not decide while the forecast looks."""

    @classmethod
    def simulate(
        cls, generator: np.random.Generator, win_rate: float, ties: float, runs: int
    ) -> Gates:
        most = max(ASKED_AFTER) + HORIZON
        win, tie, _ = chances(win_rate, ties)
        drawn = generator.random((runs, most))
        won, tied = drawn < win, (drawn >= win) & (drawn < win + tie)
        wins, tied_so_far = won.cumsum(1), tied.cumsum(1)
        losses = np.arange(1, most + 1) - wins - tied_so_far
        passed = np.abs(wins - losses) >= leads(most)[wins + losses]
        first = np.where(passed.any(1), passed.argmax(1) + 1, _NEVER)
        return cls(wins, tied_so_far, losses, first)

    def tally(self, run: int, judgments: int) -> Tally:
        if not judgments:
            return Tally()
        at = run, judgments - 1
        return Tally(int(self.wins[at]), int(self.ties[at]), int(self.losses[at]))


def chances(win_rate: float, ties: float) -> tuple[float, float, float]:
    """The probabilities of a win, a tie and a loss; `Scenario` refuses equal policies."""
    if win_rate == 0.5:
        return 0.5 - ties / 2, ties, 0.5 - ties / 2
    return Scenario(win_rate=win_rate, ties=ties).chances


@dataclass(frozen=True)
class Asked:
    """What the forecast says in one state; times are from there."""

    low: int
    high: int
    by_planned: float
    low_labels: int
    high_labels: int


@cache
def asked(tally: Tally, judgments: int) -> Asked:
    found = time_to_decision(tally)
    left = ON_GATE - judgments
    labels = LabelsToDecision(found, QUEUE - round(judgments * QUEUE / ON_GATE), left)
    low, high = found.interval
    low_labels, high_labels = labels.interval
    return Asked(
        low=HORIZON + 1 if low is None else low,
        high=_NEVER if high is None else high,
        by_planned=found.within(PLANNED - judgments),
        low_labels=labels.labels + 1 if low_labels is None else low_labels,
        high_labels=_NEVER if high_labels is None else high_labels,
    )


def measured(generator: np.random.Generator, runs: int) -> Columns:
    """A row for each simulated test and point at which it has not decided."""
    rows = []
    for number, (win_rate, ties) in enumerate((w, t) for w in WIN_RATES for t in TIES):
        gates = Gates.simulate(generator, win_rate, ties, runs)
        for judgments in ASKED_AFTER:
            for run in np.flatnonzero(gates.decided > judgments).tolist():
                found = asked(gates.tally(run, judgments), judgments)
                after = int(gates.decided[run]) - judgments
                # Later than the forecast looks is the same as never.
                after = after if after <= HORIZON else _NEVER
                labels = _labels_until(generator, after, judgments)
                rows.append(
                    {
                        "test": number * runs + run, "win rate": win_rate, "ties": ties,
                        "after": judgments, "open": found.high == _NEVER,
                        "below": after < found.low, "above": after > found.high,
                        "width": found.high - found.low, "promised": found.by_planned,
                        "kept": after + judgments <= PLANNED,
                        "in labels": found.low_labels <= labels <= found.high_labels,
                    }
                )  # fmt: skip
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _labels_until(generator: np.random.Generator, after: int, judgments: int) -> int:
    """The labels in which the judgment number `after` on the gate comes; `_NEVER` beyond the queue."""
    left = ON_GATE - judgments
    if after > left:
        return _NEVER
    labels = QUEUE - round(judgments * QUEUE / ON_GATE)
    places = generator.permutation(labels)[:left]
    return int(np.sort(places)[after - 1]) + 1


def those(rows: Columns, chosen: np.ndarray) -> Columns:
    return {name: column[chosen] for name, column in rows.items()}


def summary(rows: Columns) -> dict[str, Any]:
    """The figures of some rows; standard errors are clustered by test."""
    held = ~(rows["below"] | rows["above"])
    closed = ~rows["open"]
    return {
        "asked": held.size,
        "coverage": float(held.mean()),
        "standard error": standard_error(held, rows["test"].tolist()),
        "below": float(rows["below"].mean()),
        "above": float(rows["above"].mean()),
        "open": float(rows["open"].mean()),
        "closed coverage": float(held[closed].mean()) if closed.any() else None,
        "width": float(np.median(rows["width"][closed])) if closed.any() else None,
        "bias": float((rows["promised"] - rows["kept"]).mean()),
        "in labels": float(rows["in labels"].mean()),
    }


def table(rows: Columns, by: str) -> list[dict[str, Any]]:
    """The figures by the values of a column, and over all."""
    found = [
        {by: value} | summary(those(rows, rows[by] == value))
        for value in np.unique(rows[by]).tolist()
    ]
    return [*found, {by: "all"} | summary(rows)]


def promises(rows: Columns) -> list[dict[str, Any]]:
    """How often the test decided in time, by the probability that the forecast gave."""
    found = []
    for low, high in pairwise(PROMISES):
        inside = (rows["promised"] > low) & (rows["promised"] <= high)
        part = those(rows, inside | ((rows["promised"] == low) & (low == 0)))
        if part["kept"].size:
            found.append(
                {
                    "probability": f"{low:g} to {high:g}", "asked": part["kept"].size,
                    "promised": float(part["promised"].mean()), "kept": float(part["kept"].mean()),
                    "standard error": standard_error(part["kept"], part["test"].tolist()),
                }
            )  # fmt: skip
    return found


def lowest_scenario(rows: Columns) -> dict[str, Any] | None:
    """The scenario and point with the lowest coverage, among those asked often enough."""
    found = []
    for win_rate, ties, after in product(WIN_RATES, TIES, ASKED_AFTER):
        same = (rows["win rate"] == win_rate) & (rows["ties"] == ties) & (rows["after"] == after)
        if same.sum() >= ENOUGH:
            scenario = {"win rate": win_rate, "ties": ties, "after": after}
            found.append(scenario | summary(those(rows, same)))
    return min(found, key=lambda row: row["coverage"], default=None)


def failures(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A sentence for each coverage that is below the level; a single test shows nothing."""
    return [
        f"coverage {row['coverage']:.3f} after {row['after']} judgments"
        for row in rows
        if row["standard error"] is not None and row["coverage"] < LEVEL - 2 * row["standard error"]
    ]


def shown(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown; a dash where there is no figure."""
    return markdown(list(rows[0]), ([_cell(v) for v in row.values()] for row in rows))


def _cell(value: Any) -> Any:
    if value is None:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else value


def main() -> int:
    parser = argparse.ArgumentParser(description="Coverage of the gate's forecast.")
    parser.add_argument("--runs", type=int, default=1000, help="tests for each scenario")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    started = time.monotonic()
    rows = measured(np.random.default_rng(args.seed), args.runs)
    found = {by: table(rows, by) for by in ("after", "win rate", "ties")}
    for by, part in found.items():
        print(f"\nby {by}\n\n{shown(part)}", flush=True)
    found["promised"] = promises(rows)
    print(f"\nprobability of a decision within {PLANNED}\n\n{shown(found['promised'])}")
    lowest = lowest_scenario(rows)
    print(f"\nlowest scenario: {lowest}\n{time.monotonic() - started:.0f} s", flush=True)
    if args.json:
        made = {"runs": args.runs, "seed": args.seed, "lowest": lowest} | found
        args.json.write_text(json.dumps(made, indent=2))
    return exit_status(failures(found["after"]))


if __name__ == "__main__":
    sys.exit(main())
