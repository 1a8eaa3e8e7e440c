"""Does PPO learn with every seed, and does β limit the KL?

    python -m benchmarks.learning [--workspace DIR] [--seeds 0 1 2 3 4] [--updates 150] [--kl-weights 0.1 0]

Repeats the newest PPO run of a workspace with ``launch.py sweep``, each seed at each β.  Without a
workspace, it creates one with ``launch.py simulate`` (one iteration of 400 judgments).  Finished
runs are not repeated.  Prints a Markdown table; the exit status is 1 if an expectation fails:

* at the first β, the reward model's score rises by at least one standard deviation of the SFT
  policy's scores, at a KL below 10 nats, in four of five seeds;
* at β = 0 the score rises further and the KL is at least three times as large.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.common import CACHE, exit_status, launch_json, markdown

SETTINGS = ("ppo.lr=1e-4", "ppo.epochs=4", "ppo.target_kl=0.1", "worker.nice=0")
"""Larger steps than in the demo's settings, which are for a loop that people watch."""


def seed_runs(args: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """The results of one seed's sweep for each β."""
    weights = ",".join(f"{weight:g}" for weight in args.kl_weights)
    found = launch_json(
        "sweep",
        *("--workspace", args.workspace),
        *("--kl-weight", weights),
        *("--name", f"learning-{seed}"),
        *("--set", f"ppo.updates={args.updates}"),
        *("--set", f"ppo.seed={seed}"),
        *(word for setting in SETTINGS for word in ("--set", setting)),
    )
    return [run | {"seed": seed} for run in found["runs"]]


def failures(runs: list[dict[str, Any]], first: float) -> list[str]:
    """The expectations that the runs do not meet, as sentences."""
    held = [run for run in runs if run["kl_weight"] == first]
    free = [run for run in runs if run["kl_weight"] == 0]
    learned = [run for run in held if run["gain"] >= 1 and run["kl"] < 10]
    found = []
    if len(learned) < 0.8 * len(held):
        found.append(f"{len(learned)} of {len(held)} seeds learn at β = {first:g}")
    if free:
        gains, kls = (
            [fmean(r[name] for r in part) for part in (held, free)] for name in ("gain", "kl")
        )
        if gains[1] <= gains[0]:
            found.append(f"β = 0 gains {gains[1]:.2f} sd, β = {first:g} {gains[0]:.2f}")
        if kls[1] < 3 * kls[0]:
            found.append(f"β = 0 spends {kls[1]:.2f} nats, β = {first:g} {kls[0]:.2f}")
    return found


def table(runs: list[dict[str, Any]]) -> str:
    """One row per run, in Markdown."""
    ordered = sorted(runs, key=lambda run: (-run["kl_weight"], run["seed"]))
    shown = (
        (
            f"{r['kl_weight']:g}",
            r["seed"],
            f"{r['reward']:.2f}",
            f"{r['gain']:+.2f}",
            f"{r['kl']:.2f}",
        )
        for r in ordered
    )
    return markdown(("β", "seed", "reward", "gain, SFT sd", "KL, nats"), shown)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workspace", type=Path, default=CACHE / "learning")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--updates", type=int, default=150)
    parser.add_argument("--kl-weights", type=float, nargs="+", default=[0.1, 0.0])
    args = parser.parse_args()
    if not args.workspace.exists():
        launch_json("simulate", "--workspace", str(args.workspace), "--labels", "400")
    runs = [run for seed in args.seeds for run in seed_runs(args, seed)]
    print(table(runs))
    return exit_status(failures(runs, args.kl_weights[0]))


if __name__ == "__main__":
    sys.exit(main())
