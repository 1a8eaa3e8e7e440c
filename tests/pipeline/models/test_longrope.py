"""Positions of Phi-3 and Phi-4 of 128k: texts of up to the length of pretraining only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Phi3Config, Phi3ForCausalLM

from pipeline.config.sections import Config
from pipeline.models.context import ContextCheck
from pipeline.models.loading import context_length, context_of, load_causal_lm
from pipeline.ppo.rollouts.rollout import generate
from storage.records import as_messages
from tests.helpers.ppo_helpers import tiny_trainer
from tests.helpers.tiny import save_tiny, tiny_tokenizer

SHORT = 40
"""Tokens of the texts that it was pretrained on."""
ROPE = {"short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 4.0, 8.0]}


@pytest.fixture(scope="module")
def phi(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model whose config.json has the fields that the published ones have."""
    torch.manual_seed(0)
    config = Phi3Config(
        vocab_size=261, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.3,
        max_position_embeddings=512, original_max_position_embeddings=SHORT,
        pad_token_id=0, bos_token_id=None, eos_token_id=1,
        rope_parameters=ROPE | {"rope_type": "longrope", "factor": 512 / SHORT},
    )  # fmt: skip
    path = tmp_path_factory.mktemp("phi")
    Phi3ForCausalLM(config).save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    settings = json.loads((path / "config.json").read_text())
    del settings["rope_parameters"]
    published = {"type": "longrope"} | ROPE
    settings |= {"rope_scaling": published, "original_max_position_embeddings": SHORT}
    (path / "config.json").write_text(json.dumps(settings))
    return str(path)


def differences(phi: str, tokens: int) -> list[float]:
    """How far recorded log-probabilities are from those of each text alone; the longest of the two
    texts has 30 + `tokens`."""
    model = load_causal_lm(phi)
    prompts = [list(range(5, 9)), list(range(5, 35))]
    rollout = generate(
        model,
        prompts,
        eos_token_ids=[1],
        pad_token_id=0,
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        generator=torch.Generator().manual_seed(0),
    )
    found = []
    for row, response in enumerate(rollout.token_lists()):
        with torch.no_grad():
            logits = model(torch.tensor([prompts[row] + response])).logits[0]
        logits = logits[len(prompts[row]) - 1 : -1].index_fill(1, torch.tensor([1]), -1e30)
        expected = logits.log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0]
        found.append((rollout.logprobs[row] - expected).abs().max().item())
    return found


def test_the_context_is_the_length_of_pretraining(phi: str):
    assert context_of(phi) == SHORT
    assert context_length(load_causal_lm(phi)) == SHORT


def test_up_to_it_the_recorded_logprobs_are_those_of_each_text_alone(phi: str):
    assert max(differences(phi, SHORT - 30)) < 1e-4
    # Beyond it they are not, and not those of the short text beside the long one either.
    assert min(differences(phi, SHORT - 25)) > 0.1


def test_ppo_refuses_longer_texts(phi: str):
    model: Any = load_causal_lm(phi)
    with pytest.raises(ValueError, match=f"prompt 0 has 38 tokens.* exceeds .* context of {SHORT}"):
        tiny_trainer(model=model, prompts=[list(range(5, 43))], max_new_tokens=3)
    assert tiny_trainer(model=model, prompts=[list(range(5, 43))], max_new_tokens=2)


def test_an_import_refuses_longer_texts(phi: str):
    rooms = {f"{stage}.max_new_tokens": 10 for stage in ("sampling", "ppo")}
    check = ContextCheck.of(Config().override({"model.name": phi} | rooms))
    assert check is not None
    messages = as_messages("x" * (SHORT - 11))
    assert check(messages, []) is None
    assert f"the context of {phi}, {SHORT} tokens" in (check(as_messages("x" * SHORT), []) or "")


def test_positions_that_are_stretched_for_every_text_keep_their_context(tmp_path: Path):
    """Llama 3.1 and 3.2 name the length of pretraining too, and their frequencies never change."""
    rope = {
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    settings = {"model_type": "llama", "max_position_embeddings": 512, "rope_scaling": rope}
    save_tiny(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert context_of(str(tmp_path)) == 512
    check = ContextCheck.of(Config().override({"model.name": str(tmp_path)}))
    assert check is not None
    assert check._context == 512
