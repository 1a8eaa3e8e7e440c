"""The over-optimization alarm: z by hand, when it is raised, and how often for nothing."""

import math

import numpy as np
import pytest

from pipeline.promotion.overoptimization import over_optimization, remaining_lead


def test_z_matches_one_worked_by_hand():
    # Prompts p, q, r with gaps .8−1, .8−0; .6−½; .6−0: −.2, .8, .1, .6, mean .325.
    # Residual sums −.05 (p: −.525 + .475), −.225, .275; squares .0025 + .050625 + .075625 = .12875.
    # v = 3/2 · .12875/16 = .0120703, below ¼/3² = .0277778: error 1/6, z = .325 · 6 = 1.95.
    found = over_optimization([0.8, 0.8, 0.6, 0.6], [1, 0, 0.5, 0], ["p", "p", "q", "r"])
    assert (found.predicted, found.human) == pytest.approx((0.7, 0.375))
    assert found.error == pytest.approx(1 / 6)
    assert found.z == pytest.approx(1.95)
    assert (found.comparisons, found.prompts, found.alarm) == (4, 3, False)


def test_error_is_that_of_the_clustered_difference():
    # 32 prompts, half with gap .5 and half with −.5: mean 0, v = 32/31 · 32 · .25/32² = .0080645.
    found = over_optimization([0.5] * 32, [0, 1] * 16, list(range(32)))
    assert found.z == 0
    assert found.error == pytest.approx(math.sqrt(0.25 / 31))


def test_a_promise_that_nobody_sees_kept_raises_the_alarm():
    assert over_optimization([0.8] * 60, [0.0] * 60, list(range(60))).alarm
    assert not over_optimization([0.8] * 60, [1.0] * 60, list(range(60))).alarm  # modesty is fine
    few = over_optimization([0.8] * 19, [0.0] * 19, list(range(19)))
    assert few.z > 2
    assert not few.alarm


def test_a_policy_keeps_less_of_its_predicted_lead_the_further_it_is_from_sft():
    assert remaining_lead(0.0, 0.08) == 1
    assert remaining_lead(6.25, 0.08) == pytest.approx(2 / 3)  # 1/(1 + .5)
    assert remaining_lead(25.0, 0.0) == 1
    assert remaining_lead(-0.3, 0.08) == 1  # an estimate that noise took below 0


def test_a_discounted_prediction_is_compared_with_people():
    # 60 judgments, 36 won: .6.  A promise of .8 is .2 too high; half of its lead is .65.
    # v = 60/59 · (36 · .4² + 24 · .6²)/60² = .0040678: z = .2/.06378 = 3.136, and .05/.06378 = .784.
    outcomes, prompts = [1.0] * 36 + [0.0] * 24, list(range(60))
    whole = over_optimization([0.8] * 60, outcomes, prompts)
    half = over_optimization([0.8] * 60, outcomes, prompts, lead=0.5)
    assert (whole.predicted, whole.lead, whole.alarm) == (pytest.approx(0.8), 1, True)
    assert (half.predicted, half.lead, half.alarm) == (pytest.approx(0.65), 0.5, False)
    assert (whole.z, half.z) == pytest.approx((3.136, 0.784), abs=1e-3)


def test_a_reward_model_that_is_right_is_rarely_accused():
    generator = np.random.default_rng(3)
    fired, trials = 0, 2000
    for _ in range(trials):
        predicted = generator.beta(4, 2, size=60)
        outcomes = (generator.random(60) < predicted).astype(float)
        fired += over_optimization(predicted, outcomes, list(range(60))).alarm
    assert 0.005 < fired / trials < 0.045  # 2.3% in the limit


@pytest.mark.parametrize(
    ("predicted", "outcomes"), [([], []), ([0.5], [1, 0]), ([1.2], [1]), ([math.nan], [1])]
)
def test_bad_input_is_refused(predicted, outcomes):
    with pytest.raises(ValueError, match="predictions"):
        over_optimization(predicted, outcomes, ["p"] * len(predicted))
