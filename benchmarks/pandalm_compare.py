"""Reward models trained on PandaLM's judgments: learned annotators, pooled votes, or majority
votes.

Three arms learn from three judgments per pair, so they take the same number of steps: the three votes
with a slope and a side bias for each annotator (joint), the votes without them (pooled), and the majority
vote three times (majority).  A fourth one is the naive arm of `benchmarks.label_efficiency`: plain
Bradley-Terry on the votes that are not ties, without annotators, one network.

Prompts are divided into ten parts.  Seed k holds out part k mod 10, and every tenth seed divides them
again, so the first ten seeds measure every judgment once.  The measures are accuracy and the log-loss of first, second and tie, on single votes
and on majorities.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from benchmarks.common import markdown
from benchmarks.demo_world import Fitted, quietly
from benchmarks.seeds import run_seeds
from pipeline.config.reward import RewardConfig
from pipeline.demo import MODEL_DIR
from pipeline.models.text import ChatTokenizer
from pipeline.reward.data import JudgedPair
from pipeline.reward.likelihood import FIRST, SECOND, TIE, UNSTATED, Likelihood
from pipeline.simulation.trials import NAIVE, Estimate, TrialArm, paired
from storage.records import digest

JOINT = TrialArm(name="joint", settings={"reward.annotators": True})
POOLED = TrialArm(name="pooled", settings={"reward.annotators": False})
MAJORITY = TrialArm(name="majority", settings={"reward.annotators": False})
ARMS = (JOINT, POOLED, MAJORITY, NAIVE)
PARTS = 10
FIGURES = ("accuracy", "log_loss", "majority_accuracy", "majority_log_loss")
_CODES = {"a": FIRST, "b": SECOND, "tie": TIE}


@dataclass(frozen=True, kw_only=True)
class Votes:
    """The votes on pairs that fit, three in a row per pair; the numbers of pairs that do not."""

    votes: Sequence[JudgedPair]
    beyond_context: int
    beyond_limit: int

    @classmethod
    def of_rows(
        cls, rows: Iterator[Mapping[str, Any]], chat: ChatTokenizer, *, context: int, limit: int
    ) -> Votes:
        """Read rows for an import; leave out pairs with a text of more than `limit` tokens."""
        votes: list[JudgedPair] = []
        left_out = Counter[bool]()
        for row in rows:
            sides = [
                chat.chat(row["prompt"], str(row[side])) for side in ("response_a", "response_b")
            ]
            longest = max(len(side.ids) for side in sides)
            if longest > min(limit, context):
                left_out[longest > context] += 1
                continue
            lengths = [len(side.ids) - side.prompt_tokens for side in sides]
            votes.append(
                JudgedPair(
                    judgment=f"{row['item']} {row['annotator']}", prompt=row["prompt"],
                    first=f"{row['item']} a", second=f"{row['item']} b",
                    first_ids=sides[0].ids, second_ids=sides[1].ids,
                    first_length=lengths[0], second_length=lengths[1],
                    outcome=_CODES[row["outcome"]], strength=UNSTATED,
                    annotator=row["annotator"], side=1,
                )
            )  # fmt: skip
        return cls(
            votes=votes, beyond_context=left_out[True] // 3, beyond_limit=left_out[False] // 3
        )


def majorities(votes: Sequence[JudgedPair]) -> list[JudgedPair]:
    """Each vote replaced by its pair's majority vote; if no two votes agree, that is a tie."""
    said: dict[str, Counter[int]] = {}
    for vote in votes:
        said.setdefault(vote.first, Counter())[vote.outcome] += 1
    verdicts = {pair: counts.most_common(1)[0] for pair, counts in said.items()}
    return [
        replace(vote, outcome=outcome if count > 1 else TIE)
        for vote in votes
        for outcome, count in [verdicts[vote.first]]
    ]


def split_votes(
    votes: Sequence[JudgedPair], seed: int
) -> tuple[list[JudgedPair], list[JudgedPair]]:
    """Training and held-out votes, with no prompt in both."""
    prompts = {vote.prompt for vote in votes}
    order = sorted(prompts, key=lambda prompt: digest("part", str(seed // PARTS), prompt))
    held_out = set(order[seed % PARTS :: PARTS])
    return (
        [vote for vote in votes if vote.prompt not in held_out],
        [vote for vote in votes if vote.prompt in held_out],
    )


def run_arm(
    arm: TrialArm,
    votes: Sequence[JudgedPair],
    seed: int,
    config: RewardConfig,
    chat: ChatTokenizer,
) -> dict[str, Any]:
    """Train on nine parts as the reward stage does, and measure on the tenth."""
    rest, held_out = split_votes(votes, seed)
    judged = majorities(rest) if arm is MAJORITY else rest
    settings = {
        name.removeprefix("reward."): value
        for name, value in arm.settings.items()
        if name.startswith("reward.")
    }
    fitted = Fitted.to(judged, chat, replace(config, **settings), seed=seed)
    network, known = fitted.model.network, fitted.model.network.annotators
    first, second = fitted.model.both_sides(held_out)
    d = torch.tensor(first, dtype=torch.float64) - torch.tensor(second, dtype=torch.float64)
    likelihood, ties = (
        Likelihood(tie_model=network.likelihood.tie_model, both_bad="tie"),
        network.ties.values(),
    )
    found: dict[str, Any] = {}
    for prefix, judged in (("", held_out), ("majority_", majorities(held_out))):
        outcomes = torch.tensor([vote.outcome for vote in judged])
        toward = torch.where(outcomes == SECOND, -d, d)[outcomes < TIE].sign()
        found[f"{prefix}accuracy"] = ((1 + toward) / 2).mean().item()
        if likelihood.tie_model != "drop":  # else ties have no probability
            found[f"{prefix}log_loss"] = likelihood.loss(d, outcomes, ties=ties).mean().item()
    return found | {
        "learned": len(fitted.learned),
        "held_out": len(held_out),
        "epochs": round(fitted.epochs, 2),
        "scale": fitted.scale,
        "slopes": dict(zip(known.ids, (1 + known.delta).tolist(), strict=True)) if known else None,
        "cpu_seconds": fitted.cpu_seconds,
    }


def compare(
    rows: Iterator[Mapping[str, Any]], args: argparse.Namespace, config: RewardConfig, context: int
) -> None:
    """Run the missing seeds and print the results as Markdown."""
    quietly()
    chat = ChatTokenizer.load(str(MODEL_DIR))
    found = Votes.of_rows(rows, chat, context=context, limit=args.max_tokens)

    def run(arm: TrialArm, seed: int) -> dict[str, Any]:
        made = run_arm(arm, found.votes, seed, config, chat)
        shown = {name: made[name] for name in FIGURES if name in made}
        print(f"  {shown}", file=sys.stderr, flush=True)
        return made

    held = run_seeds(
        run,
        ARMS,
        args.seeds,
        args.folder,
        conditions={"max_tokens": args.max_tokens, "reward": asdict(config)},
        only_report=args.report,
    )
    pairs = len(found.votes) // 3
    print(
        f"{pairs} pairs with three votes each on {len({v.prompt for v in found.votes})} prompts; left "
        f"out: {found.beyond_context} with a text over the context of {context} tokens, "
        f"{found.beyond_limit} more over --max-tokens {args.max_tokens}.\n"
    )
    report({each["seed"]: each["arms"] for each in held})


def report(found: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> None:
    """Means of the arms and their paired differences, with 95% intervals over seeds."""

    def values(arm: TrialArm, name: str) -> dict[int, float]:
        return {
            seed: arms[arm.name][name]
            for seed, arms in found.items()
            if name in arms.get(arm.name, {})
        }

    def cell(known: Sequence[float], digits: int, *, signed: bool = False) -> str:
        return Estimate.of(known).text(digits, signed=signed) if known else ""

    names = [name.replace("_", " ") for name in FIGURES]
    rows: list[tuple[Any, ...]] = []
    for arm in ARMS:
        if seconds := values(arm, "cpu_seconds"):
            cells = [cell([*values(arm, name).values()], 3) for name in FIGURES]
            took = sum(seconds.values()) / len(seconds)
            rows.append((arm.name, len(seconds), *cells, f"{took:.0f}"))
    gains: list[tuple[Any, ...]] = []
    for ours, theirs in ((JOINT, MAJORITY), (JOINT, POOLED), (POOLED, MAJORITY), (JOINT, NAIVE)):
        if values(ours, "accuracy").keys() & values(theirs, "accuracy").keys():
            differences = [paired(values(ours, name), values(theirs, name)) for name in FIGURES]
            cells = [cell(each, 4, signed=True) for each in differences]
            gains.append((f"{ours.name} − {theirs.name}", *cells))
    print(markdown(("arm", "seeds", *names, "CPU seconds per training"), rows))
    print(f"\n{markdown(('paired difference', *names), gains)}")
