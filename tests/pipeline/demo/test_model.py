"""The shipped demo: its files belong to the corpus and the recipe beside them, and it speaks."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from pipeline.demo import MODEL_DIR
from pipeline.demo.build import (
    MANIFEST,
    BuildConfig,
    artifact_hashes,
    build,
    corpus_hashes,
    fresh_model,
    rows_digest,
)
from pipeline.demo.judge import chosen, sample, share_good
from pipeline.demo.tokenizer import train_tokenizer

TURNS = [
    {"role": "system", "content": "Be brief and friendly."},
    {"role": "user", "content": "How do I cook rice?"},
    {"role": "assistant", "content": "Rinse it."},
    {"role": "user", "content": "And pasta?"},
]


@pytest.fixture(scope="module")
def manifest():
    return json.loads((MODEL_DIR / MANIFEST).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer  # noqa: PLC0415

    return AutoTokenizer.from_pretrained(MODEL_DIR)


def test_the_checkpoint_was_trained_on_this_corpus(manifest):
    assert manifest["corpus"] == corpus_hashes(), "the corpus changed: run `make demo-model`"
    # The files alone do not make the rows: the code that combines them does too.
    assert manifest["rows_digest"] == rows_digest(manifest["config"]["seed"])


def test_the_shipped_files_are_the_ones_that_were_built(manifest):
    assert manifest["artefacts"] == artifact_hashes(MODEL_DIR)


def test_the_manifest_tells_the_recipe_that_is_in_the_code(manifest):
    assert manifest["config"] == asdict(BuildConfig())


def test_it_is_small_enough_to_ship():
    files = [path for path in MODEL_DIR.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 8_000_000


def test_the_shipped_model_is_the_one_the_recipe_describes(manifest, tokenizer):
    model = fresh_model(BuildConfig(), tokenizer)
    assert model.num_parameters() == manifest["parameters"]
    shipped = json.loads((MODEL_DIR / "config.json").read_text(encoding="utf-8"))
    assert shipped["architectures"] == ["LlamaForCausalLM"]
    assert (shipped["hidden_size"], shipped["num_hidden_layers"]) == (192, 4)
    assert shipped["vocab_size"] == len(tokenizer)
    assert shipped["tie_word_embeddings"] is True


def test_a_chat_is_written_with_role_and_end_tokens(tokenizer):
    text = tokenizer.apply_chat_template(TURNS, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|system|>Be brief and friendly.<|end|><|user|>How do I cook rice?<|end|>"
        "<|assistant|>Rinse it.<|end|><|user|>And pasta?<|end|><|assistant|>"
    )
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert [tokenizer.decode([i]) for i in (ids[0], ids[-1])] == ["<|system|>", "<|assistant|>"]
    assert ids.count(tokenizer.eos_token_id) == 4


def test_any_text_survives_the_tokenizer(tokenizer):
    text = 'Grüße, naïve "日本" 🙂\n\ttabs  and   spaces '
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_it_loads_in_single_precision_from_half_the_bytes():
    import torch  # noqa: PLC0415
    from safetensors import safe_open  # noqa: PLC0415
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    with safe_open(MODEL_DIR / "model.safetensors", framework="pt") as stored:
        assert {stored.get_tensor(name).dtype for name in stored.keys()} == {torch.float16}  # noqa: SIM118
    model = AutoModelForCausalLM.from_pretrained(MODEL_DIR)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.parametrize(("kind", "least"), [("template", 0.9), ("free-form", 0.77)])
def test_it_answers_held_out_questions_in_fluent_english(kind, least):
    """Forty samples each; the bars are 2.5 standard errors below the figures in docs/demo.md."""
    samples = sample(MODEL_DIR, chosen("held-out", kind, 40), seed=1)
    assert share_good(samples) >= least, [s for s in samples if not s.verdict.good]


def test_training_a_tokenizer_twice_gives_the_same_one():
    texts = ["Cook rice in water.", "Water the rose.", "Rice and roses."] * 5
    first, second = (train_tokenizer(texts, vocabulary=300) for _ in range(2))
    assert first.get_vocab() == second.get_vocab()
    assert len(first) <= 300


def test_a_directory_with_other_files_is_not_replaced(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ValueError, match="choose an empty or new directory"):
        build(BuildConfig(), tmp_path, tmp_path / "run")
    assert (tmp_path / "thesis.txt").read_text() == "precious"


@pytest.mark.slow
def test_a_short_build_makes_a_loadable_checkpoint_and_resumes_where_it_stopped(tmp_path):
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    config = BuildConfig(tokens=30_000, vocabulary=600, hidden=32, layers=1, heads=2)
    first = build(config, tmp_path / "a", tmp_path / "run")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "a")
    assert model.num_parameters() == first["parameters"]
    assert first["artefacts"] == artifact_hashes(tmp_path / "a")
    again = build(config, tmp_path / "b", tmp_path / "run")  # nothing is left to train
    assert again["artefacts"] == first["artefacts"]
    with pytest.raises(ValueError, match="another recipe; name a new directory for --run"):
        build(replace(config, lr=1e-3), tmp_path / "b", tmp_path / "run")
    fresh = build(config, tmp_path / "c", tmp_path / "other-run")
    assert fresh["artefacts"] == first["artefacts"]
