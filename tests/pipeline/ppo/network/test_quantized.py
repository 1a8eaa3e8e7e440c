"""Frozen weights in 4 bits, and the optimizer's moments in 8."""

from __future__ import annotations

import copy
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from pipeline.ppo import PPOConfig
from pipeline.ppo.network.lora import AdapterOff
from pipeline.ppo.network.quantized import NF4Linear, bitsandbytes, quantize
from tests.helpers.closed_form import distance_left
from tests.helpers.ppo_helpers import (
    EOS,
    PROMPTS,
    assert_same_state,
    tiny_model,
    tiny_trainer,
    untimed,
)
from tests.pipeline.ppo.network.test_lora import gpt2

IDS = torch.tensor([[2, 3, 4, 5], [6, 7, 8, 9]])
CPU = torch.device("cpu")
QLORA: dict[str, Any] = {
    "eos_token_ids": [EOS],
    "reference": None,
    "lora_rank": 4,
    "lr": 1e-2,
    "quantization": "nf4",
}
# Table of the QLoRA paper (arXiv:2305.14314, appendix E).
NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
]  # fmt: skip


def quantized(model: Any) -> Any:
    quantize(model, CPU)
    return model


def unpacked(model: Any) -> Any:
    """A copy with plain layers that hold the rounded weights."""
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, NF4Linear):
                setattr(parent, name, layer.dense())
    return model


def test_weights_are_the_papers_values_times_the_blocks_largest():
    torch.manual_seed(0)
    weight = torch.randn(8, 128)
    found = NF4Linear(weight, None, transposed=False).unpacked(torch.float32)
    blocks = weight.view(-1, 64)
    scale = blocks.abs().amax(1, keepdim=True)
    values = torch.tensor(NF4)
    nearest = values[(blocks[:, :, None] / scale[:, :, None] - values).abs().argmin(-1)]
    # The scales are rounded to 8 bits.
    torch.testing.assert_close(found.view(-1, 64), nearest * scale, rtol=0.02, atol=1e-6)
    assert (found - weight).abs().mean() > 0.05


@pytest.mark.parametrize("make", [tiny_model, gpt2])
def test_logits_and_gradients_are_those_of_the_rounded_weights(make: Any):
    torch.manual_seed(0)
    original = make()
    ours = quantized(copy.deepcopy(original))
    theirs = unpacked(ours)
    assert any(isinstance(m, Conv1D) for m in theirs.modules()) == (make is gpt2)
    embedded = torch.randn(2, 4, 32)
    gradients = []
    for model in (ours, theirs):
        x = embedded.clone().requires_grad_()
        logits = model(inputs_embeds=x).logits
        logits.square().sum().backward()
        gradients.append((logits.detach(), x.grad))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-5, atol=1e-5)
    exact = original(inputs_embeds=embedded).logits
    assert (exact - gradients[0][0]).abs().max() > 1e-3


def test_autocast_computes_in_bf16():
    torch.manual_seed(0)
    ours = NF4Linear(torch.randn(16, 32), torch.randn(16), transposed=False)
    x = torch.randn(3, 32)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = ours(x), ours.dense()(x)
    assert found.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=5e-2)


def test_a_pass_keeps_no_weights_for_its_gradient():
    layer = NF4Linear(torch.randn(64, 64), None, transposed=False)
    plain = layer.dense()
    kept: dict[str, int] = {}
    for name, module in (("ours", layer), ("plain", plain)):
        saved: list[Tensor] = []

        def keep(tensor: Tensor, saved: list[Tensor] = saved) -> Tensor:
            saved.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            module(torch.randn(2, 64, requires_grad=True))
        kept[name] = sum(tensor.numel() for tensor in saved)
    assert kept["ours"] == 0
    assert kept["plain"] >= 64 * 64


@pytest.mark.parametrize("make", [tiny_model, gpt2])
def test_four_bits_a_weight_except_embeddings_and_output(make: Any):
    model = quantized(make())
    packed = [m for m in model.modules() if isinstance(m, NF4Linear)]
    assert len(packed) == (14 if make is tiny_model else 8)
    for layer in packed:
        assert layer.weight.nbytes * 2 == layer.in_features * layer.out_features
        assert not layer.weight.requires_grad
    output = model.get_output_embeddings()
    assert type(output) is nn.Linear
    assert output.weight.dtype == torch.float32


@pytest.mark.parametrize("make", [tiny_model, gpt2])
def test_a_run_equals_one_on_plain_layers_with_the_rounded_weights(make: Any):
    """Also its reference, which is the policy without adapters."""
    results = []
    for bits in ("nf4", "none"):
        torch.manual_seed(0)
        model = make()
        if bits == "none":
            model = unpacked(quantized(model))
        torch.manual_seed(1)  # of the adapters
        trainer = tiny_trainer(model=model, **QLORA | {"quantization": bits})
        assert isinstance(trainer.reference, AdapterOff)
        results.append([untimed(update) for update in trainer.run()])
    assert results[0][0]["kl/reference"] == pytest.approx(0, abs=1e-6)
    assert abs(results[0][-1]["kl/reference"]) > 0.1
    for ours, theirs in zip(*results, strict=True):
        assert ours == pytest.approx(theirs, rel=2e-3, abs=2e-3)
        assert ours["policy/first_ratio_error"] < 1e-5


@pytest.mark.parametrize("make", [tiny_model, gpt2])
def test_the_saved_policy_is_the_one_that_was_trained(make: Any, tmp_path: Any):
    torch.manual_seed(0)
    trainer = tiny_trainer(model=make(), **QLORA)
    list(trainer.run())
    trainer.save(tmp_path)
    saved = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert {type(m) for m in saved.modules()} == {type(m) for m in make().modules()}
    with torch.no_grad():
        found, expected = (m(input_ids=IDS).logits for m in (saved, trainer.model.policy))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    list(trainer.run())  # saving left the packed layers in place


def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path: Any):
    wide = {"hidden_size": 128, "intermediate_size": 256}
    settings = QLORA | {"optimizer": "adamw_8bit", "updates": 4, "checkpoint_every": 2}

    def trainer(folder: str) -> Any:
        torch.manual_seed(1)
        return tiny_trainer(
            tmp_path / folder, model=tiny_model(**wide), **settings | {"lora_rank": 64}
        )

    whole = trainer("whole")
    expected = [untimed(update) for update in whole.run()]
    cut = trainer("cut")
    for update in cut.run():
        if update.step == 3:  # after the checkpoint of update 2
            break
    again = trainer("cut")
    assert [untimed(update) for update in again.run(resume=True)] == expected[2:]
    assert_same_state(again.state_dict()["model"], whole.state_dict()["model"])
    moments = [s for s in moments_of(again).values() if s["state1"].dtype == torch.uint8]
    assert len(moments) > 10


def moments_of(trainer: Any) -> dict[Any, dict[str, Any]]:
    return trainer.learner.optimizer.state


def test_moments_of_eight_bits_take_a_quarter_of_the_memory():
    sizes = {}
    for name in ("adamw", "adamw_8bit"):
        trainer = tiny_trainer(
            model=tiny_model(hidden_size=128, intermediate_size=512), optimizer=name, updates=1
        )
        list(trainer.run())
        tensors = [
            x for state in moments_of(trainer).values() for key, x in state.items()
            if isinstance(x, Tensor) and not key.startswith("qmap")  # tables shared by all weights
        ]  # fmt: skip
        sizes[name] = sum(x.nbytes for x in tensors)
    assert 0.25 < sizes["adamw_8bit"] / sizes["adamw"] < 0.28


def test_moments_of_eight_bits_reach_the_closed_form():
    wide = {"hidden_size": 128, "intermediate_size": 256}  # smaller weights keep moments in fp32
    settings = {"optimizer": "adamw_8bit", "updates": 60, "lr": 2e-3}
    assert distance_left(1.0, tokens=1, size=wide, **settings) < 0.01


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"lora_rank": 0}, "set ppo.lora_rank"),
        ({"start_from": "previous"}, "set it to 'sft'"),
        ({"rollout_backend": "compiled"}, "needs ppo.rollout_backend='own'"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], says: str):
    with pytest.raises(ValueError, match=says):
        PPOConfig(**{"quantization": "nf4", "lora_rank": 4} | settings)


def test_sharded_moments_of_eight_bits_are_refused():
    with pytest.raises(ValueError, match=r"needs ppo\.sharding=.none."):
        PPOConfig(optimizer="adamw_8bit", sharding="fsdp2")


@pytest.mark.parametrize("setting", [QLORA, {"optimizer": "adamw_8bit"}])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, setting: dict[str, Any]):
    bitsandbytes.cache_clear()
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ValueError, match=r"pip install 'kitestring\[quantized\]'"):
        tiny_trainer(**setting)


def test_responses_are_sampled_with_the_adapters():
    trainer = tiny_trainer(**QLORA)
    list(trainer.run())
    uniforms = torch.rand(len(PROMPTS), 6, generator=torch.Generator().manual_seed(3))
    sampled = trainer.backend(PROMPTS, uniforms)
    with torch.no_grad():
        for row, prompt in enumerate(PROMPTS):
            ids = sampled.token_lists()[row]
            logits = trainer.model.policy(input_ids=torch.tensor([[*prompt, *ids]])).logits[0]
            own = logits[len(prompt) - 1 : -1].log_softmax(-1)
            expected = own.gather(1, torch.tensor(ids)[:, None])[:, 0]
            torch.testing.assert_close(
                sampled.logprobs[row, : len(ids)], expected, rtol=1e-4, atol=1e-4
            )
