"""LoRA layers that run faster than PEFT's, and say the same."""

import copy
from types import MethodType

import pytest
import torch
from peft.tuners.lora import Linear
from transformers import GPT2Config, GPT2LMHeadModel

from pipeline.ppo.network.lora import (
    merged_adapters,
    merged_weights,
    round_frozen_weights,
    with_lora,
)
from pipeline.ppo.rollouts.rollout import generate
from tests.helpers.ppo_helpers import EOS, PAD, PROMPTS, tiny_model, tiny_trainer

IDS = torch.tensor([[2, 3, 4, 5], [6, 7, 8, 9]])


def gpt2():
    """Its layers hold their weights transposed and have biases."""
    size = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 16}
    return GPT2LMHeadModel(GPT2Config(**size, initializer_range=0.3)).eval()


def adapted(make=tiny_model):
    """A policy whose adapters say something: they add nothing as PEFT makes them."""
    policy = with_lora(make(), rank=4, alpha=8.0)
    generator = torch.Generator().manual_seed(0)
    for name, weight in policy.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(std=0.2, generator=generator)
    return policy


def as_peft_runs_it(policy):
    """A copy whose layers have PEFT's own forward."""
    policy = copy.deepcopy(policy)
    for layer in policy.modules():
        if isinstance(layer, Linear):
            layer.forward = MethodType(Linear.forward, layer)
    return policy


@pytest.mark.parametrize("make", [tiny_model, gpt2])
def test_values_and_gradients_are_those_of_peft(make):
    torch.manual_seed(0)
    ours = adapted(make)
    theirs = as_peft_runs_it(ours)
    found = [policy(input_ids=IDS).logits for policy in (ours, theirs)]
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)
    with torch.no_grad(), ours.disable_adapter():
        assert (ours(input_ids=IDS).logits - found[0]).abs().max() > 0.1
    for logits in found:
        logits.square().sum().backward()
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert a.requires_grad == ("lora_" in name) == (a.grad is not None)
        if a.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)


def test_bf16_rounds_as_peft_does():
    ours = adapted()
    theirs = as_peft_runs_it(ours)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        found = [policy(input_ids=IDS).logits.float() for policy in (ours, theirs)]
    exact = ours(input_ids=IDS).logits
    errors = [(logits - exact).abs().mean().item() for logits in found]
    assert 0 < errors[0] < 1.5 * errors[1]


@pytest.mark.parametrize("make", [tiny_model, gpt2])
@torch.no_grad()
def test_folded_adapters_say_the_same_and_leave_no_trace(make):
    torch.manual_seed(0)
    policy = adapted(make)
    before = copy.deepcopy(policy.state_dict())
    plain = policy(input_ids=IDS).logits
    with merged_adapters(policy):
        folded = policy(input_ids=IDS).logits
        layer = next(m for m in policy.modules() if isinstance(m, Linear))
        assert not torch.equal(layer.base_layer.weight, before[_name(policy, layer)])
    torch.testing.assert_close(folded, plain, rtol=1e-4, atol=1e-4)
    assert torch.equal(policy(input_ids=IDS).logits, plain)
    for name, weight in policy.state_dict().items():
        assert torch.equal(weight, before[name]), name


def _name(policy, layer):
    return next(n for n, p in policy.named_parameters() if p is layer.base_layer.weight)


def test_an_error_while_sampling_leaves_the_weights_as_they_were():
    policy = adapted()
    before = copy.deepcopy(policy.state_dict())
    with pytest.raises(IndexError), merged_adapters(policy):
        policy(input_ids=torch.tensor([[99]]))
    assert all(torch.equal(w, before[n]) for n, w in policy.state_dict().items())
    assert not any(m.merged for m in policy.modules() if isinstance(m, Linear))


@pytest.mark.parametrize("make", [tiny_model, gpt2])
@pytest.mark.parametrize("rounded", [False, True], ids=["fp32", "bf16-base"])
@torch.no_grad()
def test_merged_weights_make_a_plain_model_that_says_what_the_adapters_do(make, rounded):
    torch.manual_seed(0)
    policy = adapted(make)
    if rounded:
        round_frozen_weights(policy)
    before = copy.deepcopy(policy.state_dict())
    plain = make()
    sent = dict(merged_weights(policy))
    assert sent.keys() == dict(plain.named_parameters()).keys()
    owned = {weight.data_ptr() for weight in policy.parameters()}
    changed = {name for name, weight in sent.items() if weight.data_ptr() not in owned}
    layers = [m for m in policy.modules() if isinstance(m, Linear)]
    assert len(changed) == len(layers) > 0
    assert all(sent[name].dtype == torch.float32 for name in changed)
    plain.load_state_dict(sent, strict=False)  # strict would ask for a tied output layer
    if rounded:
        policy.float()
    torch.testing.assert_close(
        plain(input_ids=IDS).logits, policy(input_ids=IDS).logits, rtol=1e-5, atol=1e-5
    )
    for name, weight in policy.state_dict().items():
        assert torch.equal(weight, before[name].to(weight.dtype)), name


def test_tied_weights_are_listed_once_or_under_each_name():
    policy = with_lora(tiny_model(tie_word_embeddings=True), rank=4, alpha=8.0)
    assert "lm_head.weight" not in dict(merged_weights(policy))
    sent = dict(merged_weights(policy, untied=True))
    assert torch.equal(sent["lm_head.weight"], sent["model.embed_tokens.weight"])
    assert not any("lora" in name or "base" in name for name in sent)


def test_a_lora_run_samples_with_folded_weights_what_its_adapters_would():
    trainer = tiny_trainer(reference=None, lora_rank=4, lr=1e-2)
    for _ in trainer.run():
        pass
    uniforms = torch.rand(len(PROMPTS), 6, generator=torch.Generator().manual_seed(3))
    passes: list[bool] = []
    layer = next(m for m in trainer.model.modules() if isinstance(m, Linear))
    watch = layer.base_layer.register_forward_hook(lambda *_: passes.append(layer.merged))
    folded = trainer.backend(PROMPTS, uniforms)
    assert passes
    assert all(passes)
    watch.remove()
    unfolded = generate(
        trainer.model, PROMPTS, eos_token_ids=[EOS], pad_token_id=PAD,
        max_new_tokens=6, uniforms=uniforms,
    )  # fmt: skip
    assert torch.equal(folded.tokens, unfolded.tokens)
    torch.testing.assert_close(folded.logprobs, unfolded.logprobs, rtol=1e-5, atol=1e-5)


def test_bf16_samples_with_its_adapters():
    trainer = tiny_trainer(reference=None, lora_rank=4, precision="bf16")
    passes: list[bool] = []
    layer = next(m for m in trainer.model.modules() if isinstance(m, Linear))
    layer.base_layer.register_forward_hook(lambda *_: passes.append(layer.merged))
    trainer.backend(PROMPTS, torch.rand(len(PROMPTS), 6))
    assert passes
    assert not any(passes)
