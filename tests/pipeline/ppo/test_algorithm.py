"""The mathematics of PPO against numbers worked by hand and against definitions."""

import math

import pytest
import torch

from pipeline.ppo.advantages import compute_advantages, explained_variance, gae
from pipeline.ppo.algorithm import (
    full_kl,
    kl_estimate,
    length_mask,
    masked_mean,
    next_token,
    shape_rewards,
    whiten,
)
from pipeline.ppo.config import PPOConfig
from pipeline.ppo.learner import learning_rates
from pipeline.ppo.rewards import KLController, RunningMoments, scale_scores
from tests.helpers.ppo_helpers import tiny_config


def test_gae_by_hand():
    # γ .5, λ .5: δ = (1 + .5·2 − 1, 3 − 2) = (1, 1); A = (1 + .25·1, 1); R = A + V.
    advantages, returns = gae(
        rewards=torch.tensor([[1.0, 3.0]]),
        values=torch.tensor([[1.0, 2.0]]),
        mask=torch.ones(1, 2, dtype=torch.bool),
        gamma=0.5,
        lam=0.5,
    )
    torch.testing.assert_close(advantages, torch.tensor([[1.25, 1.0]]))
    torch.testing.assert_close(returns, torch.tensor([[2.25, 3.0]]))


def test_gae_equals_its_definition():
    g = torch.Generator().manual_seed(3)
    lengths, gamma, lam = [5, 1, 3], 0.9, 0.7
    mask = length_mask(torch.tensor(lengths), 5)
    rewards, values = (torch.randn(3, 5, generator=g) for _ in range(2))
    expected = torch.zeros(3, 5)
    for b, length in enumerate(lengths):
        # A_t = Σ_k (γλ)^k (r_{t+k} + γ V_{t+k+1} − V_{t+k}); V past the end is 0.
        v = [*values[b, :length].tolist(), 0.0]
        for t in range(length):
            expected[b, t] = sum(
                (gamma * lam) ** (k - t) * (rewards[b, k].item() + gamma * v[k + 1] - v[k])
                for k in range(t, length)
            )
    junk = torch.where(mask, values, torch.nan)
    advantages, returns = gae(rewards=rewards, values=junk, mask=mask, gamma=gamma, lam=lam)
    torch.testing.assert_close(advantages, expected)
    torch.testing.assert_close(returns, torch.where(mask, expected + values, 0))


def test_score_lands_once_on_the_last_token_and_kl_on_every_one():
    # Lengths 3 and 1, β .1, KL of 1, 2, 3 and 4 nats; scores 5 and −2.
    rewards = shape_rewards(
        scores=torch.tensor([5.0, -2.0]),
        kl=torch.tensor([[1.0, 2.0, 3.0], [4.0, 99.0, 99.0]]),
        mask=length_mask(torch.tensor([3, 1]), 3),
        kl_coef=0.1,
    )
    torch.testing.assert_close(rewards, torch.tensor([[-0.1, -0.2, 4.7], [-2.4, 0.0, 0.0]]))


def test_kl_estimators_by_hand():
    # π = .5, π_ref = .25: ρ = log 2 = .6931.
    log_ratio = torch.tensor(0.5).log() - torch.tensor(0.25).log()
    expected = {"k1": 0.693147, "k2": 0.240227, "k3": 0.5 - 1 + 0.693147, "abs": 0.693147}
    for name, value in expected.items():
        assert kl_estimate(log_ratio, name).item() == pytest.approx(value, abs=1e-5)
    # Not clamped at 0: a clamp would bias the mean.
    assert kl_estimate(-log_ratio, "k1").item() == pytest.approx(-0.693147, abs=1e-5)


def test_sampled_kl_estimators_average_to_the_exact_kl():
    logits = torch.tensor([0.3, -1.0, 2.0]), torch.tensor([1.0, 0.0, 0.5])
    p, q = (x.log_softmax(0) for x in logits)
    exact = full_kl(*logits)
    # Expectation over the policy's own tokens, term by term.
    for name in ("k1", "k3"):
        each = kl_estimate(p - q, name)
        torch.testing.assert_close((p.exp() * each).sum(), exact)


def test_of_the_sampled_estimators_only_k2_has_the_gradient_of_the_kl():
    logits, reference = (
        torch.tensor([0.3, -1.0, 2.0]).requires_grad_(),
        torch.tensor([1.0, 0.0, 0.5]),
    )
    (wanted,) = torch.autograd.grad(full_kl(logits, reference), logits)
    distances = {}
    for name in ("k1", "k2", "k3", "abs"):
        p = logits.log_softmax(0)
        # The mean over the policy's own tokens, whose probabilities carry no gradient.
        mean = (p.detach().exp() * kl_estimate(p - reference.log_softmax(0), name)).sum()
        (gradient,) = torch.autograd.grad(mean, logits)
        distances[name] = (gradient - wanted).abs().max().item()
    assert distances["k2"] < 1e-6
    assert min(distances[name] for name in ("k1", "k3", "abs")) > 0.01


def test_what_follows_a_token_is_read_off_the_next_one():
    mask = length_mask(torch.tensor([3, 1]), 3)
    x = torch.tensor([[1.0, 2.0, 3.0], [4.0, 99.0, 99.0]])
    torch.testing.assert_close(
        next_token(x, mask), torch.tensor([[2.0, 3.0, 0.0], [0.0, 0.0, 0.0]])
    )


def test_whitening_by_hand():
    mask = torch.tensor([[True, True, False], [True, True, False]])
    x = torch.tensor([[1.0, 3.0, 50.0], [5.0, 7.0, -50.0]])
    # Mean 4, variance (9 + 1 + 1 + 9) / 4 = 5.
    scaled = torch.tensor([[-3.0, -1.0, 0.0], [1.0, 3.0, 0.0]]) / math.sqrt(5)
    torch.testing.assert_close(whiten(x, mask), scaled)
    torch.testing.assert_close(whiten(x, mask, shift_mean=False), torch.where(mask, scaled + 4, 0))
    assert masked_mean(x, mask).item() == 4


def test_advantages_are_whitened_and_clipped_as_the_settings_ask():
    # γ = λ = 1 and values 0: A is the reward to go. Rewards 4, 1, −3 give A = 2, −2, −3.
    def found(**settings):
        return compute_advantages(
            token_rewards=torch.tensor([[4.0, 1.0, -3.0, 9.0]]),
            values=torch.zeros(1, 4),
            mask=torch.tensor([[True, True, True, False]]),
            config=tiny_config(gamma=1.0, lam=1.0, **settings),
        )

    raw = torch.tensor([[2.0, -2.0, -3.0, 0.0]])
    plain = found(whiten_advantages=False, advantage_clip=0.0)
    torch.testing.assert_close(plain.advantages, raw)
    assert plain.scale == 1.0
    clipped = found(whiten_advantages=False, advantage_clip=2.5)
    torch.testing.assert_close(clipped.advantages, torch.tensor([[2.0, -2.0, -2.5, 0.0]]))
    # Mean −1, deviations 3, −1, −2, variance (9 + 1 + 4) / 3.
    white = found(whiten_advantages=True, advantage_clip=0.0)
    expected = torch.tensor([[3.0, -1.0, -2.0, 0.0]]) / math.sqrt(14 / 3)
    torch.testing.assert_close(white.advantages, expected)
    assert white.scale == pytest.approx(math.sqrt(3 / 14))
    for each in (plain, clipped, white):
        torch.testing.assert_close(each.raw, raw)
        torch.testing.assert_close(each.returns, raw)


def test_the_exact_kl_is_taken_over_the_vocabulary():
    # π = (½, ½) and (¾, ¼) at two tokens, π_ref = (¼, ¾): KL is ½ ln 2 + ½ ln ⅔ and ½ ln 3.
    logits = torch.tensor([[[0.5, 0.5], [0.75, 0.25]]]).log()
    reference = torch.tensor([0.25, 0.75]).log().expand(1, 2, 2)
    expected = torch.tensor([[math.log(2) / 2 + math.log(2 / 3) / 2, math.log(3) / 2]])
    torch.testing.assert_close(full_kl(logits + 3.0, reference - 1.0), expected)


def test_explained_variance_of_perfect_constant_and_wrong_guesses():
    returns, mask = torch.tensor([[1.0, 2.0, 3.0]]), torch.ones(1, 3, dtype=torch.bool)
    assert explained_variance(returns, returns, mask).item() == 1
    assert explained_variance(0 * returns + 9, returns, mask).item() == pytest.approx(0)
    # R − V = 2R has four times the variance: 1 − 4 = −3.
    assert explained_variance(-returns, returns, mask).item() == pytest.approx(-3)
    assert explained_variance(returns, 0 * returns, mask).item() == 0


def test_adaptive_coefficient_moves_toward_the_target_and_stays_in_bounds():
    config = tiny_config(kl_control="adaptive", kl_weight=1.0, kl_target=2.0, kl_horizon=100)
    controller = KLController(config)
    controller.update(2.2, 50)  # error .1, half a horizon: 1 · (1 + .05)
    assert controller.kl_coef == pytest.approx(1.05)
    controller.update(200.0, 50)  # error clipped to .2: 1.05 · 1.1
    assert controller.kl_coef == pytest.approx(1.155)
    for _ in range(200):
        controller.update(0.0, 50)
    assert controller.kl_coef == config.kl_weight_min
    fixed = KLController(tiny_config(kl_weight=0.3))
    fixed.update(200.0, 50)
    assert fixed.kl_coef == 0.3


def test_running_moments_equal_those_of_everything_seen():
    x = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])
    moments = RunningMoments()
    moments.update(x[:2])
    moments.update(x[2:])
    # Mean 31/5 = 6.2; variance (27.04 + 17.64 + 4.84 + 3.24 + 96.04) / 5 = 29.76.
    assert (moments.count, moments.mean) == (5, pytest.approx(6.2))
    assert moments.std**2 == pytest.approx(29.76)


def test_missing_eos_costs_its_penalty_after_scaling_and_clipping():
    config = PPOConfig(score_scaling="batch", score_clip=0.5, missing_eos_penalty=2.0)
    paid = scale_scores(
        torch.tensor([10.0, 30.0]),
        ended=torch.tensor([True, False]),
        moments=RunningMoments(),
        config=config,
    )
    # Standardized to −1 and 1, clipped to −.5 and .5, and the second did not end.
    torch.testing.assert_close(paid, torch.tensor([-0.5, -1.5]))


def test_linear_schedule_falls_to_its_last_step_and_constant_stays():
    config = PPOConfig(updates=4, lr=8.0)
    assert [learning_rates(config, step).policy for step in range(4)] == [8.0, 6.0, 4.0, 2.0]
    assert learning_rates(PPOConfig(updates=4, lr=8.0, schedule="constant"), 3).policy == 8.0
