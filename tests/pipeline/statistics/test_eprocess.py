"""The sequential test: wealth worked by hand, decisions, and what peeking does."""

import math

import numpy as np
import pytest

from pipeline.statistics.sequential_test import (
    LOG_E_THRESHOLD,
    first_outcomes,
    log_e,
    log_wealth,
    sequential_test,
)
from pipeline.statistics.winrate import win_rate


def names(count: int) -> list[str]:
    return [f"p{i}" for i in range(count)]


def test_wealth_after_two_wins_worked_by_hand():
    # The bets are ±λ, so linear terms cancel: E = mean (1 + λ/2)² = 1 + mean(λ²)/4.
    # λ²: .01 + .04 + .1225 + .3025 + .64 + 1.21 = 2.325, over 6: .3875, over 4: .096875.
    found = sequential_test([1, 1], names(2))
    assert found.path == pytest.approx([0.0, math.log(1.096875)])
    assert found.log_e == found.path[-1]
    assert sequential_test([1, 0], names(2)).log_e == pytest.approx(math.log(1 - 0.096875))


def test_twelve_wins_in_a_row_settle_it_and_eleven_do_not():
    # Of 12 E the bets on 1.1, .8, .55, .35, .2, .1 hold after 11 wins
    # 124.0 + 40.5 + 14.5 + 5.9 + 2.9 + 1.7 = 189.5 and the others 1.1: E = 15.9; after 12 wins
    # 192.2 + 56.7 + 18.4 + 6.9 + 3.1 + 1.8 + 1.0 = 280.1: E = 23.3 > 20.
    assert sequential_test([1] * 11, names(11)).decision == "go on"
    won, lost = sequential_test([1] * 12, names(12)), sequential_test([0] * 12, names(12))
    assert (won.decision, won.stopped_at) == ("better", 12)
    assert (lost.decision, lost.stopped_at) == ("worse", 12)
    assert won.log_e == pytest.approx(lost.log_e)
    assert math.exp(won.log_e) == pytest.approx(280.1 / 12, abs=0.05)


def test_what_was_decided_stays_decided():
    found = sequential_test([1] * 14 + [0] * 30, names(44))
    assert (found.decision, found.stopped_at) == ("better", 12)
    assert found.log_e < LOG_E_THRESHOLD
    # Losses enough to decide the other way; the first decision holds.
    turned = sequential_test([1] * 14 + [0] * 200, names(214))
    assert turned.log_e > LOG_E_THRESHOLD
    assert (turned.decision, turned.stopped_at) == ("better", 12)


def test_a_prompt_is_one_observation_its_first():
    once = sequential_test([1, 0.5, 1], ["p", "q", "r"])
    often = sequential_test([1, 0.5, 0, 1, 1, 0], ["p", "q", "q", "r", "r", "p"])
    assert often.path == once.path
    assert often.prompts == 3
    assert first_outcomes([1, 0, 0.5, 1], ["p", "q", "p", "q"]).tolist() == [1.0, 0.0]


def test_later_judgments_of_the_same_prompts_take_nothing_back():
    won = sequential_test([1] * 20, names(20))
    again = sequential_test([1] * 20 + [0] * 20, names(20) * 2)
    assert again == won
    assert (again.decision, again.stopped_at) == ("better", 12)


@pytest.mark.parametrize(("prompts", "laps"), [(100, 6), (60, 4)])
def test_rounds_over_the_same_prompts_decide_wrongly_in_one_case_of_twenty_at_most(prompts, laps):
    # No policy is better; two judgments of a prompt correlate by 1/3.  Looked at after each.
    generator, trials, wrong = np.random.default_rng(5), 400, 0
    for _ in range(trials):
        leaning = np.where(generator.random(prompts) < 0.5, 0.5 + 3**-0.5 / 2, 0.5 - 3**-0.5 / 2)
        table = (generator.random((laps, prompts)) < leaning).astype(float)
        stops = [
            sequential_test(table[:lap].ravel(), [*range(prompts)] * lap).stopped_at
            for lap in range(1, laps + 1)
        ]
        assert stops == stops[:1] * laps
        wrong += stops[-1] is not None
    assert wrong / trials < 0.05


def test_the_order_matters_to_when_but_not_to_how_much():
    outcomes = [1.0, 0.5, 0.0, 1.0, 1.0, 0.5]
    forward = sequential_test(outcomes, names(6))
    backward = sequential_test(outcomes[::-1], names(6))
    assert forward.log_e == pytest.approx(backward.log_e)
    assert forward.path[:3] != pytest.approx(backward.path[:3])


def test_no_length_of_extremes_breaks_it():
    for value in (0.0, 1.0):
        found = sequential_test([value] * 5000, names(5000))
        assert math.isfinite(found.log_e)
    # 5000 wins: the bet on 1.1 holds all but nothing: 5000 log 1.55 − log 12.
    assert found.log_e == pytest.approx(5000 * math.log(1.55) - math.log(12))


def test_nothing_judged_yet_means_going_on():
    found = sequential_test([], [])
    assert (found.decision, found.log_e, found.prompts, found.path) == ("go on", 0.0, 0, ())


def test_the_limit_is_one_false_decision_in_twenty():
    assert math.exp(-LOG_E_THRESHOLD) == pytest.approx(0.05)  # Ville: P(sup E ≥ 1/α) ≤ α


@pytest.mark.parametrize("outcomes", [[1.5], [-0.1], [math.nan], [1, 1], []])
def test_bad_input_is_refused(outcomes):
    with pytest.raises(ValueError, match="outcomes"):
        sequential_test(outcomes, ["p"])


def test_looking_after_every_judgment_is_wrong_in_at_most_one_of_twenty():
    # Ties in a fifth of prompts; ½ on average: neither is better.
    x = np.random.default_rng(11).choice([1.0, 0.5, 0.0], size=(1500, 300), p=[0.4, 0.2, 0.4])
    wrong = (log_e(log_wealth(x)) > LOG_E_THRESHOLD).any(axis=1).mean()
    assert wrong < 0.05 + 2 * math.sqrt(0.05 * 0.95 / 1500)
    assert wrong > 0.005  # it does bet

    # The same looks at 95% intervals, from the tenth prompt on.
    def peeks(outcomes: np.ndarray) -> bool:
        for n in range(10, len(outcomes), 5):
            rate = win_rate(outcomes[:n].tolist(), range(n))
            if not rate.low <= 0.5 <= rate.high:
                return True
        return False

    assert np.mean([peeks(row) for row in x[:150]]) > 0.2
