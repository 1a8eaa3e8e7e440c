"""Runs the whole loop on another data set: SFT, then two iterations of sampling, labels and PPO.

    python -m benchmarks.instructions instruction-data.json [--labels 100] [--workspace DIR]

The file is instruction-data.json of github.com/rasbt/LLMs-from-scratch (1,100 rows of instruction,
input and output).  The first half becomes demonstrations for SFT of the embedded model; the other
half becomes prompts.  Simulated annotators label two iterations by `gold`, which does not depend on
the demo.  Prints the report of `simulate` and the list of models.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import launch, launch_json

SETTINGS = ("ppo.updates=40", "sft.epochs=3", "sft.lr=1e-3", "evaluate.prompts=60")
ITERATIONS = 2


def gold(prompt: str, response: str) -> float:
    """Prefers a response on topic: it uses the prompt's content words, without repetition."""
    asked = set(re.findall(r"[a-z]{4,}", prompt.lower()))
    said = re.findall(r"[a-z]{4,}", response.lower())
    if not said:
        return -2.0
    on_subject = len(asked.intersection(said)) / max(1, len(asked))
    repeated = 1 - len(set(said)) / len(said)
    return 4 * on_subject - 2 * repeated


def split(rows: list[dict[str, str]], folder: Path) -> tuple[Path, Path]:
    """Files for `import --sft` and `import --prompts`; no prompt is in both."""
    asked = {_prompt(row): row["output"] for row in rows}
    texts = list(asked)
    half = len(texts) // 2
    demonstrations, prompts = folder / "sft.jsonl", folder / "prompts.jsonl"
    _write(demonstrations, [{"prompt": text, "response": asked[text]} for text in texts[:half]])
    _write(prompts, [{"prompt": text} for text in texts[half:]])
    return demonstrations, prompts


def _prompt(row: dict[str, str]) -> str:
    return "\n\n".join(part for part in (row["instruction"], row["input"]) if part.strip())


def _write(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def measure(
    rows: list[dict[str, str]], folder: Path, *, labels: int, seed: int, tiny: bool
) -> dict[str, Any]:
    """Import both halves and run two iterations; with `tiny`, one minimal iteration."""
    here = ("--workspace", folder / "workspace")
    demonstrations, prompts = split(rows, folder)
    if not (folder / "workspace").exists():
        launch("init", *here)
    imported = [
        launch_json("import", kind, file, *here)["rows"]
        for kind, file in (("--sft", demonstrations), ("--prompts", prompts))
    ]
    sets = ["--tiny"] if tiny else [f"--set={item}" for item in SETTINGS]
    iterations = 1 if tiny else ITERATIONS
    counts = ("--iterations", str(iterations), "--labels", str(labels), "--seed", str(seed))
    started = time.monotonic()
    report = launch_json(
        "simulate", *here, *counts, *sets, "--gold", "benchmarks.instructions:gold"
    )
    status = launch_json("status", *here)
    return report | {
        "imported": imported,
        "wall": round(time.monotonic() - started, 1),
        "judgments": status["judgments"],
        "policy": status["policy"],
        "reward_model": status["reward_model"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, help="instruction-data.json")
    parser.add_argument("--labels", type=int, default=100, help="judgments per iteration")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workspace", type=Path, help="keep everything here (an empty directory)")
    parser.add_argument("--tiny", action="store_true", help="one small iteration, for tests")
    arguments = parser.parse_args()
    rows = json.loads(arguments.data.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.workspace or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        report = measure(
            rows, folder, labels=arguments.labels, seed=arguments.seed, tiny=arguments.tiny
        )
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
