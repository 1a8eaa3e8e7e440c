"""Several texts as one row: the same numbers as each text alone."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from pipeline.ppo.batch import micro_batches
from pipeline.ppo.network import packing
from pipeline.ppo.network.packing import can_pack, pack, packed, use_packing
from tests.helpers.ppo_helpers import EOS, PROMPTS, tiny_model, tiny_trainer, untimed

SMALL = {"vocab_size": 16, "hidden_size": 32, "num_hidden_layers": 2, "eos_token_id": EOS}
HEADS = {"intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}


def gpt2():
    size = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 16}
    return GPT2LMHeadModel(GPT2Config(**size, initializer_range=0.3)).eval()


def mistral(window: int | None):
    return MistralForCausalLM(MistralConfig(**SMALL, **HEADS, sliding_window=window)).eval()


def test_rows_laid_end_to_end():
    ids = torch.tensor([[5, 6, 1, 1], [7, 8, 9, 4]])
    marks = torch.tensor([[0, 1, 0, 0], [0, 0, 1, 1]], dtype=torch.bool)
    row, places, (marked,) = pack(ids, torch.tensor([2, 4]), marks)
    assert row.tolist() == [[5, 6, 7, 8, 9, 4]]
    assert places.tolist() == [[0, 1, 0, 1, 2, 3]]
    assert marked.tolist() == [[False, True, False, False, True, True]]


def test_rows_go_together_up_to_the_budget():
    lengths = [4, 3, 5, 9, 1]
    groups = micro_batches([0, 1, 2, 3, 4], lengths, token_budget=8, slack=None)
    assert groups == [[0, 1], [2], [3], [4]]


@pytest.mark.parametrize("make", [tiny_model, gpt2, lambda: mistral(None)])
def test_models_of_full_attention_can_be_packed(make):
    torch.manual_seed(0)
    assert can_pack(make(), longest=40)


def test_what_would_leak_or_be_cut_off_is_not_packed():
    torch.manual_seed(0)
    assert not can_pack(MambaForCausalLM(MambaConfig(**SMALL)).eval(), longest=40)
    assert not can_pack(Gemma2ForCausalLM(Gemma2Config(**SMALL, **HEADS)).eval(), longest=40)
    assert can_pack(mistral(40), longest=40)
    assert not can_pack(mistral(39), longest=40)


@pytest.mark.parametrize("what", ["policy", "critic", "reference"])
def test_every_model_that_is_read_packed_is_tried(what):
    """Texts of up to 5 + 6 tokens, and a window of 3."""
    parts = {name: mistral(None) for name in ("model", "critic_model", "reference")}
    parts[{"policy": "model", "critic": "critic_model"}.get(what, what)] = mistral(3)
    assert not tiny_trainer(critic="separate", **parts).learner.packing
    with pytest.raises(ValueError, match=rf"^ppo.packing='on', but the {what} gives different"):
        tiny_trainer(critic="separate", packing="on", **parts)
    assert not tiny_trainer(critic="separate", packing="off", **parts).learner.packing


def test_what_carries_state_is_not_packed_on_demand_either():
    model = MambaForCausalLM(MambaConfig(**SMALL)).eval()
    with pytest.raises(ValueError, match=r"^ppo.packing='on', but the policy gives different"):
        tiny_trainer(model=model, packing="on")


def test_gradients_are_those_of_each_text_alone():
    texts = [torch.tensor([p]) for p in PROMPTS]
    alone, together = tiny_model(), tiny_model()
    for text in texts:
        alone(input_ids=text).logits.square().sum().backward()
    places = torch.cat([torch.arange(t.shape[1]) for t in texts])[None]
    with packed([together], [t.shape[1] for t in texts]):
        logits = together(input_ids=torch.cat(texts, 1), position_ids=places).logits
        logits.square().sum().backward()
    for ours, theirs in zip(together.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-4)


def test_attention_is_put_back_after_an_error():
    model = tiny_model()
    before = model.config._attn_implementation
    with pytest.raises(IndexError), packed([model], [1]):
        model(input_ids=torch.tensor([[99]]))
    assert model.config._attn_implementation == before


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gradient_checkpointing": True},
        {"critic": "separate"},
        {"lora_rank": 4, "reference": None},
        {"kl_estimator": "full", "kl_in": "loss"},
        {"micro_batch_tokens": 20},
    ],
)
def test_a_run_is_the_same_packed_and_padded(settings):
    packed_run, padded = (
        [untimed(u) for u in tiny_trainer(packing=how, **settings).run()] for how in ("on", "off")
    )
    for ours, theirs in zip(packed_run, padded, strict=True):
        assert ours == pytest.approx(theirs, rel=2e-4, abs=1e-5)


LENGTHS = [3, 1, 6]


def heads(query: int = 4, key: int = 2, *, dtype=torch.float64, device="cpu"):
    """Query, key and value of packed texts, (1, heads, ΣL, width)."""
    generator, total = torch.Generator().manual_seed(0), sum(LENGTHS)
    shapes = ((1, n, total, 16) for n in (query, key, key))
    made = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return [x.to(device, dtype).requires_grad_() for x in made]


def documented(query, key, value, starts, key_starts, longest, key_longest, *, scale, window_size):
    """Variable-length attention as torch documents it, one text and head at a time."""
    assert starts.dtype == key_starts.dtype == torch.int32
    assert (window_size, query.shape) == ((-1, 0), key.shape)
    ends = list(zip(starts.tolist(), starts[1:].tolist(), strict=False))
    assert max(end - start for start, end in ends) == longest == key_longest
    found = []
    for start, end in ends:
        rows = [x[start:end].transpose(0, 1) for x in (query, key, value)]
        scores = rows[0] @ rows[1].transpose(1, 2) * scale
        later = torch.ones(end - start, end - start).triu(1).bool()
        found.append((scores.masked_fill(later, -torch.inf).softmax(-1) @ rows[2]).transpose(0, 1))
    return torch.cat(found)


def test_the_kernel_reads_each_text_alone(monkeypatch):
    """The loop's results and gradients, with grouped heads; the kernel itself needs a GPU."""
    monkeypatch.setattr(packing, "varlen_attn", documented)
    results = []
    for attend in (packing.attend_one_by_one, packing.attend_in_one_kernel):
        given = heads()
        found = attend(*given, packing._Texts(LENGTHS), 0.3)
        found.square().sum().backward()
        results.append((found, *(x.grad for x in given)))
    assert results[0][0].shape == (1, sum(LENGTHS), 4, 16)
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel needs a GPU")
def test_the_kernel_on_a_gpu():
    given = heads(dtype=torch.bfloat16, device="cuda")
    texts = packing._Texts(LENGTHS)
    ours = packing.attend_in_one_kernel(*given, texts, 0.3)
    theirs = packing.attend_one_by_one(*given, texts, 0.3)
    torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02)


def across_texts(query, key, value, texts, scale):
    """Attention that ignores where texts end."""
    del texts
    rows = (query.float(), key.float(), value.float())
    found = scaled_dot_product_attention(*rows, is_causal=True, scale=scale, enable_gqa=True)
    return found.transpose(1, 2).to(query.dtype)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("make", [tiny_model, gpt2, lambda: mistral(None)])
def test_a_leak_between_texts_is_found_in_either_precision(monkeypatch, make, precision):
    torch.manual_seed(0)
    model = make()
    assert can_pack(model, longest=40, precision=precision)
    monkeypatch.setattr(packing, "attend_one_by_one", across_texts)
    assert not can_pack(model, longest=40, precision=precision)


def test_packing_on_a_gpu_needs_a_torch_with_the_kernel(monkeypatch):
    wanted = {"longest": 9, "device": torch.device("cuda"), "precision": "bf16"}
    assert use_packing("on", {}, **wanted)
    assert not use_packing("auto", {}, **wanted)  # not measured yet
    for other in (None, across_texts):  # torch 2.9 has none, that of 2.10 has no window
        monkeypatch.setattr(packing, "varlen_attn", other)
        with pytest.raises(ValueError, match=r"^ppo.packing='on' needs torch 2.11 or newer"):
            use_packing("on", {}, **wanted)
