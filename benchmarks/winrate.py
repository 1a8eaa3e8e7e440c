"""Simulates the error rates of the win-rate statistics.

    python -m benchmarks.winrate [--trials 4000] [--seed 0] [--json FILE]

* coverage of the 95% intervals clustered by prompt, and of intervals that treat judgments as
  independent;
* coverage of the leaderboard's intervals, for several comparison graphs;
* the sequential test's type I error when read after every judgment, compared with peeking at a 95%
  interval; its power and mean stopping time;
* the rates of false and true over-optimization alarms.

Prints Markdown tables; the exit status is 1 if coverage leaves [.93, .96], or a type I error or a
false alarm rate exceeds 5%, by more than two standard errors of the simulation.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

from benchmarks.common import exit_status, markdown
from pipeline.promotion.leaderboard import Match, leaderboard
from pipeline.promotion.overoptimization import over_optimization
from pipeline.promotion.power import Scenario, fixed_size, stopping_times
from pipeline.statistics.sequential_test import LOG_E_THRESHOLD, log_e, log_wealth
from pipeline.statistics.winrate import win_rate

COVERAGE = (0.93, 0.96)
ERROR = 0.05
Row = dict[str, Any]


def standard_error(share: float, trials: int) -> float:
    return math.sqrt(max(share * (1 - share), 1 / trials) / trials)


def judged(
    generator: np.random.Generator, mean: float, prompts: int, per_prompt: int, ties: float
) -> np.ndarray:
    """(prompts, per_prompt) outcomes; the probability of a win differs between prompts.

    It is Beta(2p, 2(1 − p)) with mean p, so that two judgments of a prompt have correlation 1/3.
    """
    p = (mean - ties / 2) / (1 - ties)
    chance = generator.beta(2 * p, 2 * (1 - p), size=(prompts, 1))
    won = (generator.random((prompts, per_prompt)) < chance).astype(float)
    return np.where(generator.random(won.shape) < ties, 0.5, won)


def win_rate_coverage(generator: np.random.Generator, trials: int) -> Iterator[Row]:
    """Coverage of clustered intervals, and of intervals that treat judgments as independent."""
    cases = [
        (60, 1, 0.5, 0.2), (60, 1, 0.7, 0.2), (40, 3, 0.65, 0.0), (60, 3, 0.65, 0.2),
        (200, 2, 0.55, 0.2), (30, 4, 0.85, 0.0),
    ]  # fmt: skip
    for prompts, per_prompt, truth, ties in cases:
        ids = np.repeat(np.arange(prompts), per_prompt).tolist()
        covered = independent = 0
        for _ in range(trials):
            outcomes = judged(generator, truth, prompts, per_prompt, ties).ravel().tolist()
            rate, naive = win_rate(outcomes, ids), win_rate(outcomes, range(len(outcomes)))
            covered += rate.low <= truth <= rate.high
            independent += naive.low <= truth <= naive.high
        yield {
            "prompts": prompts, "per prompt": per_prompt, "win rate": truth, "ties": ties,
            "coverage": covered / trials, "as independent": independent / trials,
        }  # fmt: skip


def leaderboard_coverage(generator: np.random.Generator, trials: int) -> Iterator[Row]:
    """Coverage of each policy's win rate against SFT, by comparison graph."""
    ratings = {"sft": 0.0, "policy-1": 0.4, "policy-2": 0.8, "policy-3": 1.0}
    against_sft = [(name, "sft") for name in ratings if name != "sft"]
    chain = [("policy-2", "policy-1"), ("policy-3", "policy-2")]
    shapes = {
        "each against SFT": against_sft,
        "and against the one before": [*against_sft, *chain],
        "a chain only": [against_sft[0], *chain],
    }
    for shape, pairs in shapes.items():
        for prompts, per_prompt in ((60, 1), (40, 3)):
            covered = dict.fromkeys(ratings, 0)
            for _ in range(trials):
                games = list(_games(generator, ratings, pairs, prompts, per_prompt))
                for rank in leaderboard(games, ratings, anchor="sft"):
                    truth = float(expit(ratings[rank.policy]))
                    assert rank.low is not None
                    assert rank.high is not None
                    covered[rank.policy] += rank.low <= truth <= rank.high
            of_policies = [n / trials for name, n in covered.items() if name != "sft"]
            yield {
                "compared": shape, "prompts per pair": prompts, "per prompt": per_prompt,
                "coverage": float(np.mean(of_policies)), "lowest": min(of_policies),
            }  # fmt: skip


def _games(
    generator: np.random.Generator,
    ratings: dict[str, float],
    pairs: list[tuple[str, str]],
    prompts: int,
    per_prompt: int,
) -> Iterator[Match]:
    for first, second in pairs:
        mean = float(expit(ratings[first] - ratings[second]))
        table = judged(generator, mean, prompts, per_prompt, ties=0.2)
        for prompt, outcomes in enumerate(table.tolist()):
            for outcome in outcomes:
                yield Match(first=first, second=second, outcome=outcome, prompt=(first, second, prompt))  # fmt: skip


def type_one_error(generator: np.random.Generator, trials: int) -> Iterator[Row]:
    """Type I error without a difference, over up to 600 judgments, read after each of them.

    The test uses the first judgment of a prompt, so further judgments change nothing.
    """
    for ties, per_prompt in ((0.0, 1), (0.2, 1), (0.2, 2), (0.2, 4)):
        wrong = peeked = 0
        for _ in range(trials):
            table = judged(generator, 0.5, 600 // per_prompt, per_prompt, ties)
            wrong += bool(_ever_passed(table))
            peeked += _ever_outside(table)
        yield {
            "ties": ties, "per prompt": per_prompt, "type I error": wrong / trials,
            "peeking at 95% intervals": peeked / trials,
        }  # fmt: skip


def _ever_passed(table: np.ndarray) -> bool:
    """Whether log E exceeds its threshold at any judgment."""
    return bool((log_e(log_wealth(table[:, 0])) > LOG_E_THRESHOLD).any())


def _ever_outside(table: np.ndarray) -> bool:
    """Whether the 95% interval of the prompts' means (the same t interval) ever excludes ½."""
    means = table.mean(1)
    n = np.arange(1, len(means) + 1)
    mean = np.cumsum(means) / n
    variance = np.maximum(np.cumsum(means**2) / n - mean**2, 0) * n / np.maximum(n - 1, 1)
    late = n >= 10
    return bool((np.abs(mean - 0.5)[late] > 1.96 * np.sqrt(variance / n)[late]).any())


def stopping(seed: int, trials: int) -> Iterator[Row]:
    """Power at the fixed test's size and judgments until the sequential test stops."""
    for w, ties in ((0.55, 0.0), (0.6, 0.0), (0.6, 0.2), (0.65, 0.2), (0.7, 0.2)):
        scenario = Scenario(win_rate=w, ties=ties)
        fixed = fixed_size(scenario, power=0.8)
        times, better = stopping_times(scenario, most_prompts=8 * fixed, runs=trials, seed=seed)
        yield {
            "win rate": w, "ties": ties, "fixed test, 80% power": fixed,
            "mean until stop": float(np.where(times > 0, times, 8 * fixed).mean()),
            "stopped by the fixed size": float(((times > 0) & (times <= fixed)).mean()),
            "stopped by 60": float(((times > 0) & (times <= 60)).mean()),
            "on the right side": float(better[times > 0].mean()),
        }  # fmt: skip


def alarms(generator: np.random.Generator, trials: int) -> Iterator[Row]:
    """How often z > 2: for a correct reward model, and for one that predicts `excess` too much."""
    for excess in (0.0, 0.1, 0.15, 0.2, 0.3):
        for prompts, per_prompt in ((60, 1), (50, 2)):
            fired = 0
            for _ in range(trials):
                # Predictions differ between pairs; 20% of judgments are ties.
                predicted = generator.beta(6, 4, size=prompts)
                true = np.clip(predicted - excess, 0.02, 0.98)
                outcomes = np.array([judged(generator, p, 1, per_prompt, min(0.2, p, 1 - p)) for p in true])  # fmt: skip
                ids = np.repeat(np.arange(prompts), per_prompt).tolist()
                promised = np.repeat(predicted, per_prompt).tolist()
                fired += over_optimization(promised, outcomes.ravel().tolist(), ids).alarm
            yield {
                "promised too much": excess, "prompts": prompts, "per prompt": per_prompt,
                "alarms": fired / trials,
            }  # fmt: skip


def failures(found: dict[str, list[Row]], trials: int) -> list[str]:
    """A sentence for each requirement that is not met."""
    missed = []
    for part in ("win rate intervals", "leaderboard intervals"):
        for row in found[part]:
            slack = 2 * standard_error(row["coverage"], trials)
            if not COVERAGE[0] - slack <= row["coverage"] <= COVERAGE[1] + slack:
                missed.append(f"{part}: coverage {row['coverage']:.3f} in {row}")
    for part, name in (("sequential test", "type I error"), ("alarm", "alarms")):
        for row in found[part]:
            false = row.get("promised too much", 0.0) == 0.0
            if false and row[name] > ERROR + 2 * standard_error(row[name], trials):
                missed.append(f"{part}: {row[name]:.3f} in {row}")
    return missed


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    cells = ([f"{v:.3f}" if isinstance(v, float) else v for v in row.values()] for row in rows)
    return markdown(list(rows[0]), cells)


def main() -> int:
    parser = argparse.ArgumentParser(description="Simulated error rates of win-rate statistics.")
    parser.add_argument("--trials", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    generator, trials = np.random.default_rng(args.seed), args.trials
    parts = {
        "win rate intervals": lambda: win_rate_coverage(generator, trials),
        "leaderboard intervals": lambda: leaderboard_coverage(generator, trials // 4),
        "sequential test": lambda: type_one_error(generator, trials),
        "stopping": lambda: stopping(args.seed, trials),
        "alarm": lambda: alarms(generator, trials // 2),
    }
    found: dict[str, list[Row]] = {}
    for name, measure in parts.items():
        started = time.monotonic()
        found[name] = list(measure())
        print(f"\n{name} ({time.monotonic() - started:.0f} s)\n\n{table(found[name])}", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"trials": trials, "seed": args.seed} | found, indent=2))
    return exit_status(failures(found, trials // 4))


if __name__ == "__main__":
    sys.exit(main())
