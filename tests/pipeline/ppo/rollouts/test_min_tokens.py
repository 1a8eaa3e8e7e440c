"""`min_new_tokens`: what sampling forbids is forbidden in every pass over the same tokens."""

from __future__ import annotations

import pytest
import torch

from pipeline.ppo import ActorCritic, PPOTrainer, generate
from pipeline.ppo.algorithm import full_kl
from pipeline.ppo.network.token_stats import entropy, forbid_ends, token_logprobs
from tests.helpers.ppo_helpers import EOS, PAD, PROMPTS, tiny_config, tiny_model, tiny_trainer

ENDS = [EOS, 7]
MIN_TOKENS = 4


def by_hand(model, prompt, response, temperature=1.0):
    """(T, V) log-probabilities of the distribution that was sampled, from one plain pass."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + response])).logits[0] / temperature
    logits = logits[len(prompt) - 1 : -1].clone()
    for step in range(min(MIN_TOKENS, len(response))):
        logits[step, ENDS] = -torch.inf
    return logits.log_softmax(-1)


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7}, {"top_k": 6, "top_p": 0.9}])
def test_kept_figures_are_of_the_distribution_without_end_of_text(settings):
    model = tiny_model(seed=3)
    rollout = generate(
        ActorCritic(model),
        PROMPTS * 4,
        eos_token_ids=ENDS,
        pad_token_id=PAD,
        max_new_tokens=8,
        min_new_tokens=MIN_TOKENS,
        generator=torch.Generator().manual_seed(0),
        **settings,
    )
    assert min(rollout.lengths.tolist()) > MIN_TOKENS
    assert "stop" in rollout.finish_reasons
    for row, response in enumerate(rollout.token_lists()):
        likely = by_hand(model, (PROMPTS * 4)[row], response, settings.get("temperature", 1.0))
        kept = likely.gather(1, torch.tensor(response)[:, None])[:, 0]
        torch.testing.assert_close(rollout.logprobs[row, : len(response)], kept, atol=1e-5, rtol=0)
        spread = -torch.where(likely.exp() > 0, likely.exp() * likely, 0).sum(-1)
        torch.testing.assert_close(
            rollout.entropies[row, : len(response)], spread, atol=1e-5, rtol=0
        )


def trainer_of(**settings) -> PPOTrainer:
    """A policy that ends early less often than its reference does; a third of its tokens are early."""
    return tiny_trainer(
        model=tiny_model(seed=0),
        eos_token_ids=ENDS,
        **{"min_new_tokens": MIN_TOKENS, "rollouts": 16, "minibatch": 16, "updates": 1} | settings,
    )


@pytest.mark.parametrize("packing", ["on", "off"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("backend", ["own", "transformers"])
def test_at_the_first_step_kl_is_0_and_the_ratio_1(backend, precision, packing):
    trainer = trainer_of(rollout_backend=backend, precision=precision, packing=packing)
    metrics = next(trainer.run()).metrics
    coarse = precision == "bf16"
    assert metrics["kl/reference"] == pytest.approx(0, abs=0.05 if coarse else 1e-4)
    assert metrics["policy/first_ratio_error"] < (0.05 if coarse else 1e-4)
    assert 0 <= metrics["rollout/mismatch_kl"] < (1e-2 if coarse else 1e-9)


@pytest.mark.parametrize("kl", [{}, {"kl_estimator": "full"}, {"entropy_weight": 0.01}], ids=str)
@pytest.mark.parametrize("backend", ["own", "transformers"])
def test_the_kl_to_another_model_is_that_of_the_sampled_distributions(backend, kl):
    """Each token's log-ratio, with end-of-text left out of policy and reference alike."""
    policy, reference = tiny_model(seed=0), tiny_model(seed=3)
    trainer = trainer_of(reference=reference, rollout_backend=backend, **kl)
    batches = []
    reference_pass = trainer.learner.reference_pass

    def watched(batch, **rest):
        reference_pass(batch, **rest)
        batches.append(batch)

    trainer.learner.reference_pass = watched
    update = next(trainer.run())
    (batch,) = batches
    sums, exact = [], []
    for row, sample in enumerate(update.samples):
        response = batch.tokens[row, : sample.length].tolist()
        prompt = PROMPTS[sample.prompt_index]
        ours, theirs = (by_hand(m, prompt, response) for m in (policy, reference))
        picked = torch.tensor(response)[:, None]
        sums.append((ours - theirs).gather(1, picked).sum().item())
        apart = torch.where(ours.exp() > 0, ours.exp() * (ours - theirs), 0)
        exact.append(apart.sum(-1))
        if batch.exact_kl is not None:
            torch.testing.assert_close(
                batch.exact_kl[row, : sample.length], exact[-1], atol=1e-4, rtol=1e-4
            )
    assert [s.kl for s in update.samples] == pytest.approx(sums, abs=1e-3)
    assert update.metrics["kl/reference"] == pytest.approx(sum(sums) / len(sums), abs=1e-3)
    assert torch.isfinite(torch.tensor(list(update.metrics.values()))).all()


def test_forbidden_tokens_have_no_probability_and_no_gradient():
    logits = torch.randn(3, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    early = torch.tensor([True, False, True])
    cut = forbid_ends(logits, torch.tensor([0, 4]), early)
    assert cut.softmax(-1)[[0, 2]][:, [0, 4]].eq(0).all()
    torch.testing.assert_close(cut[1], logits[1])
    other = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    terms = [
        entropy(cut).sum(),
        full_kl(cut, forbid_ends(other, torch.tensor([0, 4]), early)).sum(),
        token_logprobs(cut, torch.tensor([1, 0, 5])).sum(),
    ]
    assert all(torch.isfinite(term) for term in terms)
    sum(terms).backward()
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[[0, 2]][:, [0, 4]].eq(0).all()
    assert logits.grad[1].ne(0).all()


def test_the_gradient_is_that_of_the_sampled_distribution():
    """Raising the probability of a token that had to be sampled gains nothing."""
    config = tiny_config(min_new_tokens=1, max_new_tokens=1)
    # One token is left to sample where every other one ends the response: its log-probability is 0.
    ends = [token for token in range(16) if token != 5]
    trainer = tiny_trainer(eos_token_ids=ends, min_new_tokens=1, max_new_tokens=1, kl_weight=1.0)
    metrics = next(trainer.run()).metrics
    assert config.min_new_tokens == 1
    assert metrics["policy/entropy"] == pytest.approx(0, abs=1e-6)
    assert metrics["kl/reference"] == 0
    assert metrics["completion/unique"] == pytest.approx(1 / 8)
