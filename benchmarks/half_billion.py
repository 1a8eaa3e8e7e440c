"""A whole iteration of a model in the shape of Qwen3-0.6B, on this machine: seconds and memory a stage.

    python -m benchmarks.half_billion [--tiny] [--labels 24] [--set NAME=VALUE] [--folder DIR] [--json FILE]

The model has random weights (28 layers of 1,024, vocabulary 151,936, tied embeddings, fp32) and a
tokenizer with a word per id.  Simulated annotators judge by the mean of a response's word numbers.
The loop is the product's: pairs are sampled, judged, a reward model is trained, PPO trains LoRA
adapters for three updates, and the policy is evaluated.  Memory is the peak of the worker's resident
memory, imports included, read from /proc, so this needs Linux.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from benchmarks.common import exit_status, launch, markdown

EOS, PAD = 0, 1
SETTINGS = {
    "ppo.updates": 3,
    "ppo.rollouts": 16,
    "ppo.minibatch": 8,
    "ppo.epochs": 1,
    "ppo.max_new_tokens": 32,
    "ppo.lora_rank": 16,
    "ppo.checkpoint_every": 0,
    "sampling.max_new_tokens": 32,
    "evaluate.max_new_tokens": 32,
    "reward.members": 1,
    "reward.epochs": 1,
    "sft.enabled": False,
}


def gold(_prompt: str, response: str) -> float:
    """A response is better the higher its words' numbers are on average."""
    numbers = [int(word[1:]) for word in response.split() if word[1:].isdigit()]
    return sum(numbers) / len(numbers) / 20_000 if numbers else 0.0


def write_model(folder: Path, *, tiny: bool) -> None:
    """The model and its tokenizer in Hugging Face format."""
    config = Qwen3Config(
        vocab_size=2_000 if tiny else 151_936,
        hidden_size=64 if tiny else 1024,
        intermediate_size=128 if tiny else 3072,
        num_hidden_layers=2 if tiny else 28,
        num_attention_heads=4 if tiny else 16,
        num_key_value_heads=2 if tiny else 8,
        head_dim=16 if tiny else 128,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    words = {"<eos>": EOS, "<pad>": PAD} | {f"t{i}": i for i in range(2, config.vocab_size)}
    base = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    base.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=base, eos_token="<eos>", pad_token="<pad>", padding_side="left"
    )
    # Only words of the vocabulary; role names would be unknown.
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    tokenizer.save_pretrained(folder)


def write_prompts(path: Path, count: int) -> None:
    """Prompts of twelve words."""
    dice = random.Random(0)
    rows = [" ".join(f"t{dice.randrange(2, 2_000)}" for _ in range(12)) for _ in range(count)]
    text = "".join(json.dumps({"prompt": row}) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")


@contextmanager
def peaks() -> Iterator[dict[str, float]]:
    """Peak resident memory of each worker, MB, by its run directory's name."""
    found: dict[str, float] = {}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.5):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error, OSError):
                    words = process.cmdline()
                    if "pipeline.worker" in words:
                        status = Path(f"/proc/{process.pid}/status").read_text()
                        peak = re.search(r"VmHWM:\s+(\d+) kB", status)
                        if peak is not None:
                            found[Path(words[-1]).name] = int(peak[1]) * 1024 / 1e6

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def iterate(
    folder: Path, *, tiny: bool, labels: int, changes: Sequence[str]
) -> list[dict[str, Any]]:
    """One iteration in an empty workspace; one row per stage."""
    workspace, model, prompts = folder / "workspace", folder / "model", folder / "prompts.jsonl"
    write_model(model, tiny=tiny)
    write_prompts(prompts, 4 * labels)
    given = [f"{name}={value}".lower() for name, value in SETTINGS.items()] + list(changes)
    chosen = [x for each in given for x in ("--set", each)]
    launch("init", "--workspace", workspace, "--model", model, "--prompts", prompts, *chosen)
    judges = ["--labels", str(labels), "--annotators", "2", "--bad", "0"]
    with peaks() as memory:
        launch("simulate", "--workspace", workspace, *judges, "--gold", f"{__spec__.name}:gold")
    runs = json.loads(launch("runs", "--workspace", workspace, "--json"))
    return [
        {"stage": run["stage"], "seconds": run["seconds"], "memory": memory[run["id"]]}
        for run in runs
        if run["status"] == "succeeded"
    ]


def main() -> int:
    """Print a row per stage; 1 if a stage of the iteration is missing."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--tiny", action="store_true", help="a model of two narrow layers")
    parser.add_argument("--labels", type=int, default=24)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--folder", type=Path, help="keep model and workspace here")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        rows = iterate(folder, tiny=options.tiny, labels=options.labels, changes=options.set)
    cells = [(row["stage"], f"{row['seconds']:.0f}", f"{row['memory']:,.0f}") for row in rows]
    print(markdown(("stage", "seconds", "peak memory, MB"), cells))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    missing = {"sampling", "reward", "policy", "evaluate"} - {row["stage"] for row in rows}
    return exit_status([f"no successful run of the stage {stage}" for stage in sorted(missing)])


if __name__ == "__main__":
    sys.exit(main())
