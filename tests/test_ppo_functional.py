"""The mathematics of PPO against numbers worked by hand and against definitions."""

import math

import pytest
import torch
from ppo_helpers import tiny_config
from torch import Tensor

from pipeline.ppo.config import PPOConfig
from pipeline.ppo.control import KLController, RunningMoments, learning_rate, scale_scores
from pipeline.ppo.functional import (
    explained_variance,
    full_kl,
    gae,
    kl_per_token,
    length_mask,
    masked_mean,
    ppo_loss,
    shape_rewards,
    whiten,
)


def surrogate(*, ratio: float, advantage: float) -> tuple[float, float]:
    """(loss, its gradient in the log-probability) of one token at clip .2."""
    logprobs = torch.tensor([[math.log(ratio)]], requires_grad=True)
    one = torch.ones(1, 1)
    loss = ppo_loss(
        logprobs=logprobs,
        old_logprobs=0 * one,
        values=0 * one,
        old_values=0 * one,
        advantages=advantage * one,
        returns=0 * one,
        mask=one.bool(),
        tokens=1,
        clip=0.2,
        value_clip=0.2,
        value_weight=0.0,
    )
    loss.total.backward()
    assert logprobs.grad is not None
    return loss.policy.item(), logprobs.grad.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        # The gradient of −A·ρ in log π is −A·ρ where the clip is not in force, 0 where it is.
        (1.5, 2.0, -2.4, 0.0),  # good and above: −2 · 1.2, gain is capped
        (0.5, 2.0, -1.0, -1.0),  # good and below: −2 · .5, pushed back up
        (1.5, -2.0, 3.0, 3.0),  # bad and above: 2 · 1.5, pushed back down
        (0.5, -2.0, 1.6, 0.0),  # bad and below: 2 · .8, gain is capped
    ],
)
def test_clipped_surrogate_by_side_and_sign(ratio, advantage, loss, gradient):
    assert surrogate(ratio=ratio, advantage=advantage) == pytest.approx((loss, gradient), abs=1e-6)


def random_batch(seed: int = 0) -> tuple[dict[str, Tensor], Tensor]:
    """Eight rows of up to seven tokens for `ppo_loss`, and their lengths."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([7, 1, 3, 5, 2, 7, 4, 6])
    names = ("logprobs", "old_logprobs", "values", "old_values", "advantages", "returns")
    batch = {name: torch.randn(8, 7, generator=g) for name in names}
    return batch | {"mask": length_mask(lengths, 7)}, lengths


def loss_of(batch: dict[str, Tensor], tokens: int):
    return ppo_loss(**batch, tokens=tokens, clip=0.2, value_clip=0.2, value_weight=0.1)


def test_parts_of_a_minibatch_add_up_to_the_mean_over_its_tokens():
    batch, lengths = random_batch()
    tokens = int(lengths.sum())
    whole = loss_of(batch, tokens)
    # Uneven parts, in another order: a mean of means would differ.
    parts = [
        loss_of({k: v[rows] for k, v in batch.items()}, tokens)
        for rows in ([6, 0, 2], [1], [7, 3, 5, 4])
    ]
    torch.testing.assert_close(sum(p.total for p in parts), whole.total)
    assert sum(int(p.clipped) for p in parts) == int(whole.clipped) > 0
    torch.testing.assert_close(sum(p.approx_kl for p in parts), whole.approx_kl)


@pytest.mark.parametrize("junk", [math.nan, math.inf, 1e9])
def test_what_stands_on_padding_changes_nothing(junk):
    batch, lengths = random_batch()
    tokens = int(lengths.sum())
    clean = loss_of(batch, tokens)
    spoiled = {
        k: v if k == "mask" else torch.where(batch["mask"], v, junk) for k, v in batch.items()
    }
    for name, expected, seen in zip(clean._fields, clean, loss_of(spoiled, tokens), strict=True):
        if name != "ratio_max":
            torch.testing.assert_close(seen, expected, msg=name)
    mask = batch["mask"]
    torch.testing.assert_close(
        whiten(spoiled["advantages"], mask), whiten(batch["advantages"], mask)
    )


def test_gradient_on_padding_is_zero_and_finite():
    batch, lengths = random_batch()
    spoiled = torch.where(batch["mask"], batch["logprobs"], 1e4).requires_grad_()
    loss_of(batch | {"logprobs": spoiled}, int(lengths.sum())).total.backward()
    assert spoiled.grad is not None
    assert torch.isfinite(spoiled.grad).all()
    assert not spoiled.grad[~batch["mask"]].any()
    assert spoiled.grad[batch["mask"]].any()


def test_value_error_takes_the_worse_of_clipped_and_free():
    one = torch.ones(1, 1)
    loss = ppo_loss(
        logprobs=0 * one,
        old_logprobs=0 * one,
        values=1.0 * one,
        old_values=0 * one,
        advantages=0 * one,
        returns=2.0 * one,
        mask=one.bool(),
        tokens=1,
        clip=0.2,
        value_clip=0.2,
        value_weight=0.5,
    )
    # Held at .2 the error is (2 − .2)² = 3.24, against 1: half the worse is 1.62.
    assert loss.value.item() == pytest.approx(1.62)
    assert loss.total.item() == pytest.approx(0.81)
    assert int(loss.value_clipped) == 1


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


@pytest.mark.parametrize("bootstrapped", [False, True])
def test_gae_equals_its_definition(bootstrapped):
    g = torch.Generator().manual_seed(3)
    lengths, gamma, lam = [5, 1, 3], 0.9, 0.7
    mask = length_mask(torch.tensor(lengths), 5)
    rewards, values = (torch.randn(3, 5, generator=g) for _ in range(2))
    after = torch.randn(3, generator=g) if bootstrapped else None
    expected = torch.zeros(3, 5)
    for b, length in enumerate(lengths):
        # A_t = Σ_k (γλ)^k (r_{t+k} + γ V_{t+k+1} − V_{t+k}); V past the end is the bootstrap.
        last = after[b].item() if after is not None else 0.0
        v = [*values[b, :length].tolist(), last]
        for t in range(length):
            expected[b, t] = sum(
                (gamma * lam) ** (k - t) * (rewards[b, k].item() + gamma * v[k + 1] - v[k])
                for k in range(t, length)
            )
    junk = torch.where(mask, values, torch.nan)
    advantages, returns = gae(
        rewards=rewards, values=junk, mask=mask, gamma=gamma, lam=lam, bootstrap=after
    )
    torch.testing.assert_close(advantages, expected)
    torch.testing.assert_close(returns, torch.where(mask, expected + values, 0))


def test_score_lands_once_on_the_last_token_and_kl_on_every_one():
    # Lengths 3 and 1, β .1, KL of 1, 2, 3 and 4 nats; scores 5 and −2.
    rewards = shape_rewards(
        scores=torch.tensor([5.0, -2.0]),
        kl=torch.tensor([[1.0, 2.0, 3.0], [4.0, 99.0, 99.0]]),
        mask=length_mask(torch.tensor([3, 1]), 3),
        kl_weight=0.1,
    )
    torch.testing.assert_close(rewards, torch.tensor([[-0.1, -0.2, 4.7], [-2.4, 0.0, 0.0]]))


def test_kl_estimators_by_hand():
    # log π = log .5, log π_ref = log .25: ρ = log 2 = .6931.
    both = {"logprobs": torch.tensor(0.5).log(), "reference_logprobs": torch.tensor(0.25).log()}
    expected = {"k1": 0.693147, "k2": 0.240227, "k3": 0.5 - 1 + 0.693147, "abs": 0.693147}
    for name, value in expected.items():
        assert kl_per_token(**both, estimator=name).item() == pytest.approx(value, abs=1e-5)
    swapped = {"logprobs": both["reference_logprobs"], "reference_logprobs": both["logprobs"]}
    # Not clamped at 0: a clamp would bias the mean.
    assert kl_per_token(**swapped, estimator="k1").item() == pytest.approx(-0.693147, abs=1e-5)


def test_sampled_kl_estimators_average_to_the_exact_kl():
    logits = torch.tensor([0.3, -1.0, 2.0]), torch.tensor([1.0, 0.0, 0.5])
    p, q = (x.log_softmax(0) for x in logits)
    exact = full_kl(*logits)
    # Expectation over the policy's own tokens, term by term.
    for name in ("k1", "k3"):
        each = kl_per_token(logprobs=p, reference_logprobs=q, estimator=name)
        torch.testing.assert_close((p.exp() * each).sum(), exact)


def test_whitening_by_hand():
    mask = torch.tensor([[True, True, False], [True, True, False]])
    x = torch.tensor([[1.0, 3.0, 50.0], [5.0, 7.0, -50.0]])
    # Mean 4, variance (9 + 1 + 1 + 9) / 4 = 5.
    scaled = torch.tensor([[-3.0, -1.0, 0.0], [1.0, 3.0, 0.0]]) / math.sqrt(5)
    torch.testing.assert_close(whiten(x, mask), scaled)
    torch.testing.assert_close(whiten(x, mask, shift_mean=False), torch.where(mask, scaled + 4, 0))
    assert masked_mean(x, mask).item() == 4


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
    assert controller.weight == pytest.approx(1.05)
    controller.update(200.0, 50)  # error clipped to .2: 1.05 · 1.1
    assert controller.weight == pytest.approx(1.155)
    for _ in range(200):
        controller.update(0.0, 50)
    assert controller.weight == config.kl_weight_min
    fixed = KLController(tiny_config(kl_weight=0.3))
    fixed.update(200.0, 50)
    assert fixed.weight == 0.3


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
    # Standardised to −1 and 1, clipped to −.5 and .5, and the second did not end.
    torch.testing.assert_close(paid, torch.tensor([-0.5, -1.5]))


def test_linear_schedule_falls_to_its_last_step_and_constant_stays():
    config = PPOConfig(updates=4, lr=8.0)
    assert [learning_rate(config, step) for step in range(4)] == [8.0, 6.0, 4.0, 2.0]
    assert learning_rate(PPOConfig(updates=4, lr=8.0, schedule="constant"), 3) == 8.0
