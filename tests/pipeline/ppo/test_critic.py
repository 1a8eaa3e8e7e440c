"""The separate critic: its memory, its copy, its learning rate."""

import copy

import pytest
import torch
from transformers import GPT2Config, GPT2ForSequenceClassification, LlamaForSequenceClassification

from pipeline.ppo.network.model import weights_hash
from tests.helpers.ppo_helpers import (
    EOS,
    PAD,
    PROMPTS,
    assert_same_state,
    tiny_model,
    tiny_trainer,
    untimed,
)


def scorer(vocab: int = 16, **changes) -> LlamaForSequenceClassification:
    """A reward model with a random head."""
    config = copy.deepcopy(tiny_model(vocab).config)
    for name, value in ({"num_labels": 1} | changes).items():
        setattr(config, name, value)
    torch.manual_seed(5)
    return LlamaForSequenceClassification(config).eval()


@pytest.mark.parametrize("given", [None, scorer()], ids=["copy", "given"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_checkpointing_computes_the_critics_layers_again_in_the_backward_pass(given, checkpointing):
    trainer = tiny_trainer(
        critic="separate", critic_model=given, gradient_checkpointing=checkpointing, updates=1
    )
    assert trainer.model.critic is not None
    seen: list[str] = []

    def watch(module, name):
        def note(*_):
            if torch.is_grad_enabled():
                seen.append(name)

        # Before the pass: one that is made again is cut off once it has what is needed.
        module.register_forward_pre_hook(note)

    watch(trainer.model.critic, "whole")
    watch(trainer.model.critic.layers[0].mlp, "layer")
    next(trainer.run())
    assert seen.count("whole") == 4  # 2 epochs of 2 minibatches
    assert seen.count("layer") == (8 if checkpointing else 4)


def test_a_critic_that_was_given_is_copied():
    given = scorer().requires_grad_(False)
    before = weights_hash(given)
    trainer = tiny_trainer(critic="separate", critic_model=given, updates=1, lr=1e-2)
    start = weights_hash(trainer.model.critic)
    list(trainer.run())
    assert weights_hash(trainer.model.critic) != start
    assert weights_hash(given) == before
    assert not any(weight.requires_grad for weight in given.parameters())


def moved(trainer):
    """The farthest that a weight of each part went in Adam's first step, which is its rate."""
    before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    next(trainer.run())
    farthest: dict[str, float] = {}
    for name, weight in trainer.model.named_parameters():
        part = name.partition(".")[0]
        distance = (weight - before[name]).abs().max().item()
        farthest[part] = max(farthest.get(part, 0.0), distance)
    return farthest


ONE_STEP = {"rollouts": 8, "minibatch": 8, "epochs": 1, "lr": 1e-4}


@pytest.mark.parametrize(
    ("settings", "critic", "policy"),
    [
        ({"critic": "separate"}, 1e-3, 1e-4),
        ({"critic": "separate", "critic_lr": 3e-3}, 3e-3, 1e-4),
        ({"critic": "shared"}, 1e-4, 1e-4),
        ({"critic": "shared", "critic_lr": 3e-3}, 3e-3, 1e-4),
    ],
)
def test_the_critic_and_the_policy_step_at_rates_of_their_own(settings, critic, policy):
    # A head at zero would send the critic's own layers no gradient at first.
    given = scorer() if settings["critic"] == "separate" else None
    trainer = tiny_trainer(critic_model=given, **ONE_STEP | settings)
    found = moved(trainer)
    assert found.pop("policy") == pytest.approx(policy, rel=0.05)
    assert set(found) == ({"critic", "value_head"} if given else {"value_head"})
    assert list(found.values()) == pytest.approx([critic] * len(found), rel=0.05)


ADAPTED = {"critic": "separate", "critic_lora_rank": 2}


@pytest.mark.parametrize("policy", [{}, {"lora_rank": 2, "reference": None}], ids=["full", "lora"])
def test_adapters_of_a_critic_learn_and_its_base_does_not(policy):
    trainer = tiny_trainer(critic_model=scorer(), updates=1, lr=1e-2, **ADAPTED | policy)
    critic = trainer.model.critic
    assert critic is not None
    trained = {name for name, weight in critic.named_parameters() if weight.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    before = {name: weight.detach().clone() for name, weight in critic.named_parameters()}
    list(trainer.run())
    changed = {
        name for name, weight in critic.named_parameters() if not torch.equal(weight, before[name])
    }
    assert changed == trained


def test_a_critic_with_adapters_starts_with_the_values_of_one_without():
    first = [
        next(tiny_trainer(critic_model=scorer(), updates=1, **settings).run()).metrics
        for settings in ({"critic": "separate"}, ADAPTED)
    ]
    assert first[0]["value/mean"] == pytest.approx(first[1]["value/mean"], rel=1e-6)
    assert first[0]["value/mean"] != 0


def test_in_bf16_a_critics_base_is_rounded_once():
    trainer = tiny_trainer(critic_model=scorer(), precision="bf16", updates=2, **ADAPTED)
    layer = trainer.model.critic.base_model.model.layers[0].mlp.up_proj
    assert layer.base_layer.weight.dtype == torch.bfloat16
    assert layer.lora_A["default"].weight.dtype == torch.float32
    assert [update.step for update in trainer.run()] == [1, 2]


def test_a_shared_critic_has_no_adapters_of_its_own():
    with pytest.raises(ValueError, match=r"^ppo.critic_lora_rank=2 needs ppo.critic='separate'$"):
        tiny_trainer(critic_lora_rank=2)
    with pytest.raises(ValueError, match="adapters are small enough for every process"):
        tiny_trainer(sharding="fsdp2", **ADAPTED)


def test_both_rates_follow_the_schedule():
    updates = list(tiny_trainer(critic="separate", critic_lr=4e-3, lr=8e-4, updates=4).run())
    assert [u.metrics["optim/lr"] for u in updates] == pytest.approx([8e-4, 6e-4, 4e-4, 2e-4])
    rates = [u.metrics["optim/critic_lr"] for u in updates]
    assert rates == pytest.approx([4e-3, 3e-3, 2e-3, 1e-3])
    constant = list(tiny_trainer(critic="separate", schedule="constant", updates=2).run())
    assert [u.metrics["optim/critic_lr"] for u in constant] == pytest.approx([1e-2, 1e-2])


def test_a_run_with_a_critic_of_its_own_rate_resumes_bit_for_bit(tmp_path):
    settings = {"critic": "separate", "critic_lr": 4e-3, "updates": 4, "checkpoint_every": 1}
    given = {"critic_model": scorer(), **settings}
    whole = tiny_trainer(tmp_path / "whole", **given)
    expected = [untimed(update) for update in whole.run()]
    run = tiny_trainer(tmp_path / "cut", **given).run()
    next(run), next(run)
    again = tiny_trainer(tmp_path / "cut", **given)
    assert [untimed(update) for update in again.run(resume=True)] == expected[1:]
    assert_same_state(again.state_dict(), whole.state_dict())


def short_gpt2():
    """A scoring model whose positions end before the longest text."""
    size = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 10, "vocab_size": 16}
    ends = {"num_labels": 1, "pad_token_id": PAD, "eos_token_id": EOS}
    return GPT2ForSequenceClassification(GPT2Config(**size, **ends)).eval()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (scorer(12), "the critic has a vocabulary of 12 tokens and the policy of 16"),
        (short_gpt2(), "the critic's context is 10 tokens, .* up to 11"),
    ],
)
def test_a_critic_that_cannot_read_the_texts_is_refused(given, message):
    assert max(map(len, PROMPTS)) + 6 == 11
    with pytest.raises(ValueError, match=message):
        tiny_trainer(critic="separate", critic_model=given)


def passes_of_learning(**settings):
    """What the minibatches of one update read, as (part, whether a graph was built, logits made)."""
    trainer = tiny_trainer(updates=2, **settings)
    model, update = trainer.model, trainer.learner.update
    seen: list[tuple[str, bool, int]] = []

    def note(part):
        return lambda *_: seen.append((part, torch.is_grad_enabled(), 0))

    def note_logits(*args):
        part, graph, _ = seen.pop()
        seen.append((part, graph, args[-1].numel()))

    def watched(*args, **options):
        hooks = [
            model.policy.model.register_forward_pre_hook(note("policy")),
            model.policy.lm_head.register_forward_hook(note_logits),
        ]
        if model.critic is not None:
            hooks.append(model.critic.register_forward_pre_hook(note("critic")))
        try:
            return update(*args, **options)
        finally:
            for hook in hooks:
                hook.remove()

    trainer.learner.update = watched
    first = next(trainer.run())
    return [(part, graph, logits > 0) for part, graph, logits in seen], first.metrics


POLICY, CRITIC = ("policy", True, True), ("critic", True, False)
SHARED_VALUES, SHARED_FROZEN = ("policy", True, False), ("policy", False, False)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"critic": "separate"}, [POLICY, CRITIC]),
        ({"critic": "separate", "update_order": "alternating"}, [CRITIC, POLICY]),
        ({"critic": "separate", "value_warmup": 1}, [CRITIC]),
        ({}, [POLICY]),
        ({"update_order": "alternating"}, [SHARED_VALUES, POLICY]),
        ({"value_warmup": 1}, [SHARED_FROZEN]),
        ({"baseline": "return_to_go"}, [POLICY]),
    ],
)
def test_a_step_runs_only_what_it_trains(settings, expected):
    seen, metrics = passes_of_learning(**settings)
    assert seen == expected * 4  # 2 epochs of 2 minibatches
    assert metrics["policy/ratio_max"] >= 1
    assert (metrics["policy/loss"] != 0) == (POLICY in expected)
    assert (metrics["value/loss"] > 0) == ("baseline" not in settings)


def test_values_are_learned_to_the_bit_as_by_a_pass_that_makes_logits():
    """The pass for values alone reads what the policy's own pass reads."""
    for critic in ("shared", "separate"):
        trainer = tiny_trainer(critic=critic)
        torch.nn.init.normal_(trainer.model.value_head.weight)
        ids = torch.tensor([PROMPTS[1]])
        positions = torch.ones_like(ids, dtype=torch.bool)
        with torch.no_grad():
            together = trainer.model(ids, positions, use_cache=False)
            assert together.logits.shape == (5, 16)
            assert torch.equal(trainer.model.values(ids, positions), together.values)


@pytest.mark.parametrize("order", ["joint", "alternating"])
def test_a_target_kl_still_ends_the_update(order):
    held = next(tiny_trainer(lr=1e-2, target_kl=1e-3, update_order=order).run())
    free = next(tiny_trainer(lr=1e-2, update_order=order).run())
    assert held.metrics["optim/steps"] < free.metrics["optim/steps"]
