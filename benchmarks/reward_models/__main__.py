"""What the parts of the reward model buy, on the demo's gold preference.

    python -m benchmarks.reward_models ties [--seeds 0 1 2] [--labels 300] [--set epochs=1 lr=5e-4]
    python -m benchmarks.reward_models annotators [--labels 1500] ... [--report]

Every seed draws prompts, answers of the embedded model to them, annotators, and judgments of
random pairs, one a prompt until all have one.  All arms of a seed learn from the same judgments
by the settings of pipeline/config/presets/demo.toml, and as the reward stage does: it holds out a share of them,
lets another say when to stop where it is large enough, and puts rewards on the scale that both fit.
Rewards are the mean over members.  They are measured on further prompts, all pairs of four answers:

* accuracy: how often they order a pair as the gold does;
* log-loss and ECE of the preferences of careful annotators whom no model has met, two judgments a
  pair: by the model the first is preferred with σ(log P(first) − log P(second)), which every tie
  model says; *trained* ones are of the rewards as they were before they were put to scale;
* scale: what trained rewards were multiplied by, and the factor that would have fitted best;
* correlation of rewards with gold over all answers, and of prompts' mean rewards with mean gold.

`ties`: the tie models, and Rao and Kupper's with *both bad* read as a tie and no more.  Annotators
are careful and state strengths, which `ordinal` alone reads.  `annotators`: a slope and a leaning
learned for each annotator (joint) or not (pooled), with 20 of whom 30% or none are bad, and, when
asked for, from the careful ones alone (oracle).  AUC is how well the bad are told from the careful:
by weight and slope as the reward stage reports them, from judgments that the measuring model did
not learn from; and by the slopes that were learned with the rewards.

One JSON a part and seed is written, and arms that are in it are not run again.  `--report` only
prints what they say, with Student's 95% intervals of paired differences over seeds.  The exit
status is 1 where ten seeds or more do not show what is wanted.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from benchmarks.common import CACHE
from benchmarks.demo_world import Pool, World, quietly, reward_settings
from benchmarks.reward_models.measures import Fresh
from benchmarks.reward_models.parts import PARTS, Arm, run_arm
from benchmarks.reward_models.report import report
from benchmarks.seeds import run_seeds
from pipeline.config.reward import RewardConfig
from pipeline.demo import MODEL_DIR
from pipeline.models.text import ChatTokenizer


def held_seeds(args: argparse.Namespace, config: RewardConfig) -> list[dict[str, Any]]:
    """What each seed holds: what is missing is made, unless only a report is asked for."""
    part = PARTS[args.part]
    quietly()
    chat = ChatTokenizer.load(str(MODEL_DIR))
    pool = cache(lambda: Pool.sampled(args.pool))

    @lru_cache(maxsize=1)
    def world(seed: int) -> tuple[World, Fresh]:
        drawn = World.draw(seed, pool(), asked=pool().train, measured=args.measured)
        return drawn, Fresh.judged(drawn, chat)

    def run(arm: Arm, seed: int) -> dict[str, Any]:
        found = run_arm(part, arm, *world(seed), config, args.labels, chat)
        shown = {name: found[name] for name in ("accuracy", "log_loss", "cpu_seconds")}
        print(f"  {shown}", file=sys.stderr, flush=True)
        return found

    conditions = {
        "labels": args.labels,
        "annotators": part.annotators,
        "measured": args.measured,
        "reward": asdict(config),
    }
    return run_seeds(
        run,
        [part.arms[name] for name in args.arms],
        args.seeds,
        args.folder / args.part,
        conditions=conditions,
        only_report=args.report,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--arms", nargs="+", help="by default all but the optional ones")
    parser.add_argument("--labels", type=int, help="judgments per seed; 300 for ties, 1500")
    parser.add_argument("--measured", type=int, default=250, help="held-out prompts per seed")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="of [reward]")
    parser.add_argument("--folder", type=Path, default=CACHE / "reward_models")
    parser.add_argument("--report", action="store_true", help="only print what there is")
    parser.add_argument(
        "--pool", type=int, help="sample answers to so many prompts of each role; all by default"
    )
    args = parser.parse_args()
    part = PARTS[args.part]
    args.arms = args.arms or [arm for arm in part.arms if arm not in part.optional]
    if unknown := sorted(set(args.arms) - set(part.arms)):
        parser.error(f"no arm {', '.join(unknown)}; {args.part} has {', '.join(part.arms)}")
    args.labels = args.labels or part.labels
    try:
        config = reward_settings(args.set)
    except ValueError as error:
        parser.error(str(error))
    held = held_seeds(args, config)
    return report(args.part, part.arms, {each["seed"]: each["arms"] for each in held})


if __name__ == "__main__":
    sys.exit(main())
