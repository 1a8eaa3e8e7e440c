"""The figures of a workspace, computed from its records only.  Does not import torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from pipeline.config.sections import Config
from pipeline.promotion import gate
from pipeline.promotion.model_board import model_board
from pipeline.reward.quality.ceiling import agreement as second_opinions
from pipeline.reward.quality.ceiling import agreement_group, items_of
from pipeline.reward.quality.figures import of_stream, quality, row_log_loss
from pipeline.reward.report.learning_curve import learning_curve
from pipeline.reward.report.verdict import verdict
from storage.analysis.agreement import agreement
from storage.analysis.checks import check_results
from storage.engine.database import Database
from storage.gate_records import Evidence
from storage.records import HELD_OUT_FILE, RANDOM_STREAM
from storage.reports import Quality, from_json, to_json
from storage.tables import models, policy_judgments
from storage.tables.model_judgments import judged

_COUNTS = """
    SELECT c.arm, a.kind, j.outcome, count(*) AS judgments
    FROM current_judgments AS j
    JOIN comparisons AS c ON c.id = j.comparison
    JOIN annotators AS a ON a.id = j.annotator
    GROUP BY ALL ORDER BY ALL
"""
# The judgments that a reward model had.
_SNAPSHOT = """
    SELECT j.id AS judgment, c.prompt, j.annotator, j.outcome, c.arm, f.text AS first, s.text AS second
    FROM snapshot_judgments AS n
    JOIN judgments AS j ON j.id = n.judgment
    JOIN comparisons AS c ON c.id = j.comparison
    JOIN completions AS f ON f.id = c.first
    JOIN completions AS s ON s.id = c.second
    WHERE n.snapshot = $snapshot ORDER BY j.id
"""
_CODES = {"first": 0, "second": 1}


@dataclass(frozen=True)
class _Judged:
    """What `pipeline.reward.quality.ceiling` reads of a `JudgedPair`."""

    judgment: str
    prompt: str
    annotator: str
    first: str
    second: str
    arm: str
    outcome: int

    @property
    def decisive(self) -> bool:
        return self.outcome in (0, 1)

    @property
    def random_stream(self) -> bool:
        return self.arm in RANDOM_STREAM


CURVE = "curve"
"""The folder of a reward model's learning curve."""


def figures(
    db: Database, config: Config, reward: Path, *, names: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """All figures as JSON values, by subject.

    `reward` has a folder for each reward model: held_out.parquet, and curve/ with the learning
    curve.  `names` maps annotators' ids to the names to show, by default the ids.  Figures that need
    the models' weights are those of training.
    """
    references = models.listing(db, role="sft")
    reference = references[-1].id if references else None
    return {
        "judgments": db.read(_COUNTS),
        "agreement": to_json(agreement(db, names=names)),
        "checks": {
            (names or {}).get(who, who): to_json(found) for who, found in check_results(db).items()
        },
        "gate": to_json(gate.report(_evidence(db), config)),
        "leaderboard": to_json(model_board(judged(db), reference=reference)),
        "reward models": {
            model.id: _reward_model(db, model.summary, model.snapshot, reward / model.id)
            for model in models.listing(db, role="reward")
            if (reward / model.id / HELD_OUT_FILE).exists()
        },
    }


def _evidence(db: Database) -> Evidence:
    """The gate's evidence without the names of the researchers who made rulings."""
    found = policy_judgments.evidence(db)
    unnamed = {policy: replace(each, researcher="") for policy, each in found.overrides.items()}
    return replace(found, overrides=unnamed)


def _reward_model(
    db: Database, summary: Mapping[str, Any], snapshot: str | None, folder: Path
) -> dict[str, Any]:
    """Its quality on held-out judgments, learning curve and verdict."""
    trained = from_json(Quality, summary["quality"])
    rows = pd.read_parquet(folder / HELD_OUT_FILE).to_dict("records")
    pairs = _pairs(db, snapshot)
    found = quality(
        rows,
        groups={
            pair.judgment: agreement_group(item)
            for item in items_of(pairs).values()
            for pair in item
        },
        log_loss=_log_loss(rows, summary, trained.log_loss),
        coin_log_loss=trained.coin_log_loss,
        agreed=second_opinions(pairs),
        expected=None,
    )
    if found.ceiling and trained.ceiling:
        found = replace(found, ceiling=replace(found.ceiling, expected=trained.ceiling.expected))
    curve = learning_curve(folder / CURVE)
    return {
        "quality": to_json(found),
        "learning curve": to_json(replace(curve, lines=None)),
        "verdict": to_json(verdict(found, curve.forecast)),
    }


def _pairs(db: Database, snapshot: str | None) -> list[Any]:
    rows: list[dict[str, Any]] = db.read(_SNAPSHOT, snapshot=snapshot)
    for row in rows:
        row["outcome"] = _CODES.get(row["outcome"], 2)
    return [_Judged(**row) for row in rows]


def _log_loss(
    rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], trained: float | None
) -> float | None:
    """Nats per judgment of the random stream; without ties under the tie model ``drop``.

    Training computes it in single precision, so its value stands if it is the same to six digits.
    """
    stream, decided = of_stream(rows)
    counted = decided if summary.get("tie_model") == "drop" else stream
    losses = [row_log_loss(row, summary.get("tie_model", "")) for row in counted]
    found = fmean(losses) if losses else None
    same = found is not None and trained is not None and math.isclose(found, trained, rel_tol=1e-6)
    return trained if same else found
