"""Frozen weights rounded once: the same numbers, and nothing of the model is lost."""

import copy

import pytest
import torch
from torch import nn

from pipeline.ppo import trainer as module
from pipeline.ppo.network.lora import round_frozen_weights
from tests.helpers.ppo_helpers import tiny_model, tiny_trainer, untimed

LORA = {"lora_rank": 4, "reference": None, "precision": "bf16", "lr": 1e-2}


@pytest.mark.parametrize("settings", [{"precision": "bf16"}, LORA])
def test_a_run_is_the_same_to_the_bit_as_with_rounding_at_each_use(monkeypatch, settings):
    once = [untimed(update) for update in tiny_trainer(**settings).run()]
    monkeypatch.setattr(module, "round_frozen_weights", lambda *_: {})
    each_time = tiny_trainer(**settings)
    kinds = {layer.weight.dtype for layer in linear(each_time.reference)}
    assert kinds == {torch.float32}
    assert [untimed(update) for update in each_time.run()] == once


def test_the_frozen_are_rounded_and_the_trained_are_not():
    trainer = tiny_trainer(precision="bf16")
    head = trainer.reference.get_output_embeddings()
    assert {layer.weight.dtype for layer in linear(trainer.reference)} == {torch.bfloat16}
    assert head.weight.dtype == torch.bfloat16
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
    adapted = tiny_trainer(**LORA).model
    kinds = {p.requires_grad: p.dtype for n, p in adapted.named_parameters() if "proj" in n}
    assert kinds == {True: torch.float32, False: torch.bfloat16}


def test_a_merged_model_has_the_weights_that_were_rounded(tmp_path):
    model = tiny_model()
    before = copy.deepcopy(model.state_dict())
    trainer = tiny_trainer(model=model, **LORA)  # untrained adapters add nothing
    trainer.save(tmp_path)
    saved = type(model).from_pretrained(tmp_path).state_dict()
    assert saved.keys() == before.keys()
    for name, weight in before.items():
        assert torch.equal(saved[name], weight), name


def test_what_bf16_holds_already_is_not_kept_twice():
    model = tiny_model().bfloat16().float().requires_grad_(False)
    assert round_frozen_weights(model) == {}
    assert {layer.weight.dtype for layer in linear(model)} == {torch.bfloat16}


def test_weights_shared_with_an_embedding_stay():
    model = tiny_model(tie_word_embeddings=True).requires_grad_(False)
    round_frozen_weights(model)
    assert model.get_input_embeddings().weight.dtype == torch.float32
    assert model.get_output_embeddings().weight.dtype == torch.float32
    assert model.model.layers[0].mlp.up_proj.weight.dtype == torch.bfloat16


def linear(model: nn.Module) -> list[nn.Linear]:
    return [m for m in model.modules() if isinstance(m, nn.Linear)]
