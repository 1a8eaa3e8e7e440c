"""Does the loop improve the policy?  Simulated iterations over several seeds, and two controls.

    python -m benchmarks.simulate_seeds [--seeds 0 1 2] [--iterations 2] [--labels 400] [--json FILE] [--arms gold]

Runs ``launch.py simulate`` in new workspaces: each seed with the built-in gold preference, then the
first seed with shuffled labels and with labels by "longest wins".  The built-in gold preference
measures all of them.  Prints a Markdown table; the exit status is 1 if an expectation fails:

* the last iteration's win rate against SFT is at least .65, with its interval above .5;
* the interval of the shuffled control contains .5;
* the win rate of "longest wins" is below that of every seed with gold labels.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import exit_status, launch_json, markdown

YARDSTICK = "built-in gold"
ARMS = ("gold", "shuffled", "longest")


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One run of `simulate`: its judge and its seed."""

    name: str
    seed: int
    options: tuple[str, ...] = ()


def arms(seeds: list[int]) -> list[Arm]:
    """Every seed with gold labels, then the controls on the first seed."""
    return [
        *(Arm(name="gold", seed=seed) for seed in seeds),
        Arm(name="shuffled", seed=seeds[0], options=("--shuffle-labels",)),
        Arm(
            name="longest",
            seed=seeds[0],
            options=("--gold", "pipeline.simulation.preference:longest"),
        ),
    ]


def run(arm: Arm, args: argparse.Namespace) -> dict[str, Any]:
    """The report of one run in its own workspace, with its wall-clock seconds."""
    with tempfile.TemporaryDirectory(prefix="kitestring-simulate-") as workspace:
        started = time.monotonic()
        report = launch_json(
            "simulate",
            *("--workspace", workspace),
            *("--iterations", str(args.iterations)),
            *("--labels", str(args.labels)),
            *("--annotators", str(args.annotators)),
            *("--bad", str(args.bad)),
            *("--seed", str(arm.seed)),
            *arm.options,
            *args.extra,
            timeout=args.timeout,
        )
    return report | {"arm": arm.name, "wall": round(time.monotonic() - started, 1)}


def failures(reports: list[dict[str, Any]]) -> list[str]:
    """A sentence for each expectation that the reports do not meet."""
    last = [(r, r["iterations"][-1]["yardsticks"][YARDSTICK]) for r in reports]
    gold = [rate for report, rate in last if report["arm"] == "gold"]
    found = [
        f"gold, seed {report['seed']}: {rate['win_rate']:.3f} [{rate['low']:.3f}, …]"
        for report, rate in last
        if report["arm"] == "gold" and (rate["win_rate"] < 0.65 or rate["low"] <= 0.5)
    ]
    for report, rate in last:
        if report["arm"] == "shuffled" and not rate["low"] <= 0.5 <= rate["high"]:
            found.append(f"shuffled labels: [{rate['low']:.3f}, {rate['high']:.3f}] excludes .5")
        reached = [g["win_rate"] for g in gold]
        if report["arm"] == "longest" and reached and rate["win_rate"] >= min(reached):
            found.append(f"longest wins reaches {rate['win_rate']:.3f}")
    return found


def table(reports: list[dict[str, Any]]) -> str:
    """One row per iteration, in Markdown."""
    header = (
        *("labels by", "seed", "iteration", "gold win rate vs SFT (95%)", "gold SFT → policy"),
        *("longer than SFT", "RM accuracy", "RM ECE", "KL", "length", "seconds"),
    )
    rows: list[tuple[Any, ...]] = []
    for report in reports:
        for row in report["iterations"]:
            rate, length = row["yardsticks"][YARDSTICK], row["yardsticks"]["longest"]
            fitted, seconds = row["reward_model"], sum(row["seconds"].values())
            rows.append((
                report["arm"], report["seed"], row["iteration"],
                f"{rate['win_rate']:.3f} [{rate['low']:.3f}, {rate['high']:.3f}]",
                f"{rate['sft']:+.2f} → {rate['policy']:+.2f}", f"{length['win_rate']:.2f}",
                f"{fitted['accuracy']:.3f}", f"{fitted['ece']:.3f}", f"{row['kl']:.2f}",
                f"{row['length']:.1f}", f"{seconds:.0f}",
            ))  # fmt: skip
        rows.append((report["arm"], report["seed"], "all", *[""] * 7, f"{report['wall']:.0f}"))
    return markdown(header, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="Simulated iterations over seeds, with controls.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--arms", nargs="+", choices=ARMS, default=ARMS, help="missing arms are not checked"
    )
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--labels", type=int, default=400)
    parser.add_argument("--annotators", type=int, default=8)
    parser.add_argument("--bad", type=float, default=0.25)
    parser.add_argument("--timeout", type=float, default=3600, help="seconds a run may take")
    parser.add_argument("--json", type=Path, help="also write the reports to this file")
    parser.add_argument("extra", nargs="*", help="further options of simulate, after --")
    args = parser.parse_args()
    reports = []
    for arm in arms(args.seeds):
        if arm.name not in args.arms:
            continue
        reports.append(run(arm, args))
        print(f"{arm.name}, seed {arm.seed}: {reports[-1]['wall']} s", file=sys.stderr)
        if args.json:
            args.json.write_text(json.dumps(reports, indent=2))
    print(table(reports))
    return exit_status(failures(reports))


if __name__ == "__main__":
    sys.exit(main())
