"""What a study needs of the database to train a reward model again without some judgments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from storage.engine.database import Database
from storage.errors import NotFound
from storage.records import AnnotatorKind, EvaluatedCompletion, ModelVersion, Run, messages_json
from storage.reports import JudgmentCount, RetrainOffer
from storage.tables import iterations, models
from storage.tables.runs import runs
from storage.worker_files import evaluated

_COLUMNS = ("policy", "prompt", "messages", "text", "reference_text")
_FACTS = """
    SELECT j.id AS judgment, a.name AS annotator, a.kind, j.guidelines, j.created_at, j.outcome
    FROM judgments AS j JOIN annotators AS a ON a.id = j.annotator
    WHERE j.id IN (SELECT unnest($ids)) ORDER BY j.id
"""

_CHOICES = """
    SELECT a.name, a.kind, coalesce(j.guidelines, '') AS guidelines, count(*) AS n,
           min(j.created_at) AS first, max(j.created_at) AS last
    FROM snapshot_judgments AS s JOIN judgments AS j ON j.id = s.judgment
    JOIN annotators AS a ON a.id = j.annotator
    WHERE s.snapshot = $snapshot GROUP BY ALL ORDER BY ALL
"""


@dataclass(frozen=True, kw_only=True)
class JudgmentFacts:
    """Who gave a judgment, when, and under which version of the guidelines (None if unknown).

    `annotator` is a name.
    """

    judgment: str
    annotator: str
    kind: AnnotatorKind
    guidelines: str | None
    created_at: datetime
    outcome: str


def judgment_facts(db: Database, ids: Sequence[str]) -> list[JudgmentFacts]:
    """The facts of these judgments, also of those that were revised or withdrawn since."""
    return [JudgmentFacts(**row) for row in db.read(_FACTS, ids=list(ids))]


def retrain_offer(db: Database, model: ModelVersion) -> RetrainOffer:
    """What of the judgments of a reward model can be left out."""
    rows = db.read(_CHOICES, snapshot=model.snapshot)
    counted = {name: Counter[str]() for name in ("name", "kind", "guidelines")}
    for row in rows:
        for name, counts in counted.items():
            counts[row[name]] += row["n"]
    choices = {
        name: tuple(JudgmentCount(value=value, judgments=n) for value, n in sorted(counts.items()))
        for name, counts in counted.items()
    }
    return RetrainOffer(
        model=model.id,
        iteration=model.iteration or 0,
        seconds=model.summary.get("seconds"),
        annotators=choices["name"],
        kinds=choices["kind"],
        guidelines=tuple(each for each in choices["guidelines"] if each.value),
        first=min((row["first"] for row in rows), default=None),
        last=max((row["last"] for row in rows), default=None),
    )


def trained_model(db: Database, iteration: int | None = None) -> tuple[ModelVersion, Run]:
    """The reward model of an iteration, by default of the newest that has one, and its run.

    Raises ValueError if there is none.
    """
    known = models.listing(db, role="reward")
    if not known:
        raise ValueError("there is no reward model yet; train once (`launch.py iterate`) first")
    found = [model for model in known if iteration in (None, model.iteration)]
    if not found:
        have = ", ".join(str(model.iteration) for model in known)
        raise ValueError(
            f"iteration {iteration} has no reward model; iterations with one are: {have}"
        )
    model = found[-1]
    try:
        return model, runs.get(db, model.run or "")
    except NotFound:
        raise ValueError(f"{model.id} cannot be trained again: its run is not recorded") from None


def write_evaluations(db: Database, path: Path) -> list[str]:
    """Write a Parquet file: for each policy, the responses of the iteration that trained it.

    The k-th response of a policy to a prompt is paired with the reference's k-th.  Returns the
    policies that have no stored evaluation.
    """
    rows: list[dict[str, Any]] = []
    missing = []
    for iteration in iterations.listing(db):
        if iteration.policy_produced is None:
            continue
        try:
            found = evaluated(db, iteration.number)
        except (ValueError, FileNotFoundError):
            missing.append(iteration.policy_produced)
            continue
        rows += _paired_responses(found, iteration.policy_produced)
    pd.DataFrame(rows, columns=list(_COLUMNS)).to_parquet(path, index=False)
    return missing


def _paired_responses(found: Sequence[EvaluatedCompletion], policy: str) -> list[dict[str, Any]]:
    ours, theirs = (
        [each for each in found if each.policy_role == role] for role in ("policy", "reference")
    )
    return [
        {
            "policy": policy,
            "prompt": one.prompt,
            "messages": messages_json(one.messages),
            "text": one.text,
            "reference_text": two.text,
        }
        for one, two in zip(ours, theirs, strict=True)
    ]
