"""Simulated annotators behave as their numbers say, and about as people do."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from pipeline.simulation.annotators import SimulatedAnnotator, population


def judge_standard_normal_pairs(annotator: SimulatedAnnotator, count: int, seed: int = 0):
    """(left, right, outcome) of `count` pairs with independent standard-normal scores."""
    coin = np.random.default_rng(seed)
    pairs = coin.normal(size=(count, 2)).tolist()
    return [
        (left, right, annotator.judge(left=left, right=right, words=60, rng=coin).outcome)
        for left, right in pairs
    ]


def shares(judged) -> Counter:
    counts = Counter(outcome for _, _, outcome in judged)
    return Counter({outcome: n / len(judged) for outcome, n in counts.items()})


def agreement(judged) -> float:
    """How often a decisive judgment sides with the higher score."""
    decisive = [(left > right) == (o == "a") for left, right, o in judged if o in "ab"]
    return sum(decisive) / len(decisive)


def test_preference_follows_rao_kupper_worked_by_hand():
    # z = 2 · (1.0 − 0.5) + 0.2 = 1.2; P(a) = σ(1.2 − .4) = σ(.8) = 1/(1 + e^−.8) = .689974,
    # P(b) = σ(−1.6) = .167982, and the tie takes the remaining .142044.
    annotator = SimulatedAnnotator(name="x", profile="careful", slope=2.0, tie=0.4, left_bias=0.2)
    assert annotator.preference(left=1.0, right=0.5) == pytest.approx(
        (0.689974, 0.167982), abs=1e-6
    )
    judged = [
        annotator.judge(left=1.0, right=0.5, words=10, rng=np.random.default_rng(n)).outcome
        for n in range(4000)
    ]
    assert judged.count("a") / 4000 == pytest.approx(0.690, abs=0.022)  # 3 standard errors
    assert judged.count("tie") / 4000 == pytest.approx(0.142, abs=0.017)


class Tosses:
    """A coin that shows what it is told to, whatever else is drawn."""

    def __init__(self, *tosses: float) -> None:
        self._tosses = list(tosses)

    def random(self) -> float:
        return self._tosses.pop(0)

    def normal(self, *_: float) -> float:
        return 0.0


STRONG = SimulatedAnnotator(
    name="x", profile="careful", slope=2.0, tie=0.4, left_bias=0.2, gaps=(1.1, 1.7)
)


@pytest.mark.parametrize(
    ("toss", "outcome", "strength"),
    [
        # z = 1.2 as above, so P(a) = .6900.  P(a, clearly or much) = σ(1.2 − .4 − 1.1) = σ(−.3)
        # = .4256, P(a, much) = σ(−.3 − 1.7) = σ(−2) = .1192.
        (0.1, "a", 3), (0.13, "a", 2), (0.42, "a", 2), (0.43, "a", 1), (0.68, "a", 1),
        # Of b, from .6900 on: σ(−1.2 − 1.5) = σ(−2.7) = .0630 and σ(−2.7 − 1.7) = σ(−4.4) = .0121.
        (0.70, "b", 3), (0.71, "b", 2), (0.75, "b", 2), (0.76, "b", 1), (0.85, "b", 1),
        (0.86, "tie", None), (0.99, "tie", None),  # .6900 + .1680 = .8580
    ],
)  # fmt: skip
def test_strength_is_how_far_the_utility_lies_beyond_the_threshold(toss, outcome, strength):
    said = STRONG.judge(left=1.0, right=0.5, words=10, rng=Tosses(0.5, toss))
    assert (said.outcome, said.strength) == (outcome, strength)


def test_both_bad_has_no_strength():
    strict = replace(STRONG, standard=100.0)
    said = strict.judge(left=1.0, right=0.5, words=10, rng=Tosses(0.5))
    assert (said.outcome, said.strength) == ("both_bad", None)


def test_without_gaps_the_same_is_pressed_and_no_strength_is_stated():
    silent = replace(STRONG, gaps=None)
    for n in range(200):
        said, unsaid = (
            a.judge(left=1.0, right=0.5, words=10, rng=np.random.default_rng(n))
            for a in (STRONG, silent)
        )
        assert unsaid == replace(said, strength=None)


def test_careful_annotators_state_two_slight_and_two_clear_preferences_for_one_much():
    stated: Counter = Counter()
    for n, annotator in enumerate(population(20, bad=0, seed=5)):
        coin = np.random.default_rng(n)
        for left, right in coin.normal(size=(300, 2)).tolist():
            said = annotator.judge(left=left, right=right, words=60, rng=coin)
            assert (said.strength is not None) == (said.outcome in "ab")
            stated[said.strength] += said.outcome in "ab"
    share = [stated[s] / stated.total() for s in (1, 2, 3)]
    assert share == pytest.approx([0.4, 0.4, 0.2], abs=0.03)


def test_annotators_differ_in_what_they_call_clear_and_nothing_else_depends_on_it():
    people = population(4, bad=0.25, seed=3)
    assert len({a.gaps for a in people}) == 4
    # What this seed drew before annotators stated strengths.
    assert [a.slope for a in people] == pytest.approx([0, 1.0502, 1.091548, 1.332302], abs=1e-5)
    assert [a.tie for a in people] == pytest.approx(
        [0.40715, 0.360587, 0.408499, 0.309679], abs=1e-5
    )
    assert [a.time_factor for a in people] == pytest.approx(
        [0.114477, 2.033248, 0.899823, 0.974776], abs=1e-5
    )


def test_bad_share_is_exact_and_filled_in_order():
    profiles = Counter(a.profile for a in population(8, bad=0.25, seed=3))
    assert profiles == {"careful": 6, "careless": 1, "side-biased": 1}
    profiles = Counter(a.profile for a in population(10, bad=0.5, seed=3))
    assert profiles == {"careful": 5, "careless": 2, "side-biased": 1, "noisy": 1, "inverted": 1}
    assert [a.name for a in population(3, bad=0, seed=3)] == ["sim-01", "sim-02", "sim-03"]


def test_seed_decides_who_is_bad():
    def bad_names(seed: int) -> set[str]:
        return {a.name for a in population(8, bad=0.25, seed=seed) if a.profile != "careful"}

    assert bad_names(1) == bad_names(1)
    assert len({frozenset(bad_names(seed)) for seed in range(10)}) > 3


def test_careful_annotators_agree_with_gold_about_as_often_as_people():
    judged = [
        row
        for n, annotator in enumerate(population(20, bad=0, seed=5))
        for row in judge_standard_normal_pairs(annotator, 300, seed=n)
    ]
    share = shares(judged)
    assert 0.72 < agreement(judged) < 0.80
    assert 0.10 < share["tie"] < 0.20
    assert 0.01 < share["both_bad"] < 0.06
    assert share["a"] == pytest.approx(share["b"], abs=0.04)


def by_profile(profile: str) -> SimulatedAnnotator:
    return next(a for a in population(20, bad=0.5, seed=2) if a.profile == profile)


def test_planted_faults_show():
    side_biased = judge_standard_normal_pairs(by_profile("side-biased"), 2000)
    assert shares(side_biased)["a"] > 2.5 * shares(side_biased)["b"]
    assert agreement(judge_standard_normal_pairs(by_profile("inverted"), 2000)) < 0.3
    assert 0.5 < agreement(judge_standard_normal_pairs(by_profile("noisy"), 2000)) < 0.68
    careless = judge_standard_normal_pairs(by_profile("careless"), 2000)
    assert agreement(careless) == pytest.approx(0.5, abs=0.035)  # 3 standard errors
    assert shares(careless)["both_bad"] == 0  # he does not look


def test_two_poor_responses_are_both_bad():
    judge = by_profile("careful").judge
    outcomes = Counter(
        judge(left=-3, right=-2.5, words=60, rng=np.random.default_rng(n)).outcome
        for n in range(200)
    )
    assert outcomes["both_bad"] > 190
    outcomes = Counter(
        judge(left=-3, right=1, words=60, rng=np.random.default_rng(n)).outcome for n in range(200)
    )
    assert outcomes["both_bad"] == 0
    assert outcomes["b"] > 150


def test_time_grows_with_the_text_and_careless_annotators_hurry():
    def median(annotator: SimulatedAnnotator, words: int) -> float:
        coin = np.random.default_rng(0)
        return float(
            np.median(
                [
                    annotator.judge(left=0, right=0, words=words, rng=coin).milliseconds
                    for _ in range(200)
                ]
            )
        )

    assert median(by_profile("careful"), 200) > 2 * median(by_profile("careful"), 40)
    assert 2_000 < median(by_profile("careful"), 40) < 60_000
    assert median(by_profile("careless"), 200) < median(by_profile("careful"), 200) / 2


@pytest.mark.parametrize(("count", "bad"), [(0, 0.0), (4, 1.5), (4, -0.1)])
def test_impossible_populations_are_refused(count, bad):
    with pytest.raises(ValueError, match="must be"):
        population(count, bad=bad, seed=0)
