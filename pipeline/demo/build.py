"""Build the demo from its corpus: ``python -m pipeline.demo.build [--tokens N] [--out DIR]``.

    corpus ─▶ tokenizer ─▶ rows worth `tokens` tokens ─▶ supervised fine-tuning of a fresh
    Llama ─▶ fp16 checkpoint ─▶ the judge's figures ─▶ manifest.json

The manifest names everything the checkpoint came from, with hashes, so that a test can tell
whether the shipped files still belong to the corpus beside them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from pipeline.demo import MODEL_DIR
from pipeline.demo.corpus import FILES, examples
from pipeline.demo.judge import figures
from pipeline.demo.tokenizer import train_tokenizer
from pipeline.text import ChatTokenizer

MANIFEST = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class BuildConfig:
    """The recipe; the manifest repeats it."""

    tokens: int = 4_000_000
    """Prompt and response tokens trained on, each row once."""
    vocabulary: int = 3072
    hidden: int = 192
    layers: int = 4
    heads: int = 6
    intermediate: int = 512
    lr: float = 2.5e-3
    batch: int = 32
    warmup: float = 0.03
    seed: int = 0


def build(config: BuildConfig, out: Path) -> dict[str, Any]:
    """Train the demo, write it to `out` and return its manifest."""
    started = time.monotonic()
    tokenizer = train_tokenizer(_texts(config.seed), vocabulary=config.vocabulary)
    model = fresh_model(config, tokenizer)
    rows = list(rows_worth(config.tokens, tokenizer, seed=config.seed))
    print(f"{len(rows)} rows, {sum(p.numel() for p in model.parameters()):,} parameters")
    fine_tune(model, tokenizer, rows, config)
    save(model, tokenizer, out)
    minutes = round((time.monotonic() - started) / 60, 1)
    manifest = {
        "config": asdict(config),
        "rows": len(rows),
        "corpus": corpus_hashes(),
        "artefacts": artefact_hashes(out),
        "minutes": minutes,
        "figures": figures(out),
    }
    (out / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


def _texts(seed: int) -> Iterator[str]:
    for messages, response, _ in examples(20_000, seed):
        yield from (message["content"] for message in messages)
        yield response


def fresh_model(config: BuildConfig, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A Llama with random weights that fits the tokenizer."""
    torch.manual_seed(config.seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden,
            intermediate_size=config.intermediate,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def rows_worth(
    tokens: int, tokenizer: PreTrainedTokenizerFast, *, seed: int
) -> Iterator[dict[str, list[int]]]:
    """Tokenized rows of the corpus until they hold `tokens` tokens; only responses are learnt."""
    chat = ChatTokenizer(tokenizer)
    seen = 0
    for messages, response, _ in examples(tokens, seed):
        if seen >= tokens:
            return
        row = chat.chat(messages, response)
        seen += len(row.ids)
        answer = row.ids[row.prompt_tokens :]
        yield {"input_ids": row.ids, "labels": [-100] * row.prompt_tokens + answer}


def fine_tune(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    rows: list[dict[str, list[int]]],
    config: BuildConfig,
) -> None:
    """One pass over `rows`, the learning rate on a cosine from `config.lr` to a tenth."""
    with tempfile.TemporaryDirectory() as scratch:
        arguments = SFTConfig(
            output_dir=scratch,
            num_train_epochs=1,
            per_device_train_batch_size=config.batch,
            learning_rate=config.lr,
            lr_scheduler_type="cosine_with_min_lr",
            lr_scheduler_kwargs={"min_lr_rate": 0.02},
            warmup_steps=config.warmup,
            adam_beta2=0.98,
            weight_decay=0.01,
            max_length=None,
            bf16=False,
            train_sampling_strategy="group_by_length",
            logging_steps=100,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=config.seed,
        )
        SFTTrainer(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
        ).train()


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write the checkpoint; half precision on disk, single precision once loaded."""
    if out.exists():
        shutil.rmtree(out)
    model.config.use_cache = True  # the trainer switched it off
    model.half().save_pretrained(out)
    tokenizer.save_pretrained(out)
    path = out / "config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["dtype"] = "float32"  # PPO on a CPU needs it, and the file is half the size this way
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def corpus_hashes() -> dict[str, str]:
    """sha256 of every data file of the corpus, by name."""
    return {path.name: _sha256(path) for path in FILES}


def artefact_hashes(out: Path) -> dict[str, str]:
    """sha256 of every file of a checkpoint except its manifest."""
    return {path.name: _sha256(path) for path in sorted(out.iterdir()) if path.name != MANIFEST}


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> None:
    """Rebuild the embedded demo from its corpus."""
    default = BuildConfig()
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--tokens", type=int, default=default.tokens)
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--out", type=Path, default=MODEL_DIR)
    options = parser.parse_args()
    manifest = build(BuildConfig(tokens=options.tokens, seed=options.seed), options.out)
    print(json.dumps({"minutes": manifest["minutes"], **manifest["figures"]}, indent=1))


if __name__ == "__main__":
    main()
