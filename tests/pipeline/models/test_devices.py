"""Where a job computes, and the sentences when a model cannot be had."""

from __future__ import annotations

import json
import os
import pickle
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.trainer_utils import align_special_tokens

from pipeline.config.sections import ModelConfig
from pipeline.models.devices import inference_dtype, pick_device
from pipeline.models.hub import ModelUnavailable, explain
from pipeline.models.loading import context_length, load_causal_lm
from pipeline.models.text import ChatTokenizer
from pipeline.reward.network import load_network
from tests.helpers.same_passes import DROPPING, passes_agree, save_dropping
from tests.helpers.tiny import save_classifier, save_tiny, tiny_tokenizer

RESPONSE: Any = SimpleNamespace(headers={}, request=None)


def test_the_device_asked_for_is_taken_or_refused():
    assert pick_device("cpu") == torch.device("cpu")
    if not torch.cuda.is_available():
        with pytest.raises(
            ValueError, match=r"worker\.device=cuda is not available on this machine"
        ):
            pick_device("cuda")


def test_weights_that_are_only_read_are_fp32_on_a_cpu_unless_asked_otherwise():
    cpu = torch.device("cpu")
    assert inference_dtype(ModelConfig(), cpu) is torch.float32
    assert inference_dtype(ModelConfig(dtype="bfloat16"), cpu) is torch.bfloat16


def test_a_model_comes_in_the_precision_asked_for_whatever_its_file_has(tmp_path: Path):
    config = LlamaConfig(
        vocab_size=261, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, attention_dropout=0.1, max_position_embeddings=99,
    )  # fmt: skip
    LlamaForCausalLM(config).bfloat16().save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    model = load_causal_lm(str(tmp_path))
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not model.training
    assert context_length(model) == 99


@pytest.mark.parametrize("name", DROPPING)
def test_dropout_is_off_in_training_too(name: str, tmp_path: Path):
    path = save_dropping(tmp_path, name)
    assert not passes_agree(AutoModelForCausalLM.from_pretrained(path))  # it would be on
    assert passes_agree(load_causal_lm(path))


@pytest.mark.parametrize(
    ("published", "kept"),
    [
        ({"temperature": 0.9, "top_p": 0.6}, {"temperature": 0.9, "top_p": 0.6}),
        # No search of this width reads it: what remains is what ends a text.
        ({"temperature": 0.9, "length_penalty": 2.0}, {"temperature": None}),
        ({"pad_token_id": -1}, {}),
        ({}, {"do_sample": None}),
    ],
)
def test_a_model_with_odd_generation_settings_can_be_saved_after_training(
    tmp_path: Path, published: dict[str, Any], kept: dict[str, Any]
):
    """transformers saves what it finds invalid only as long as nobody touched it."""
    save_tiny(tmp_path / "m")
    settings = json.dumps({"eos_token_id": 2, "pad_token_id": None} | published)
    (tmp_path / "m" / "generation_config.json").write_text(settings)
    model = load_causal_lm(str(tmp_path / "m"))
    align_special_tokens(model, tiny_tokenizer())  # what the Trainer does before its first step
    model.save_pretrained(tmp_path / "saved")
    saved = GenerationConfig.from_pretrained(tmp_path / "saved")
    assert (saved.eos_token_id, saved.pad_token_id) == ([1, 2], 0)
    assert {name: getattr(saved, name) for name in kept} == kept


def test_a_directory_with_broken_weights_is_one_sentence(tmp_path: Path):
    save_tiny(tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text('{"model_type": "no-such-thing"}')
    with pytest.raises(ModelUnavailable, match=r"the model .* cannot be loaded") as caught:
        load_causal_lm(str(tmp_path / "m"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (GatedRepoError("gated", response=RESPONSE), "is gated: accept its terms"),
        (RepositoryNotFoundError("404", response=RESPONSE), "check the spelling, or set HF_TOKEN"),
        (ConnectionError("no route"), "cannot be reached"),
        (ValueError("odd\nthing"), "cannot be loaded: odd"),
    ],
)
def test_each_refusal_says_what_to_do(error: Exception, says: str):
    wrapped = OSError("libraries wrap the hub's errors")
    wrapped.__cause__ = error
    assert says in explain("owner/model", error)
    if not isinstance(error, (ValueError, ConnectionError)):
        assert says in explain("owner/model", wrapped)


@pytest.mark.parametrize("kept", [0, 4, 0.5, 0.99])
@pytest.mark.parametrize("load", [load_causal_lm, load_network])
def test_a_damaged_weights_file_is_named(tmp_path: Path, kept: float, load: Any):
    folder = save_classifier(tmp_path / "m") if load is load_network else save_tiny(tmp_path / "m")
    file = folder / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: kept if isinstance(kept, int) else int(kept * len(data))])
    with pytest.raises(ModelUnavailable, match=r"again$") as caught:
        load(str(folder))
    assert f"{file} is damaged" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_damaged_file_of_a_model_from_the_hub_is_explained():
    said = explain("somebody/model", SafetensorError("header too small"))
    assert "somebody/model is damaged (header too small)" in said
    assert "cache" in said


class _Code:
    """Pickled, a call of os.mkdir."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def _zipped(folder: Path, file: Path) -> None:
    torch.save({"weight": _Code(folder)}, file)


@pytest.mark.parametrize(
    "write",
    [
        lambda folder, file: file.write_bytes(pickle.dumps(_Code(folder))),
        _zipped,
        lambda _, file: file.write_bytes(b"cno_such_module\nthing\n."),
        lambda _, file: file.write_bytes(b"garbage"),
        lambda _, file: file.write_bytes(b""),
        lambda _, file: file.write_bytes(b"PK\x03\x04 cut off"),
    ],
    ids=["pickle", "zip", "module", "garbage", "empty", "cut"],
)
@pytest.mark.parametrize("load", [load_causal_lm, load_network])
def test_pickled_weights_run_no_code_and_are_one_sentence(tmp_path: Path, load: Any, write: Any):
    folder = save_classifier(tmp_path / "m") if load is load_network else save_tiny(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    write(tmp_path / "made by code", folder / "pytorch_model.bin")
    with pytest.raises(ModelUnavailable, match=r"(?:get|download) the model") as caught:
        load(str(folder))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "made by code").exists()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A hub that hears whether anybody comes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        yield server


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"attn_implementation": "owner/code"}, "attn_implementation='owner/code'"),
        ({"_attn_implementation": "owner/code@main:f"}, "remove _attn_implementation from it"),
        ({"attn_implementation": {"": "owner/code"}}, "names code on the Hugging Face hub"),
        ({"text_config": {"attn_implementation": ["a/b"]}}, "names code on the Hugging Face hub"),
        ({"attn_implementation": "flash_attention_2"}, "FlashAttention2"),
        ({"num_attention_heads": 0}, "ZeroDivisionError: .*: download the model again"),
        ({"vocab_size": "many"}, "field 'vocab_size': TypeError: .*expected int, got str"),
        ({"quantization_config": 3}, "AttributeError: .*: download the model again"),
        ({"model_type": "other", "auto_map": {"AutoConfig": "owner/code--a.B"}}, "owner/code"),
    ],
)
@pytest.mark.parametrize("load", [load_causal_lm, load_network])
def test_a_hostile_config_asks_no_hub_and_is_one_sentence(
    tmp_path: Path, hub: socket.socket, load: Any, changes: dict[str, Any], says: str
):
    folder = save_classifier(tmp_path / "m") if load is load_network else save_tiny(tmp_path / "m")
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(ModelUnavailable, match=says) as caught:
        load(str(folder))
    assert "\n" not in str(caught.value)
    with pytest.raises(BlockingIOError):
        hub.accept()


@pytest.mark.parametrize("load", [load_causal_lm, load_network, ChatTokenizer.load])
@pytest.mark.parametrize("text", ["[]", "{", "[" * 100_000, '{"architectures": 5, "id2label": 1}'])
def test_a_config_that_is_no_object_is_one_sentence(tmp_path: Path, load: Any, text: str):
    folder = save_tiny(tmp_path / "m")
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelUnavailable) as caught:
        load(str(folder))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", ["tokenizer_config.json", "generation_config.json"])
def test_a_tokenizer_whose_settings_are_no_object_is_one_sentence(tmp_path: Path, file: str):
    (save_tiny(tmp_path / "m") / file).write_text("[1]")
    with pytest.raises(ModelUnavailable, match="download the model again"):
        ChatTokenizer.load(str(tmp_path / "m"))
