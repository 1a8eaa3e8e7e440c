"""The decoding loop's cache: every kind of layer, rows that move, and no wait for the device."""

import pytest
import torch
from transformers import (
    DynamicCache,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    JambaConfig,
    JambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from benchmarks.decoding import Dispatched
from pipeline.ppo.rollouts import decoding
from pipeline.ppo.rollouts.kv_cache import PreallocatedLayer, filling_gaps, keep_rows, make_cache
from pipeline.ppo.rollouts.rollout import generate
from tests.helpers.ppo_helpers import EOS, PAD, PROMPTS, tiny_model

SHAPE = {"vocab_size": 16, "num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 2}
MORE = SHAPE | {"num_key_value_heads": 1, "intermediate_size": 64, "initializer_range": 0.3}


def mistral():
    return MistralForCausalLM(MistralConfig(**MORE, sliding_window=3))


def gemma():
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    config = Gemma3TextConfig(
        **MORE | {"initializer_range": 0.05}, head_dim=16, sliding_window=3, layer_types=kinds
    )
    return Gemma3ForCausalLM(config)


def gpt2():
    size = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 16}
    size |= {"bos_token_id": None, "eos_token_id": EOS}
    return GPT2LMHeadModel(GPT2Config(**size, initializer_range=0.3))


def jamba():
    size = {"mamba_d_state": 4, "mamba_dt_rank": 4, "num_experts": 2, "num_experts_per_tok": 1}
    spread = {"attn_layer_period": 3, "attn_layer_offset": 1, "expert_layer_period": 3}
    config = JambaConfig(**MORE, **size, **spread, use_mamba_kernels=False)
    return JambaForCausalLM(config)


@pytest.mark.parametrize("make", [mistral, gemma, gpt2, jamba])
def test_decoding_equals_a_forward_pass_of_each_text_alone(make):
    torch.manual_seed(0)
    model = make().eval()
    cache = make_cache(model, 32)
    assert (cache is None) == (make is jamba)  # it has other layers than attention
    rollout = generate(
        model,
        PROMPTS * 4,
        eos_token_ids=[EOS, 4, 5],
        pad_token_id=PAD,
        max_new_tokens=12,
        generator=torch.Generator().manual_seed(0),
    )
    assert len(set(rollout.lengths.tolist())) > 2  # rows were dropped along the way
    for row, response in enumerate(rollout.token_lists()):
        prompt = (PROMPTS * 4)[row]
        logprobs = model(torch.tensor([prompt + response])).logits[0].log_softmax(-1)
        expected = logprobs[len(prompt) - 1 : -1].gather(1, torch.tensor(response)[:, None])[:, 0]
        kept = rollout.logprobs[row, : len(response)]
        torch.testing.assert_close(kept, expected, atol=1e-4, rtol=0)


def test_rows_behind_the_kept_ones_fill_the_gaps():
    # Of seven rows 1, 2 and 4 have ended: 0 and 3 stay, 5 and 6 move to the places 1 and 2.
    assert filling_gaps([0, 3, 5, 6]) == [0, 5, 6, 3]
    assert filling_gaps([4]) == [4]
    assert filling_gaps([0, 1, 2]) == [0, 1, 2]


def test_a_cache_with_fewer_rows_equals_transformers_own():
    model = tiny_model()
    ids = torch.arange(2, 14).view(4, 3)
    ours, theirs = make_cache(model, 8), DynamicCache(config=model.config)
    assert ours is not None
    buffers = []
    with torch.no_grad():
        for cache in (ours, theirs):
            model(input_ids=ids, past_key_values=cache, use_cache=True)
        buffers = [layer._buffers[0].data_ptr() for layer in ours.layers]
        keep_rows(ours, [0, 3], torch.tensor([0, 3]))
        theirs.reorder_cache(torch.tensor([0, 3]))
        found, expected = (
            model(input_ids=torch.tensor([[5], [6]]), past_key_values=cache, use_cache=True).logits
            for cache in (ours, theirs)
        )
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    assert [layer._buffers[0].data_ptr() for layer in ours.layers] == buffers
    assert ours.get_seq_length() == theirs.get_seq_length() == 4
    assert ours.layers[0].keys.shape == theirs.layers[0].keys.shape == (2, 1, 4, 16)


def test_under_autocast_the_cache_is_as_precise_as_attention():
    model = tiny_model()
    for enabled, dtype in ((False, torch.float32), (True, torch.bfloat16)):
        cache = make_cache(model, 8)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            model(input_ids=torch.tensor([[2, 3]]), past_key_values=cache, use_cache=True)
        layer = cache.layers[0]
        assert isinstance(layer, PreallocatedLayer)
        assert layer.keys.dtype == layer.values.dtype == dtype


def test_on_a_gpu_the_loop_waits_once_in_16_tokens(monkeypatch):
    monkeypatch.setattr(decoding, "check_interval", lambda _: decoding.CHECK_EVERY)
    settings = {"eos_token_ids": [EOS], "pad_token_id": PAD, "min_new_tokens": 3}
    rollouts, waits = [], []
    for tokens in (16, 48):
        with Dispatched() as seen:
            rollouts.append(
                generate(
                    tiny_model(),
                    PROMPTS * 8,
                    max_new_tokens=tokens,
                    generator=torch.Generator().manual_seed(0),
                    **settings,
                )
            )
        waits.append(seen.waits)
    assert (rollouts[1].lengths > 32).any()
    assert (rollouts[1].lengths < 16).any()
    assert waits[1] - waits[0] <= 2
