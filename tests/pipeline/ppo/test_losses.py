"""The PPO loss against numbers worked by hand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from pipeline.ppo.algorithm import (
    MinibatchSize,
    PPOLoss,
    joint_loss,
    length_mask,
    policy_loss,
    value_error,
    value_loss,
    whiten,
)
from tests.helpers.ppo_helpers import tiny_config


def ppo_loss(*, values: Tensor, old_values: Tensor, returns: Tensor, **rest: Any) -> PPOLoss:
    """Both losses of one batch, as a pass over a shared trunk joins them."""
    tokens, mask = rest.pop("tokens"), rest["mask"]
    same = {"mask": mask, "tokens": tokens, "config": rest["config"]}
    value = value_loss(values=values, old_values=old_values, returns=returns, **same)
    return joint_loss(policy_loss(size=MinibatchSize(tokens, len(mask)), **rest), value)


def surrogate(*, ratio: float, advantage: float, **settings: Any) -> tuple[float, float]:
    """(loss, its gradient in the log-probability) of one token, at clip .2 unless told."""
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
        config=tiny_config(value_weight=0.0, **settings),
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


def test_tokens_without_gradient_are_counted_as_clipped():
    # The first is above 1.2 with A > 0, the second below .8 with A < 0; the last is padding.
    ratio = torch.tensor([[1.5, 0.5, 1.0, 1.5, 0.5, 1.5]])
    advantages = torch.tensor([[1.0, -1.0, 1.0, -1.0, 1.0, 1.0]])
    zeros = torch.zeros(1, 6)
    loss = ppo_loss(
        logprobs=ratio.log(),
        old_logprobs=zeros,
        values=zeros,
        old_values=zeros,
        advantages=advantages,
        returns=zeros,
        mask=length_mask(torch.tensor([5]), 6),
        tokens=5,
        config=tiny_config(),
    )
    assert int(loss.clipped) == 2


@pytest.mark.parametrize(
    ("settings", "ratio", "advantage", "loss", "gradient"),
    [
        ({"clip_high": 0.5}, 1.4, 2.0, -2.8, -2.8),  # the upper bound is 1.5, so free
        ({"clip_high": 0.5}, 1.6, 2.0, -3.0, 0.0),  # −2 · 1.5
        ({"clip_high": 0.5}, 0.5, -2.0, 1.6, 0.0),  # the lower bound is still .8
        ({"dual_clip": 3.0}, 2.0, -2.0, 4.0, 4.0),  # below 3 as without
        ({"dual_clip": 3.0}, 5.0, -2.0, 6.0, 0.0),  # 2 · 3 instead of 2 · 5
        ({"dual_clip": 3.0}, 5.0, 2.0, -2.4, 0.0),  # good tokens are as without
        ({"negative_clip": "symmetric"}, 0.5, -2.0, 1.0, 1.0),  # pushed on towards 0
        ({"negative_clip": "symmetric"}, 1.5, -2.0, 2.4, 0.0),  # and not back down
        ({"negative_clip": "symmetric"}, 1.5, 2.0, -2.4, 0.0),  # good tokens are as without
    ],
)
def test_other_clips_by_hand(settings, ratio, advantage, loss, gradient):
    found = surrogate(ratio=ratio, advantage=advantage, **settings)
    assert found == pytest.approx((loss, gradient), abs=1e-5)


def random_batch(seed: int = 0) -> tuple[dict[str, Tensor], Tensor]:
    """Eight rows of up to seven tokens for `ppo_loss`, and their lengths."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([7, 1, 3, 5, 2, 7, 4, 6])
    names = ("logprobs", "old_logprobs", "values", "old_values", "advantages", "returns")
    batch = {name: torch.randn(8, 7, generator=g) for name in names}
    return batch | {"mask": length_mask(lengths, 7)}, lengths


def loss_of(batch: dict[str, Tensor], tokens: int):
    return ppo_loss(**batch, tokens=tokens, config=tiny_config())


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
        config=tiny_config(value_weight=0.5),
    )
    # Held at .2 the error is (2 − .2)² = 3.24, against 1: half the worse is 1.62.
    assert loss.value.item() == pytest.approx(1.62)
    assert loss.total.item() == pytest.approx(0.81)
    assert int(loss.value_clipped) == 1


def test_huber_counts_far_errors_linearly():
    returns = torch.tensor([0.0, 0.0])
    error, clipped = value_error(
        values=torch.tensor([0.5, 3.0]), old_values=returns, returns=returns, clip=0.0, huber=1.0
    )
    # .5 · .5² where within 1; 1 · (3 − .5) beyond.
    torch.testing.assert_close(error, torch.tensor([0.125, 2.5]))
    assert not clipped.any()


def test_one_pass_trains_policy_and_values():
    one = torch.ones(1, 1)
    logprobs, values = torch.zeros(1, 1, requires_grad=True), torch.zeros(1, 1, requires_grad=True)
    loss = ppo_loss(
        logprobs=logprobs,
        old_logprobs=0 * one,
        values=values,
        old_values=0 * one,
        advantages=one,
        returns=2 * one,
        mask=one.bool(),
        tokens=1,
        config=tiny_config(),
        kl=3 * one + logprobs,
        kl_coef=0.5,
    )
    # policy −1 · 1 = −1, value .1 · ½ · 2² = .2, KL .5 · 3 = 1.5
    assert loss.total.item() == pytest.approx(0.7)
    assert loss.kl.item() == pytest.approx(3)
    loss.total.backward()
    assert logprobs.grad is not None
    assert values.grad is not None
    assert logprobs.grad.item() == pytest.approx(-1 + 0.5)
    assert values.grad.item() == pytest.approx(0.1 * -2)
