"""Where values come from: a shared trunk, a separate critic, or a baseline that is none."""

import copy

import pytest
import torch
from transformers import LlamaForSequenceClassification

from pipeline.ppo.baselines import Baseline
from pipeline.ppo.metrics import reward_fell
from pipeline.ppo.network.model import weights_hash
from tests.helpers.ppo_helpers import PROMPTS, tiny_config, tiny_model, tiny_trainer, untimed


def reward_model(seed: int = 5) -> LlamaForSequenceClassification:
    """A scoring model of another width than the policy."""
    torch.manual_seed(seed)
    config = copy.deepcopy(tiny_model().config)
    config.hidden_size, config.intermediate_size, config.num_labels = 48, 96, 1
    config.head_dim = 24
    return LlamaForSequenceClassification(config).eval()


def test_a_separate_critic_starts_as_the_reward_model_it_came_from():
    scorer = reward_model()
    trainer = tiny_trainer(critic="separate", critic_model=copy.deepcopy(scorer))
    ids = torch.tensor([PROMPTS[1]])
    positions = torch.zeros_like(ids, dtype=torch.bool)
    positions[0, -1] = True
    with torch.no_grad():
        value = trainer.model(ids, positions, use_cache=False).values
        torch.testing.assert_close(value, scorer(ids).logits[0])


def test_a_separate_critic_learns_and_leaves_no_trace_in_the_policys_gradients():
    trainer = tiny_trainer(critic="separate", value_warmup=1, updates=2)
    assert trainer.model.critic is not None
    policy, critic = weights_hash(trainer.model.policy), weights_hash(trainer.model.critic)
    run = trainer.run()
    first = next(run)
    assert weights_hash(trainer.model.policy) == policy  # warming up
    assert weights_hash(trainer.model.critic) != critic
    assert first.metrics["value/loss"] > 0
    next(run)
    assert weights_hash(trainer.model.policy) != policy


def test_values_of_a_separate_critic_are_of_the_state_before_each_token():
    trainer = tiny_trainer(critic="separate", critic_model=reward_model())
    prompts = [1, 3]
    batch = trainer._rollout(prompts)
    assert batch.values is None  # the critic does not sample
    trainer.learner.reference_pass(batch)
    values = batch.values
    assert values is not None
    critic = trainer.model.critic
    for row, response in enumerate(batch.token_lists()):
        text = [*PROMPTS[prompts[row]], *response]
        with torch.no_grad():
            hidden = critic(torch.tensor([text])).last_hidden_state[0]
            expected = trainer.model.value_head(hidden)[:, 0]
        start = len(PROMPTS[prompts[row]]) - 1
        torch.testing.assert_close(values[row, : len(response)], expected[start:-1])


@pytest.mark.parametrize("head", ["linear", "mlp"])
def test_warming_up_a_shared_trunk_trains_the_head_alone(head):
    trainer = tiny_trainer(value_warmup=2, value_head=head)
    policy = weights_hash(trainer.model.policy)
    before = weights_hash(trainer.model.value_head)
    run = trainer.run()
    assert next(run).metrics["value/mean"] == 0  # heads start at zero
    next(run)
    assert weights_hash(trainer.model.policy) == policy
    assert weights_hash(trainer.model.value_head) != before
    next(run)
    assert weights_hash(trainer.model.policy) != policy


def test_alternating_takes_two_steps_a_minibatch():
    joint, turns = (
        next(tiny_trainer(update_order=order).run()).metrics for order in ("joint", "alternating")
    )
    assert (joint["optim/steps"], turns["optim/steps"]) == (4, 8)


def test_return_to_go_compares_with_nothing():
    trainer = tiny_trainer(baseline="return_to_go", kl_weight=0.0, whiten_advantages=False)
    head = weights_hash(trainer.model.value_head)
    result = next(trainer.run())
    # Without a KL charge the score is every token's return, so their mean is weighted by length.
    total = sum(s.score * s.length for s in result.samples)
    tokens = sum(s.length for s in result.samples)
    assert result.metrics["returns/mean"] == pytest.approx(total / tokens, rel=1e-5)
    assert result.metrics["value/mean"] == 0
    list(trainer.run())
    assert weights_hash(trainer.model.value_head) == head  # nobody trains it


def test_category_means_by_hand():
    baseline = Baseline(tiny_config(baseline="category_mean"), [])
    # Nothing is known of a or b yet: the means of this batch, 2 and 10.
    first = baseline.update(["a", "b", "a"], torch.tensor([1.0, 10.0, 3.0]))
    assert first.tolist() == [2, 10, 2]
    # a has mean 2 of two; c is new.
    assert baseline.update(["a", "c"], torch.tensor([8.0, 5.0])).tolist() == [2, 5]
    # Now a has (1 + 3 + 8) / 3 = 4.
    assert baseline.update(["a", "b"], torch.tensor([0.0, 0.0])).tolist() == [4, 10]


def test_the_category_baseline_is_kept_over_a_resume(tmp_path):
    settings = {"baseline": "category_mean", "checkpoint_every": 1, "updates": 3}
    categories = ["x", "y", "x", "y"]
    whole = [
        untimed(u) for u in tiny_trainer(tmp_path / "a", categories=categories, **settings).run()
    ]
    run = tiny_trainer(tmp_path / "b", categories=categories, **settings).run()
    next(run), next(run)
    again = tiny_trainer(tmp_path / "b", categories=categories, **settings)
    assert [untimed(u) for u in again.run(resume=True)] == whole[1:]


def test_a_collapse_is_measured_in_the_spread_the_run_began_with():
    def history(*means: float):
        return [{"reward/mean": mean, "reward/std": 0.5} for mean in means]

    start = [1.0] * 5
    assert not reward_fell(history(*start, *[0.1] * 4), 1.0)  # too short to tell
    assert not reward_fell(history(*start, *[0.6] * 5), 1.0)
    assert reward_fell(history(*start, *[0.4] * 5), 1.0)
    assert not reward_fell(history(*start, *[0.4] * 5), 2.0)


def test_a_collapsing_run_is_ended():
    def against(_: list[int], texts: list[str]) -> list[float]:
        against.calls += 1  # type: ignore[attr-defined]
        return [-float(against.calls) + 0.01 * len(text) for text in texts]  # type: ignore[attr-defined]

    against.calls = 0  # type: ignore[attr-defined]
    trainer = tiny_trainer(reward=against, updates=30, reward_collapse=3.0)
    assert len(list(trainer.run())) == 10
    assert trainer.stopped == "reward_collapse"
