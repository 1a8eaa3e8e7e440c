"""PPO on one CPU thread: this engine against TRL 1.12's PPOTrainer, interleaved.

    python -m benchmarks.ppo [--sizes S M] [--rounds 5] [--variants …] [--eos with] [--json FILE]

Makes an environment of its own for TRL (``.venv-trl``).  Each engine lives in a process of its
own and makes one iteration a round, in turn, so that a slow minute of the machine falls on all.
Gates come first: sampled log-probabilities equal a forward pass to 1e-5, and both engines'
losses on one stored batch agree to 1e-5.  Figures are CPU seconds; ratios are medians over rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.ppo.case import EPOCHS, PROMPTS, SIZES, VOCABULARY, prompts

ROOT = Path(__file__).resolve().parent.parent.parent
PEER = ROOT / ".venv-trl"
TRL = "trl==1.12.0"
VARIANTS = ("separate-fp32", "shared-fp32", "lora-fp32", "shared-bf16", "lora-bf16")
BARS = {
    ("S", "separate-fp32"): 1.6, ("M", "separate-fp32"): 1.6, ("S", "shared-fp32"): 3.0,
    ("M", "shared-fp32"): 2.8, ("S", "lora-fp32"): 3.3, ("M", "lora-fp32"): 3.3,
    ("M", "shared-bf16"): 4.2, ("M", "lora-bf16"): 5.0,
}  # fmt: skip
"""Speed-ups with end-of-text that we want to reach."""


def peer_python() -> str:
    """The interpreter of TRL's environment, made when it is not there."""
    python = PEER / "bin" / "python"
    if not (PEER / ".installed").exists():
        print(f"making {PEER.name} with {TRL}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(PEER)], check=True)
        pip = [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "-c",
            str(ROOT / "constraints-trl.txt"),
        ]
        subprocess.run([*pip, TRL, "torch"], check=True)
        (PEER / ".installed").touch()
    return str(python)


class Engine:
    """One engine's process, held between iterations."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=_one_thread(), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.rounds: list[dict[str, float]] = []

    def ready(self) -> None:
        self._read()

    def iterate(self, *, count: bool = True) -> None:
        """Make one iteration; `count=False` warms up."""
        self._say("go")
        found = self._read()
        if count:
            self.rounds.append(found)

    def close(self) -> None:
        self._say("stop")
        self._process.wait(timeout=60)

    def of(self, name: str) -> list[float]:
        return [found[name] for found in self.rounds]

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def _read(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"an engine ended with status {self._process.wait()}: {self._process.args}")
        return json.loads(line)


@contextmanager
def running(command: list[str]) -> Iterator[Engine]:
    engine = Engine(command)
    try:
        engine.ready()
        yield engine
    finally:
        engine.close()


def _one_thread() -> dict[str, str]:
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "0",
    }


def _module(python: str, name: str, size: str, eos: bool, *more: str) -> list[str]:
    options = ["--size", size, *([] if eos else ["--no-eos"]), *more]
    return [python, "-m", f"benchmarks.ppo.{name}", *options]


def _once(command: list[str]) -> dict[str, float]:
    done = subprocess.run(command, cwd=ROOT, env=_one_thread(), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def gates(size: str, peer: str) -> dict[str, float]:
    """Differences that must be below 1e-5 before any timing counts."""
    with tempfile.TemporaryDirectory() as scratch:
        batch = str(Path(scratch) / "batch.pt")
        ours = _once(_module(sys.executable, "ours", size, True, "--gate", batch))
        theirs = _once(_module(peer, "peer", size, True, "--losses", batch))
    found = {
        "logprobs": ours["logprobs"],
        "policy_loss": abs(ours["policy"] - theirs["policy"]),
        "value_loss": abs(ours["value"] - theirs["value"]),
    }
    if max(found.values()) > 1e-5:
        sys.exit(f"size {size}: the engines disagree, so no timing counts: {found}")
    return found


def flops(size: str, tokens: float) -> float:
    """Operations that an iteration with a shared trunk cannot do without (matrix products only).

    Sampling and the reference read every token once, the reward model too; each epoch reads
    it forward and backward.  The output layer counts at response tokens.
    """
    hidden, layers, _, inner = SIZES[size]
    trunk = 2 * layers * (4 * hidden * hidden + 3 * hidden * inner)
    output = 2 * hidden * VOCABULARY
    read = mean(map(len, prompts())) * PROMPTS + tokens
    passes = 2 + 3 * EPOCHS  # sampling and reference, then epochs of three
    return (passes + 1) * trunk * read + passes * output * tokens


def measure(size: str, eos: bool, options: argparse.Namespace, peer: str) -> list[dict[str, Any]]:
    """One row a variant: medians over interleaved rounds."""
    with ExitStack() as stack:
        theirs = stack.enter_context(running(_module(peer, "peer", size, eos)))
        ours = {
            variant: stack.enter_context(
                running(_module(sys.executable, "ours", size, eos, "--variant", variant))
            )
            for variant in options.variants
        }
        engines = [theirs, *ours.values()]
        for number in range(options.rounds + 1):
            for engine in engines:
                engine.iterate(count=number > 0)
            print(f"{size}, round {number} of {options.rounds}", file=sys.stderr, flush=True)
    peak = _once(_module(sys.executable, "ours", size, eos, "--peak"))["gflops"]
    rows = []
    for variant, engine in ours.items():
        cpu, phases = median(engine.of("cpu")), engine.rounds[-1]
        least = flops(size, mean(engine.of("tokens"))) / peak / 1e9
        rows.append(
            {
                "size": size,
                "eos": eos,
                "variant": variant,
                "ratio": median(
                    t / o for t, o in zip(theirs.of("cpu"), engine.of("cpu"), strict=True)
                ),
                "rss_ratio": max(theirs.of("rss")) / max(engine.of("rss")),
                "cpu": cpu,
                "trl_cpu": median(theirs.of("cpu")),
                "rss": max(engine.of("rss")),
                "trl_rss": max(theirs.of("rss")),
                "flop_limit": least if "fp32" in variant else None,
                "gflops": peak,
                "phases": {k: v for k, v in phases.items() if k.endswith("_seconds")},
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = [
        "| size | ends | variant | CPU s, TRL | CPU s, ours | speed-up | bar | peak RSS, ours / TRL, MB | FLOP limit, s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        bar = BARS.get((row["size"], row["variant"])) if row["eos"] else None
        limit = f"{row['flop_limit']:.2f}" if row["flop_limit"] else ""
        lines.append(
            f"| {row['size']} | {'yes' if row['eos'] else 'no'} | {row['variant']} | {row['trl_cpu']:.2f} "
            f"| {row['cpu']:.2f} | {row['ratio']:.2f}× | {f'{bar}×' if bar else ''} "
            f"| {row['rss']:.0f} / {row['trl_rss']:.0f} | {limit} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Print the table; the exit status is 1 when a bar is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=SIZES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--eos", choices=("with", "without", "both"), default="both")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    peer = peer_python()
    found = {size: gates(size, peer) for size in options.sizes}
    kinds = {"with": [True], "without": [False], "both": [True, False]}[options.eos]
    rows = [
        row for size in options.sizes for eos in kinds for row in measure(size, eos, options, peer)
    ]
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps({"gates": found, "rows": rows}, indent=1) + "\n")
    short = [
        row for row in rows
        if row["eos"] and row["ratio"] < BARS.get((row["size"], row["variant"]), 0)
    ]  # fmt: skip
    for row in short:
        print(f"short of the bar: {row['variant']} on {row['size']}: {row['ratio']:.2f}×")
    return bool(short)


if __name__ == "__main__":
    sys.exit(main())
