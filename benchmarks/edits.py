"""Does learning from edits pay?  Four ways to use the same human time, on the demo.

    python -m benchmarks edits [--seeds 0 1 2 …] [--labels 400] [--edits 0.5] [--report]

Every seed draws prompts, the embedded model's answers to them, eight annotators (a quarter of them
bad) and pairs.  The annotators label the same pairs in the same order, and all arms stop after the
time that `--labels` judgments without edits take (the simulated milliseconds of each judgment):

* `none`: nobody edits;
* `collected`: the share `--edits` of the preferences comes with an edit, which takes time, so there
  are fewer judgments; nothing learns from the edits;
* `learned`: the reward model learns also that an edit is better than its original
  (`reward.learn_from_edits`);
* `sft`: the embedded model is fine-tuned on the edits (`sft.edits`), and the reward model starts from
  the result, as the reward stage does.

Edits are those of `pipeline/simulation/edits.py`: every edit is better than its original by the hidden
gold preference.  Training has the settings of pipeline/config/presets/demo.toml, as in the reward
stage.  Figures are on other prompts:

* accuracy: how often rewards order two answers of the embedded model as gold does;
* policy: mean gold score of the answers of the arm's policy, the embedded model or the fine-tuned one;
* best of 8: mean gold score of the answer with the highest reward among eight of that policy;
* PPO: mean gold score of the answers after PPO on the arm's reward model, from that policy.

Writes one JSON file per seed; arms that are in it are not repeated.  `--report` only prints stored
results: means, and paired differences with Student's 95% intervals over seeds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch

from benchmarks.common import ROOT, markdown
from benchmarks.demo_world import (
    ANSWERS,
    CONFIG,
    SAMPLED,
    Fitted,
    Label,
    Pool,
    World,
    judged_pair,
    quietly,
    reward_settings,
)
from benchmarks.seeds import run_seeds
from pipeline.config.reward import RewardConfig
from pipeline.demo import MODEL_DIR
from pipeline.models.generate import Sampler
from pipeline.models.text import ChatTokenizer, Messages
from pipeline.reward.data import JudgedPair
from pipeline.reward.likelihood import FIRST, OUTCOME_CODES, UNSTATED
from pipeline.runs.rundir import Job, Report, RunDirectory
from pipeline.simulation.annotators import population
from pipeline.simulation.clients import LeasedPair
from pipeline.simulation.preference import score
from pipeline.simulation.report import PairJudge
from pipeline.simulation.trials import Estimate, TrialArm, paired
from pipeline.stages import policy, sft
from storage.records import as_messages, messages_json
from storage.sides import canonical_outcome

RESULTS = ROOT / "benchmarks" / "results" / "edits"
ANNOTATORS, BAD = 8, 0.25
PPO = {"ppo.updates": 120, "ppo.epochs": 2, "ppo.lr": 5e-5}
"""Smaller steps than the demo's, as in the stored runs."""
SFT: dict[str, Any] = {"sft.lr": 5e-4, "sft.epochs": 1.0, "sft.batch": 16}
ARMS = {name: TrialArm(name=name) for name in ("none", "collected", "learned", "sft")}
FIGURES = ("accuracy", "policy", "best of 8", "PPO")
COMPARED = (
    ("collected", "none"),
    ("learned", "none"),
    ("learned", "collected"),
    ("sft", "none"),
    ("sft", "collected"),
)


@dataclass(frozen=True, kw_only=True)
class Given:
    """What one annotator gave for a pair; `edit` is "" without one."""

    label: Label
    edit: str
    milliseconds: int

    @property
    def preferred(self) -> int:
        return self.label.first if self.label.outcome == FIRST else self.label.second


def labeled(world: World, pairs: Sequence[tuple[int, int]], edits: float) -> list[Given]:
    """The judgments of all pairs, in order; they are the same for every share of edits."""
    people = population(ANNOTATORS, bad=BAD, seed=world.seed)
    judges = [
        PairJudge(each, score, seed=world.seed, shuffle=False, edits=edits) for each in people
    ]
    found = []
    for first, second in pairs:
        coin = np.random.default_rng([world.seed, 1, first, second])
        who, swapped = int(coin.integers(ANNOTATORS)), bool(coin.integers(2))
        left, right = (second, first) if swapped else (first, second)
        shown = LeasedPair(
            id=f"{first} {second}", prompt=question(world.conversations[first]),
            left=world.texts[left], right=world.texts[right],
        )  # fmt: skip
        said = judges[who](shown)
        outcome = canonical_outcome(said.outcome, shown_swapped=swapped)
        label = Label(
            first=first, second=second, outcome=OUTCOME_CODES[outcome],
            strength=said.strength or UNSTATED, annotator=people[who].name,
            side=-1 if swapped else 1,
        )  # fmt: skip
        found.append(Given(label=label, edit=said.edit, milliseconds=said.milliseconds))
    return found


def question(messages: Messages) -> str:
    """The text of a conversation with one message."""
    return as_messages(messages)[-1].content


def within(given: Sequence[Given], milliseconds: int) -> list[Given]:
    """The first judgments that fit into the time."""
    ends = np.cumsum([each.milliseconds for each in given])
    return list(given[: int(np.searchsorted(ends, milliseconds, side="right"))])


def edit_pair(world: World, given: Given, judged: JudgedPair, chat: ChatTokenizer) -> JudgedPair:
    """The edit against its original, as the reward stage reads it."""
    ids = chat.chat(world.conversations[given.preferred], given.edit).ids
    original = "first" if given.label.outcome == FIRST else "second"
    return replace(
        judged,
        first=f"edit-{judged.judgment}", first_ids=ids, first_length=len(ids),
        second=getattr(judged, original), second_ids=getattr(judged, f"{original}_ids"),
        second_length=getattr(judged, f"{original}_length"),
        outcome=FIRST, strength=UNSTATED, side=0, edited=True, arm="written",
    )  # fmt: skip


def fine_tuned(world: World, given: Sequence[Given], folder: Path) -> Path:
    """The embedded model after the SFT stage on the edits."""
    rows = [
        {"prompt": str(each.preferred // ANSWERS), "response": each.edit,
         "messages": messages_json(as_messages(world.conversations[each.preferred]))}
        for each in given if each.edit
    ]  # fmt: skip
    job = Job(
        run="sft", stage="sft", iteration=0, config=CONFIG.override(SFT), seed=world.seed,
        models={"policy": str(MODEL_DIR)},
    )  # fmt: skip
    directory = RunDirectory.create(folder / "sft", job)
    pd.DataFrame(rows).to_parquet(directory.inputs / "examples.parquet")
    with Report(directory) as report:
        sft.run(job, report, directory)
    return directory.model


def optimized(world: World, fitted: Fitted, base: Path, folder: Path, updates: int) -> Path:
    """The policy after the PPO stage, from `base` on the reward model, with the labeled prompts."""
    fitted.model.save(folder / "reward")
    rows = [
        {"id": str(n), "messages": messages_json(as_messages(world.conversations[n * ANSWERS]))}
        for n in range(world.held_out)
    ]
    job = Job(
        run="ppo", stage="policy", iteration=1, config=CONFIG.override({**PPO, "ppo.updates": updates}),
        seed=world.seed,
        models={"policy": str(base), "reference": str(base), "reward": str(folder / "reward")},
    )  # fmt: skip
    directory = RunDirectory.create(folder / "ppo", job)
    pd.DataFrame(rows).assign(category="").to_parquet(directory.inputs / "prompts.parquet")
    with Report(directory) as report:
        policy.run(job, report, directory)
    return directory.model


def run_arm(
    arm: TrialArm, world: World, pool: Pool, args: argparse.Namespace, config: RewardConfig,
    chat: ChatTokenizer,
) -> dict[str, Any]:  # fmt: skip
    """Label, train as the stages do, and measure."""
    pairs = world.random_pairs(args.labels, chat)
    plain = labeled(world, pairs, 0.0)
    budget = sum(each.milliseconds for each in plain)
    given = plain if arm.name == "none" else within(labeled(world, pairs, args.edits), budget)
    judged = [judged_pair(world, each.label, n, chat) for n, each in enumerate(given)]
    learned = list(judged)
    if arm.name == "learned":
        both = zip(given, judged, strict=True)
        learned += [edit_pair(world, each, pair, chat) for each, pair in both if each.edit]
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        base = fine_tuned(world, given, folder) if arm.name == "sft" else MODEL_DIR
        fitted = Fitted.to(learned, chat, config, seed=world.seed, base=base)
        start = world.held_out_answers().start
        asked = world.conversations[start::ANSWERS]
        texts = drawn(asked, base, world.seed) if arm.name == "sft" else pooled(world, pool)
        gold = gold_scores(asked, texts)
        final = optimized(world, fitted, base, folder, args.updates)
        return {
            "accuracy": world.accuracy(
                np.array(fitted.model(world.conversations[start:], world.texts[start:]))
            ),
            "policy": float(gold.mean()),
            "best of 8": float(gold[np.arange(len(gold)), best_of(fitted, asked, texts)].mean()),
            "PPO": float(gold_scores(asked, drawn(asked, final, world.seed)).mean()),
            "judgments": len(given),
            "edits": sum(bool(each.edit) for each in given),
            "hours": budget / 3_600_000,
            "cpu_seconds": fitted.cpu_seconds,
        }


def gold_scores(asked: Sequence[Messages], texts: Sequence[str]) -> np.ndarray:
    """(N, SAMPLED) gold scores of the answers to N conversations."""
    prompts = [question(messages) for messages in asked for _ in range(SAMPLED)]
    scores = [score(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]
    return np.array(scores).reshape(-1, SAMPLED)


def best_of(fitted: Fitted, asked: Sequence[Messages], texts: Sequence[str]) -> np.ndarray:
    """(N,) the index of the answer with the highest reward."""
    conversations = [messages for messages in asked for _ in range(SAMPLED)]
    return np.array(fitted.model(conversations, texts)).reshape(-1, SAMPLED).argmax(axis=1)


def pooled(world: World, pool: Pool) -> list[str]:
    """All answers of the embedded model to the held-out prompts, eight each."""
    prompts = [row // SAMPLED for row in world.rows[world.held_out_answers().start :: ANSWERS]]
    return [pool.texts[prompt * SAMPLED + n] for prompt in prompts for n in range(SAMPLED)]


def drawn(asked: Sequence[Messages], model: Path, seed: int) -> list[str]:
    """Eight answers of a model to each conversation, sampled as those of the pool."""
    sampler = Sampler.load(str(model), device=torch.device("cpu"), dtype=torch.float32)
    answers = sampler.sample(
        [messages for messages in asked for _ in range(SAMPLED)], batch=64, seed=seed,
        temperature=CONFIG.sampling.temperatures[0], top_p=CONFIG.sampling.top_p,
        max_new_tokens=CONFIG.sampling.max_new_tokens,
    )  # fmt: skip
    return [answer.text for answer in answers]


def seed_results(args: argparse.Namespace, config: RewardConfig) -> list[dict[str, Any]]:
    """The results of each seed; missing ones are computed, unless --report is set."""
    quietly()
    chat = ChatTokenizer.load(str(MODEL_DIR))
    pool = cache(lambda: Pool.sampled(args.pool))

    @lru_cache(maxsize=1)
    def world(seed: int) -> World:
        return World.draw(seed, pool(), asked=pool().train, measured=args.measured)

    def run(arm: TrialArm, seed: int) -> dict[str, Any]:
        found = run_arm(arm, world(seed), pool(), args, config, chat)
        shown = {name: round(found[name], 3) for name in (*FIGURES, "judgments", "edits")}
        print(f"  {shown}", file=sys.stderr, flush=True)
        return found

    conditions = {
        "labels": args.labels, "edits": args.edits, "measured": args.measured,
        "annotators": ANNOTATORS, "bad": BAD, "sft": SFT, "updates": args.updates,
        "reward": asdict(config),
    }  # fmt: skip
    return run_seeds(
        run, [ARMS[name] for name in args.arms], args.seeds, args.folder,
        conditions=conditions, only_report=args.report,
    )  # fmt: skip


def table(held: Sequence[Mapping[str, Any]]) -> str:
    """Means of the arms, and paired differences, as Markdown."""
    values = {
        arm: {each["seed"]: each["arms"][arm] for each in held if arm in each["arms"]}
        for arm in ARMS
    }
    rows: list[tuple[Any, ...]] = []
    for arm, by_seed in values.items():
        if not by_seed:
            continue
        means = {
            name: Estimate.of([found[name] for found in by_seed.values()]).mean
            for name in ("judgments", "edits", *FIGURES)
        }
        counts = [f"{means[name]:.0f}" for name in ("judgments", "edits")]
        rows.append((arm, len(by_seed), *counts, *(f"{means[name]:.3f}" for name in FIGURES)))
    for one, other in COMPARED:
        both = values[one].keys() & values[other].keys()
        if not both:
            continue
        cells = [
            Estimate.of(paired(*(
                {seed: found[name] for seed, found in values[arm].items()} for arm in (one, other)
            ))).text(3, signed=True)
            for name in FIGURES
        ]  # fmt: skip
        rows.append((f"{one} − {other}", len(both), "", "", *cells))
    return markdown(("arm", "seeds", "judgments", "edits", *FIGURES), rows)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(8)))
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--labels", type=int, default=400, help="judgments of the arm none")
    parser.add_argument("--edits", type=float, default=0.5, help="share of preferences, 0 to 1")
    parser.add_argument("--measured", type=int, default=250, help="held-out prompts per seed")
    parser.add_argument("--updates", type=int, default=PPO["ppo.updates"], help="of PPO")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="of [reward]")
    parser.add_argument("--folder", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true", help="only print stored results")
    parser.add_argument(
        "--pool", type=int, help="number of prompts of each role to sample answers to; default: all"
    )
    args = parser.parse_args()
    try:
        config = reward_settings(args.set)
    except ValueError as error:
        parser.error(str(error))
    print(table(seed_results(args, config)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
