"""Policies that were compared with each other, written with the real modules."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from storage.engine.database import Database
from storage.gate_records import Prediction
from storage.records import (
    Annotator,
    Arm,
    Comparison,
    Completion,
    Iteration,
    Judgment,
    ModelVersion,
    Outcome,
    Prompt,
    PromptRole,
    new_id,
)
from storage.tables import iterations, models, prompts
from storage.tables.people import annotators

_numbers = count()


def add_models(db: Database, policies: int) -> None:
    """sft-1 and policy-1, policy-2, …, each trained against the reward model of its number."""
    models.add(db, ModelVersion(id="sft-1", role="sft", name="SFT", path="demo"))
    for n in range(1, policies + 1):
        add_policy(db, n)
    for name in ("ann", "bob"):
        annotators.add(db, Annotator(id=name, name=name))
    annotators.add(db, Annotator(id="robot", name="robot", kind="model"))
    train = [Prompt.make(f"How many is {n}?", role="train") for n in range(40)]
    prompts.add(db, [*train, Prompt.make("What is held out?", role="held-out")])


def add_policy(db: Database, n: int) -> None:
    """policy-N and the reward-N that it was trained against."""
    summary = {"theta": 0.5}
    (db.workspace / "models" / f"policy-{n}").mkdir(parents=True, exist_ok=True)
    models.add(
        db, ModelVersion(id=f"reward-{n}", role="reward", name=f"reward-{n}", summary=summary)
    )
    models.add(
        db,
        ModelVersion(
            id=f"policy-{n}", role="policy", name=f"policy-{n}", reward_model=f"reward-{n}",
            path=f"models/policy-{n}",
        ),
    )  # fmt: skip


def add_iteration(db: Database, number: int, **more: object) -> Iteration:
    """Iteration `number`, done unless `phase` says otherwise: sampled policy N−1, produced N."""
    values: dict = {
        "phase": "done",
        "policy_sampled": f"policy-{number - 1}" if number > 1 else "sft-1",
        "policy_produced": f"policy-{number}",
        "reward_model": f"reward-{number}",
        "labels_wanted": 100,
    }
    return iterations.save(db, Iteration(number=number, **(values | more)))


def compare(
    db: Database,
    first: str,
    second: str,
    outcomes: Sequence[Outcome | None],
    *,
    arm: Arm = "reference",
    iteration: int = 2,
    annotator: str = "ann",
    predicted: float | None = None,
    by: str = "reward-1",
    role: PromptRole = "train",
) -> list[str]:
    """One comparison and judgment an outcome, each on a prompt of its own; ids of the judgments.

    A pair without an outcome stays in the queue."""
    made: list[Judgment] = []
    stored: list[object] = []
    for outcome in outcomes:
        n = next(_numbers)
        prompt = Prompt.make(f"question {n}", role=role)
        stored.append(prompt)
        stored += [
            Completion(
                id=f"k{n}-{side}", prompt=prompt.id, policy=policy, text=f"answer {side} {n}"
            )
            for side, policy in ((1, first), (2, second))
        ]
        pair = Comparison(
            id=f"c{n}", prompt=prompt.id, first=f"k{n}-1", second=f"k{n}-2",
            iteration=iteration, arm=arm,
        )  # fmt: skip
        stored.append(pair)
        if outcome is None:
            continue
        made.append(
            Judgment(
                id=new_id("j"), comparison=pair.id, annotator=annotator, outcome=outcome,
                shown_swapped=False,
            )
        )  # fmt: skip
        stored.append(made[-1])
        if predicted is not None:
            seen = {"first": predicted, "first_score": 1.0, "second_score": 0.0}
            stored.append(Prediction(comparison=pair.id, reward_model=by, **seen))
    db.write(lambda tx: tx.store(*stored))
    return [judgment.id for judgment in made]
