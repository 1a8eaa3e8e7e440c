"""Does the canary tell a healthy policy from an over-optimized one?  Runs both with `simulate`.

    python -m benchmarks.canary [--seeds 0 1 …] [--arms demo small large pushed] [--folder DIR] [--report]

The annotators are those of `benchmarks.whole_loop`, in one iteration of 400 labels:

* `demo`: all settings of the demo, with β = .1;
* `small`: the same, with twice as many updates of smaller steps;
* `large`: the default reward model, and the large steps at β = .03 of `benchmarks.whole_loop`;
* `pushed`: the naive reward model, and 150 of these updates, which usually over-optimize it.

The canary is that of the demo (`pipeline/demo/canary.py`).  The table has the shares of its prompts
whose answers pass, the interval of the loss, and the first update that raised the flag, beside the
gain by the hidden gold preference, which the canary does not read.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, markdown
from benchmarks.seeds import run_alone, run_seeds
from benchmarks.whole_loop import ANNOTATORS, BAD, SETTINGS
from pipeline.canary.training import FLAG
from pipeline.simulation.trials import NAIVE, TrialArm

RESULTS = ROOT / "benchmarks" / "results" / "canary"
SMALL_STEPS = {"ppo.updates": 120, "ppo.epochs": 2, "ppo.lr": 5e-5}
ARMS = {
    arm.name: arm
    for arm in (
        TrialArm(name="demo"),
        TrialArm(name="small", settings=SMALL_STEPS),
        TrialArm(name="large", settings=SETTINGS),
        TrialArm(name="pushed", settings={**NAIVE.settings, **SETTINGS, "ppo.updates": 150}),
    )
}
LABELS, SEEDS = 400, (0, 1)


def run(arm: TrialArm, seed: int, settings: Mapping[str, Any], labels: int) -> dict[str, Any]:
    """The report of one run in its own workspace, with the canary's curve and the flag's update."""
    return run_alone(
        arm,
        (1, labels),
        settings={"worker.nice": 15, "gate.canary_every": 10, **settings},
        look=during_training,
        annotators=ANNOTATORS,
        bad=BAD,
        seed=seed,
    )


def during_training(place: Path) -> dict[str, Any]:
    """The pass rate by update, and the updates that raised the flag."""
    events = [
        json.loads(line)
        for path in place.glob("runs/*/events.jsonl")
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    curve = {
        event["step"]: event["values"]["canary/pass_rate"]
        for event in events
        if event["kind"] == "metrics" and "canary/pass_rate" in event["values"]
    }
    flags = [e["step"] for e in events if e["kind"] == "note" and e["name"] == FLAG]
    return {"curve": sorted(curve.items()), "flagged": flags}


def table(held: Sequence[Mapping[str, Any]]) -> str:
    """A row for each run, as Markdown."""
    rows = []
    for arm in ARMS:
        for results in held:
            if arm not in results["arms"]:
                continue
            found = results["arms"][arm]
            last = found["iterations"][-1]
            canary = last["canary"]
            state = "blocks" if canary["blocks"] else "holds" if canary["holds"] else "lets through"
            rows.append((
                arm,
                results["seed"],
                f"{last['gold']['policy'] - last['gold']['sft']:+.2f}",
                f"{last['kl']:.1f}",
                f"{canary['reference']:.0%}",
                f"{canary['policy']:.0%}",
                f"{100 * canary['loss']:+.0f} [{100 * canary['low']:+.0f}, {100 * canary['high']:+.0f}]",
                ", ".join(f"{each['name']} {each['policy']:.0%}" for each in canary["checks"]),
                state,
                found["flagged"][0] if found["flagged"] else "none",
                "yes" if last["gate"] and last["gate"]["alarm"] else "no",
            ))  # fmt: skip
    header = (
        "run", "seed", "gold gain, sd", "KL", "SFT passes", "policy passes", "loss, points",
        "policy, by check", "canary", "flag at update", "over-optimization alarm",
    )  # fmt: skip
    return markdown(header, rows)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--folder", type=Path, default=RESULTS)
    parser.add_argument("--set", action="append", default=[], help="override a setting")
    parser.add_argument("--report", action="store_true", help="only print stored results")
    parser.add_argument("--labels", type=int, default=LABELS)
    args = parser.parse_args()
    settings = dict(item.split("=", 1) for item in args.set)
    held = run_seeds(
        lambda arm, seed: run(arm, seed, settings, args.labels),
        [ARMS[name] for name in args.arms],
        args.seeds,
        args.folder,
        conditions={
            "labels": args.labels, "annotators": ANNOTATORS, "bad": BAD, "settings": settings,
        },
        only_report=args.report,
    )  # fmt: skip
    print(table(held))
    return 0


if __name__ == "__main__":
    sys.exit(main())
