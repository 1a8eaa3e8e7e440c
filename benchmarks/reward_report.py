"""Coverage of the intervals of the reward model's report: forecast and noise ceiling.

    python -m benchmarks.reward_report [--trials 1000] [--seed 0]

Learning curves are simulated judgment by judgment: prompts differ in difficulty, models make mostly
the same errors, and each model has a random deviation, overall and per prompt.  For the ceiling,
two people judge items whose log-odds are normal, or items that are either clear or decided by chance, with
two items per prompt.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np

from pipeline.reward.quality.ceiling import ceiling_of, noise_ceiling
from pipeline.reward.report.forecast import FULL_MODEL, MeasuredJudgments, trend
from pipeline.reward.report.learning_curve import BLOCKS, ORDERS
from pipeline.statistics.winrate import win_rate

LABELS = {n / BLOCKS: 100.0 * n for n in range(1, BLOCKS + 1)}


def curve(
    coin: np.random.Generator, *, prompts: int, each: int, slope: float, luck: float
) -> MeasuredJudgments:
    """A curve over `prompts` prompts of `each` judgments; 15% of the prompts are held out.

    Accuracy rises by `slope` per doubling of the labels.  Each model deviates randomly with sd
    `luck`, and with sd .05 on each prompt.
    """
    prompt = np.repeat(np.arange(prompts), each)
    level = 0.62 + coin.normal(0, 0.1, prompts)[prompt]
    own = coin.random(prompt.size)
    held_out, block = prompt < round(0.15 * prompts), prompt % BLOCKS
    rows = []
    for order in (*ORDERS, FULL_MODEL):
        for blocks in range(1, BLOCKS) if order != FULL_MODEL else (BLOCKS,):
            learned = np.isin(block, [(order + k) % BLOCKS for k in range(blocks)])
            chance = level + slope * math.log2(blocks / BLOCKS) + coin.normal(0, luck)
            chance = chance + coin.normal(0, 0.05, prompts)[prompt]
            drawn = np.where(coin.random(prompt.size) < 0.7, own, coin.random(prompt.size))
            rows += [
                (int(n), int(prompt[n]), order, blocks / BLOCKS, float(drawn[n] < chance[n]))
                for n in np.flatnonzero(held_out | (~learned & (order != FULL_MODEL)))
            ]
    return MeasuredJudgments.of(rows)


def normal(coin: np.random.Generator, items: int) -> np.ndarray:
    return 1 / (1 + np.exp(-1.5 * coin.normal(size=items)))


def clear_or_coin(coin: np.random.Generator, items: int) -> np.ndarray:
    return np.where(coin.random(items) < 0.4, 1.0, 0.5)


def ceilings(
    coin: np.random.Generator, draw: Callable[[np.random.Generator, int], np.ndarray], items: int
) -> tuple[float, float, float, float]:
    """The interval of the ceiling, and the interval of its bounds, which hold for any items."""
    first = draw(coin, items)
    agreed = (coin.random(items) < first) == (coin.random(items) < first)
    found = noise_ceiling(win_rate(agreed.astype(float).tolist(), [n // 2 for n in range(items)]))
    most = (1 + math.sqrt(max(2 * found.agreement.high - 1, 0))) / 2
    return found.low, found.high, max(found.agreement.low, 0.5), most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    coin = np.random.default_rng(asked.seed)
    print("slope of a learning curve, .03 per doubling: coverage, mean half-width")
    for prompts, each in ((60, 3), (300, 1)):
        for luck in (0.0, 0.02, 0.05):
            found = [
                trend(curve(coin, prompts=prompts, each=each, slope=0.03, luck=luck), LABELS)
                for _ in range(asked.trials)
            ]
            held = [t for t in found if t and t.low <= 0.03 <= t.high]
            width = np.mean([(t.high - t.low) / 2 for t in found if t])
            print(
                f"  {prompts} prompts x {each}, luck {luck:.2f}: {len(held) / len(found):.3f}  {width:.3f}"
            )
    print("noise ceiling: coverage of the interval, coverage of the bounds")
    many = normal(np.random.default_rng(1), 2_000_000)
    truths = {normal: float(np.maximum(many, 1 - many).mean()), clear_or_coin: 0.7}
    for draw, truth in truths.items():
        for items in (30, 100, 400):
            found = [ceilings(coin, draw, items) for _ in range(asked.trials)]
            held = np.mean([low <= truth <= high for low, high, _, _ in found])
            bounds = np.mean([least <= truth <= most for _, _, least, most in found])
            print(f"  {draw.__name__}, {items} pairs: {held:.3f}  {bounds:.3f}")
    print(
        f"(true ceiling of clear_or_coin {truths[clear_or_coin]}, estimate {ceiling_of(0.7):.3f})"
    )


if __name__ == "__main__":
    main()
