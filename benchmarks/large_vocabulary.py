"""Peak memory of one PPO update with a vocabulary of 151,936, against TRL 1.12 on the same batch.

    python -m benchmarks.large_vocabulary [--alone] [--exact-kl] [--processes N] [--tiny] [--json FILE]

A policy in the shape of Qwen3 (1,024 wide, four layers, tied embeddings, random weights, fp32) makes
the loss of 2,048 response tokens and its gradients, in one minibatch, with a small separate critic.
Each engine has its own process, which reports by how much its memory rose above that before the
forward pass, its CPU seconds, and the log-probabilities, which must agree to 1e-5.  The gradients
are part of the memory and the optimizer's state is not.  `chunks off` is this engine with all logits at
once.  TRL's lines are those of its training loop.  Memory is read from /proc, so this needs Linux.

`--exact-kl` adds the KL over the whole vocabulary to the loss, to a reference of the policy's shape;
`--processes 2` shards the models over two processes with FSDP2, and the memory is the first one's.  Both
leave TRL out, compare KLs and gradients too, and the gradients must agree to 1e-5 of each weight's largest.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import (
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
)

from benchmarks.common import ROOT, markdown
from benchmarks.ppo import case as work
from benchmarks.ppo.__main__ import peer_python
from pipeline.ppo import PPOConfig, PPOTrainer
from pipeline.ppo.algorithm import MinibatchSize
from pipeline.ppo.batch import Batch
from pipeline.ppo.network import token_stats
from pipeline.ppo.network.distributed import full_tensor, gathered

ROWS, PROMPT, RESPONSE = 8, 32, 256
ENGINES = ("trl", "chunks off", "chunks")
TOLERANCE = 1e-5
SAMPLED = 100_000
"""Entries of a weight's gradient that are compared."""


def shape(*, tiny: bool, small: bool = False) -> Qwen3Config:
    """The policy's shape; `small` is that of the critic."""
    wide, layers = (64, 1) if tiny or small else (1024, 4)
    config = work.qwen3(hidden=wide, layers=layers, vocabulary=2_000 if tiny else 151_936)
    config.num_labels = 1
    return config


def models(*, tiny: bool) -> tuple[Any, Any]:
    """Policy and critic."""
    torch.manual_seed(0)
    critic = Qwen3ForSequenceClassification(shape(tiny=tiny, small=True))
    return Qwen3ForCausalLM(shape(tiny=tiny)), critic


def batch(*, tiny: bool) -> dict[str, torch.Tensor]:
    """Texts of equal length, so that neither engine pads, and what the rollout would have given."""
    dice = torch.Generator().manual_seed(0)
    rows, response = (2, 16) if tiny else (ROWS, RESPONSE)
    vocabulary = shape(tiny=tiny).vocab_size
    return {
        "texts": torch.randint(2, vocabulary, (rows, PROMPT + response), generator=dice),
        "logprobs": -torch.rand(rows, response, generator=dice) * 20,
        "advantages": torch.randn(rows, response, generator=dice),
        "returns": torch.randn(rows, response, generator=dice),
        "values": torch.zeros(rows, response),
    }


def trainer_for(
    given: dict[str, torch.Tensor], *, tiny: bool, exact_kl: bool, processes: int
) -> PPOTrainer:
    """This engine with the models, all rows in one minibatch."""
    policy, critic = models(tiny=tiny)
    texts = given["texts"]
    rows, response = given["logprobs"].shape
    words = work.Size(
        hidden=0, layers=0, heads=0, kv_heads=0, inner=0, vocabulary=policy.config.vocab_size
    )
    config = PPOConfig(
        rollouts=rows, minibatch=rows, critic="separate", max_new_tokens=response,
        micro_batch_tokens=texts.numel(), precision="fp32", checkpoint_every=0,
        kl_estimator="full" if exact_kl else "k1", kl_in="loss" if exact_kl else "reward",
        sharding="fsdp2" if processes > 1 else "none",
    )  # fmt: skip
    return PPOTrainer(
        policy,
        Qwen3ForCausalLM(shape(tiny=tiny, small=not exact_kl)),  # else no part of an update
        work.tokenizer(words),
        texts[:, :PROMPT].tolist(),
        lambda _indices, said: [0.0] * len(said),
        config,
        critic=critic,
        device="cpu",
    )


def ours(
    given: dict[str, torch.Tensor], *, tiny: bool, chunks: bool, exact_kl: bool, processes: int
) -> dict[str, Any]:
    """This engine's gradients of a minibatch, and statistics of the tokens of this process's rows."""
    # Below the logits of a tiny model, so that it takes chunks too.
    token_stats.CHUNK_BYTES = (2**16 if tiny else 2**26) if chunks else 2**62
    trainer = trainer_for(given, tiny=tiny, exact_kl=exact_kl, processes=processes)
    texts = given["texts"]
    rows, response = given["logprobs"].shape
    batch = Batch(
        prompt_indices=list(range(rows)),
        input_ids=texts,
        prompt_lengths=torch.full((rows,), PROMPT),
        lengths=torch.full((rows,), response),
        tokens=texts[:, PROMPT:],
        finish_reasons=["length"] * rows,
        sampler_logprobs=given["logprobs"],
        old_logprobs=given["logprobs"],
        entropies=None,
        values=given["values"],
    )
    batch.importance_weights, batch.ref_logprobs = None, given["logprobs"]
    batch.advantages, batch.returns = given["advantages"], given["returns"]
    learner = trainer.learner
    size, mine = MinibatchSize(rows * response, rows), trainer.processes.share(range(rows))
    weight = 0.05 if exact_kl else 0.0
    found = measured(lambda: learner._gradients(batch, mine, size, "both", weight))
    gradients = [full_tensor(p.grad).flatten() for p in learner.parameters if p.grad is not None]
    found["gradients"] = [x[:: 1 + len(x) // SAMPLED].clone() for x in gradients]
    del gradients
    learner.optimizer.zero_grad()
    with torch.no_grad(), gathered(trainer.model), gathered(trainer.reference):
        stats, _ = learner.token_stats(learner.model, batch.take(mine), exact_kl=exact_kl)
    logprobs = stats.logprobs.view(len(mine), response)
    return found | {"logprobs": logprobs} | ({} if stats.kl is None else {"kl": stats.kl})


def trl(given: dict[str, torch.Tensor], *, tiny: bool) -> dict[str, Any]:
    """The same by the lines of TRL's training loop.  Runs in TRL's environment."""
    inside = import_module("trl.experimental.ppo.ppo_trainer")
    model = inside.PolicyAndValueWrapper(*models(tiny=tiny))
    texts, responses = given["texts"], given["texts"][:, PROMPT:]
    mask = torch.ones_like(responses, dtype=torch.bool)

    def logprobs_of() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        output, values = inside.forward(model, texts, work.PAD)
        logits = output.logits[:, PROMPT - 1 : -1]
        logits /= 1.0 + 1e-7
        logprobs = inside.selective_log_softmax(logits, responses)
        return logits, logprobs, values[:, PROMPT - 1 : -1].squeeze(-1)

    def gradients() -> None:
        logits, logprobs, values = logprobs_of()
        ratio = torch.exp(logprobs - given["logprobs"])
        gain, held = (-given["advantages"] * r for r in (ratio, torch.clamp(ratio, 0.8, 1.2)))
        near = torch.clamp(values, given["values"] - 0.2, given["values"] + 0.2)
        errors = [torch.square(v - given["returns"]) for v in (values, near)]
        policy = inside.masked_mean(torch.max(gain, held), mask)
        value = 0.5 * inside.masked_mean(torch.max(*errors), mask)
        (policy + 0.1 * value).backward()
        with torch.no_grad():
            spread = torch.nn.functional.softmax(logits, dim=-1)
            entropy = torch.logsumexp(logits, dim=-1) - torch.sum(spread * logits, dim=-1)
            del entropy

    found = measured(gradients)
    model.zero_grad()
    with torch.no_grad():
        return found | {"logprobs": logprobs_of()[1]}


def measured(act: Callable[[], Any]) -> dict[str, Any]:
    """By how much the process's peak memory exceeds that before the act, MB, and CPU seconds."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is the current size again
    before, start = _status("VmRSS"), time.process_time()
    act()
    return {"memory": _status("VmHWM") - before, "seconds": time.process_time() - start}


def _status(field: str) -> float:
    """A field of /proc/self/status, MB."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024 / 1e6


def run_engine(
    engine: str, path: Path, *, tiny: bool, exact_kl: bool = False, processes: int = 1
) -> None:
    """Measure one engine in this process; store its figures in a file."""
    torch.set_num_threads(1)
    given = batch(tiny=tiny)
    if engine == "trl":
        found = trl(given, tiny=tiny)
    else:
        found = ours(
            given, tiny=tiny, chunks=engine == "chunks", exact_kl=exact_kl, processes=processes
        )
    if not dist.is_initialized():
        torch.save(found, path)
        return
    if dist.get_rank() == 0:
        torch.save(found, path)
    dist.destroy_process_group()


def compare(
    engines: Sequence[str], peer: str, options: Sequence[str], *, processes: int
) -> list[dict[str, Any]]:
    """One row per engine; exits if log-probabilities, KLs or gradients differ."""
    rows: list[dict[str, Any]] = []
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    with tempfile.TemporaryDirectory() as folder:
        for engine in engines:
            path = Path(folder) / "found.pt"
            python = peer if engine == "trl" else sys.executable
            command = [python, *(launch if processes > 1 else []), "-m"]
            command += ["benchmarks.large_vocabulary", "--engine", engine, "--out", str(path)]
            subprocess.run([*command, *options], cwd=ROOT, check=True)
            rows.append({"engine": engine} | torch.load(path, weights_only=True))
    for row in rows:
        row["differences"] = differences(row, rows[0])
        for name, difference in row["differences"].items():
            if difference > TOLERANCE:
                sys.exit(f"the {name} of {row['engine']} differ by {difference}")
    kept = ("engine", "memory", "seconds", "differences")
    return [{name: row[name] for name in kept} for row in rows]


def differences(row: dict[str, Any], first: dict[str, Any]) -> dict[str, float]:
    """Largest differences of log-probabilities and KLs, nats, and of gradients, relative to each
    weight's largest; only of what both engines report."""
    found = {
        name: (row[name] - first[name]).abs().max().item()
        for name in ("logprobs", "kl")
        if name in row and name in first
    }
    if "gradients" in row and "gradients" in first:
        found["gradients"] = max(
            ((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item()
            for a, b in zip(row["gradients"], first["gradients"], strict=True)
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--alone", action="store_true", help="this engine only, without TRL")
    parser.add_argument("--peer-python", help="an interpreter that has trl 1.12")
    parser.add_argument("--exact-kl", action="store_true", help="the whole KL in the loss")
    parser.add_argument("--processes", type=int, default=1, help="shard the models over so many")
    parser.add_argument("--tiny", action="store_true", help="a small model, for a test")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    kind = {"tiny": given.tiny, "exact_kl": given.exact_kl, "processes": given.processes}
    if given.engine:
        run_engine(given.engine, given.out, **kind)
        return
    alone = given.alone or given.exact_kl or given.processes > 1
    engines = ENGINES[1:] if alone else ENGINES
    peer = sys.executable if alone else peer_python(given.peer_python)
    options = ["--tiny"] * given.tiny + ["--exact-kl"] * given.exact_kl
    options += ["--processes", str(given.processes)] if given.processes > 1 else []
    rows = compare(engines, peer, options, processes=given.processes)
    measured = list(rows[-1]["differences"])
    header = ("engine", "memory, MB", "of the first row's", "CPU s")
    first = rows[0]["memory"]
    cells = []
    for row in rows:
        memory, apart = row["memory"], row["differences"]
        cells.append(
            (row["engine"], f"{memory:.0f}", f"{memory / first:.2f}", f"{row['seconds']:.1f}")
        )
        cells[-1] += tuple(f"{apart[name]:.1e}" for name in measured)
    print(markdown((*header, *(f"{name} differ by" for name in measured)), cells))
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
