"""Beam search against exhaustive enumeration, greedy decoding and transformers."""

import itertools

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from pipeline.models.beam_search import beam_search
from pipeline.ppo import ActorCritic
from pipeline.ppo.rollout import generate
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
        assert best.tokens == list(winner)
        assert best.score == pytest.approx(scored[winner], abs=1e-4)
        assert best.logprob == pytest.approx(best.score * len(winner) ** penalty, abs=1e-4)
        assert best.finish_reason == ("stop" if winner[-1] == EOS else "length")


@pytest.mark.parametrize("seed", range(4))
def test_one_beam_is_greedy(seed):
    model = tiny_model(seed=seed)
    found = beam_search(model, PROMPTS, beams=1, max_new_tokens=8, **SETTINGS)
    greedy = generate(model, PROMPTS, temperature=0, max_new_tokens=8, **SETTINGS)
    assert [best.tokens for best in found] == greedy.token_lists()
    assert [best.finish_reason for best in found] == greedy.finish_reasons
    for best, row in zip(found, greedy.logprobs, strict=True):
        assert best.logprob == pytest.approx(row.sum().item(), abs=1e-4)


@pytest.mark.parametrize("eos", [[EOS], [EOS, 5, 9]], ids=["one end", "three ends"])
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("beams", [2, 5])
def test_transformers_finds_the_same(beams, penalty, eos):
    lengths = set()
    for seed in range(4):
        model = tiny_model(seed=seed)
        found = beam_search(
            model, PROMPTS, beams=beams, max_new_tokens=8, length_penalty=penalty,
            eos_token_ids=eos, pad_token_id=PAD,
        )  # fmt: skip
        width = max(map(len, PROMPTS))
        ids = torch.tensor([[PAD] * (width - len(p)) + p for p in PROMPTS])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in PROMPTS])
        theirs = model.generate(
            ids, attention_mask=mask, num_beams=beams, do_sample=False, early_stopping=True,
            length_penalty=penalty, max_new_tokens=8, eos_token_id=eos, pad_token_id=PAD,
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        for best, row, score in zip(
            found, theirs.sequences[:, width:].tolist(), theirs.sequences_scores, strict=True
        ):
            assert best.tokens == row[: len(best.tokens)]
            assert set(row[len(best.tokens) :]) <= {PAD}
            assert best.score == pytest.approx(score.item(), abs=1e-4)
            lengths.add(len(best.tokens))
    assert len(lengths) > 2  # some end early, some do not


def absolute_model():
    """A GPT-2, whose positions are not relative as a Llama's."""
    torch.manual_seed(3)
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "initializer_range": 0.3}
    return GPT2LMHeadModel(GPT2Config(vocab_size=16, eos_token_id=EOS, bos_token_id=EOS, **shape))


@pytest.mark.parametrize("made", [lambda: tiny_model(seed=3), absolute_model])
def test_neither_padding_nor_company_changes_a_result(made):
    model = ActorCritic(made()).train()
    settings = SETTINGS | {"beams": 3, "max_new_tokens": 8}
    together = beam_search(model, PROMPTS, **settings)
    for prompt, best in zip(PROMPTS, together, strict=True):
        (alone,) = beam_search(model, [prompt], **settings)
        assert alone.tokens == best.tokens
        assert alone.score == pytest.approx(best.score, abs=1e-5)
    assert model.training


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
        better += sum(b.score > a.score + 1e-3 for a, b in zip(one, many, strict=True))
    assert better > 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompts": []}, "at least one prompt"),
        ({"prompts": [[2], []]}, "a token in each"),
        ({"beams": 0}, "beams=0"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"eos_token_ids": []}, "at least one end-of-text id"),
    ],
)
def test_what_cannot_be_searched_is_said(change, message):
    request = {"prompts": PROMPTS, "beams": 2, "max_new_tokens": 3} | SETTINGS | change
    with pytest.raises(ValueError, match=message):
        beam_search(tiny_model(), **request)
