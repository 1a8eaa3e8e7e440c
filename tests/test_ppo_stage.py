"""The PPO stage: shaping beside the reward model, and what it reports."""

from __future__ import annotations

import pytest

from tests.stage_inputs import first_update, tiny_models_and_reward


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return tiny_models_and_reward(tmp_path_factory.mktemp("models"))


def test_components_are_logged_apart_and_summed_by_weight(models, tmp_path):
    weights = {"length": -3.0, "format": 0.5}
    shaped = first_update(
        models, tmp_path / "a", shaping__weights=weights, shaping__reward_weight=2.0
    )
    assert shaped["reward/mean"] == pytest.approx(
        2 * shaped["reward/score"] - 3 * shaped["reward/length"] + 0.5 * shaped["reward/format"]
    )
    assert shaped["reward/length"] > 0
    plain = first_update(models, tmp_path / "b")
    assert plain["reward/score"] == shaped["reward/score"] == pytest.approx(plain["reward/mean"])


def test_a_floor_raises_low_scores(models, tmp_path):
    plain = first_update(models, tmp_path / "a")
    floor = plain["reward/mean"]
    floored = first_update(models, tmp_path / "b", shaping__floor=floor)
    assert floored["reward/min"] == pytest.approx(floor)
    assert floored["reward/max"] == plain["reward/max"]


def test_an_unknown_component_is_refused_before_anything_is_sampled(models, tmp_path):
    with pytest.raises(ValueError, match="no shaping component 'repetitions'"):
        first_update(models, tmp_path / "a", shaping__weights={"repetitions": -1.0})
