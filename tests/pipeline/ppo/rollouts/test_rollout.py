"""Sampling: log-probabilities, masks, ends and truncation."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from pipeline.ppo.batch import Batch, micro_batches
from pipeline.ppo.network.model import ActorCritic, forward_at, run_model
from pipeline.ppo.network.token_stats import token_logprobs
from pipeline.ppo.rollouts.draws import sample_tokens, truncate
from pipeline.ppo.rollouts.rollout import generate
from tests.helpers.ppo_helpers import EOS, PAD, PROMPTS, tiny_model, tiny_trainer


def rollout_of(model, prompts=PROMPTS, *, seed=0, **settings):
    defaults = {"eos_token_ids": [EOS], "pad_token_id": PAD, "max_new_tokens": 12}
    return generate(
        model, prompts, generator=torch.Generator().manual_seed(seed), **defaults | settings
    )


def actor_critic(**config) -> ActorCritic:
    model = ActorCritic(tiny_model(**config))
    torch.nn.init.normal_(model.value_head.weight)
    return model.eval()


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0.6}, {"temperature": 1.7, "top_p": 0.8, "top_k": 9}]
)
def test_kept_logprobs_and_values_equal_a_forward_pass_of_each_text_alone(settings):
    model = actor_critic()
    rollout = rollout_of(model, PROMPTS * 3, **settings)
    assert len(set(rollout.lengths.tolist())) > 2  # rows were dropped along the way
    for row, response in enumerate(rollout.token_lists()):
        prompt = (PROMPTS * 3)[row]
        ids = torch.tensor([prompt + response])
        logits = model.policy(ids).logits[0] / settings.get("temperature", 1.0)
        # Only temperature enters: truncation is left out of the log-probabilities.
        expected = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        expected = expected.gather(1, torch.tensor(response)[:, None])[:, 0]
        kept = rollout.logprobs[row, : len(response)]
        torch.testing.assert_close(kept, expected, atol=1e-4, rtol=0)
        assert not rollout.logprobs[row, len(response) :].any()
        hidden = model.policy.model(ids).last_hidden_state[0, len(prompt) - 1 : -1]
        values = model.value_head(hidden)[:, 0]
        assert rollout.values is not None
        torch.testing.assert_close(
            rollout.values[row, : len(response)], values, atol=1e-4, rtol=1e-4
        )


def test_training_pass_equals_sampling_whatever_the_grouping():
    model = actor_critic()
    rollout = rollout_of(model, PROMPTS * 4)
    batch = Batch.of(PROMPTS * 4, rollout, prompt_indices=[*range(4)] * 4, pad=PAD)
    lengths = (batch.prompt_lengths + batch.lengths).tolist()
    for budget, slack in ((10_000, 10_000), (30, 3), (1, 0)):
        groups = micro_batches(range(16), lengths, token_budget=budget, slack=slack)
        assert sorted(row for group in groups for row in group) == list(range(16))
        for rows in groups:
            part = batch.take(rows)
            output = run_model(model, part.input_ids, part.positions, use_cache=False)
            found = token_logprobs(output.logits, part.tokens[part.mask])
            kept = rollout.logprobs[rows, : part.mask.shape[1]][part.mask]
            torch.testing.assert_close(found, kept, atol=1e-5, rtol=1e-5)


def test_positions_are_right_in_a_model_that_learns_them_absolutely():
    # Rotary models see distances only and would hide a shift by the left padding.
    torch.manual_seed(0)
    size = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 16}
    model = GPT2LMHeadModel(GPT2Config(**size, initializer_range=0.3, eos_token_id=EOS)).eval()
    rollout = rollout_of(model, PROMPTS)
    for row, (prompt, response) in enumerate(zip(PROMPTS, rollout.token_lists(), strict=True)):
        logprobs = model(torch.tensor([prompt + response])).logits[0].log_softmax(-1)
        expected = logprobs[len(prompt) - 1 : -1].gather(1, torch.tensor(response)[:, None])[:, 0]
        kept = rollout.logprobs[row, : len(response)]
        torch.testing.assert_close(kept, expected, atol=1e-4, rtol=0)


def test_a_response_does_not_depend_on_what_is_decoded_beside_it():
    model = tiny_model()
    together = rollout_of(model, PROMPTS * 2).token_lists()
    apart = rollout_of(model, PROMPTS * 2, batch_size=3).token_lists()
    assert together == apart


def test_padding_id_equal_to_end_of_text_changes_nothing():
    model = tiny_model()
    usual = rollout_of(model, PROMPTS * 3)
    same = rollout_of(model, PROMPTS * 3, pad_token_id=EOS)
    assert same.token_lists() == usual.token_lists()
    assert same.finish_reasons == usual.finish_reasons
    assert torch.equal(same.mask, usual.mask)
    ended = [tokens[-1] == EOS for tokens in same.token_lists()]
    assert ended == [reason == "stop" for reason in same.finish_reasons]
    assert set(same.finish_reasons) == {"stop", "length"}


def test_each_of_several_end_tokens_ends_a_response():
    rollout = rollout_of(tiny_model(), PROMPTS * 8, eos_token_ids=[EOS, 5, 7])
    last = {tokens[-1] for tokens in rollout.token_lists()}
    assert last >= {EOS, 5, 7}
    for tokens in rollout.token_lists():
        assert not {EOS, 5, 7} & set(tokens[:-1])


def test_no_end_before_min_new_tokens():
    rollout = rollout_of(tiny_model(), PROMPTS * 8, min_new_tokens=5)
    assert not any(EOS in tokens[:5] for tokens in rollout.token_lists())
    assert min(rollout.lengths.tolist()) >= 6
    assert min(rollout_of(tiny_model(), PROMPTS * 8).lengths.tolist()) < 5


def test_generation_config_does_not_leak_into_sampling():
    model = tiny_model()
    plain = rollout_of(model, PROMPTS * 2).token_lists()
    config = model.generation_config
    config.do_sample, config.top_k, config.temperature, config.min_new_tokens = True, 1, 0.1, 9
    assert rollout_of(model, PROMPTS * 2).token_lists() == plain


def test_dropout_is_off_and_the_mode_comes_back():
    model = tiny_model(attention_dropout=0.5)
    model.train()
    assert rollout_of(model).token_lists() == rollout_of(model).token_lists()
    assert model.training


def test_greedy_follows_the_argmax():
    model = tiny_model()
    response = rollout_of(model, [[2, 3]], temperature=0).token_lists()[0]
    ids = [2, 3]
    for token in response:
        assert token == int(model(torch.tensor([ids])).logits[0, -1].argmax())
        ids.append(token)


def test_inverse_sampling_by_hand():
    probs = torch.tensor([[0.0, 0.25, 0.5, 0.25, 0.0]]).expand(6, 5)
    uniforms = torch.tensor([0.0, 0.2, 0.25, 0.74, 0.75, 0.9999999])
    # Cumulative 0, .25, .75, 1, 1; tokens 0 and 4 have no mass and are never drawn.
    assert sample_tokens(probs, uniforms).tolist() == [1, 1, 2, 2, 3, 3]


def test_frequencies_follow_the_distribution():
    probs = torch.tensor([0.5, 0.3, 0.15, 0.05])
    uniforms = torch.rand(20_000, generator=torch.Generator().manual_seed(0))
    counts = sample_tokens(probs.expand(20_000, 4), uniforms).bincount(minlength=4)
    # Three standard errors of the commonest: 3 · √(.25 / 20000) = .011.
    torch.testing.assert_close(counts / 20_000, probs, atol=0.011, rtol=0)


def test_truncation_by_hand():
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()
    assert truncate(logits, top_k=2, top_p=1.0).isfinite().tolist() == [[False, True, False, True]]
    # .4 alone holds less than .5, .4 + .3 holds enough.
    assert truncate(logits, top_k=0, top_p=0.5).isfinite().tolist() == [[False, True, False, True]]
    assert truncate(logits, top_k=0, top_p=0.01).isfinite().sum() == 1
    assert torch.equal(truncate(logits, top_k=0, top_p=1.0), logits)


def test_logits_are_made_at_chosen_positions_only_and_keep_gradients():
    model = tiny_model()
    ids = torch.tensor([[2, 3, 4], [5, 6, 7]])
    positions = torch.tensor([[False, True, True], [True, False, False]])
    logits, hidden, _ = forward_at(model, ids, positions)
    assert logits.shape == (3, 16)
    torch.testing.assert_close(logits, model(ids).logits[positions], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(hidden, model.model(ids).last_hidden_state[positions])
    logits.sum().backward()
    assert model.model.embed_tokens.weight.grad is not None


@pytest.mark.parametrize(
    ("prompts", "settings", "message"),
    [
        ([], {}, "at least one prompt"),
        ([[2], []], {}, "prompt 1 is empty"),
        ([[2]], {"eos_token_ids": []}, "end-of-text"),
        ([[2]], {"top_p": 0.0}, "top_p"),
        ([[2]], {"temperature": -1.0}, "temperature"),
        ([[2]], {"max_new_tokens": 0}, "max_new_tokens=0"),
    ],
)
def test_bad_requests_are_refused(prompts, settings, message):
    with pytest.raises(ValueError, match=message):
        rollout_of(tiny_model(), prompts, **settings)


def test_tokens_rarer_than_a_32_bit_number_can_say_are_drawn():
    # 100,000 tokens of probability 1e-9 between two of almost a half: together they are drawn once
    # in 10,000.  Multiples of 2^-24, all that fp32 uniforms are, reach every sixtieth of them only.
    rare = 100_000
    probs = torch.full((1, rare + 2), 1e-9)
    probs[0, [0, -1]] = (1 - rare * 1e-9) / 2
    edges = probs.cumsum(1, dtype=torch.float64)[0]
    steps = torch.arange(2**23 - 2000, 2**23 + 2000, dtype=torch.float64) / 2**24
    coarse = set(torch.searchsorted(edges, steps * edges[-1], right=True).tolist())
    trainer = tiny_trainer(max_new_tokens=32, rollouts=4096, minibatch=4096)
    kept = []

    class Enough(Exception):
        pass

    def keep(_, uniforms):
        kept.append(uniforms)
        raise Enough

    trainer.backend = keep
    for _ in range(8):
        with pytest.raises(Enough):
            trainer._rollout([0] * 4096)
    uniforms = torch.cat(kept).flatten()
    near = uniforms[(uniforms - 0.5).abs() < 1e-4]  # all that can reach a rare token
    drawn = torch.cat([sample_tokens(probs, u[None]) for u in near]).tolist()
    found = [token for token in drawn if 0 < token <= rare]
    assert 60 < len(found) < 150  # of 2^20 draws at 1e-4: 105 ± 10
    assert sum(token not in coarse for token in found) > 0.9 * len(found)


def test_no_uniform_draws_a_token_of_probability_0():
    # .1 + .2 + .7 and the like add up to a little more or less than 1; the last two tokens are out.
    generator = torch.Generator().manual_seed(0)
    probs = torch.rand(500, 20, generator=generator)
    probs[:, [0, 18, 19]] = 0
    for highest in (0.0, 1 - 2**-53, 1 - 2**-24):
        drawn = sample_tokens(probs, torch.full((500,), highest, dtype=torch.float64))
        assert probs.gather(1, drawn[:, None]).gt(0).all()
    assert sample_tokens(torch.tensor([[0.3, 0.7, 0.0]]), torch.tensor([1.0])).item() == 1
