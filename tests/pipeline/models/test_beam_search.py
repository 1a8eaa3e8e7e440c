"""Beam search against exhaustive enumeration and greedy decoding."""

import itertools

import pytest
import torch
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

from pipeline.models.beam_search import beam_search
from pipeline.ppo.rollouts.rollout import generate
from tests.helpers.ppo_helpers import EOS, PAD, PROMPTS, tiny_model

SETTINGS = {"eos_token_ids": [EOS], "pad_token_id": PAD}


def logprob(model, prompt, response):
    """Σ log π of the response's tokens, from one pass over the whole text."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *response]])).logits[0].log_softmax(-1)
    return sum(logits[len(prompt) - 1 + i, token].item() for i, token in enumerate(response))


def every_response(vocabulary, longest):
    """All token sequences that end with EOS or are cut off at `longest`."""
    others = [token for token in range(vocabulary) if token != EOS]
    for length in range(longest):
        for begun in itertools.product(others, repeat=length):
            yield [*begun, EOS]
    yield from (list(tokens) for tokens in itertools.product(others, repeat=longest))


@pytest.mark.parametrize("penalty", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_wide_enough_it_finds_the_best_of_all_responses(seed, penalty):
    # Four tokens of which one ends: 3⁴ = 81 unfinished beginnings at most, so 121 hypotheses fit.
    model = tiny_model(vocab=4, seed=seed, scale=0.8)
    prompts = [[2, 3], [3], [2, 2, 3, 2]]
    found = beam_search(
        model, prompts, beams=130, max_new_tokens=4, length_penalty=penalty, **SETTINGS
    )
    for prompt, best in zip(prompts, found, strict=True):
        scored = {
            tuple(response): logprob(model, prompt, response) / len(response) ** penalty
            for response in every_response(4, 4)
        }
        assert len(scored) == 121  # 1 + 3 + 9 + 27 that end, and 81 cut off
        winner = max(scored, key=lambda response: scored[response])
        assert best == list(winner)


@pytest.mark.parametrize("seed", range(4))
def test_one_beam_is_greedy(seed):
    model = tiny_model(seed=seed)
    found = beam_search(model, PROMPTS, beams=1, max_new_tokens=8, **SETTINGS)
    greedy = generate(model, PROMPTS, temperature=0, max_new_tokens=8, **SETTINGS)
    assert found == greedy.token_lists()


@pytest.mark.parametrize("seed", range(4))
def test_any_of_several_ends_ends_a_response(seed):
    ends = [EOS, 5, 9]
    found = beam_search(
        tiny_model(seed=seed), PROMPTS, beams=3, max_new_tokens=8, eos_token_ids=ends,
        pad_token_id=PAD,
    )  # fmt: skip
    for tokens in found:
        assert not set(tokens[:-1]) & set(ends)
        assert tokens[-1] in ends or len(tokens) == 8


def test_generation_settings_of_the_model_are_ignored():
    model = tiny_model(seed=1)
    settings = SETTINGS | {"beams": 2, "max_new_tokens": 8}
    expected = beam_search(model, PROMPTS, **settings)
    model.generation_config = GenerationConfig(
        repetition_penalty=9.0, no_repeat_ngram_size=1, suppress_tokens=[3, 4, 5], max_new_tokens=2
    )
    assert beam_search(model, PROMPTS, **settings) == expected


def absolute_model():
    """A GPT-2, whose positions are not relative as a Llama's."""
    torch.manual_seed(3)
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "initializer_range": 0.3}
    return GPT2LMHeadModel(GPT2Config(vocab_size=16, eos_token_id=EOS, bos_token_id=EOS, **shape))


@pytest.mark.parametrize("made", [lambda: tiny_model(seed=3), absolute_model])
def test_neither_padding_nor_company_changes_a_result(made):
    model = made().eval()
    settings = SETTINGS | {"beams": 3, "max_new_tokens": 8}
    together = beam_search(model, PROMPTS, **settings)
    for prompt, best in zip(PROMPTS, together, strict=True):
        (alone,) = beam_search(model, [prompt], **settings)
        assert alone == best


def test_a_wider_beam_finds_what_greedy_decoding_misses():
    better = 0
    for seed in range(6):
        model = tiny_model(seed=seed)
        one, many = (
            beam_search(
                model, PROMPTS, beams=beams, max_new_tokens=6, length_penalty=0.0, **SETTINGS
            )
            for beams in (1, 16)
        )
        better += sum(
            logprob(model, prompt, b) > logprob(model, prompt, a) + 1e-3
            for prompt, a, b in zip(PROMPTS, one, many, strict=True)
        )
    assert better > 4
