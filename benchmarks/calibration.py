"""Compares priors on the logarithm of the rewards' scale.

    python -m benchmarks.calibration [--seeds 0 1 2 …] [--folder DIR] [--report]

The demo's reward model learns from judgments of eight annotators, of whom none or a quarter are bad.
Its scale is fitted to judgments that it did not learn from, with priors of several widths.  The
ground truth is the scale that fits thousands of fresh judgments by the same annotators on held-out
prompts.  Reports the error of the logarithm of the scale, and the excess log-loss of the fresh
judgments.  Writes one JSON file per seed.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.common import CACHE, markdown
from benchmarks.demo_world import (
    ANSWERS,
    CONFIG,
    Fitted,
    Label,
    People,
    Pool,
    World,
    judged_pair,
    quietly,
)
from benchmarks.seeds import run_seeds
from pipeline.demo import MODEL_DIR
from pipeline.models.text import ChatTokenizer
from pipeline.reward.data import JudgedPair
from pipeline.reward.likelihood import Likelihood, TieValues
from pipeline.reward.quality.calibration import Factors, fitted_factors
from pipeline.simulation.annotators import SimulatedAnnotator, population
from pipeline.simulation.trials import TrialArm

WIDTHS = (0.15, 0.25, 0.35, 0.5, 0.7, 1.0)
"""Standard deviations of the prior; they are compared with unscaled rewards."""
ANNOTATORS, FRESH = 8, 3000


@dataclass(frozen=True, kw_only=True)
class Case(TrialArm):
    """The number of labels and the share of bad annotators."""

    labels: int
    bad: float


def cases(labels: Sequence[int]) -> list[Case]:
    """For each number of labels: only careful annotators, and a quarter bad ones."""
    return [
        Case(name=f"{count}-{bad:.0%}", labels=count, bad=bad)
        for count in labels
        for bad in (0.0, 0.25)
    ]


def run_case(case: Case, seed: int, pool: Pool, chat: ChatTokenizer) -> dict[str, Any]:
    """Train, fit the factors under each prior, and evaluate them on fresh judgments."""
    world = World.draw(seed, pool, asked=case.labels, measured=250)
    people = population(ANNOTATORS, bad=case.bad, seed=seed)
    asked = People(world, people)
    said = [asked.label(*pair) for pair in world.random_pairs(case.labels, chat)]
    pairs = [judged_pair(world, label, place, chat) for place, label in enumerate(said)]
    fitted = Fitted.to(pairs, chat, replace(CONFIG.reward, calibrate=False), seed=seed)
    network, start = fitted.model.network, world.held_out_answers().start
    rewards = fitted.model(world.conversations[start:], world.texts[start:])
    fresh = [judged_pair(world, label, n, chat) for n, label in enumerate(_fresh(world, people))]
    sides = [
        [rewards[int(getattr(p, side)) - start] for p in fresh] for side in ("first", "second")
    ]
    known: dict[str, Any] = {"likelihood": network.likelihood, "ties": network.ties.values()}
    truth = fitted_factors(fresh, *sides, **known, prior_sd=math.inf)
    unseen = fitted.model.both_sides(fitted.unseen)
    found = {"none": Factors()} | {
        f"{width:g}": fitted_factors(fitted.unseen, *unseen, **known, prior_sd=width)
        for width in WIDTHS
    }
    least = _log_loss(fresh, sides, truth, **known)
    return {
        "unseen": len(fitted.unseen),
        "truth": truth.rewards,
        "by_width": {
            width: {
                "scale": factors.rewards,
                "error": math.log(factors.rewards / truth.rewards),
                "excess": _log_loss(fresh, sides, factors, **known) - least,
            }
            for width, factors in found.items()
        },
    }


def _fresh(world: World, people: Sequence[SimulatedAnnotator]) -> list[Label]:
    """Labels by the same people for pairs on held-out prompts."""
    prompts = range(world.held_out, len(world.texts) // ANSWERS)
    pairs = [pair for prompt in prompts for pair in combinations(world.answers(prompt), 2)]
    asked = [People(world, people, stream=20 + n) for n in range(math.ceil(FRESH / len(pairs)))]
    return [each.label(*pair) for each in asked for pair in pairs][:FRESH]


def _log_loss(
    pairs: Sequence[JudgedPair],
    sides: Sequence[Sequence[float]],
    factors: Factors,
    *,
    likelihood: Likelihood,
    ties: TieValues,
) -> float:
    """Mean negative log-likelihood of the judgments under the rescaled model, nats."""
    first, second = (torch.tensor(side, dtype=torch.float64) for side in sides)
    each = replace(likelihood, both_bad="tie", margin=0.0).log_likelihood(
        factors.rewards * (first - second),
        torch.tensor([pair.outcome for pair in pairs]),
        ties=ties.spread(factors.thresholds),
        strength=torch.tensor([pair.strength for pair in pairs]),
    )
    return -each.mean().item()


def table(held: Sequence[dict[str, Any]], asked: Sequence[Case]) -> str:
    """Means over seeds: root mean squared error of the log scale, and excess log-loss."""
    shown: list[tuple[str, ...]] = []
    for case in asked:
        rows = [each["arms"][case.name] for each in held if case.name in each["arms"]]
        if not rows:
            continue
        cells = []
        for width in rows[0]["by_width"]:
            found = [row["by_width"][width] for row in rows]
            error = math.sqrt(fmean(each["error"] ** 2 for each in found))
            cells.append(f"{error:.2f}, {fmean(each['excess'] for each in found):.4f}")
        true = math.exp(fmean(math.log(row["truth"]) for row in rows))
        head = (case.name, str(len(rows)), f"{fmean(r['unseen'] for r in rows):.0f}", f"{true:.2f}")
        shown.append((*head, *cells))
    return markdown(("case", "seeds", "unseen", "true scale", "none", *WIDTHS), shown)


def main() -> int:
    """Run the missing seeds and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--folder", type=Path, default=CACHE / "calibration")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--labels", type=int, nargs="+", default=[100, 200, 400])
    parser.add_argument(
        "--pool", type=int, help="number of prompts of each role to sample answers to; default: all"
    )
    args = parser.parse_args()
    quietly()
    pool, chat = Pool.sampled(args.pool), ChatTokenizer.load(str(MODEL_DIR))
    asked = cases(args.labels)
    held = run_seeds(
        lambda case, seed: run_case(case, seed, pool, chat),
        asked,
        args.seeds,
        args.folder,
        conditions={"annotators": ANNOTATORS, "reward": asdict(CONFIG.reward)},
        only_report=args.report,
    )
    print(table(held, asked))
    return 0


if __name__ == "__main__":
    sys.exit(main())
