"""What is told of a reward model from its held-out judgments, by hand."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from pipeline.reward.likelihood import FIRST, SECOND, TIE
from pipeline.reward.quality.ceiling import MIN_OVERLAP
from pipeline.reward.quality.figures import (
    by_agreement,
    by_margin,
    calibration,
    length_bias,
    of_stream,
    outcomes,
    row_log_loss,
)
from pipeline.reward.quality.held_out import coin_log_loss
from pipeline.statistics.calibration_error import expected_calibration_error
from pipeline.statistics.winrate import win_rate
from storage.reports import LengthBias
from tests.helpers.held_out_rows import figures, row
from tests.helpers.judged_pairs import pair as usual_pair


def pair(outcome: int, *, prompt: str, arm: str = "random") -> Any:
    return usual_pair(outcome, prompt=prompt, arm=arm)


def test_the_higher_reward_should_win_and_confidence_is_of_preferences():
    right, stated = outcomes(
        [
            row(1.0, "first", p_first=0.6, p_second=0.2),
            row(1.0, "second", p_first=0.6, p_second=0.2),
            row(-2.0, "second", p_first=0.1, p_second=0.9),
            row(0.0, "first", p_first=0.3, p_second=0.3),
        ]
    )
    assert right.tolist() == [1, 0, 1, 0.5]
    # A fifth of the first two are ties: of those who prefer one, .6/.8 take the likelier.
    assert stated.tolist() == pytest.approx([0.75, 0.75, 0.9, 0.5])


def test_pairs_that_a_model_chose_count_for_nothing():
    stream = [
        row(1.0, "first"),
        row(2.0, "second"),
        row(0.5, "tie"),
        row(3.0, "first", arm="reference"),
    ]
    chosen = [
        row(4.0 + n, "second", arm=arm)
        for n, arm in enumerate(("bald", "uncertainty", "d_optimal"))
    ]
    found = figures(stream + chosen)
    assert (found.judgments, found.decisive, found.prompts) == (4, 3, 3)
    assert found.accuracy.win_rate == pytest.approx(2 / 3)
    assert sum(each.judgments for each in found.by_margin) == 3
    assert sum(each.judgments for each in found.calibration.bins) == 3
    assert found == figures(stream)


def test_without_a_preference_there_are_no_figures_and_no_fault():
    for rows in ([row(1.0, "tie")], [row(1.0, "first", arm="bald")]):
        found = figures(rows)
        assert (found.decisive, found.prompts) == (0, 0)
        assert (found.accuracy, found.calibration, found.length) == (None, None, None)
        assert found.by_margin == found.by_agreement == ()


def test_the_log_loss_of_a_row_by_hand():
    tied = row(0, "tie", p_first=0.5, p_second=0.2)
    assert row_log_loss(tied, "rao_kupper") == pytest.approx(-math.log(0.3))
    assert row_log_loss(tied | {"outcome": "both_bad"}, "davidson") == pytest.approx(-math.log(0.3))
    assert row_log_loss(tied | {"outcome": "second"}, "rao_kupper") == pytest.approx(-math.log(0.2))
    assert row_log_loss(tied | {"p_second": 0.5}, "half") == pytest.approx(math.log(2))
    assert row_log_loss(tied | {"p_first": 1.0, "p_second": 0.0}, "rao_kupper") < 30


def test_margins_are_in_four_groups_of_equal_size():
    margin = np.arange(1, 21)[::-1].astype(float)
    right = (margin > 5).astype(float)
    right[margin == 12] = 0  # one of the third group of five
    found = by_margin(margin, np.full(20, 0.7), right, range(20))
    assert [(each.start, each.end, each.judgments) for each in found] == [
        (1, 5, 5), (6, 10, 5), (11, 15, 5), (16, 20, 5),
    ]  # fmt: skip
    assert [each.accuracy for each in found] == [0, 1, 0.8, 1]
    expected = win_rate([1, 0, 1, 1, 1], range(5))
    assert (found[2].low, found[2].high) == (expected.low, expected.high)


@pytest.mark.parametrize(("count", "groups"), [(4, 1), (9, 1), (10, 2), (19, 3), (400, 4)])
def test_few_judgments_make_few_groups(count: int, groups: int):
    margin = np.arange(count).astype(float)
    assert len(by_margin(margin, margin, np.ones(count), range(count))) == groups


def test_equal_margins_are_not_torn_apart():
    margin = np.array([1.0] * 15 + [2.0] * 5)
    found = by_margin(margin, margin, np.ones(20), range(20))
    assert [(each.start, each.end, each.judgments) for each in found] == [
        (1, 1, 15),
        (2, 2, 5),
    ]


def test_intervals_know_which_judgments_share_a_prompt():
    right = np.array([1.0, 1, 0, 0])
    apart = by_margin(np.ones(4), np.ones(4), right, "abcd")[0]
    together = by_margin(np.ones(4), np.ones(4), right, "aabb")[0]
    assert together.high - together.low > apart.high - apart.low


def test_accuracy_by_how_people_agree():
    groups = ["single", "unanimous", "single", "unanimous"]
    found = by_agreement(groups, np.array([1.0, 1, 0, 1]), "abcd")
    assert [(each.group, each.accuracy, each.judgments) for each in found] == [
        ("unanimous", 1, 2), ("single", 0.5, 2),
    ]  # fmt: skip


def test_the_reliability_diagram_and_the_gap_by_hand():
    stated, right = np.array([0.84, 0.8, 0.62, 0.58]), np.array([1.0, 0, 1, 0])
    found = calibration(stated, right, "abcd")
    bins = found.bins
    assert [(b.start, b.end, b.judgments) for b in bins] == [
        (0.5, 0.6, 1), (0.6, 0.7, 1), (0.8, 0.9, 2),
    ]  # fmt: skip
    assert [b.stated for b in bins] == pytest.approx([0.58, 0.62, 0.82])
    assert [b.accuracy for b in bins] == [0, 1, 0.5]
    assert found.ece == pytest.approx(expected_calibration_error([*stated], [*right]))
    # Gaps −.16, .8, −.38, .58 with mean .21; residuals −.37, .59, −.59, .37 with squares .970;
    # variance 4/3 · .97 / 16, times Student's 3.182446² at 3 degrees of freedom.
    gap = found.overconfidence
    reach = 3.182446 * math.sqrt(4 / 3 * 0.97 / 16)
    assert gap.value == pytest.approx(0.21)
    assert (gap.low, gap.high) == pytest.approx((0.21 - reach, 0.21 + reach), abs=1e-5)


def test_chance_alone_makes_a_calibration_error():
    # One judgment, stated .7: right with .7 (error .3), wrong with .3 (error .7).
    assert calibration(np.array([0.7]), np.array([1.0]), "a").ece_by_chance == pytest.approx(0.7)
    # At a stated .99 it is wrong in fewer than one case of twenty.
    sure = calibration(np.array([0.99]), np.array([1.0]), "a")
    assert sure.ece_by_chance == pytest.approx(0.01)
    # √n: of 40,000 in one bin, |mean gap| exceeds 1.96 √(.21/40,000) = .0045 in one case of twenty.
    many = calibration(np.full(40_000, 0.7), np.ones(40_000), range(40_000))
    assert many.ece_by_chance == pytest.approx(0.0045, rel=0.15)


def lengths(rows: list[tuple[float, int, str]]) -> LengthBias:
    """Length figures of (d, tokens more of the first, outcome)."""
    table = [
        row(d, outcome, name=str(n), prompt=str(n), first_length=50 + longer, second_length=50)
        for n, (d, longer, outcome) in enumerate(rows)
    ]
    found = length_bias(*of_stream(table))
    assert found
    return found


def test_how_rewards_and_people_go_with_length_by_hand():
    found = lengths(
        [(1, 2, "first"), (-1, -1, "first"), (2, -1, "second"), (0, 0, "first"), (1, 1, "tie")]
    )
    # Σ dΔ = 2 + 1 − 2 + 0 + 1 = 2; Σ d² = 7, Σ Δ² = 7.
    assert found.correlation.value == pytest.approx(2 / 7)
    # Of three preferences with a longer response two go to it; so does the reward in two.
    assert (found.rule.win_rate, found.rule.comparisons) == (pytest.approx(2 / 3), 3)
    assert found.reward.win_rate == pytest.approx(2 / 3)
    swapped = lengths([(-1, -2, "second"), (1, 1, "second"), (-2, 1, "first"), (0, 0, "first"), (-1, -1, "tie")])  # fmt: skip
    assert swapped.correlation.value == pytest.approx(found.correlation.value)
    assert swapped.rule.win_rate == pytest.approx(2 / 3)


def test_equal_lengths_or_none_to_prefer_say_nothing():
    assert length_bias(*of_stream([row(1.0, "first"), row(2.0, "second")])) is None
    tied = [row(1.0, "tie", first_length=9), row(2.0, "second")]
    assert length_bias(*of_stream(tied)) is None
    unmoved = [row(0.0, "first", first_length=9), row(0.0, "second")]
    assert length_bias(*of_stream(unmoved)) is None


def test_the_correlations_interval_is_that_of_theory_and_clustered():
    # Of a bivariate normal, arctanh ρ̂ has standard error 1/√n (Fisher 1921).
    coin = np.random.default_rng(0)
    d = coin.normal(size=2000)
    longer = 0.6 * d + 0.8 * coin.normal(size=2000)
    drawn = [(each, round(1000 * more), "first") for each, more in zip(d, longer, strict=True)]
    found = lengths(drawn).correlation
    width = (math.atanh(found.high) - math.atanh(found.low)) / 2
    assert found.value == pytest.approx(0.6, abs=0.04)
    assert width == pytest.approx(1.96 / math.sqrt(2000), rel=0.1)
    table = [
        row(d, "first", prompt=str(n % 200), first_length=9000 + more, second_length=9000)
        for n, (d, more, _) in enumerate(drawn[:200] * 10)
    ]
    repeated = length_bias(table, table)
    once = length_bias(table[:200], table[:200])
    assert repeated
    assert once
    assert asdict(repeated.correlation) == pytest.approx(asdict(once.correlation))


def test_the_ceiling_needs_enough_pairs_of_preferences():
    rows = [row(1.0 + n, "first" if n % 4 else "second") for n in range(40)]

    def with_overlap(pairs: int) -> dict[str, Any]:
        agreed = win_rate([1.0, 1, 1, 0] * (pairs // 4), range(pairs // 4 * 4))
        return figures(rows, agreed=agreed, expected=0.8)

    few, enough = with_overlap(MIN_OVERLAP - 4), with_overlap(MIN_OVERLAP)
    assert (few.ceiling, few.share_of_ceiling, few.overlap) == (None, None, MIN_OVERLAP - 4)
    assert enough.ceiling.value == pytest.approx(0.82, abs=0.005)
    assert enough.ceiling.expected > enough.ceiling.value
    share = enough.share_of_ceiling
    assert share.value == pytest.approx(0.75 / enough.ceiling.value)
    assert share.low < share.value < share.high


def test_a_coin_knows_how_often_people_tie_on_other_prompts():
    held_out = [pair(FIRST, prompt=f"h{n}") for n in range(3)] + [pair(TIE, prompt="h3")]
    others = [pair(TIE if n < 2 else SECOND, prompt=f"o{n}") for n in range(6)]
    # Of six and one more of each kind a third are ties: ln 3 for a tie, and for each side.
    everything = [*held_out, *others]
    for tie_model in ("rao_kupper", "davidson", "ordinal"):
        assert coin_log_loss(tie_model, held_out, everything) == pytest.approx(math.log(3))
    # With two more without a tie 3/11 tie, 4/11 go to each side.
    others += [pair(FIRST, prompt="o7"), pair(FIRST, prompt="o8")]
    expected = -(math.log(3 / 11) + 3 * math.log(4 / 11)) / 4
    found = coin_log_loss("rao_kupper", held_out, [*held_out, *others])
    assert found == pytest.approx(expected)
    # Pairs that a reward model chose say nothing of all others.
    chosen = [pair(TIE, prompt=f"c{n}", arm="bald") for n in range(9)]
    assert coin_log_loss("rao_kupper", held_out, [*held_out, *others, *chosen]) == found
    assert coin_log_loss("half", held_out, everything) == math.log(2)
    assert coin_log_loss("drop", held_out, everything) == math.log(2)
    assert coin_log_loss("drop", held_out[3:], everything) is None
