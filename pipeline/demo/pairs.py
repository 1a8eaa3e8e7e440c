"""The demo's first pairs, sampled in advance: ``python -m pipeline.demo.pairs``.

A new user need not wait for the first worker.  This module makes the pairs with the sampling stage,
and the loop uses them for the first iteration if the settings are the same.  Imports torch only to
sample.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.config.sections import CONFIGS, Config
from pipeline.demo import MODEL_DIR
from pipeline.demo.corpus import prompts
from pipeline.runs.rundir import Job, Report, RunDirectory
from storage.records import Prompt, digest, messages_json

PAIRS_DIR = Path(__file__).parent / "pairs"
PAIRS = 240
_PRESET = CONFIGS / "demo.toml"


def shipped_pairs(config: Config, *, wanted: int) -> Path | None:
    """The directory with completions.parquet and comparisons.parquet, or None.

    None if `config` samples with other settings or another model, or if more pairs are `wanted`.
    """
    if config.model.name != "demo":
        return None
    made = json.loads((PAIRS_DIR / "manifest.json").read_text())
    # Settings that are newer than the pairs have the defaults with which they were made.
    used = Config.from_dict({"sampling": made["sampling"], "seed": made["seed"]})
    same = (used.sampling, used.seed) == (config.sampling, config.seed)
    return PAIRS_DIR if same and wanted <= made["pairs"] else None


def weights_hash() -> str:
    """sha256 of the embedded checkpoint, from which the pairs must have been sampled."""
    return hashlib.sha256((MODEL_DIR / "model.safetensors").read_bytes()).hexdigest()


def make(out: Path = PAIRS_DIR, *, pairs: int = PAIRS) -> dict[str, Any]:
    """Run the sampling stage on the embedded model; return the new manifest.json."""
    # Imported here, because it loads torch.
    from pipeline.stages.sample import run  # noqa: PLC0415

    config = Config.load([_PRESET])
    job = Job(
        run="run-demo",
        stage="sampling",
        iteration=1,
        config=config,
        seed=config.seed + 1,
        models={"policy": str(MODEL_DIR), "reference": str(MODEL_DIR)},
        names={"policy": "sft-1", "reference": "sft-1"},
    )
    with tempfile.TemporaryDirectory() as scratch:
        directory = RunDirectory.create(Path(scratch), job)
        _plan(pairs).to_parquet(directory.inputs / "prompts.parquet", index=False)
        with Report(directory) as report:
            summary = run(job, report, directory)
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(directory.outputs, out)
    manifest = {
        "model": weights_hash(),
        "pairs": summary.comparisons,
        "sampling": config.to_dict()["sampling"],
        "seed": config.seed,
    }
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def _plan(pairs: int) -> pd.DataFrame:
    """One pair for each of the first train prompts in a fixed random order."""
    made = [Prompt.make(m, role=role) for role, m, _ in prompts() if role == "train"]
    made.sort(key=lambda p: digest("order", "demo", p.id))
    rows = [{"id": p.id, "messages": messages_json(p.messages)} for p in made[:pairs]]
    return pd.DataFrame(rows).assign(arm="random", pairs=1)


def main() -> None:
    """Sample the demo's first pairs again."""
    print(json.dumps(make(), indent=1))


if __name__ == "__main__":
    main()
