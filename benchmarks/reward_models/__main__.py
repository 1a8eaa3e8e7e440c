"""Ablations of the reward model on the demo, measured with the gold preference.

    python -m benchmarks.reward_models ties [--seeds 0 1 2] [--labels 300] [--set epochs=1 lr=5e-4]
    python -m benchmarks.reward_models annotators [--labels 1500] ... [--report]
    python -m benchmarks.reward_models times [--labels 300] ... [--report]

Every seed draws prompts, the embedded model's answers to them, annotators, and judgments of random
pairs; a prompt repeats only after all prompts had a pair.  All arms of a seed learn from the same
judgments with the settings of pipeline/config/presets/demo.toml, as in the reward stage: it holds
out a share of the judgments, uses another share for early stopping if that is large enough, and
scales rewards to fit both.  Rewards are the mean over members.  They are measured on other prompts,
over all pairs of four answers:

* accuracy: how often rewards order a pair as gold does;
* log-loss and ECE of preferences by careful annotators who labeled no training data, two judgments
  per pair: the model predicts first with probability σ(log P(first) − log P(second)), which every
  tie model defines; *trained* figures are those of rewards before scaling;
* scale: the factor on the trained rewards, and the factor that would have fitted best;
* correlation of rewards with gold over all answers, and of prompts' mean rewards with mean gold.

`ties` compares the tie models, and Rao and Kupper's with *both bad* as a plain tie.  Annotators are
careful and state strengths, which only `ordinal` uses.  `annotators` compares a learned slope and
side bias for each annotator (joint) with none (pooled), for 20 annotators of whom 30% or none are
bad; the optional arm oracle learns only from the careful ones.  AUC measures how well annotator
estimates separate bad from careful annotators: the weights and slopes that the reward stage
reports, from judgments that the measuring model did not learn from, and the slopes learned with the
rewards.

`times` compares learning from choices with learning also from response times
(`reward.response_times`), with and without stated strengths, for 16 annotators of whom a quarter are
bad.  Clear pairs are decided faster, as in the drift-diffusion model, or (*noise*) times have nothing
to do with the preference.

`judges` adds a model judge to few labels by people.  The judge is asked in both orders and has a
position bias; *sharp* agrees with gold as a careful person does, *verbose* also likes long answers, and
*guessing* knows nothing.  Its slope is learned as a person's is, unless *pooled*.  *Routed*: people
label the pairs on which the judge contradicts itself.

`anchors` compares *both bad* as a tie with *both bad* as a tie between low rewards, for annotators who
press it often.

`shift` learns from judgments of the reference's answers and of a policy's (best of 4), from all alike,
with earlier judgments weighted by their density under the policy, or from the policy's alone.

`pessimism` trains the finished reward model further on its judgments, against the gain that it promises
for best of four (PET, arXiv:2505.20556), with two weights and without.

Writes one JSON file per part and seed; arms that are in it are not repeated.  `--report` only
prints stored results, with Student's 95% intervals of paired differences over seeds.  The exit
status is 1 if ten seeds or more miss a target.
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
from benchmarks.reward_models.arms import Arm
from benchmarks.reward_models.measures import Fresh
from benchmarks.reward_models.one_run import run_arm
from benchmarks.reward_models.parts import PARTS
from benchmarks.reward_models.report import report
from benchmarks.seeds import run_seeds
from pipeline.config.reward import RewardConfig
from pipeline.demo import MODEL_DIR
from pipeline.models.text import ChatTokenizer


def seed_results(args: argparse.Namespace, config: RewardConfig) -> list[dict[str, Any]]:
    """The results of each seed; missing ones are computed, unless --report is set."""
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
        shown = {name: found[name] for name in ("accuracy", "cpu_seconds")}
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
    parser.add_argument("--arms", nargs="+", help="default: all but the optional ones")
    parser.add_argument("--labels", type=int, help="judgments per seed; 300 for ties, 1500 …")
    parser.add_argument("--measured", type=int, default=250, help="held-out prompts per seed")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="of [reward]")
    parser.add_argument("--folder", type=Path, default=CACHE / "reward_models")
    parser.add_argument("--report", action="store_true", help="only print stored results")
    parser.add_argument(
        "--pool", type=int, help="number of prompts of each role to sample answers to; default: all"
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
    held = seed_results(args, config)
    return report(args.part, part.arms, {each["seed"]: each["arms"] for each in held})


if __name__ == "__main__":
    sys.exit(main())
