"""Build the demo from its corpus: ``python -m pipeline.demo.build [--tokens N] [--out DIR]``.

    corpus ─▶ tokenizer ─▶ rows worth `tokens` tokens ─▶ supervised fine-tuning of a fresh
    Llama ─▶ fp16 checkpoint ─▶ the judge's figures ─▶ manifest.json

The manifest has the hashes of all inputs of the checkpoint, so that a test can check that the
shipped files match the corpus.
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
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from pipeline.config.sections import SFTConfig
from pipeline.demo import MODEL_DIR
from pipeline.demo.corpus import FILES, examples
from pipeline.demo.corpus.rows import Messages
from pipeline.demo.judge import figures
from pipeline.demo.tokenizer import END, PAD, train_tokenizer
from pipeline.models.text import ChatTokenizer
from pipeline.runs.rundir import Report, RunDirectory
from pipeline.stages.sft import SFTSummary, train_sft

MANIFEST = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class BuildConfig:
    """The parameters of the build, which the manifest records."""

    tokens: int = 9_500_000
    """Prompt and response tokens in the training rows; each row is used once."""
    vocabulary: int = 3072
    hidden: int = 192
    layers: int = 4
    heads: int = 6
    intermediate: int = 512
    lr: float = 2.5e-3
    batch: int = 32
    warmup: float = 0.03
    seed: int = 0


def build(config: BuildConfig, out: Path, run: Path) -> dict[str, Any]:
    """Train the demo, write it to `out` and return its manifest.

    `run` keeps events and checkpoints; an interrupted build continues from there.
    """
    require_replaceable(out)
    started = time.monotonic()
    corpus = corpus_hashes()  # before training, in case the files are edited meanwhile
    require_same_recipe(run, config, corpus)
    tokenizer = train_tokenizer(_texts(config.seed), vocabulary=config.vocabulary)
    model = fresh_model(config, tokenizer)
    rows = list(rows_worth(config.tokens, tokenizer, seed=config.seed))
    print(f"{len(rows)} rows, {model.num_parameters():,} parameters", flush=True)
    summary = fine_tune(model, tokenizer, rows, config, run)
    minutes = round((time.monotonic() - started) / 60, 1)
    save(model, tokenizer, out)
    manifest = {
        "config": asdict(config),
        "rows": len(rows),
        "parameters": model.num_parameters(),
        "corpus": corpus,
        "rows_digest": rows_digest(config.seed),
        "artefacts": artifact_hashes(out),
        "minutes": minutes,
        "held_out_loss": summary.held_out_loss and round(summary.held_out_loss, 4),
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
            eos_token_id=tokenizer.get_vocab()[END],
            pad_token_id=tokenizer.get_vocab()[PAD],
        )
    )


def rows_worth(
    tokens: int, tokenizer: PreTrainedTokenizerFast, *, seed: int
) -> Iterator[tuple[Messages, str]]:
    """Conversations of the corpus with their responses, up to `tokens` tokens in total."""
    chat = ChatTokenizer(tokenizer)
    seen = 0
    for messages, response, _ in examples(tokens, seed):
        if seen >= tokens:
            return
        seen += len(chat.chat(messages, response).ids)
        yield messages, response


def require_same_recipe(run: Path, config: BuildConfig, corpus: dict[str, str]) -> None:
    """Raise ``ValueError`` when `run` holds the checkpoints of another recipe or corpus."""
    recipe = json.dumps([asdict(config), corpus, rows_digest(config.seed)], indent=1)
    file = run / "recipe.json"
    begun = (run / "checkpoint").exists()
    if begun and (not file.exists() or file.read_text(encoding="utf-8") != recipe):
        raise ValueError(f"{run} holds a build of another recipe; name a new directory for --run")
    run.mkdir(parents=True, exist_ok=True)
    file.write_text(recipe, encoding="utf-8")


def fine_tune(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    rows: list[tuple[Messages, str]],
    config: BuildConfig,
    run: Path,
) -> SFTSummary:
    """One pass over `rows` with the SFT stage; events and checkpoints go to `run`."""
    directory = RunDirectory(run)
    resume = directory.checkpoint.exists()
    report = Report(directory, attempt=2 if resume else 1)
    settings = SFTConfig(epochs=1.0, lr=config.lr, batch=config.batch, warmup=config.warmup)
    try:
        return train_sft(
            model, tokenizer, rows, settings, directory.checkpoint, report,
            seed=config.seed, resume=resume,
        )  # fmt: skip
    finally:
        report.close()


def require_replaceable(out: Path) -> None:
    """Raise ``ValueError`` when `out` holds something other than a checkpoint."""
    if out.exists() and any(out.iterdir()) and not (out / "config.json").is_file():
        raise ValueError(f"{out} holds other files; choose an empty or new directory for --out")


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Replace the checkpoint in `out`; fp16 on disk, fp32 when loaded."""
    require_replaceable(out)
    shutil.rmtree(out, ignore_errors=True)
    model.config.use_cache = True  # the trainer switched it off
    model.half().save_pretrained(out)
    tokenizer.save_pretrained(out)
    path = out / "config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["dtype"] = "float32"  # PPO on a CPU needs it; on disk, fp16 halves the size
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def corpus_hashes() -> dict[str, str]:
    """sha256 of every data file of the corpus, by name."""
    return {path.name: _sha256(path) for path in FILES}


def artifact_hashes(out: Path) -> dict[str, str]:
    """sha256 of every file of a checkpoint except its manifest."""
    return {path.name: _sha256(path) for path in sorted(out.iterdir()) if path.name != MANIFEST}


def rows_digest(seed: int) -> str:
    """sha256 of the first training rows, which depend on code as well as on the corpus."""
    rows = json.dumps(list(examples(500, seed)))
    return hashlib.sha256(rows.encode()).hexdigest()


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> None:
    """Rebuild the embedded demo from its corpus."""
    default = BuildConfig()
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--tokens", type=int, default=default.tokens)
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--out", type=Path, default=MODEL_DIR)
    parser.add_argument("--run", type=Path, help="keep events and checkpoints here, and resume")
    options = parser.parse_args()
    config = BuildConfig(tokens=options.tokens, seed=options.seed)
    with tempfile.TemporaryDirectory() as scratch:
        manifest = build(config, options.out, options.run or Path(scratch))
    print(json.dumps({"minutes": manifest["minutes"], **manifest["figures"]}, indent=1))


if __name__ == "__main__":
    main()
