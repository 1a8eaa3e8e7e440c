"""Memory of two processes that share models by FSDP2: loading, gathering, and writing a checkpoint.

    python -m benchmarks.sharding [--precision bf16|fp32] [--whole] [--tiny] [--json FILE]

Policy and reference have the shape of Qwen3 (1,024 wide, eight layers, a vocabulary of 50,000, tied
embeddings, 152 million weights, random) and lie on disk in bf16, as most models are published.  Each
process loads them as the studio's stage does, makes one PPO update of two short texts, gathers the
policy, and writes a checkpoint.  Of each process, in MB: by how much its memory rises at most while it
loads the models, while it shards them, and while it writes; and the size of the gathered weights.
Memory is resident, from /proc, so this needs Linux.  Shards, which would be on a GPU, are a part of it
here.  `--whole` loads the models in every process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import Qwen3ForCausalLM

from benchmarks.common import ROOT, markdown
from benchmarks.large_vocabulary import measured
from benchmarks.ppo import case as work
from pipeline.models.loading import load_causal_lm
from pipeline.ppo import PPOConfig, PPOTrainer
from pipeline.ppo.network.distributed import Processes, gathered

WORDS = work.Size(hidden=0, layers=0, heads=0, kv_heads=0, inner=0, vocabulary=50_000)
HEADER = ("process", "load", "shard", "gathered policy", "write a checkpoint", "bytes on disk")


def save_model(folder: Path, *, tiny: bool) -> None:
    """A model with random weights in bf16, and a tokenizer."""
    wide, layers = (64, 2) if tiny else (1024, 8)
    config = work.qwen3(hidden=wide, layers=layers, vocabulary=WORDS.vocabulary)
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).bfloat16().save_pretrained(folder)
    work.tokenizer(WORDS).save_pretrained(folder)


def trainer_of(model: Any, reference: Any, precision: Any, directory: Path) -> PPOTrainer:
    config = PPOConfig(
        updates=1, epochs=1, rollouts=2, minibatch=2, max_new_tokens=4, checkpoint_every=0,
        precision=precision, sharding="fsdp2",
    )  # fmt: skip
    return PPOTrainer(
        model,
        reference,
        work.tokenizer(WORDS),
        [[2, 3, 4]],
        lambda _indices, said: [float(len(text)) for text in said],
        config,
        directory,
        device="cpu",
    )


def run_process(model: Path, precision: str, *, whole: bool) -> None:
    """One of the two processes; leaves its figures beside the model."""
    torch.set_num_threads(1)
    device = "meta" if Processes().rank and not whole else "cpu"
    models: list[Any] = []
    made: list[PPOTrainer] = []

    def load() -> None:
        models.extend(load_causal_lm(str(model), device=device) for _ in range(2))

    def shard() -> None:
        policy, reference = models
        made.append(trainer_of(policy, reference, precision, model.parent / "run"))

    found = {name: measured(act)["memory"] for name, act in (("load", load), ("shard", shard))}
    (trainer,) = made
    list(trainer.run())
    with gathered(trainer.model):
        found["gathered"] = sum(x.numel() * x.itemsize for x in trainer.model.parameters()) / 1e6
    found["write"] = measured(trainer.write_checkpoint)["memory"]
    found["rank"] = trainer.processes.rank
    (model.parent / f"found-{trainer.processes.rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def compare(options: list[str], *, tiny: bool) -> list[dict[str, Any]]:
    """The figures of both processes; the first has the files of the checkpoint too."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        save_model(model, tiny=tiny)
        command = [sys.executable, *launch, "-m", "benchmarks.sharding", "--model", str(model)]
        subprocess.run([*command, *options], cwd=ROOT, check=True)
        rows = [json.loads((model.parent / f"found-{rank}.json").read_text()) for rank in (0, 1)]
        (checkpoint,) = (model.parent / "run" / "checkpoints").iterdir()
        files = {path.name: path.stat().st_size for path in sorted(checkpoint.iterdir())}
    return [rows[0] | {"files": files}, rows[1] | {"files": {}}]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--whole", action="store_true", help="load the models in every process")
    parser.add_argument("--tiny", action="store_true", help="a small model, for a test")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.model:
        run_process(given.model, given.precision, whole=given.whole)
        return
    options = ["--precision", given.precision] + ["--whole"] * given.whole
    rows = compare(options, tiny=given.tiny)
    cells = [
        (
            row["rank"],
            *(f"{row[name]:,.0f}" for name in ("load", "shard", "gathered", "write")),
            ", ".join(f"{name} {size:,}" for name, size in row["files"].items()),
        )
        for row in rows
    ]
    print(markdown(HEADER, cells))
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
