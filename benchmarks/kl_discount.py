"""Is the alarm's prediction right on average?  Stored simulations, with several discounts for KL.

    python -m benchmarks.kl_discount [FOLDER …] [--gain .25] [--loss .1] [--discounts 0 .05 .1 .15]

Reads the stored reports of `benchmarks.whole_loop` and others (by default all of benchmarks/results
that have them) and trains nothing.  A policy is *healthy* if it gained at least `--gain` standard
deviations of gold over SFT, and *over-optimized* if it lost at least `--loss`; the others count in neither
group, because a gold gain has an error of about .1.
For each folder, arm and iteration, prints the bias of the reward model's prediction (predicted −
people, in points) over the healthy policies with its standard error, and how often the alarm is
raised, at each `gate.kl_discount`.  The exit status is 1 if, with the default, the bias over the
healthy full policies of the whole loop exceeds 2 points, more than 10% of them raise the alarm, or
less than 80% of the over-optimized policies of all folders do.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.common import ROOT, exit_status, markdown
from pipeline.config.sections import GateConfig
from pipeline.promotion.overoptimization import ALARM_Z, remaining_lead

RESULTS = ROOT / "benchmarks" / "results"
STUDIES = ("whole_loop", "whole_loop_long", "label_efficiency/workshop", "label_efficiency/exam")
DEFAULT = GateConfig().kl_discount
MOST_BIAS, FALSE_ALARMS, ALARMS = 0.02, 0.1, 0.8


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A policy of a stored simulation: its gate's figures from fresh judgments, and its gold gain."""

    study: str
    arm: str
    iteration: int
    gain: float
    kl: float
    predicted: float
    """Before any discount."""
    human: float
    error: float

    def gap(self, discount: float) -> float:
        """Discounted prediction minus the win rate that people gave."""
        return 0.5 + remaining_lead(self.kl, discount) * (self.predicted - 0.5) - self.human

    def alarm(self, discount: float) -> bool:
        return self.gap(discount) > ALARM_Z * self.error


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Gold gained by a healthy policy, and lost by an over-optimized one, in standard deviations."""

    gain: float
    loss: float


def policies(folder: Path, study: str) -> Iterator[Policy]:
    """The policies of a folder of seeds; those of the ceiling have no reward model to judge."""
    for path in sorted(folder.glob("seed-*.json")):
        for name, report in json.loads(path.read_text())["arms"].items():
            for number, found in enumerate(report["iterations"], 1):
                gate = found["gate"]
                if name == "ceiling" or not gate or not gate["error"]:
                    continue
                yield Policy(
                    study=study,
                    arm=name,
                    iteration=number,
                    gain=found["gold"]["policy"] - found["gold"]["sft"],
                    kl=found["kl"],
                    predicted=0.5 + (gate["predicted"] - 0.5) / gate.get("lead", 1.0),
                    human=gate["human"],
                    error=gate["error"],
                )


def table(found: Sequence[Policy], limits: Limits, discounts: Sequence[float]) -> str:
    """A row for each study, arm, iteration and group, as Markdown."""
    rows = []
    for study, arm, iteration in dict.fromkeys((p.study, p.arm, p.iteration) for p in found):
        mine = [p for p in found if (p.study, p.arm, p.iteration) == (study, arm, iteration)]
        for group, chosen in groups(mine, limits).items():
            if chosen:
                kl = f"{np.mean([p.kl for p in chosen]):.1f}"
                cells = (cell(chosen, each) for each in discounts)
                rows.append((f"{study}: {arm}", iteration, group, len(chosen), kl, *cells))
    head = (
        "runs",
        "iteration",
        "policies",
        "n",
        "KL",
        *(f"discount {each:g}" for each in discounts),
    )
    return markdown(head, rows)


def groups(found: Sequence[Policy], limits: Limits) -> dict[str, list[Policy]]:
    return {
        "healthy": [p for p in found if p.gain >= limits.gain],
        "over-optimized": [p for p in found if p.gain <= -limits.loss],
    }


def cell(found: Sequence[Policy], discount: float) -> str:
    """The bias in points with its standard error, and the alarms."""
    gaps = 100 * np.array([p.gap(discount) for p in found])
    error = f" ± {gaps.std(ddof=1) / len(gaps) ** 0.5:.1f}" if len(gaps) > 1 else ""
    return f"{gaps.mean():+.1f}{error}; {sum(p.alarm(discount) for p in found)}"


def missed(found: Sequence[Policy], limits: Limits) -> list[str]:
    """A sentence for each target that the default discount does not meet."""
    full = [p for p in found if (p.study, p.arm) == ("whole_loop", "full")]
    healthy, lost = groups(full, limits)["healthy"], groups(found, limits)["over-optimized"]
    said = []
    if healthy:
        bias = float(np.mean([p.gap(DEFAULT) for p in healthy]))
        share = float(np.mean([p.alarm(DEFAULT) for p in healthy]))
        if abs(bias) > MOST_BIAS:
            said.append(
                f"the bias over healthy full policies is {100 * bias:+.1f} points (wanted: ±2)"
            )
        if share > FALSE_ALARMS:
            said.append(
                f"{share:.0%} of healthy full policies raise the alarm (wanted: at most 10%)"
            )
    if lost and np.mean([p.alarm(DEFAULT) for p in lost]) < ALARMS:
        said.append("less than 80% of over-optimized policies raise the alarm")
    return said


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path, help="default: the stored studies")
    parser.add_argument("--gain", type=float, default=0.25)
    parser.add_argument("--loss", type=float, default=0.1)
    parser.add_argument("--discounts", type=float, nargs="+", default=[0, 0.05, DEFAULT, 0.15])
    args = parser.parse_args()
    named = {str(each): each for each in args.folders} or {s: RESULTS / s for s in STUDIES}
    found = [policy for study, folder in named.items() for policy in policies(folder, study)]
    if not found:
        sys.exit(f"no results in {', '.join(named)}; run benchmarks.whole_loop first")
    limits = Limits(gain=args.gain, loss=args.loss)
    print(table(found, limits, args.discounts))
    return exit_status(missed(found, limits))


if __name__ == "__main__":
    sys.exit(main())
