"""Win rates: numbers worked by hand, and intervals that cover what they claim."""

import numpy as np
import pytest

from pipeline.statistics.winrate import outcome, win_rate


def test_a_tie_counts_half_a_win():
    assert win_rate([1, 0.5, 0, 1], ["p", "q", "r", "s"]).win_rate == 0.625  # 2.5 / 4


def test_interval_matches_one_worked_by_hand():
    # Prompts p: 1, 1; q: 1, 0; r: 0, ½; s: 1, ½.  w = 5/8 = .625.
    # Residual sums: p .75, q −.25, r −.75, s .25; squares .5625 + .0625 + .5625 + .0625 = 1.25.
    # v = 4/3 · 1.25 / 64 = .0260417; effective n = .625·.375/.0260417 = 9.
    # t(3) = 3.18245 (tables), t² = 10.12796: center = (.625 + .562665)/(1 + 1.125329) = .558815,
    # half = 3.18245/2.125329 · √(.234375/9 + 10.12796/324) = 1.497390 · √(.0573009) = .358439.
    rate = win_rate([1, 1, 1, 0, 0, 0.5, 1, 0.5], list("ppqqrrss"))
    assert rate.win_rate == 0.625
    assert (rate.comparisons, rate.prompts) == (8, 4)
    assert rate.low == pytest.approx(0.558815 - 0.358439, abs=1e-5)
    assert rate.high == pytest.approx(0.558815 + 0.358439, abs=1e-5)


def test_repeating_a_prompts_outcomes_adds_no_certainty():
    once = win_rate([1, 0, 1, 1, 0, 1], list("abcdef"))
    thrice = win_rate([1, 0, 1, 1, 0, 1] * 3, list("abcdef") * 3)
    assert (thrice.low, thrice.high) == pytest.approx((once.low, once.high))


def test_winning_every_time_still_leaves_doubt():
    # Wilson with n = 20, w = 1: low = n / (n + t²), t(19) = 2.0930.
    rate = win_rate([1] * 20, list(range(20)))
    assert rate.high == 1.0
    assert rate.low == pytest.approx(20 / (20 + 2.0930**2), abs=1e-4)


def test_one_prompt_says_nothing_about_prompts():
    rate = win_rate([1, 1, 1], ["p", "p", "p"])
    assert (rate.low, rate.high) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("prompts", "per_prompt", "truth"), [(40, 3, 0.65), (150, 1, 0.5), (30, 4, 0.85)]
)
def test_95_percent_intervals_cover_the_truth_when_outcomes_cluster(prompts, per_prompt, truth):
    generator = np.random.default_rng(7)
    ids = np.repeat(np.arange(prompts), per_prompt).tolist()
    covered, independent_covered, trials = 0, 0, 600
    for _ in range(trials):
        # Each prompt has its own win probability: Beta(2p, 2(1−p)), mean p, strongly clustered.
        chance = generator.beta(2 * truth, 2 * (1 - truth), size=(prompts, 1))
        wins = (generator.random((prompts, per_prompt)) < chance).astype(float).ravel()
        clustered, independent = win_rate(wins, ids), win_rate(wins, list(range(wins.size)))
        covered += clustered.low <= truth <= clustered.high
        independent_covered += independent.low <= truth <= independent.high
    assert 0.925 < covered / trials < 0.975  # .95 ± 2.8 standard errors
    if per_prompt > 1:
        assert independent_covered / trials < 0.9  # what clustering is for


def test_outcome_of_two_scores():
    assert [outcome(2.0, 1.0), outcome(1.0, 1.0), outcome(0.0, 1.0)] == [1.0, 0.5, 0.0]


@pytest.mark.parametrize(("outcomes", "prompts"), [([], []), ([1], ["p", "q"]), ([0.7], ["p"])])
def test_bad_input_is_refused(outcomes, prompts):
    with pytest.raises(ValueError, match="outcomes"):
        win_rate(outcomes, prompts)


def test_one_win_beside_many_ties_does_not_look_like_knowledge():
    # w = .5083, at an effective size of 4 · 60 and t(59) = 2.001: center (.5083 + 4.004/480) /
    # (1 + 4.004/240) = .5082, half 2.001/1.01668 · √(.24993/240 + 4.004/230400) = .0640.
    found = win_rate([1.0] + [0.5] * 59, [*range(60)])
    assert (found.low, found.high) == pytest.approx((0.4442, 0.5722), abs=3e-4)
