"""Steering: the vector against an independent reading, and a hook that leaves nothing behind."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM

from pipeline.models.text import ChatTokenizer
from pipeline.ppo.network.token_stats import token_logprobs
from pipeline.ppo.rollouts.rollout import generate
from pipeline.sampling.steering import (
    ContrastPair,
    decoder_layers,
    load_vector,
    save_vector,
    steered,
    steering_vector,
)
from tests.helpers.tiny import tiny_model, tiny_tokenizer

SIZES = {"vocab_size": 261, "bos_token_id": 1, "eos_token_id": 1}


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=3, n_head=2, n_positions=64, **SIZES))


def neox() -> GPTNeoXForCausalLM:
    torch.manual_seed(0)
    config = GPTNeoXConfig(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=64, **SIZES
    )
    return GPTNeoXForCausalLM(config)


MODELS = pytest.mark.parametrize("make", [tiny_model, gpt2, neox])
PROMPTS = [[10, 20, 30], [40, 50, 60, 70, 80]]


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([PROMPTS[1]])).logits


def some_vector() -> torch.Tensor:
    return torch.randn(32, generator=torch.Generator().manual_seed(1))


def test_the_vector_is_the_difference_of_mean_activations():
    model, chat = tiny_model(), ChatTokenizer(tiny_tokenizer())
    pairs = [
        ContrastPair("Rice grows on trees, no?", sycophantic="Yes!", honest="No, it is a grass."),
        ContrastPair("Is it?", sycophantic="You are right about all of it.", honest="No."),
    ]
    # Text by text, without padding, read from the model's own hidden states; entry 0 of those
    # is the embedding, so layer 0 is entry 1.
    means = {"sycophantic": torch.zeros(32), "honest": torch.zeros(32)}
    with torch.no_grad():
        for pair in pairs:
            for side in means:
                text = chat.chat(pair.messages, getattr(pair, side))
                states = model(torch.tensor([text.ids]), output_hidden_states=True).hidden_states
                means[side] += states[1][0, text.prompt_tokens :].mean(0) / 2
    hooks = list(decoder_layers(model)[0]._forward_hooks)  # transformers left some of its own
    found = steering_vector(model, chat, pairs, layer=0)
    assert list(decoder_layers(model)[0]._forward_hooks) == hooks
    assert found.shape == (32,)
    torch.testing.assert_close(found, means["sycophantic"] - means["honest"], atol=1e-5, rtol=1e-5)


@MODELS
def test_steering_changes_the_model_inside_and_leaves_it_as_it_was(make):
    model = make().eval()
    before = logits(model)
    with steered(model, some_vector(), layer=1, coefficient=-2.0):
        during = logits(model)
    assert (during - before).abs().max() > 1e-3
    assert torch.equal(logits(model), before)
    with pytest.raises(KeyError), steered(model, some_vector(), layer=1, coefficient=1.0):
        raise KeyError
    assert torch.equal(logits(model), before)


@MODELS
def test_a_coefficient_of_zero_changes_no_bit(make):
    model = make().eval()
    before = logits(model)
    with steered(model, some_vector(), layer=1, coefficient=0.0):
        assert torch.equal(logits(model), before)


def test_the_vector_is_added_as_often_as_the_coefficient_says():
    model = tiny_model()
    layer = decoder_layers(model)[1]  # the last: its output is the final hidden state
    seen: list[torch.Tensor] = []
    with steered(model, some_vector(), layer=1, coefficient=-3.0):
        hook = layer.register_forward_hook(lambda _, __, output: seen.append(output))
        logits(model)
        hook.remove()
    hook = layer.register_forward_hook(lambda _, __, output: seen.append(output))
    logits(model)
    hook.remove()
    moved, still = (output if isinstance(output, torch.Tensor) else output[0] for output in seen)
    expected = (-3.0 * some_vector()).expand(1, 5, 32)
    torch.testing.assert_close(moved - still, expected, atol=1e-5, rtol=1e-5)


@MODELS
def test_sampled_log_probabilities_are_those_of_the_steered_model(make):
    model = make().eval()
    with steered(model, some_vector(), layer=1, coefficient=2.0):
        rollout = generate(
            model,
            PROMPTS,
            eos_token_ids=[1],
            pad_token_id=0,
            max_new_tokens=6,
            generator=torch.Generator().manual_seed(0),
        )
        read_again = [read(model, *row) for row in zip(PROMPTS, rollout.token_lists(), strict=True)]
    unsteered = [read(model, *row) for row in zip(PROMPTS, rollout.token_lists(), strict=True)]
    for row, (again, plain) in enumerate(zip(read_again, unsteered, strict=True)):
        kept = rollout.logprobs[row, : len(again)]
        torch.testing.assert_close(kept, again, atol=1e-4, rtol=1e-4)
        assert (kept - plain).abs().max() > 1e-3


@torch.no_grad()
def read(model: torch.nn.Module, prompt: list[int], said: list[int]) -> torch.Tensor:
    """Log-probabilities of `said` by one pass over the whole text."""
    found = model(torch.tensor([prompt + said])).logits[0, len(prompt) - 1 : -1].float()
    return token_logprobs(found, torch.tensor(said))


def test_a_vector_is_kept_with_its_layer(tmp_path):
    save_vector(tmp_path / "v.safetensors", some_vector(), layer=3)
    vector, layer = load_vector(tmp_path / "v.safetensors")
    assert torch.equal(vector, some_vector())
    assert layer == 3


def test_what_does_not_fit_is_refused():
    model, chat = tiny_model(), ChatTokenizer(tiny_tokenizer())
    with (
        pytest.raises(ValueError, match=r"layer=2 must be one of 0 to 1"),
        steered(model, some_vector(), layer=2, coefficient=1.0),
    ):
        pass
    with (
        pytest.raises(ValueError, match=r"has shape \(3,\), not \(32,\)"),
        steered(model, torch.zeros(3), layer=0, coefficient=0.0),
    ):
        pass
    with pytest.raises(ValueError, match="at least one pair"):
        steering_vector(model, chat, [], layer=0)
