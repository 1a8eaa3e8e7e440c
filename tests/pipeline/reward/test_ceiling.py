"""How right a perfect reward model could be about noisy judgments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pipeline.reward.annotators import AnnotatorJudgments, FittedAnnotators
from pipeline.reward.data import JudgedPair
from pipeline.reward.likelihood import BOTH_BAD, FIRST, SECOND, TIE, Likelihood, TieValues
from pipeline.reward.quality.ceiling import (
    Ceiling,
    agreement,
    agreement_group,
    ceiling_of,
    items_of,
    noise_ceiling,
    share_of_ceiling,
)
from pipeline.reward.quality.reliability import expected_preference_agreement, outcome_chances
from pipeline.statistics.winrate import WinRate


def judged(outcome: int, who: str = "ann", **others: Any) -> JudgedPair:
    usual: dict[str, Any] = {
        "judgment": f"{who}-{outcome}", "prompt": "p", "first": "x", "second": "y",
        "first_ids": [5], "second_ids": [6], "first_length": 1, "second_length": 1,
        "outcome": outcome, "strength": 0, "annotator": who, "side": 1, "arm": "random",
    }  # fmt: skip
    return JudgedPair(**(usual | others))


def rate(value: float, low: float, high: float) -> WinRate:
    return WinRate(win_rate=value, low=low, high=high, comparisons=100, prompts=100)


@pytest.mark.parametrize("spread", [0.3, 1.5, 6.0])
def test_the_ceiling_is_what_a_perfect_model_reaches_in_simulation(spread: float):
    coin = np.random.default_rng(1)
    reward = spread * coin.normal(size=400_000)
    first = 1 / (1 + np.exp(-reward))
    one, other = (coin.random(reward.size) < first for _ in range(2))
    perfect = float((one == (reward > 0)).mean())
    assert ceiling_of(float((one == other).mean())) == pytest.approx(perfect, abs=0.004)


def test_the_bounds_are_reached_by_the_two_extremes():
    # All items with q = .8: agreement .8² + .2² = .68 and ceiling .8.  36% of items clear and the
    # others coin flips: agreement .36 + .64/2 = .68 and ceiling .36 + .64/2 = .68.
    found = noise_ceiling(rate(0.68, 0.6, 0.75))
    assert (found.least, found.most) == pytest.approx((0.68, 0.8))
    assert found.least < found.value < found.most
    assert (found.low, found.high) == (ceiling_of(0.6), ceiling_of(0.75))
    assert found.expected is None
    assert noise_ceiling(rate(0.68, 0.6, 0.75), expected=0.75).expected == found.high


@pytest.mark.parametrize(("agreed", "best"), [(0.3, 0.5), (0.5, 0.5), (1.0, 1.0)])
def test_chance_and_perfect_agreement(agreed: float, best: float):
    found = noise_ceiling(rate(agreed, 0.2, 1.0))
    assert (found.value, found.least, found.most) == pytest.approx((best, best, best))


def test_who_agrees_is_counted_by_pairs_of_people_who_both_prefer_one():
    other = {"first": "v", "second": "w", "prompt": "q"}
    pairs = [
        judged(FIRST, "ann"), judged(SECOND, "bob"), judged(FIRST, "cy"),  # 1 of 3 pairs agree
        judged(TIE, "dan"), judged(BOTH_BAD, "eve"),  # no preference
        judged(SECOND, "ann", **other),
        judged(FIRST, "bob", **(other | {"first": "w", "second": "v"})),  # turned round: agrees
        judged(FIRST, "ann", first="k", second="l"),  # alone
        judged(FIRST, "ann", first="m", second="n"), judged(FIRST, "ann", first="m", second="n"),
        *(judged(o, w, first="r", second="s", arm="bald") for o, w in ((FIRST, "ann"), (SECOND, "bob"))),
    ]  # fmt: skip
    found = agreement(pairs)
    assert found
    assert (found.comparisons, found.prompts) == (4, 2)
    assert found.win_rate == pytest.approx(2 / 4)
    assert agreement(pairs[3:5]) is None


def test_items_are_unanimous_split_or_single():
    said = {
        "single": [judged(FIRST)],
        "unanimous": [judged(FIRST), judged(SECOND, "bob", first="y", second="x")],
        "split": [judged(FIRST), judged(TIE, "bob")],
    }
    assert {name: agreement_group(item) for name, item in said.items()} == {n: n for n in said}
    assert agreement_group([judged(FIRST), judged(SECOND)]) == "single"  # one person, twice
    assert [len(item) for item in items_of(said["unanimous"]).values()] == [2]


def test_the_share_of_the_ceiling_by_hand():
    ceiling = Ceiling(
        value=0.9, low=0.8, high=0.96, least=0.5, most=1, agreement=rate(0.8, 0.7, 0.9)
    )
    found = share_of_ceiling(rate(0.72, 0.64, 0.80), ceiling)
    # ln .72 − ln .9 = −.223144; below, √(.117783² + .064539²) = .134305; above, √(.105361² +
    # .117783²) = .158031.
    assert (found.value, found.low, found.high) == pytest.approx(
        (0.8, np.exp(-0.357449), np.exp(-0.065113)), abs=1e-5
    )


def test_what_fitted_annotators_would_agree_on_by_hand():
    # θ = log 2, so P(first) = σ(d − θ).  At d = 0 both prefer with (1/3, 1/3); at d = log 4 with
    # σ(log 2) = 2/3 and σ(−log 8) = 1/9.  Same (2/3)² + (1/9)² = 37/81 of (7/9)² = 49/81 there, and
    # 2/9 of 4/9 at d = 0.  The third item is a chosen pair, and of the fourth one judgment is.
    log = torch.log(torch.tensor([4.0, 4, 1, 1, 9, 9, 9, 9], dtype=torch.float64))
    count, zeros = len(log), torch.zeros(1, dtype=torch.float64)
    given = AnnotatorJudgments(
        d=log, side=torch.ones(count, dtype=torch.float64),
        annotator=torch.zeros(count, dtype=torch.long), outcomes=torch.zeros(count, dtype=torch.long),
        strength=torch.zeros(count, dtype=torch.long), level=torch.zeros(count, dtype=torch.float64),
    )  # fmt: skip
    fitted = FittedAnnotators(delta=zeros, bias=zeros, delta_sd=zeros, bias_sd=zeros)
    ties = TieValues(theta=torch.log(torch.tensor(2.0, dtype=torch.float64)))
    counts = [True] * 4 + [False] * 2 + [True, False]

    chances = outcome_chances(
        given, fitted, Likelihood(tie_model="rao_kupper", both_bad="tie"), ties
    )

    def expected(counts: list[bool]) -> float | None:
        return expected_preference_agreement(chances, list("aabbccdd"), counts)

    assert expected(counts) == pytest.approx((37 / 81 + 2 / 9) / (49 / 81 + 4 / 9))
    assert expected([False] * count) is None
