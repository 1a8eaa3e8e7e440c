"""How long must PPO train?  Settings of the demo's PPO against one reward model per seed.

    python -m benchmarks.ppo_settings [--seeds 0 1 …] [--arms demo …] [--folder DIR] [--report]

Each seed simulates one iteration of the demo with 400 labels of sixteen annotators, a quarter of them
bad, and then repeats its policy and evaluation stages with the settings of each arm: `demo` has today's
settings, the others change them.  So all arms of a seed have the same reward model.  The table has the
gain by the hidden gold preference on the held-out prompts, in standard deviations of SFT's scores
there, the KL to SFT, the loss on the capability canary in points, and the seconds of the policy stage,
which depend on what else the machine does.

Writes one JSON file per seed to benchmarks/results/ppo_settings; arms that are in it are not repeated.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pandas as pd

from benchmarks.common import ROOT, markdown
from benchmarks.seeds import run_seeds
from benchmarks.whole_loop import ANNOTATORS, BAD
from commands.simulate import run_trial, stop_workers
from pipeline.config.sections import CONFIGS, Config
from pipeline.models.text import read_messages
from pipeline.runs.repeat import copy_inputs, newest_run, run_to_end
from pipeline.runs.rundir import RunDirectory
from pipeline.simulation.clients import conversation
from pipeline.simulation.preference import score, scored
from pipeline.simulation.trials import FULL, Estimate, TrialArm
from pipeline.statistics.canary import canary_figures
from storage.reports import Evaluation, from_json

RESULTS = ROOT / "benchmarks" / "results" / "ppo_settings"
LABELS = 400
DEMO = Config.load([CONFIGS / "demo.toml"]).ppo
ARMS = {
    arm.name: arm
    for arm in (
        TrialArm(name="demo"),
        TrialArm(name="one epoch", settings={"ppo.epochs": 1, "ppo.lr": 4e-4}),
        TrialArm(name="small steps", settings={"ppo.updates": 120, "ppo.lr": 5e-5}),
    )
}


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A policy of an arm."""

    gain: float
    """Of gold over SFT, in standard deviations of SFT's scores."""
    kl: float
    canary_loss: float
    seconds: float
    """Of the policy stage."""


@lru_cache(maxsize=1)
def judged_workspace(seed: int, labels: int) -> tempfile.TemporaryDirectory[str]:
    """A workspace with one finished iteration, whose policy had a single update."""
    folder = tempfile.TemporaryDirectory(prefix="kitestring-ppo-")
    place = Path(folder.name) / "workspace"
    try:
        run_trial(
            FULL,
            place,
            (1, labels),
            files=[CONFIGS / "demo.toml"],
            sets=["ppo.updates=1", "worker.nice=0"],
            seed=seed,
            annotators=ANNOTATORS,
            bad=BAD,
            progress=lambda line: print(f"  {line}", file=sys.stderr, flush=True),
        )
    finally:
        stop_workers(place)
    return folder


def trained(place: Path, arm: TrialArm, settings: Mapping[str, Any]) -> Trained:
    """The policy of an arm, trained on the workspace's reward model and evaluated."""
    policy, evaluation = newest_run(place, "policy"), newest_run(place, "evaluate")
    assert policy
    assert evaluation
    # The workspace's run had one update.
    config = policy.job().config.override({"ppo.updates": DEMO.updates, **arm.settings, **settings})

    def repeated(source: RunDirectory, stage: str, models: Mapping[str, str]) -> RunDirectory:
        job = source.job()
        job = replace(
            job, run=f"{stage}-{arm.name}", config=config, models={**job.models, **models}
        )
        return run_to_end(
            place / "arms" / arm.name / stage,
            job,
            fill=copy_inputs(source),
            progress=lambda line: print(f"  {arm.name}: {line}", file=sys.stderr, flush=True),
        )

    started = time.monotonic()
    made = repeated(policy, "policy", {})
    seconds = time.monotonic() - started
    done = repeated(evaluation, "evaluate", {"policy": str(made.model)})
    found = from_json(Evaluation, done.result() or {})
    assert found.canary
    gold = gold_by_policy(done)
    names = done.job().names
    sft, ours = gold[str(names["reference"])], gold[str(names["policy"])]
    return Trained(
        gain=(fmean(ours) - fmean(sft)) / stdev(sft),
        kl=found.policy.kl or 0.0,
        canary_loss=canary_figures(found.canary).loss,
        seconds=round(seconds, 1),
    )


def gold_by_policy(evaluation: RunDirectory) -> dict[str, list[float]]:
    """The gold scores of an evaluation's completions, by policy."""
    asked = pd.read_parquet(evaluation.inputs / "prompts.parquet")
    prompts = dict(zip(asked["id"], asked["messages"], strict=True))
    rows = pd.read_parquet(evaluation.outputs / "completions.parquet")
    found: dict[str, list[float]] = {}
    for policy, prompt, text in zip(rows["policy"], rows["prompt"], rows["text"], strict=True):
        text_asked = conversation([asdict(message) for message in read_messages(prompts[prompt])])
        found.setdefault(policy, []).extend(scored(score, text_asked, (text,)))
    return found


def table(held: Sequence[Mapping[str, Any]], arms: Sequence[str]) -> str:
    """A row for each arm over the seeds that have it, and its gain minus the demo's."""
    rows = []
    for name in arms:
        mine = [each["arms"] for each in held if name in each["arms"]]
        if not mine:
            continue
        paired = [a[name]["gain"] - a["demo"]["gain"] for a in mine if "demo" in a]
        rows.append(
            (
                name,
                len(mine),
                Estimate.of([a[name]["gain"] for a in mine]),
                "" if name == "demo" or not paired else Estimate.of(paired),
                f"{fmean(a[name]['kl'] for a in mine):.1f}",
                f"{100 * fmean(a[name]['canary_loss'] for a in mine):+.1f}",
                f"{fmean(a[name]['seconds'] for a in mine):.0f}",
            )
        )
    header = ("arm", "seeds", "gold gain, sd", "− demo", "KL", "canary's loss, points", "PPO, s")
    return markdown(header, rows)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(8)))
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--labels", type=int, default=LABELS)
    parser.add_argument("--folder", type=Path, default=RESULTS)
    parser.add_argument("--set", action="append", default=[], help="override a setting of all arms")
    parser.add_argument("--report", action="store_true", help="only print stored results")
    args = parser.parse_args()
    settings = dict(item.split("=", 1) for item in args.set)
    steps = {name: getattr(DEMO, name) for name in ("updates", "epochs", "lr")}
    held = run_seeds(
        lambda arm, seed: asdict(
            trained(Path(judged_workspace(seed, args.labels).name) / "workspace", arm, settings)
        ),
        [ARMS[name] for name in args.arms],
        args.seeds,
        args.folder,
        conditions={
            "labels": args.labels, "annotators": ANNOTATORS, "bad": BAD, "settings": settings,
            "demo": steps,
        },
        only_report=args.report,
    )  # fmt: skip
    if not held:
        sys.exit(f"no results in {args.folder}; run without --report")
    print(table(held, args.arms))
    return 0


if __name__ == "__main__":
    sys.exit(main())
