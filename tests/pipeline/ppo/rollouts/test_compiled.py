"""The compiled decoding step: the same responses as the loop's, with fewer kernels."""

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM

from pipeline.ppo import SamplerMismatch
from pipeline.ppo.rollouts.backends import BuiltinSampler
from pipeline.ppo.rollouts.compiled import CompiledSampler
from tests.helpers.ppo_helpers import PROMPTS, tiny_model, tiny_trainer, untimed
from tests.pipeline.ppo.rollouts.test_backends import UNIFORMS, setup_of

pytestmark = pytest.mark.slow  # compiling takes ten seconds


@pytest.fixture(autouse=True)
def compile_afresh():
    torch._dynamo.reset()


def both(model, **settings):
    setup = setup_of(model, **settings)
    return [kind(setup)(PROMPTS, UNIFORMS) for kind in (BuiltinSampler, CompiledSampler)]


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_new_tokens": 3}], ids=str
)
def test_the_same_tokens_are_drawn(settings):
    ours, compiled = both(tiny_model(), **settings)
    assert compiled.token_lists() == ours.token_lists()
    assert compiled.finish_reasons == ours.finish_reasons
    torch.testing.assert_close(compiled.logprobs, ours.logprobs, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "settings", [{}, {"critic": "separate"}, {"lora_rank": 4}, {"rollout_batch": 3}], ids=str
)
def test_in_fp32_the_backend_changes_no_figure(settings):
    runs = {
        backend: [untimed(u) for u in tiny_trainer(rollout_backend=backend, **settings).run()]
        for backend in ("own", "compiled")
    }
    for ours, compiled in zip(runs["own"], runs["compiled"], strict=True):
        assert compiled == pytest.approx(ours, rel=2e-3, abs=1e-4)
        assert 0 <= compiled["rollout/mismatch_kl"] < 1e-9


@pytest.mark.parametrize("settings", [{}, {"lora_rank": 4}], ids=str)
def test_rounded_weights_follow_the_policy(settings):
    trainer = tiny_trainer(
        rollout_backend="compiled", precision="bf16", lr=0.03, value_head="linear", **settings
    )
    mismatches = [update.metrics["rollout/mismatch_kl"] for update in trainer.run()]
    assert len(mismatches) == 3
    assert max(mismatches) < 2e-3
    # Weights that are not rounded again are those of the first update.
    trainer = tiny_trainer(rollout_backend="compiled", precision="bf16", lr=0.03, **settings)
    trainer.backend.rounded.refresh = lambda: None
    with pytest.raises(SamplerMismatch):
        list(trainer.run())


def test_models_that_it_cannot_decode_are_refused():
    model = MambaForCausalLM(
        MambaConfig(vocab_size=16, hidden_size=16, num_hidden_layers=1, state_size=4)
    )
    with pytest.raises(ValueError, match="MambaForCausalLM, which has other layers than attention"):
        CompiledSampler(setup_of(model))
