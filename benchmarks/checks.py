"""Do gold pairs and re-asks find careless annotators, with 40 judgments each?

    python -m benchmarks.checks [--seeds 6] [--annotators 50] [--each 40] [--careless 0.3]

A seed draws responses with eight features, a hidden preference that is linear in them (scores of
standard deviation 1), and annotators of `pipeline.simulation.annotators`, of whom the share
`--careless` guesses.  They get pairs from the queue of a real workspace: a tenth goes to two
annotators, and gold pairs and re-asks come as the settings of each arm say.  Gold pairs are either
imported (pairs whose scores differ by 2.5 or more, as a researcher would choose them) or made by
`storage.labeling.gold.make` from pairs that other annotators of the same kind judged before, three
for each pair.

For each kind of evidence the benchmark ranks the annotators and prints the AUC of careless against
careful ones, with its standard error over seeds: gold pairs, re-asks, both (share of matched
checks), agreement with others, and the slope of the annotator model, fitted with the rewards to all
judgments, without and with gold pairs.  Speed is left out, because whoever wants to can wait.

Then 2,000 annotators of each kind judge 12 practice pairs, which are as clear as imported gold pairs,
and the benchmark counts who passes.

The exit status is 1 unless gold pairs and re-asks together reach .95 in the arm `first 10`, and at
least 95% of careful annotators pass practice.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, repeat
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from benchmarks.common import exit_status, markdown
from pipeline.reward.annotators import AnnotatorEffects, effective
from pipeline.reward.gold import GoldJudgment, gold_prior
from pipeline.reward.likelihood import OUTCOME_CODES, UNSTATED, Likelihood, TieValues
from pipeline.simulation.annotators import AnnotatorProfile, SimulatedAnnotator, population
from storage.analysis.checks import CheckResult, check_results, practice_state
from storage.analysis.reliability import annotator_figures
from storage.engine.database import Database
from storage.labeling import gold, judgments, queue
from storage.records import (
    Annotator,
    Check,
    Comparison,
    Completion,
    Iteration,
    Prompt,
    new_id,
)
from storage.tables.settings import CheckPlan, set_check_plan

FEATURES = 8
CLEAR = 2.5
"""Least difference of scores of an imported gold pair."""
OVERLAP = 0.1
GOLD_PAIRS = 40
TARGET = 0.95
F64 = torch.float64
LIKELIHOOD = Likelihood(tie_model="rao_kupper", both_bad="tie")


@dataclass(frozen=True)
class Arm:
    """Settings of the checks, and whether gold is made from judgments instead of imported."""

    name: str
    plan: CheckPlan
    made: bool = False


DEFAULTS = CheckPlan()
ARMS = (
    Arm("no first gold: 2% gold, 3% re-asks after 50", CheckPlan(gold_first=0)),
    Arm("defaults: first 6", DEFAULTS),
    Arm("first 10", CheckPlan(gold_first=10)),
    Arm("first 10, made from judgments", CheckPlan(gold_first=10), made=True),
    Arm("re-asks only: 25% after 10", CheckPlan(gold_share=0, reask_share=0.25, reask_after=10)),
    Arm("first 10, re-asks 15% after 10",
        CheckPlan(gold_first=10, reask_share=0.15, reask_after=10)),
)  # fmt: skip


@dataclass
class World:
    """Texts of a seed with their features, and what was stored about them."""

    rng: np.random.Generator
    weights: np.ndarray
    features: dict[str, np.ndarray] = field(default_factory=dict)

    def score(self, text: str) -> float:
        return float(self.weights @ self.features[text])

    def pair(self, prompt: str, n: int, **made: Any) -> list[Any]:
        """A pair of new responses of a prompt."""
        texts = [f"{prompt} response {n}.{side}" for side in ("one", "two")]
        for text in texts:
            self.features[text] = self.rng.normal(size=FEATURES)
        asked = Prompt.make(prompt, role="train")
        answers = [
            Completion(id=new_id("k"), prompt=asked.id, policy="m", text=text) for text in texts
        ]
        comparison = Comparison(
            id=new_id("c"), prompt=asked.id, first=answers[0].id, second=answers[1].id,
            iteration=1, arm="random", position=int(self.rng.integers(2**62)),
            wanted=2 if self.rng.random() < OVERLAP else 1,
        )  # fmt: skip
        return [asked, *answers, Comparison(**(vars(comparison) | made))]

    def difference(self, stored: Sequence[Any]) -> float:
        first, second = (each.text for each in stored if isinstance(each, Completion))
        return self.score(first) - self.score(second)


def run(arm: Arm, *, seed: int, count: int, each: int, careless: float) -> dict[str, list[float]]:
    """The scores of every annotator by kind of evidence, and ``careless``: 1 for careless ones."""
    rng = np.random.default_rng([seed, 7])
    weights = rng.normal(size=FEATURES)
    world = World(rng, weights / np.linalg.norm(weights))
    people = population(count, bad=careless, seed=seed, profiles=("careless",))
    with tempfile.TemporaryDirectory() as folder, Database.open(Path(folder) / "w") as db:
        prepare(db, world, arm, seed=seed, careless=careless, pairs=count * each)
        people_of = {person.name: person for person in people}
        db.write(lambda tx: tx.store(*(annotator(name) for name in people_of)))
        for person in people:
            label(db, world, person, each)
        return scores(db, world, people)


def annotator(name: str) -> Annotator:
    return Annotator(id=name, name=name, kind="simulated")


def prepare(
    db: Database, world: World, arm: Arm, *, seed: int, careless: float, pairs: int
) -> None:
    """Store the pairs of the queue, and gold pairs as the arm says."""
    if arm.made:
        make_gold(db, world, population(12, bad=careless, seed=seed + 1000, profiles=("careless",)))
    else:
        db.write(lambda tx: tx.store(*imported_gold(world)))
    number = 2 if arm.made else 1
    for begin in range(0, pairs, 1000):
        made = [
            record for n in range(begin, min(begin + 1000, pairs))
            for record in world.pair(f"question {n}?", n, iteration=number)
        ]  # fmt: skip
        db.write(lambda tx, made=made: tx.store(*made))
    db.write(lambda tx: tx.store(Iteration(number=number, phase="labeling")))
    set_check_plan(db, arm.plan)


def imported_gold(world: World) -> list[Any]:
    found: list[Any] = []
    n = 0
    while sum(isinstance(record, Check) for record in found) < GOLD_PAIRS:
        records = world.pair(f"gold question {n}?", n, arm="gold", iteration=0)
        n += 1
        d = world.difference(records)
        if abs(d) >= CLEAR:
            id = next(each.id for each in records if isinstance(each, Comparison))
            answer = "first" if d > 0 else "second"
            found += [*records, Check(comparison=id, kind="gold", answer=answer)]
    return found


def make_gold(db: Database, world: World, people: Sequence[SimulatedAnnotator]) -> None:
    """Others judge 300 pairs, three each; the gold pairs are made from those judgments."""
    made = [r for n in range(300) for r in world.pair(f"earlier question {n}?", n, wanted=3)]
    names = [f"earlier-{person.name}" for person in people]
    db.write(lambda tx: tx.store(*made, *map(annotator, names)))
    db.write(lambda tx: tx.store(Iteration(number=1, phase="labeling")))
    set_check_plan(db, CheckPlan(gold_share=0, reask_share=0))
    for person, name in zip(people, names, strict=True):
        label(db, world, person, 10_000, name=name)
    gold.make(db, GOLD_PAIRS)
    # Only the newest iteration is labeled; these pairs stay in the history.
    db.write(lambda tx: tx.store(Iteration(number=1, phase="done")))


def label(
    db: Database, world: World, person: SimulatedAnnotator, most: int, *, name: str = ""
) -> None:
    """The annotator judges up to `most` pairs, one after another as on the page."""
    given = 0
    while given < most and (leased := queue.lease(db, name or person.name, 8).pairs):
        for pair in leased[: most - given]:
            left, right = world.score(pair.left), world.score(pair.right)
            choice = person.judge(left=left, right=right, words=60, rng=world.rng)
            judgments.judge(
                db, id=new_id("j"), comparison=pair.comparison.id, annotator=name or person.name,
                outcome=choice.outcome, milliseconds=choice.milliseconds,
            )  # fmt: skip
            given += 1


def scores(
    db: Database, world: World, people: Sequence[SimulatedAnnotator]
) -> dict[str, list[float]]:
    """Higher is more careful; an annotator without evidence has the mean of the others."""
    checks, agreed = check_results(db), annotator_figures(db)
    names = [person.name for person in people]
    results = [checks.get(name) for name in names]
    golden = [each.gold if each else CheckResult() for each in results]
    again = [each.reask if each else CheckResult() for each in results]
    both = [one + other for one, other in zip(golden, again, strict=True)]
    found: dict[str, Sequence[float | None]] = {
        "gold": [each.share for each in golden],
        "re-asks": [each.share for each in again],
        "gold and re-asks": [each.share for each in both],
        "agreement with others": [agreed[name].agreement for name in names],
        "slope": slopes(db, world, names, with_gold=False),
        "slope with gold": slopes(db, world, names, with_gold=True),
    }
    filled = {name: _filled(values) for name, values in found.items()}
    return filled | {
        "careless": [float(person.profile == "careless") for person in people],
        "checks": [float(each.answered) for each in both],
    }


def _filled(values: Sequence[float | None]) -> list[float]:
    known = [value for value in values if value is not None]
    usual = fmean(known) if known else 0.0
    return [usual if value is None else value for value in values]


_JUDGED = """
    SELECT j.annotator, j.outcome, j.shown_swapped, f.text AS first, s.text AS second
    FROM current_judgments AS j
    JOIN comparisons AS c ON c.id = j.comparison
    JOIN completions AS f ON f.id = c.first
    JOIN completions AS s ON s.id = c.second
    WHERE list_contains($names, j.annotator)
"""
_GOLD = """
    SELECT j.annotator, j.outcome, j.shown_swapped, k.answer
    FROM standing_judgments AS j JOIN checks AS k ON k.comparison = j.comparison
    WHERE k.kind = 'gold' AND list_contains($names, j.annotator)
"""


def slopes(db: Database, world: World, names: Sequence[str], *, with_gold: bool) -> list[float]:
    """Slopes of the annotator model, fitted with linear rewards to all judgments."""
    rows = db.read(_JUDGED, names=list(names))
    features = np.array([world.features[r["first"]] - world.features[r["second"]] for r in rows])
    x = torch.tensor(features, dtype=F64)
    side = torch.tensor([-1.0 if row["shown_swapped"] else 1.0 for row in rows], dtype=F64)
    who = torch.tensor([names.index(row["annotator"]) for row in rows])
    outcomes = torch.tensor([OUTCOME_CODES[row["outcome"]] for row in rows])
    prior = None
    if with_gold:
        answers = [_gold_judgment(row) for row in db.read(_GOLD, names=list(names))]
        prior = gold_prior(answers, names, likelihood=LIKELIHOOD, ties=TieValues(theta=0.35))
    effects = AnnotatorEffects(names, prior).double()
    weights = torch.zeros(FEATURES, dtype=F64, requires_grad=True)
    raw = torch.zeros((), dtype=F64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weights, raw, *effects.parameters()], max_iter=200, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        slope, bias = effects(who)
        z = effective(x @ weights, slope, bias, side)
        fit = LIKELIHOOD.loss(z, outcomes, ties=TieValues(theta=softplus(raw))).sum()
        loss = fit + effects.penalty() + weights.square().sum() / 2
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]
    return effects.delta.tolist()


def _gold_judgment(row: Mapping[str, object]) -> GoldJudgment:
    return GoldJudgment(
        annotator=str(row["annotator"]), sign=1 if row["answer"] == "first" else -1,
        outcome=OUTCOME_CODES[str(row["outcome"])], strength=UNSTATED,
        side=-1 if row["shown_swapped"] else 1,
    )  # fmt: skip


def practice_passed(profile: AnnotatorProfile, *, people: int = 2000, pairs: int = 12) -> float:
    """The share of annotators of a profile who pass practice."""
    rng = np.random.default_rng(5)
    bad = 0.0 if profile == "careful" else 1.0
    passed = 0
    for person in population(people, bad=bad, seed=5, profiles=(profile,)):
        matched = 0
        drawn = (rng.normal(size=2) for _ in repeat(None))
        clear = (pair for pair in drawn if abs(pair[0] - pair[1]) >= CLEAR)
        for left, right in islice(clear, pairs):
            choice = person.judge(left=left, right=right, words=60, rng=rng)
            matched += choice.outcome == ("a" if left > right else "b")
        found = CheckResult(answered=pairs, matched=matched)
        mark = CheckPlan().practice_mark
        passed += practice_state(found, pairs=pairs, mark=mark) == "passed"
    return passed / people


def auc(scores: Iterable[float], bad: Iterable[float]) -> float:
    """The probability that a careless annotator scores below a careful one; ties count half."""
    pairs = list(zip(scores, bad, strict=True))
    low = np.array([score for score, is_bad in pairs if is_bad])
    high = np.array([score for score, is_bad in pairs if not is_bad])
    below = (low[:, None] < high).mean() + 0.5 * (low[:, None] == high).mean()
    return float(below)


def main() -> int:
    parser = argparse.ArgumentParser(description="Do checks find careless annotators?")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--annotators", type=int, default=50)
    parser.add_argument("--each", type=int, default=40)
    parser.add_argument("--careless", type=float, default=0.3)
    given = parser.parse_args()
    if given.seeds < 2:
        parser.error(f"--seeds is {given.seeds} and must be at least 2")
    kinds = ["gold", "re-asks", "gold and re-asks", "agreement with others", "slope",
             "slope with gold"]  # fmt: skip
    table, reached = [], 0.0
    for arm in ARMS:
        found: dict[str, list[float]] = {kind: [] for kind in [*kinds, "checks"]}
        for seed in range(given.seeds):
            result = run(
                arm, seed=seed, count=given.annotators, each=given.each, careless=given.careless
            )
            for kind in kinds:
                found[kind].append(auc(result[kind], result["careless"]))
            found["checks"].append(fmean(result["checks"]))
        cells = [
            f"{fmean(found[kind]):.3f} ± {stdev(found[kind]) / len(found[kind]) ** 0.5:.3f}"
            for kind in kinds
        ]
        table.append([arm.name, f"{fmean(found['checks']):.1f}", *cells])
        print(table[-1], file=sys.stderr, flush=True)
        if arm.name == "first 10":
            reached = fmean(found["gold and re-asks"])
    print(markdown(["arm", "checks", *kinds], table))
    kinds_of: tuple[AnnotatorProfile, ...] = ("careful", "careless")
    admitted = {kind: practice_passed(kind) for kind in kinds_of}
    print(f"\npractice passed: {', '.join(f'{k} {share:.3f}' for k, share in admitted.items())}")
    missed = [] if reached >= TARGET else [f"AUC {reached:.3f} is below {TARGET}"]
    if admitted["careful"] < TARGET:
        missed.append(f"{admitted['careful']:.3f} of careful annotators pass practice")
    return exit_status(missed)


if __name__ == "__main__":
    sys.exit(main())
