"""PPO reaches the closed-form optimum of E[r] − β KL(π‖π_ref), however the KL is charged."""

import pytest

from pipeline.ppo import PPOConfig, config
from tests.helpers.closed_form import GROUP_MEAN, GROUPS, RAW, RLOO, distance_left

ACCEPTED = [("k1", "reward"), ("k2", "loss"), ("full", "loss")]
REFUSED = [("k2", "reward"), ("k3", "reward"), ("abs", "reward")]
REFUSED += [("k1", "loss"), ("k3", "loss"), ("abs", "loss")]
BASELINES = [
    {"critic": "shared"},
    {"critic": "separate"},
    {"baseline": "return_to_go"},
    {"baseline": "category_mean"},
]

WEIGHTINGS = [
    {"loss_mean": "token"},
    {"loss_mean": "response"},
    {"loss_mean": "constant"},
    {"loss_mean": "response", "ratio_level": "response"},
]
SCALINGS = [RAW, {}, RAW | {"group_scaling": "std"}, {"group_scaling": "std"}]


def betas(*usual: float) -> list:
    """All four; the slow tests have those that are not usual."""
    return [
        beta if beta in usual else pytest.param(beta, marks=pytest.mark.slow)
        for beta in (0.1, 0.3, 1.0, 10.0)
    ]


@pytest.mark.parametrize("beta", betas(0.1, 10.0))
def test_reaches_the_closed_form_optimum(beta):
    assert distance_left(beta, updates=40) <= 0.01


@pytest.mark.parametrize("beta", betas(0.3))
def test_reaches_it_with_a_critic_of_its_own(beta):
    assert distance_left(beta, updates=30, critic="separate") <= 0.01


@pytest.mark.parametrize("estimator", ["k2", "full"])
def test_reaches_it_with_the_divergence_in_the_loss(estimator):
    assert distance_left(1.0, updates=25, kl_estimator=estimator, kl_in="loss") <= 0.02


def test_the_exact_divergence_is_charged_alike_under_either_place():
    reward, loss = (
        distance_left(1.0, updates=2, kl_estimator="full", kl_in=place)
        for place in ("reward", "loss")
    )
    assert reward == loss


@pytest.mark.slow
@pytest.mark.parametrize(("estimator", "place"), ACCEPTED)
@pytest.mark.parametrize("settings", BASELINES, ids=str)
def test_every_way_to_charge_the_kl_reaches_it(estimator, place, settings):
    charge = {"kl_estimator": estimator, "kl_in": place, "updates": 30}
    assert distance_left(1.0, **charge, **settings) <= 0.02


@pytest.mark.slow
@pytest.mark.parametrize(("estimator", "place"), ACCEPTED)
@pytest.mark.parametrize("scaling", ["whiten_rewards", "none"])
def test_beta_keeps_its_unit_whatever_is_whitened(estimator, place, scaling):
    whitened = scaling == "whiten_rewards"
    settings = {"whiten_rewards": whitened, "whiten_advantages": whitened}
    charge = {"kl_estimator": estimator, "kl_in": place, "updates": 30}
    assert distance_left(1.0, **charge, **settings) <= 0.02


@pytest.mark.parametrize(("estimator", "place"), ACCEPTED)
def test_a_policy_that_starts_at_the_reference_reaches_it_in_one_step_a_response(estimator, place):
    charge = {"kl_estimator": estimator, "kl_in": place, "updates": 20}
    assert distance_left(1.0, tokens=1, from_reference=True, **charge) <= 0.02


@pytest.mark.parametrize("method", GROUPS)
def test_group_methods_reach_it(method):
    assert distance_left(1.0, updates=25, **GROUPS[method]) <= 0.02


@pytest.mark.parametrize("estimator", ["k2", "full"])
@pytest.mark.parametrize("scaling", [RAW, {}], ids=["raw", "whitened"])
def test_rloo_reaches_it_with_the_divergence_in_the_loss(estimator, scaling):
    charge = {"kl_estimator": estimator, "kl_in": "loss", "updates": 25}
    assert distance_left(1.0, **charge, **RLOO, **scaling) <= 0.02


@pytest.mark.slow
@pytest.mark.parametrize("baseline", [RLOO, GROUP_MEAN], ids=str)
@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=str)
@pytest.mark.parametrize("scaling", SCALINGS, ids=str)
def test_every_accepted_form_of_a_group_method_reaches_it(baseline, weighting, scaling):
    assert distance_left(1.0, updates=30, **baseline, **weighting, **scaling) <= 0.02


@pytest.mark.slow
@pytest.mark.parametrize("method", GROUPS)
@pytest.mark.parametrize("beta", [0.3, 10.0])
def test_group_methods_reach_it_at_other_betas(method, beta):
    assert distance_left(beta, updates=40, **GROUPS[method]) <= 0.02


@pytest.mark.parametrize(
    "settings",
    [
        RLOO | RAW | {"kl_estimator": "k2", "kl_in": "loss", "group_scaling": "std"},
        GROUP_MEAN | RAW | {"kl_estimator": "full", "kl_in": "loss"},
    ],
    ids=["scaled", "own-response-in-the-mean"],
)
def test_group_settings_that_are_refused_would_miss_it(settings, monkeypatch):
    with pytest.raises(ValueError, match=r"ppo\.kl_in='reward'"):
        PPOConfig(**settings)
    monkeypatch.setattr(config, "_check_groups", lambda _: None)
    assert distance_left(1.0, updates=25, **settings) > 0.02


@pytest.mark.parametrize(("estimator", "place"), REFUSED)
def test_what_optimizes_something_else_is_refused(estimator, place):
    with pytest.raises(ValueError, match=r"arXiv:2512\.21852") as refusal:
        PPOConfig(kl_estimator=estimator, kl_in=place)
    assert "'k1' with ppo.kl_in='reward'" in str(refusal.value)


@pytest.mark.slow
@pytest.mark.parametrize(("estimator", "place"), ACCEPTED)
@pytest.mark.parametrize("beta", [0.1, 0.3, 1.0, 10.0])
def test_comes_closer_in_a_longer_run(beta, estimator, place):
    charge = {"kl_estimator": estimator, "kl_in": place}
    assert distance_left(beta, updates=120, **charge) <= 0.004


def test_an_engine_that_hardly_trains_does_not():
    assert distance_left(1.0, updates=1, lr=1e-9) == pytest.approx(1.0, abs=1e-3)
