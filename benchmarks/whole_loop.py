"""How much does the full loop gain over a naive one?  Compares them with `simulate`.

    python -m benchmarks.whole_loop [--seeds 0 1 2 …] [--arms full naive ceiling] [--folder DIR] [--report]

Sixteen annotators give 400 labels; four are bad (one careless, one side-biased, one noisy, one
inverted).  PPO runs at β = .03 with large steps, which expose a wrong reward:

* `full`: two iterations of 200 labels with the default features and `sampling.selection=hybrid`, so that
  BALD chooses up to half of the second iteration's pairs;
* `naive`: one iteration of 400 labels with plain Bradley-Terry, dropped ties, one network, unscaled
  rewards and no annotator model.  It should over-optimize and raise the alarm;
* `ceiling`: PPO on the hidden gold preference.

The gain is the mean gold score of held-out answers minus that of SFT's, in standard deviations.
The alarm is the gate's, from 60 fresh judgments of the final policy against SFT by the same
annotators.  Writes one JSON file per seed, stored in the repository.  Arms that are in it are not
repeated, so several processes can divide the seeds.  The exit status is 1 if a figure misses its
target.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.common import ROOT, markdown
from benchmarks.seeds import run_alone, run_seeds
from pipeline.simulation.trials import NAIVE, Estimate, TrialArm, paired
from pipeline.simulation.worlds import WORLDS, World

RESULTS = ROOT / "benchmarks" / "results" / "whole_loop"
ITERATIONS, LABELS, ANNOTATORS = 2, 200, 16
BAD = WORLDS["plain"].population.bad
SETTINGS: dict[str, Any] = {
    "ppo.updates": 60,
    "ppo.rollouts": 64,
    "ppo.minibatch": 16,
    "ppo.epochs": 2,
    "ppo.lr": 5e-4,
    "ppo.target_kl": 0.1,
    "ppo.score_scaling": "none",
    "ppo.kl_weight": 0.03,
}
"""Settings of all arms in addition to the demo's.  Steps are large and the KL penalty is weak, which
exposes a wrong reward.  Rewards keep their scale, which is small for a reward model that has
learned little (`reward.calibrate`)."""


FULL = TrialArm(name="full", settings={"sampling.selection": "hybrid"})
"""Not the default selection: the stored runs were made with `hybrid`, and new seeds must fit them."""


def ceiling(world: World) -> TrialArm:
    """PPO on a world's gold."""
    return TrialArm(
        name="ceiling",
        one_shot=True,
        settings={
            **NAIVE.settings,
            "shaping.reward_weight": 0,
            "shaping.weights": f'{{"{world.gold_name}" = 1}}',
        },
    )


CEILING = ceiling(WORLDS["plain"])
ARMS = {arm.name: arm for arm in (FULL, NAIVE, CEILING)}
WITHOUT_CANARY = {"gate.canary": ""}
"""The stored runs are older than the canary, which would block some of their policies."""
CEILING_LABELS = 40
"""Few, because the ceiling does not use its reward model."""

OF_CEILING, OF_NAIVE, ALARMS, FALSE_ALARMS, SEEDS_NEEDED = 0.55, 1.5, 0.8, 0.1, 16


def run(
    arm: TrialArm,
    seed: int,
    settings: Mapping[str, Any],
    size: tuple[int, int],
    world: World = WORLDS["plain"],
) -> dict[str, Any]:
    """The report of one run in its own workspace, with its seconds.

    `size`: iterations, and labels in each.
    """
    planned = (1, min(CEILING_LABELS, size[1])) if arm.name == CEILING.name else size
    return run_alone(
        arm,
        planned,
        # One process per run: several runs can divide the seeds.
        settings={
            "worker.nice": 0,
            "worker.processes": 1,
            **WITHOUT_CANARY,
            **SETTINGS,
            **settings,
        },
        annotators=ANNOTATORS,
        bad=world.population.bad,
        seed=seed,
        world=world,
    )


def lasts(held: Sequence[Mapping[str, Any]], arm: str) -> dict[int, Mapping[str, Any]]:
    """The last iteration of an arm, by seed."""
    return {h["seed"]: h["arms"][arm]["iterations"][-1] for h in held if arm in h["arms"]}


def gains(held: Sequence[Mapping[str, Any]], arm: str) -> dict[int, float]:
    """Gold gain over SFT, by seed."""
    found = lasts(held, arm)
    return {seed: last["gold"]["policy"] - last["gold"]["sft"] for seed, last in found.items()}


def over_optimized(last: Mapping[str, Any]) -> bool:
    """Whether the reward rose without a clear win over SFT by gold."""
    return last["gold"]["low"] <= 0.5 and last["gate"]["predicted"] > 0.5


def alarms_by_gain(held: Sequence[Mapping[str, Any]]) -> str:
    """How often the alarm was raised, by gold gain, over the policies of full and naive runs."""
    made = [
        (each["gold"]["policy"] - each["gold"]["sft"], each["gate"]["alarm"])
        for h in held
        for arm in ("full", "naive")
        for each in h["arms"].get(arm, {"iterations": []})["iterations"]
    ]
    rows = []
    for low, high in pairwise((-math.inf, 0.25, 0.5, 0.75, math.inf)):
        rung = [alarm for gain, alarm in made if low <= gain < high]
        name = f"below {high:g}" if low == -math.inf else f"from {low:g}"
        rows.append((name, len(rung), sum(rung)))
    return markdown(("gold gain, sd", "policies", "alarms"), rows)


def share(events: Sequence[bool]) -> str:
    return f"{sum(events)} of {len(events)}"


def table(held: Sequence[Mapping[str, Any]]) -> str:
    """The results of every arm, as Markdown."""
    rows: list[tuple[Any, ...]] = []
    for arm in ARMS:
        found = lasts(held, arm)
        if not found:
            continue
        gates = [last["gate"] for last in found.values()]

        lasts_of = [*found.values()]
        rows.append((
            arm,
            len(found),
            Estimate.of([*gains(held, arm).values()]),
            _mean(last["gold"]["win_rate"] for last in lasts_of),
            _mean(last["kl"] for last in lasts_of),
            _mean(last["reward_model"]["accuracy"] or 0.0 for last in lasts_of),
            _mean(gate["predicted"] for gate in gates),
            _mean(gate["human"] for gate in gates),
            share([gate["alarm"] for gate in gates]),
            f"{sum(h['arms'][arm]['wall'] for h in held if arm in h['arms']) / len(found):.0f}",
        ))  # fmt: skip
    header = (
        *("arm", "seeds", "gold gain, sd", "wins against SFT, by gold", "KL"),
        *("reward model's accuracy", "expected", "people", "alarms", "seconds"),
    )
    return markdown(header, rows)


def _mean(values: Iterable[float]) -> str:
    return f"{fmean(values):.2f}"


def verdicts(held: Sequence[Mapping[str, Any]]) -> list[tuple[str, bool]]:
    """Each target in words, and whether it was met."""
    full, naive, top = (gains(held, arm) for arm in ("full", "naive", "ceiling"))
    found = []
    if full and naive and top:
        both = [seed for seed in full if seed in naive and seed in top]
        mine, plain, best = (sum(values[seed] for seed in both) for values in (full, naive, top))
        more = Estimate.of(paired(full, naive))
        found += [
            (
                f"full / ceiling = {mine / best:.2f} (wanted {OF_CEILING})",
                mine / best >= OF_CEILING,
            ),
            (f"full / naive = {mine / plain:.2f} (wanted {OF_NAIVE})", mine >= OF_NAIVE * plain),
            (f"full − naive = {more} (wanted: above 0)", (more.low or 0) > 0),
        ]
    plainly, healthy = lasts(held, "naive"), lasts(held, "full")
    if plainly:
        rung = [last["gate"]["alarm"] for last in plainly.values()]
        hacked = [over_optimized(last) for last in plainly.values()]
        said = f"alarms on naive runs: {share(rung)} (wanted 80%); over-optimized: {share(hacked)}"
        found.append((said, sum(rung) >= ALARMS * len(rung)))
    if healthy:
        rung = [last["gate"]["alarm"] for last in healthy.values() if not over_optimized(last)]
        said = f"false alarms on healthy full runs: {share(rung)} (wanted at most 10%)"
        found.append((said, sum(rung) <= FALSE_ALARMS * len(rung)))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(SEEDS_NEEDED)))
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--folder", type=Path, default=RESULTS)
    parser.add_argument("--set", action="append", default=[], help="override a setting")
    parser.add_argument("--report", action="store_true", help="only print stored results")
    parser.add_argument("--iterations", type=int, default=ITERATIONS)
    parser.add_argument("--labels", type=int, default=LABELS, help="judgments per iteration")
    args = parser.parse_args()
    settings = dict(item.split("=", 1) for item in args.set)
    conditions = {
        "iterations": args.iterations, "labels": args.labels, "annotators": ANNOTATORS, "bad": BAD,
        "settings": SETTINGS | settings,
    }  # fmt: skip
    held = run_seeds(
        lambda arm, seed: run(arm, seed, settings, (args.iterations, args.labels)),
        [ARMS[name] for name in args.arms],
        args.seeds,
        args.folder,
        conditions=conditions,
        only_report=args.report,
    )
    print(table(held), alarms_by_gain(held), sep="\n\n")
    reached = verdicts(held)
    print("\n".join(f"* {'' if ok else '**short**: '}{said}" for said, ok in reached))
    return 0 if all(ok for _, ok in reached) else 1


if __name__ == "__main__":
    sys.exit(main())
