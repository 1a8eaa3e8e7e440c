"""What a policy loses on the canary: rates and intervals worked out by hand."""

from __future__ import annotations

import pytest
from scipy.stats import t

from pipeline.statistics.canary import canary_figures
from storage.gate_records import CanaryResults, CheckResults
from storage.gate_report import CheckRates


def results(
    policy: str, reference: str, *, allowed: float = 0.05, **more: tuple[str, str]
) -> CanaryResults:
    """One check of all prompts, and `more` checks of the first prompts."""
    checks = {"first": (policy, reference)} | more
    return CanaryResults(
        function="my:canary",
        allowed_loss=allowed,
        checks=tuple(
            CheckResults(name=name, prompts=tuple(range(len(ours))), policy=ours, reference=theirs)
            for name, (ours, theirs) in checks.items()
        ),
    )


def test_an_answer_passes_if_it_passes_every_check_of_its_prompt():
    # Prompts: the second check fails, both pass, the first fails; the last has only the first check.
    found = canary_figures(results("1101", "1111", second=("011", "111")))
    assert (found.policy, found.reference, found.loss, found.prompts) == (0.5, 1.0, 0.5, 4)
    assert found.checks == [
        CheckRates(name="first", prompts=4, policy=0.75, reference=1.0),
        CheckRates(name="second", prompts=3, policy=pytest.approx(2 / 3), reference=1.0),
    ]


def test_the_interval_is_of_pairs():
    # Of 100 prompts, 8 are lost, 2 gained, 90 equal: a loss of 6 points.
    found = canary_figures(results("0" * 8 + "1" * 2 + "1" * 90, "1" * 8 + "0" * 2 + "1" * 90))
    # Σ d² − n·mean² = 10 − .36 = 9.64; with n/(n−1)/n², the variance of the mean is 9.64/9900.
    error = (9.64 / 9900) ** 0.5
    half = t.ppf(0.975, 99) * error
    assert found.loss == pytest.approx(0.06)
    # Wilson's interval is pulled toward 0 by a little.
    assert found.low == pytest.approx(0.06 - half, abs=0.001)
    assert found.high == pytest.approx(0.06 + half, abs=0.001)
    assert (found.holds, found.blocks) == (True, False)  # .0600 − .0619 is below 0
    # The same rates with fewer answers that differ are certain: 6 lost, none gained.
    sure = canary_figures(results("0" * 6 + "1" * 94, "1" * 100))
    assert (sure.holds, sure.blocks) == (True, True)
    assert sure.low == pytest.approx(0.06 - t.ppf(0.975, 99) * (5.64 / 9900) ** 0.5, abs=0.001)


def test_five_points_exactly_are_too_much_and_less_is_not():
    # In floating point, .95 − .90 is below .05, and .07 · 100 is above 7.
    assert canary_figures(results("0" * 7 + "1" * 93, "1" * 100, allowed=0.07)).holds
    assert canary_figures(results("0" * 4 + "1" * 36, "0" * 2 + "1" * 38)).holds
    assert not canary_figures(results("0" * 3 + "1" * 37, "0" * 2 + "1" * 38)).holds
    assert not canary_figures(results("0" * 4 + "1" * 36, "0" * 2 + "1" * 38, allowed=0.06)).holds


def test_a_gain_or_no_difference_holds_nothing():
    same = canary_figures(results("1" * 40, "1" * 40))
    assert (same.loss, same.holds, same.blocks) == (0.0, False, False)
    assert same.low < 0 < same.high  # forty equal answers do not show that there is no loss
    gained = canary_figures(results("1" * 40, "0" * 10 + "1" * 30))
    assert (gained.loss, gained.holds) == (-0.25, False)
    assert gained.high < 0


def test_a_record_with_other_marks_is_refused():
    with pytest.raises(ValueError, match="needs a 0 or 1 for each prompt"):
        results("12", "11")
    with pytest.raises(ValueError, match="needs a 0 or 1 for each prompt"):
        CheckResults(name="a", prompts=(0, 1), policy="1", reference="11")
