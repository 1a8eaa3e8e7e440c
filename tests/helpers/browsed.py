"""A few judgments with every mark that the judgment browser knows."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from storage.engine.database import Database
from storage.gate_records import Prediction
from storage.records import (
    Annotator,
    Comparison,
    Completion,
    Exclusion,
    Flag,
    Iteration,
    Judgment,
    ModelVersion,
    Prompt,
    Run,
    Snapshot,
)
from storage.tables import comparisons, completions, iterations, models, prompts
from storage.tables.people import annotators
from storage.tables.runs import runs

TEXTS = {
    "c-1": ("How do I boil rice?", "Rinse it first.", "Use a fish kettle."),
    "c-2": ("What is a prime?", "A number with two divisors.", "An odd number."),
    "c-3": ("Write a haiku.", "Leaves fall on stone.", "Roses are red."),
    "c-4": ("Name a bird.", "Wren.", "Bat."),
}
CATEGORIES = {"c-1": "advice", "c-2": "facts", "c-3": "poems", "c-4": "facts"}
ARMS = {"c-1": "random", "c-2": "random", "c-3": "bald", "c-4": "random"}
ITERATIONS = {"c-1": 1, "c-2": 1, "c-3": 2, "c-4": 2}


def fill(db: Database) -> None:
    """Seven judgments, j-1 to j-7, of four pairs.

    ====  ====  =========  ========  ==============================================
    id    pair  annotator  outcome   marks
    ====  ====  =========  ========  ==============================================
    j-1   c-1   ann        first     disagreement
    j-2   c-1   bob        second    disagreement, surprise (first is given 0.9)
    j-3   c-2   ann        second    comment, surprise (first is given 0.8)
    j-4   c-3   bob        first     flag; agrees with the prediction 0.7
    j-5   c-3   ann        tie       flag; excluded, so c-3 is not in disagreement
    j-6   c-4   ann        both_bad  no prediction
    j-7   c-4   robot      first     a model, so c-4 is not in disagreement
    ====  ====  =========  ========  ==============================================
    """
    for name, kind in (("ann", "person"), ("bob", "person"), ("robot", "model")):
        annotators.add(db, Annotator(id=f"id-{name}", name=name, kind=kind))
    annotators.add(db, Annotator(id="rosa", name="Rosa", role="researcher"))
    models.add(db, ModelVersion(id="policy-1", role="policy", name="policy-1"))
    for comparison in TEXTS:
        _pair(db, comparison)
    for number in (1, 2):
        iterations.save(db, Iteration(number=number, phase="labeling"))
    db.write(
        lambda tx: tx.store(
            _judgment("j-1", "c-1", "ann", "first"),
            _judgment("j-2", "c-1", "bob", "second"),
            _judgment("j-3", "c-2", "ann", "second", comment="Divisors matter HERE"),
            _judgment("j-4", "c-3", "bob", "first"),
            _judgment("j-5", "c-3", "ann", "tie"),
            _judgment("j-6", "c-4", "ann", "both_bad"),
            _judgment("j-7", "c-4", "robot", "first"),
            Flag(id="f-1", comparison="c-3", annotator="id-bob", comment="rude"),
            Exclusion(judgment="j-5", excluded=True, reason="half asleep", researcher="rosa"),
            Prediction(
                comparison="c-3", reward_model="reward-1", first=0.7, first_score=1, second_score=0
            ),
            # The file of the newest reward model has another prediction for this pair.
            Prediction(
                comparison="c-2", reward_model="reward-1", first=0.2, first_score=0, second_score=1
            ),
            Snapshot(hash="s-1", iteration=1, judgments=("j-1", "j-3")),
        )
    )
    _reward_model(db)


def _pair(db: Database, id: str) -> None:
    question, first, second = TEXTS[id]
    prompt = Prompt.make(question, role="train", category=CATEGORIES[id])
    prompts.add(db, [prompt])
    texts = {"x": first, "y": second}
    completions.add(
        db,
        [
            Completion(id=f"{id}-{side}", prompt=prompt.id, policy="policy-1", text=text)
            for side, text in texts.items()
        ],
    )
    made = Comparison(
        id=id, prompt=prompt.id, first=f"{id}-x", second=f"{id}-y",
        iteration=ITERATIONS[id], arm=ARMS[id],
    )  # fmt: skip
    comparisons.add(db, [made])


def _judgment(id: str, comparison: str, annotator: str, outcome, **more) -> Judgment:
    return Judgment(
        id=id, comparison=comparison, annotator=f"id-{annotator}", outcome=outcome,
        shown_swapped=False, milliseconds=4200, **more,
    )  # fmt: skip


def _reward_model(db: Database) -> None:
    """reward-2 and the file of the pairs on which it was measured."""
    run = Run(id="run-r", stage="reward", iteration=2, status="succeeded", directory="runs/run-r")
    runs.save(db, replace(run, progress=1.0))
    outputs = db.workspace / run.directory / "outputs"
    outputs.mkdir(parents=True)
    rows = [
        {"judgment": "j-1", "comparison": "c-1", "expected": 0.9},
        {"judgment": "j-2", "comparison": "c-1", "expected": 0.9},
        {"judgment": "j-3", "comparison": "c-2", "expected": 0.8},
    ]
    pd.DataFrame(rows).to_parquet(outputs / "held_out.parquet")
    model = ModelVersion(id="reward-2", role="reward", name="reward-2", run="run-r", snapshot="s-1")
    models.add(db, model)
