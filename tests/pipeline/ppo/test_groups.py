"""Methods without a critic: group baselines, means of the loss, dynamic sampling."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from pipeline.ppo import PPOConfig
from pipeline.ppo.advantages import compute_advantages, group_mean, group_std, leave_one_out
from pipeline.ppo.algorithm import MinibatchSize, length_mask, policy_loss, policy_mean
from pipeline.ppo.baselines import Baseline
from pipeline.ppo.batch import Batch
from pipeline.ppo.dynamic_sampling import differing
from pipeline.ppo.rollouts.rollout import Rollout
from tests.helpers.ppo_helpers import assert_same_state, tiny_config, tiny_trainer, untimed

RLOO = {"baseline": "leave_one_out", "whiten_advantages": False}
GRPO = {"baseline": "group_mean", "group_scaling": "std", "whiten_advantages": False}
IN_LOSS = {"kl_estimator": "k2", "kl_in": "loss"}


def test_baselines_of_a_group_by_hand():
    rewards = torch.tensor([1.0, 2.0, 6.0, 0.0, 3.0, 3.0])
    others = torch.tensor([8 / 2, 7 / 2, 3 / 2, 6 / 2, 3 / 2, 3 / 2])
    torch.testing.assert_close(leave_one_out(rewards, 3), others)
    torch.testing.assert_close(group_mean(rewards, 3), torch.tensor([3.0] * 3 + [2.0] * 3))
    # Squares 4 + 1 + 9 and 4 + 1 + 1, over n − 1 = 2.
    deviations = torch.tensor([math.sqrt(7)] * 3 + [math.sqrt(3)] * 3)
    torch.testing.assert_close(group_std(rewards, 3), deviations)


TOKEN_REWARDS = torch.tensor([[-0.1, 0.8], [0.3, 0.0]])
"""Two responses to one prompt, of two tokens and of one: .7 and .3 in all."""


def advantages(**settings: Any) -> list[float]:
    """Of the three tokens of TOKEN_REWARDS."""
    config = tiny_config(samples_per_prompt=2, **settings)
    mask = length_mask(torch.tensor([2, 1]), 2)
    tokens = torch.zeros(2, 2, dtype=torch.long)
    rollout = Rollout(
        tokens=tokens, lengths=mask.sum(1), logprobs=0.0 * tokens, entropies=None, values=None,
        finish_reasons=["stop", "stop"],
    )  # fmt: skip
    batch = Batch.of([[2], [2]], rollout, prompt_indices=[0, 0], pad=0)
    batch.token_rewards = TOKEN_REWARDS
    values = Baseline(config, [""]).values(batch)
    found = compute_advantages(
        token_rewards=TOKEN_REWARDS, values=values, mask=mask, config=config
    ).advantages
    assert found[1, 1] == 0
    return found[mask].tolist()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # RLOO: .7 − .3 and .3 − .7, at every token.
        (RLOO, [0.4, 0.4, -0.4]),
        # Dr. GRPO: the mean is .5.
        (GRPO | {"group_scaling": "none"}, [0.2, 0.2, -0.2]),
        # GRPO: σ = √((.04 + .04) / 1) = .282843, plus 1e-4.
        (GRPO, [0.706857, 0.706857, -0.706857]),
        # REINFORCE++: what follows, .7, .8, .3: mean .6, variance (.01 + .04 + .09) / 3.
        ({"baseline": "return_to_go"}, [0.462910, 0.925820, -1.388730]),
        # REINFORCE++-baseline: .2, .2, −.2: mean .0667, σ = .188562.
        ({"baseline": "group_mean"}, [0.707107, 0.707107, -1.414214]),
        # With a token's own divergence in the loss: what follows, .7, .8, .3, minus the other response.
        (RLOO | IN_LOSS, [0.4, 0.5, -0.4]),
    ],
    ids=["rloo", "dr-grpo", "grpo", "reinforce++", "reinforce++-baseline", "rloo-kl-in-loss"],
)
def test_advantages_by_hand(settings, expected):
    assert advantages(**settings) == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize(
    ("loss_mean", "expected"),
    [
        ("token", 13 / 4),  # (1 + 2 + 6 + 4) / 4 tokens
        ("response", 7 / 2),  # (3 + 4) / 2 responses
        ("constant", 13 / 12),  # over 2 responses · 6 tokens
    ],
)
def test_means_of_the_loss_by_hand_and_in_parts(loss_mean, expected):
    x, mask = torch.tensor([[1.0, 2.0, 6.0], [4.0, 9.0, 9.0]]), length_mask(torch.tensor([3, 1]), 3)
    config = tiny_config(loss_mean=loss_mean, baseline="group_mean", max_new_tokens=6)
    size = MinibatchSize(tokens=4, responses=2)
    assert policy_mean(x, mask, size, config).item() == pytest.approx(expected)
    parts = [policy_mean(x[[row]], mask[[row]], size, config) for row in (0, 1)]
    assert sum(parts).item() == pytest.approx(expected)


def gain(**settings: Any) -> tuple[float, list[float]]:
    """(policy loss, its gradient in both log-probabilities), with ratios 1.1 and 1.2 and A = 1."""
    logprobs = torch.tensor([[1.1, 1.2]]).log().requires_grad_()
    loss = policy_loss(
        logprobs=logprobs,
        old_logprobs=torch.zeros(1, 2),
        advantages=torch.ones(1, 2),
        mask=torch.ones(1, 2, dtype=torch.bool),
        size=MinibatchSize(tokens=2, responses=1),
        config=tiny_config(baseline="group_mean", loss_mean="response", **settings),
    )
    loss.total.backward()
    assert isinstance(logprobs.grad, Tensor)
    assert loss.ratio_max.item() == pytest.approx(1.2)
    return loss.policy.item(), logprobs.grad[0].tolist()


def test_the_ratio_of_a_response_is_the_product_over_its_tokens():
    loss, gradient = gain(ratio_level="token", clip=0.5)
    assert (loss, gradient) == (pytest.approx(-1.15), pytest.approx([-0.55, -0.6]))
    # 1.1 · 1.2 = 1.32 for both tokens, and each token has the whole gradient.
    loss, gradient = gain(ratio_level="response", clip=0.5)
    assert (loss, gradient) == (pytest.approx(-1.32), pytest.approx([-1.32, -1.32]))
    loss, gradient = gain(ratio_level="response", clip=0.2)
    assert (loss, gradient) == (pytest.approx(-1.2), [0.0, 0.0])


def worth(indices: list[int], texts: list[str]) -> list[float]:
    """The number of words, but 1 for every response to the first two prompts."""
    return [
        1.0 if index < 2 else float(len(text.split()))
        for index, text in zip(indices, texts, strict=True)
    ]


def test_responses_to_a_prompt_are_adjacent():
    trainer = tiny_trainer(**GRPO, samples_per_prompt=2, rollouts=8, updates=1)
    (update,) = trainer.run()
    prompts = [sample.prompt_index for sample in update.samples]
    assert prompts[::2] == prompts[1::2]
    assert sorted(prompts[::2]) == [0, 1, 2, 3]


def test_a_run_without_a_critic_learns():
    trainer = tiny_trainer(
        **GRPO, rollouts=64, minibatch=16, updates=12, lr=3e-3, loss_mean="response"
    )
    scores = [update.metrics["reward/mean"] for update in trainer.run()]
    assert sum(scores[-3:]) > sum(scores[:3]) + 1.5
    assert trainer.history[-1]["value/explained_variance"] == 0
    assert trainer.history[-1]["value/loss"] == 0


def test_dynamic_sampling_replaces_prompts_whose_responses_score_alike():
    settings = GRPO | {"reward": worth, "samples_per_prompt": 4, "rollouts": 16, "kl_weight": 0.0}
    plain = next(tiny_trainer(**settings).run())
    assert {sample.prompt_index for sample in plain.samples} == {0, 1, 2, 3}
    assert plain.metrics["reward/frac_zero_std"] == 0.5
    assert plain.metrics["rollout/dropped_groups"] == 0

    filled = next(tiny_trainer(**settings, dynamic_sampling=9).run())
    assert {sample.prompt_index for sample in filled.samples} == {2, 3}
    assert len(filled.samples) == 16
    assert filled.metrics["reward/frac_zero_std"] == 0
    assert filled.metrics["rollout/dropped_groups"] >= 2
    assert filled.metrics["reward/group_std"] > 0
    # The components, the samples' texts and the scores stay together.
    assert filled.metrics["reward/score"] == pytest.approx(filled.metrics["reward/mean"])
    for sample in filled.samples:
        assert sample.score == len(sample.text.split())


def test_dynamic_sampling_ends_at_its_bound_with_a_full_batch():
    trainer = tiny_trainer(
        **GRPO, reward=lambda _, texts: [1.0] * len(texts), rollouts=16, kl_weight=0.0,
        dynamic_sampling=3, updates=1,
    )  # fmt: skip
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    (update,) = trainer.run()
    assert len(update.samples) == 16
    assert update.metrics["rollout/dropped_groups"] == 3 * 4  # three rounds of the four missing
    assert update.metrics["reward/frac_zero_std"] == 1
    assert update.metrics["optim/grad_norm"] == 0  # equal rewards teach nothing
    assert all(torch.equal(before[name], t) for name, t in trainer.model.state_dict().items())


def test_rewards_that_differ_by_rounding_are_the_same():
    rewards = torch.tensor([0.1, 0.1 + 1e-8, 50.0, 50.0 + 1e-5, 0.1, 0.2, -1.0, 1.0])
    assert differing(rewards, 2).tolist() == [False, False, True, True]


def test_the_kl_penalty_distinguishes_responses_of_equal_score():
    """A batch with a penalty has groups that differ even if no score does."""
    constant = {"reward": lambda _, texts: [1.0] * len(texts), "rollouts": 16, "updates": 1}
    trainer = tiny_trainer(**GRPO, **constant, kl_weight=0.5, dynamic_sampling=1)
    with torch.no_grad():
        for weight in trainer.model.policy.parameters():
            weight += 0.05
    (update,) = trainer.run()
    assert update.metrics["kl/k3"] > 0
    assert update.metrics["rollout/dropped_groups"] < 4


def test_a_resumed_run_with_dynamic_sampling_equals_the_uninterrupted_one(tmp_path):
    settings = GRPO | {"reward": worth, "rollouts": 16, "kl_weight": 0.0, "dynamic_sampling": 4}
    settings |= {"updates": 3, "checkpoint_every": 1}
    whole = tiny_trainer(tmp_path / "whole", **settings)
    expected = [untimed(update) for update in whole.run()]
    cut = tiny_trainer(tmp_path / "cut", **settings).run()
    next(cut), next(cut)
    again = tiny_trainer(tmp_path / "cut", **settings)
    assert [untimed(update) for update in again.run(resume=True)] == expected[1:]
    assert_same_state(again.state_dict(), whole.state_dict())


def test_micro_batches_do_not_change_the_mean_over_responses():
    settings = GRPO | {"loss_mean": "response", "rollouts": 16, "minibatch": 16, "epochs": 1}
    settings["reward"] = worth
    whole, parts = (
        next(tiny_trainer(**settings, micro_batch_tokens=tokens, packing="off").run()).metrics
        for tokens in (10_000, 12)
    )
    assert whole["optim/grad_norm"] > 0.1
    assert parts["optim/grad_norm"] == pytest.approx(whole["optim/grad_norm"], rel=1e-4)


def test_the_size_of_a_group_follows_its_baseline():
    assert PPOConfig().group_size == 1
    assert PPOConfig(baseline="group_mean").group_size == 4
    assert PPOConfig(baseline="leave_one_out", samples_per_prompt=8).group_size == 8
    assert PPOConfig(samples_per_prompt=2).group_size == 2  # a critic may see several, too


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"samples_per_prompt": 3}, "ppo.samples_per_prompt=3 must divide ppo.rollouts=64"),
        (GRPO | {"samples_per_prompt": 1}, "compares the responses to a prompt; set"),
        (GRPO | {"gamma": 0.9}, "compares whole responses, which are not discounted"),
        ({"group_scaling": "std"}, "ppo.group_scaling='std' needs a group baseline"),
        ({"loss_mean": "response"}, "ppo.loss_mean='response' needs a group baseline"),
        ({"ratio_level": "response"}, "ppo.ratio_level='response' needs a group baseline"),
        ({"dynamic_sampling": 3}, "ppo.dynamic_sampling=3 needs a group baseline"),
        (RLOO | {"ratio_level": "response"}, "one term per response; set ppo.loss_mean='response'"),
        (
            RLOO | {"ratio_level": "response", "loss_mean": "response", "rollout_backend": "vllm"},
            "cannot use the importance weights of single tokens",
        ),
        (GRPO | IN_LOSS, "ppo.group_scaling='std' weights responses differently, which moves"),
        (RLOO | IN_LOSS | {"loss_mean": "response"}, "ppo.loss_mean='response' weights responses"),
        (RLOO | IN_LOSS | {"dynamic_sampling": 1}, "ppo.dynamic_sampling=1 weights responses"),
        (GRPO | IN_LOSS | {"group_scaling": "none"}, "'group_mean' shrinks advantages by 1/4"),
        (GRPO | {"critic": "separate"}, "trains no values"),
    ],
)
def test_combinations_that_make_no_sense_get_one_sentence(settings, message):
    with pytest.raises(ValueError) as refusal:
        PPOConfig(**settings)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
