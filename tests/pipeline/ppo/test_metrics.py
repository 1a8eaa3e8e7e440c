"""Settings explain and check themselves; red flags fire on what is wrong and on nothing else."""

import math
from dataclasses import fields

import pytest

from pipeline.ppo.config import PPOConfig
from pipeline.ppo.metrics import (
    METRICS,
    length_correlation,
    red_flags,
    repeated_ngrams,
    unique_share,
)

HEALTHY = {
    "reward/mean": 0.5,
    "reward/std": 1.0,
    "kl/reference": 2.0,
    "kl/coefficient": 0.05,
    "reference/changed": 0.0,
    "policy/entropy": 1.5,
    "policy/clip_fraction": 0.1,
    "policy/first_ratio_error": 1e-6,
    "rollout/mismatch_kl": 1e-4,
    "completion/unseen_tokens": 0.0,
    "value/explained_variance": 0.4,
    "completion/unique": 1.0,
    "completion/length_mean": 30.0,
    "optim/epochs": 4.0,
}


def history_ending(n: int = 12, **changes: float) -> list[dict[str, float]]:
    """A healthy run whose last three updates have other values; `a__b` stands for `a/b`."""
    changed = {name.replace("__", "/"): value for name, value in changes.items()}
    assert changed.keys() <= HEALTHY.keys()
    return [dict(HEALTHY) for _ in range(n - 3)] + [HEALTHY | changed for _ in range(3)]


@pytest.mark.parametrize(
    ("changes", "name", "level"),
    [
        ({"reward__std": 0.009}, "reward_flat", "warn"),
        ({"reward__mean": -10.5}, "reward_low", "warn"),
        ({"reward__mean": -2.0}, "reward_falling", "warn"),
        ({"kl__reference": 10.1}, "kl_high", "warn"),
        ({"kl__reference": 15.1}, "kl_high", "stop"),
        ({"kl__reference": -0.2}, "kl_negative", "warn"),
        ({"policy__entropy": 0.01}, "entropy_collapse", "warn"),
        ({"policy__clip_fraction": 0.51}, "clip_fraction_high", "warn"),
        ({"value__explained_variance": -0.1}, "explained_variance_negative", "warn"),
        ({"completion__unique": 0.49}, "duplicates", "warn"),
        ({"completion__length_mean": 61.0}, "length_drift", "warn"),
        ({"completion__length_mean": 14.0}, "length_drift", "warn"),
        ({"optim__epochs": 5.0}, "many_epochs", "warn"),
        ({"kl__coefficient": 0.0}, "no_kl_penalty", "warn"),
        ({"reference__changed": 1.0}, "reference_changed", "stop"),
        ({"policy__first_ratio_error": 0.3}, "ratio_not_one", "stop"),
        ({"rollout__mismatch_kl": 0.06}, "sampler_mismatch", "stop"),
        ({"rollout__mismatch_kl": math.nan}, "sampler_mismatch", "stop"),
        ({"completion__unseen_tokens": 0.14}, "unseen_tokens", "warn"),
    ],
)
def test_a_red_flag_fires_with_its_figure_and_advice(changes, name, level):
    flags = {flag.name: flag for flag in red_flags(history_ending(**changes))}
    assert name in flags
    assert flags[name].level == level
    assert all((flags[name].seen, flags[name].why, flags[name].remedy))


def test_a_healthy_run_raises_no_flag():
    for length in range(1, 15):
        assert red_flags([dict(HEALTHY)] * length) == []
    assert red_flags([]) == []
    edge = {"kl__reference": 10.0, "policy__clip_fraction": 0.5, "completion__unique": 0.5}
    edge |= {"rollout__mismatch_kl": 0.05, "completion__unseen_tokens": 0.1}
    assert red_flags(history_ending(**edge, reward__std=0.01, completion__length_mean=60.0)) == []


def test_one_noisy_negative_reading_is_no_flag_and_stop_comes_first():
    history = history_ending()
    history[-1] |= {"kl/reference": -0.2, "value/explained_variance": -0.5}
    assert red_flags(history) == []
    worst = red_flags(history_ending(policy__clip_fraction=0.9, kl__reference=20.0))
    assert [flag.level for flag in worst] == ["stop", "warn"]


def test_text_statistics_by_hand():
    # Trigrams abc bca cab abc: three distinct of four.
    assert repeated_ngrams([1, 2, 3, 1, 2, 3]) == 0.25
    assert repeated_ngrams([7, 7]) == 0
    assert unique_share([[1], [1], [2, 3], [3, 2]]) == 0.75


def test_every_setting_and_metric_is_explained():
    for item in fields(PPOConfig):
        assert len(item.metadata["help"]) > 15, item.name
    assert all(definition.endswith((".", "mean.")) for definition in METRICS.values())
    assert {"reward/<component>", "kl/reference", "memory/peak_mb"} <= METRICS.keys()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rollouts": 10, "minibatch": 4}, "ppo.minibatch=4 must divide ppo.rollouts=10"),
        ({"lr": 0}, "ppo.lr=0.0 must be more than 0"),
        ({"lr": math.nan}, "ppo.lr=nan must be a finite number"),
        ({"updates": 0}, "ppo.updates=0 must be at least 1"),
        ({"updates": True}, "ppo.updates=True must be a whole number"),
        ({"epochs": 2.5}, "ppo.epochs=2.5 must be a whole number"),
        ({"top_p": 1.5}, "ppo.top_p=1.5 must be in (0, 1]"),
        ({"kl_estimator": "k4"}, "ppo.kl_estimator='k4' must be one of k1, k2, full"),
        ({"min_new_tokens": 65}, "ppo.min_new_tokens=65 must not exceed ppo.max_new_tokens=64"),
        ({"kl_control": "adaptive", "kl_weight": 0.0}, "ppo.kl_weight=0.0 must lie between"),
        ({"dual_clip": 0.5}, "ppo.dual_clip=0.5 must be above 1, or 0 for none"),
        (
            {"kl_in": "loss"},
            "ppo.kl_estimator='k1' with ppo.kl_in='loss' has a gradient with mean zero",
        ),
        ({"baseline": "return_to_go", "critic": "separate"}, "trains no values"),
    ],
)
def test_bad_settings_get_one_clear_sentence(settings, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        PPOConfig(**settings)


def test_length_correlation_by_hand():
    assert length_correlation([1, 2, 3], [10, 20, 30]) == pytest.approx(1.0)
    # r = Σ(x−2)(y−2)/√(2·2) with x = 1,2,3 and y = 2,3,1: (0 + 0 − 1)/2.
    assert length_correlation([1, 2, 3], [2, 3, 1]) == pytest.approx(-0.5)
    assert length_correlation([1, 1], [1, 2]) is length_correlation([1, 2], [3, 3]) is None
