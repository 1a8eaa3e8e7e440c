"""PPO on one CPU thread, or one GPU: this engine against TRL 1.12's PPOTrainer, interleaved.

    python -m benchmarks.ppo [--sizes S M] [--rounds 5] [--variants …] [--eos with] [--json FILE]
    python -m benchmarks.ppo --device cuda --sizes Q --variants shared-bf16 lora-bf16

Creates an environment for TRL (``.venv-trl``), or uses that of --peer-python.  Each engine has its
own process; in each round the engines run one iteration in turn, so that a slow period of the
machine affects all of them.  Two checks come first: sampled log-probabilities equal those of a
forward pass to 1e-5, and both engines' losses on one stored batch agree to 1e-5.  Times are CPU
seconds, or wall-clock seconds on a GPU; ratios are medians over rounds.
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

from benchmarks.common import ROOT, markdown
from benchmarks.ppo.case import EPOCHS, SIZES, Case, Size, prompts

PEER = ROOT / ".venv-trl"
TRL = "trl==1.12.0"
VARIANTS = ("separate-fp32", "shared-fp32", "lora-fp32", "shared-bf16", "lora-bf16")


def peer_python(given: str | None) -> str:
    """The interpreter of TRL's environment, which is created if it is missing."""
    if given:
        return given
    python = PEER / "bin" / "python"
    if not (PEER / ".installed").exists():
        print(f"making {PEER.name} with {TRL}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(PEER)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        constraints = str(ROOT / "constraints-trl.txt")
        subprocess.run([*pip, "-c", constraints, TRL, "torch"], check=True)
        (PEER / ".installed").touch()
    return str(python)


class Engine:
    """One engine's process, which waits between iterations."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=_threads(command), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.rounds: list[dict[str, float]] = []

    def ready(self) -> None:
        self._read()

    def iterate(self, *, count: bool = True) -> None:
        """Run one iteration; `count=False` is a warm-up."""
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


def _threads(command: list[str]) -> dict[str, str]:
    """The environment for one thread, unless the engine uses a GPU."""
    one = {} if "cuda" in command else {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return os.environ | one | {"TOKENIZERS_PARALLELISM": "0"}


def _module(python: str, name: str, case: Case, *more: str) -> list[str]:
    options = ["--size", case.name, *([] if case.eos else ["--no-eos"]), *more]
    options += ["--device", case.device]
    return [python, "-m", f"benchmarks.ppo.{name}", *options]


def _once(command: list[str]) -> dict[str, float]:
    done = subprocess.run(command, cwd=ROOT, env=_threads(command), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def gates(size: str, peer: str | None) -> dict[str, float]:
    """Differences that must be below 1e-5 before timing; losses are compared only with a peer."""
    case = Case(size, eos=True)
    with tempfile.TemporaryDirectory() as scratch:
        batch = str(Path(scratch) / "batch.pt")
        ours = _once(_module(sys.executable, "ours", case, "--gate", batch))
        theirs = _once(_module(peer, "peer", case, "--losses", batch)) if peer else {}
    found = {"logprobs": ours["logprobs"]}
    found |= {
        f"{name}_loss": abs(ours[name] - theirs[name]) for name in ("policy", "value") if peer
    }
    if max(found.values()) > 1e-5:
        sys.exit(f"size {size}: the engines disagree, so timings are invalid: {found}")
    return found


def flops(size: Size, tokens: float) -> float:
    """Minimum operations of an iteration with a shared trunk, matrix products only.

    Sampling, the reference and the reward model process every token once; each epoch processes it
    forward and backward.  The output layer counts only at response tokens.
    """
    narrow = size.hidden * size.kv_heads // size.heads
    attention = 2 * size.hidden * (size.hidden + narrow)
    trunk = 2 * size.layers * (attention + 3 * size.hidden * size.inner)
    output = 2 * size.hidden * size.vocabulary
    read = mean(map(len, prompts(size))) * size.prompts + tokens
    passes = 2 + 3 * EPOCHS  # sampling and reference, then epochs of three
    return (passes + 1) * trunk * read + passes * output * tokens


def measure(case: Case, options: argparse.Namespace, peer: str | None) -> list[dict[str, Any]]:
    """One row per variant: medians over interleaved rounds."""
    with ExitStack() as stack:
        theirs = stack.enter_context(running(_module(peer, "peer", case))) if peer else None
        ours = {
            variant: stack.enter_context(
                running(_module(sys.executable, "ours", case, "--variant", variant))
            )
            for variant in options.variants
        }
        engines = [*([theirs] if theirs else []), *ours.values()]
        for number in range(options.rounds + 1):
            for engine in engines:
                engine.iterate(count=number > 0)
            done = f"{case.name}, round {number} of {options.rounds}"
            print(done, file=sys.stderr, flush=True)
    peak = None
    if case.device == "cpu":
        peak = _once(_module(sys.executable, "ours", case, "--peak"))["gflops"]
    return [_row(case, variant, engine, theirs, peak) for variant, engine in ours.items()]


def _row(
    case: Case, variant: str, engine: Engine, theirs: Engine | None, peak: float | None
) -> dict[str, Any]:
    seconds, tokens = engine.of("seconds"), mean(engine.of("tokens"))
    compared = {}
    if theirs:
        pairs = zip(theirs.of("seconds"), seconds, strict=True)
        compared = {
            "ratio": median(t / o for t, o in pairs),
            "rss_ratio": max(theirs.of("memory")) / max(engine.of("memory")),
            "trl_seconds": median(theirs.of("seconds")),
            "trl_memory": max(theirs.of("memory")),
        }
    limit = None
    if peak and "fp32" in variant:
        limit = flops(case.size, tokens) / peak / 1e9
    phases = {k: v for k, v in engine.rounds[-1].items() if k.endswith("_seconds")}
    read = mean(map(len, prompts(case.size))) * case.size.prompts + tokens
    return {
        "size": case.name,
        "eos": case.eos,
        "device": case.device,
        "variant": variant,
        **compared,
        "seconds": median(seconds),
        "memory": max(engine.of("memory")),
        "flop_limit": limit,
        "gflops": peak,
        "phases": phases,
        "sampled_per_second": tokens / phases["rollout_seconds"],
        "updated_per_second": EPOCHS * read / phases["update_seconds"],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    header = (
        *("size", "ends", "variant", "TRL, s", "ours, s", "speed-up", "bar"),
        *("peak memory, ours / TRL, MB", "FLOP limit, s", "sampled, updated tokens/s"),
    )
    cells = [
        (
            row["size"], "yes" if row["eos"] else "no", row["variant"],
            _shown(row, "trl_seconds", ".2f"), f"{row['seconds']:.2f}",
            f"{_shown(row, 'ratio', '.2f')}×", f"{bar}×" if (bar := _bar(row)) else "",
            f"{row['memory']:.0f} / {_shown(row, 'trl_memory', '.0f')}",
            f"{row['flop_limit']:.2f}" if row["flop_limit"] else "",
            f"{row['sampled_per_second']:.0f}, {row['updated_per_second']:.0f}",
        )
        for row in rows
    ]  # fmt: skip
    return markdown(header, cells)


def _shown(row: dict[str, Any], name: str, digits: str) -> str:
    """A figure of the peer, or an empty text if the peer did not run."""
    return format(row[name], digits) if name in row else "–"


def _bar(row: dict[str, Any]) -> float | None:
    return dict(SIZES[row["size"]].bars).get(row["variant"]) if row["eos"] else None


def main() -> int:
    """Print the table; the exit status is 1 if a target ratio is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", default=["S", "M"], choices=SIZES)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--peer-python", help="an interpreter that has trl 1.12")
    parser.add_argument("--alone", action="store_true", help="this engine only, without TRL")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--eos", choices=("with", "without", "both"), default="both")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    peer = None if options.alone else peer_python(options.peer_python)
    # Losses are compared in fp32 on a CPU, where sums are reproducible.
    gated = options.sizes if options.device == "cpu" else ["S"]
    found = {size: gates(size, peer) for size in gated}
    kinds = {"with": [True], "without": [False], "both": [True, False]}[options.eos]
    cases = [Case(size, eos, options.device) for size in options.sizes for eos in kinds]
    rows = [row for case in cases for row in measure(case, options, peer)]
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps({"gates": found, "rows": rows}, indent=1) + "\n")
    short = [row for row in rows if peer and row["ratio"] < (_bar(row) or 0)]
    for row in short:
        print(f"below the target: {row['variant']} on {row['size']}: {row['ratio']:.2f}×")
    return bool(short)


if __name__ == "__main__":
    sys.exit(main())
