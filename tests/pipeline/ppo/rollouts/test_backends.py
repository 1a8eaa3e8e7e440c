"""Other samplers: the same responses in fp32, and a correction where their arithmetic differs."""

import math
from dataclasses import replace

import pytest
import torch
from transformers import GenerationConfig

from pipeline.ppo import ActorCritic, PPOConfig
from pipeline.ppo.algorithm import MinibatchSize, length_mask, policy_loss
from pipeline.ppo.network.model import Setup
from pipeline.ppo.rollouts.backends import BuiltinSampler, TransformersGenerate
from pipeline.ppo.rollouts.importance import importance_weights
from tests.helpers.ppo_helpers import (
    EOS,
    PAD,
    PROMPTS,
    tiny_config,
    tiny_model,
    tiny_trainer,
    untimed,
)

UNIFORMS = torch.rand(len(PROMPTS), 6, generator=torch.Generator().manual_seed(5))


def setup_of(model, **settings):
    settings = {"max_new_tokens": 6} | settings
    return Setup(
        model=ActorCritic(model),
        reference=model,
        config=tiny_config(**settings),
        eos_token_ids=[EOS, 7],
        pad_token_id=PAD,
        precision="fp32",
        device=torch.device("cpu"),
    )


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_new_tokens": 3},
        {"rollout_batch": 3},
    ],
    ids=str,
)
def test_transformers_generate_and_our_loop_say_the_same(settings):
    reasons = set()
    for seed in range(3):
        setup = setup_of(tiny_model(seed=seed), **settings)
        ours, theirs = (
            kind(setup)(PROMPTS, UNIFORMS) for kind in (BuiltinSampler, TransformersGenerate)
        )
        assert theirs.token_lists() == ours.token_lists()
        assert theirs.finish_reasons == ours.finish_reasons
        torch.testing.assert_close(theirs.logprobs, ours.logprobs, atol=1e-5, rtol=0)
        reasons |= set(ours.finish_reasons)
    assert reasons == {"stop", "length"}


def test_generation_settings_of_the_model_stay_out():
    model = tiny_model()
    model.generation_config = GenerationConfig(
        repetition_penalty=9.0, temperature=0.1, top_k=1, do_sample=True, no_repeat_ngram_size=1,
        suppress_tokens=[3, 4, 5], max_new_tokens=2,
    )  # fmt: skip
    before = model.generation_config
    setup = setup_of(model)
    ours, theirs = (
        kind(setup)(PROMPTS, UNIFORMS) for kind in (BuiltinSampler, TransformersGenerate)
    )
    assert theirs.token_lists() == ours.token_lists()
    assert model.generation_config is before


@pytest.mark.parametrize(
    "settings", [{}, {"critic": "separate"}, {"lora_rank": 4}, {"kl_estimator": "full"}], ids=str
)
def test_in_fp32_the_backend_changes_no_figure(settings):
    runs = {
        backend: [untimed(u) for u in tiny_trainer(rollout_backend=backend, **settings).run()]
        for backend in ("own", "transformers")
    }
    for ours, theirs in zip(runs["own"], runs["transformers"], strict=True):
        assert theirs == pytest.approx(ours, rel=1e-3, abs=1e-4)
        assert 0 <= theirs["rollout/mismatch_kl"] < 1e-9
        assert theirs["rollout/importance_weight_clipped"] == 0
        assert ours["rollout/mismatch_kl"] == pytest.approx(0, abs=1e-9)


def test_our_own_loop_is_not_weighed():
    trainer = tiny_trainer()
    kept = spy_on_batches(trainer)
    first = next(trainer.run())
    assert kept[0].importance_weights is None
    assert first.metrics["rollout/mismatch_kl"] == 0
    coarse = next(tiny_trainer(precision="bf16").run())
    assert 0 < coarse.metrics["rollout/mismatch_kl"] < 1e-2


def spy_on_batches(trainer):
    kept = []
    update = trainer.learner.update

    def watched(batch, **rest):
        kept.append(batch)
        return update(batch, **rest)

    trainer.learner.update = watched
    return kept


def test_a_bf16_sampler_of_an_fp32_policy_is_measured_and_weighed():
    trainer = tiny_trainer(rollout_backend="transformers")
    sampled = []
    coarse = TransformersGenerate(replace(trainer.backend.setup, precision="bf16"))

    def backend(*arguments):
        sampled.append(coarse(*arguments))
        return sampled[-1]

    backend.foreign = True
    trainer.backend = backend
    kept = spy_on_batches(trainer)
    first = next(trainer.run())
    assert 1e-8 < first.metrics["rollout/mismatch_kl"] < 1e-2
    assert first.metrics["policy/first_ratio_error"] < 1e-5  # against the trainer's own
    mask = sampled[0].mask
    off = (kept[0].old_logprobs - sampled[0].logprobs)[mask]
    assert off.abs().max() > 1e-4
    torch.testing.assert_close(kept[0].importance_weights[mask], off.exp())


def test_weights_of_a_sampler_far_off_are_cut_off():
    trainer = tiny_trainer(rollout_backend="transformers", importance_cap=1.5)
    warm = replace(trainer.backend.setup.config, temperature=3.0)
    trainer.backend = TransformersGenerate(replace(trainer.backend.setup, config=warm))
    kept = spy_on_batches(trainer)
    first = next(trainer.run())
    mask = length_mask(torch.tensor([s.length for s in first.samples]), 6)
    weights = kept[0].importance_weights[mask]
    share = (weights == 1.5).float().mean().item()
    assert 0 < share < 1
    assert weights.max() == 1.5
    assert first.metrics["rollout/importance_weight_clipped"] == pytest.approx(share)
    assert first.metrics["rollout/mismatch_kl"] > 0.05


def logprobs_of(probabilities):
    """(1, 3) of two tokens of the given probabilities, and a token of padding."""
    return torch.tensor([[*(math.log(p) for p in probabilities), 0.0]])


# A sampler that draws two actions evenly, for a policy of .6 and .4.
SAMPLER, POLICY = logprobs_of([0.5, 0.5]), logprobs_of([0.6, 0.4])


def weigh(cap, *, foreign=True):
    mask = torch.tensor([[True, True, False]])
    return importance_weights(
        sampler_logprobs=SAMPLER, old_logprobs=POLICY, mask=mask, cap=cap, foreign=foreign
    )


def test_mismatch_by_hand():
    weights, metrics = weigh(1.1)
    # KL of (½, ½) from (.6, .4): ½ log(.5/.6) + ½ log(.5/.4) = .020411.
    assert metrics["rollout/mismatch_kl"] == pytest.approx(0.020411, abs=1e-6)
    assert metrics["rollout/importance_weight_clipped"] == 0.5
    torch.testing.assert_close(weights[0, :2], torch.tensor([1.1, 0.8]))
    assert weigh(1.1, foreign=False)[0] is None


@pytest.mark.parametrize(
    ("cap", "expected"),
    [
        # In the first logit log π(first) rises by .4 and log π(second) falls by .6.  With
        # advantages 1 and −1 the policy's own gradient is .6 · .4 + .4 · .6 = .48; two draws of
        # the sampler, one of each action, say ½ (.4 + .6) as they come.
        (None, 0.5),
        (2.0, 0.48),  # ½ (1.2 · .4 + .8 · .6)
        (1.1, 0.46),  # ½ (1.1 · .4 + .8 · .6): the cap leaves a bias
    ],
)
def test_weights_take_the_bias_out_of_the_gradient(cap, expected):
    logits = torch.tensor([0.6, 0.4]).log().requires_grad_()
    logprobs = torch.cat([logits.log_softmax(0), torch.zeros(1)])[None]
    weights = None
    if cap is not None:
        weights, _ = weigh(cap)
    policy_loss(
        logprobs=logprobs,
        old_logprobs=POLICY,
        advantages=torch.tensor([[1.0, -1.0, 0.0]]),
        mask=torch.tensor([[True, True, False]]),
        size=MinibatchSize(tokens=2, responses=1),
        config=tiny_config(),
        importance_weights=weights,
    ).total.backward()
    torch.testing.assert_close(-logits.grad, torch.tensor([expected, -expected]))


def test_a_resumed_run_samples_on_where_it_was(tmp_path):
    settings = {"rollout_backend": "transformers", "checkpoint_every": 1}
    whole = [untimed(u) for u in tiny_trainer(tmp_path / "a", **settings).run()]
    run = tiny_trainer(tmp_path / "b", **settings).run()
    next(run), next(run)
    again = tiny_trainer(tmp_path / "b", **settings)
    assert [untimed(u) for u in again.run(resume=True)] == whole[1:]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rollout_backend": "tgi"}, "must be one of own, compiled, transformers, vllm"),
        ({"rollout_backend": "vllm", "top_p": 0.9}, "does not support ppo.top_k, top_p"),
        ({"rollout_backend": "vllm", "min_new_tokens": 2}, "and min_new_tokens"),
        (
            {"rollout_backend": "transformers", "sharding": "fsdp2"},
            "needs ppo.rollout_backend='own'",
        ),
        ({"importance_cap": 0.5}, "importance_cap=0.5 must be at least 1"),
    ],
)
def test_what_does_not_go_together_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        PPOConfig(**settings)
