"""Held-out figures by hand."""

from __future__ import annotations

import math

import pytest

from pipeline.reward.likelihood import FIRST, SECOND, TIE
from pipeline.reward.quality.metrics import held_out_metrics
from pipeline.statistics.calibration_error import expected_calibration_error
from tests.helpers.judged_pairs import pair


def test_held_out_figures_by_hand():
    outcomes = [FIRST, SECOND, FIRST, TIE]
    pairs = [pair(o, prompt=f"p{i}") for i, o in enumerate(outcomes)]
    log3 = math.log(3)
    # d = log 3, log 3, 0, 0: right, wrong, equal (½); the tie does not count.
    found = held_out_metrics(
        pairs, [log3, log3, 0, 0], [0, 0, 0, 0], theta=math.log(2), tie_model="rao_kupper"
    )
    assert found.accuracy == pytest.approx(1.5 / 3)
    # θ = log 2, d = log 3: .6, 1/7, 9/35; d = 0: 1/3 each.
    assert found.log_loss == pytest.approx(-math.log(0.6 / 7 / 3 / 3) / 4)
    # Stated .6/(.6 + 1/7) = 21/26 twice with one right of two, and ½ once, counted as right.
    assert found.ece == pytest.approx((2 * (21 / 26 - 0.5) + 0.5) / 3)
    assert found.accuracy_low < 0.5 < found.accuracy_high


def test_figures_under_drop_leave_ties_out():
    pairs = [pair(FIRST, prompt="a"), pair(TIE, prompt="b")]
    found = held_out_metrics(pairs, [math.log(3), 5], [0, 0], theta=9.0, tie_model="drop")
    assert found.log_loss == pytest.approx(-math.log(0.75))
    assert found.ece == pytest.approx(0.25)


def test_figures_without_a_decisive_judgment_are_missing_not_invented():
    found = held_out_metrics([pair(TIE)], [0.0], [0.0], theta=1.0, tie_model="rao_kupper")
    assert found.accuracy is None
    assert found.ece is None
    assert found.log_loss == pytest.approx(-math.log(math.tanh(0.5)))


def test_calibration_does_not_care_which_side_is_called_first():
    p, y = [0.91, 0.83, 0.67, 0.27], [1.0, 0.0, 1.0, 1.0]
    swapped = expected_calibration_error([1 - x for x in p], [1 - x for x in y])
    assert expected_calibration_error(p, y) == pytest.approx(swapped)
    # Four bins of one: |.91 − 1|, |.83 − 0|, |.67 − 1|, |.73 − 0|.
    assert expected_calibration_error(p, y) == pytest.approx((0.09 + 0.83 + 0.33 + 0.73) / 4)
