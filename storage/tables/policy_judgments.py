"""Judgments between two policies, with the predictions and rulings on them.

Only the random stream counts.  Comparisons that a reward model chose (such as the arm `bald`)
over-represent pairs on which it is uncertain, and imported ones are of other models.  Judgments by
models do not count either, because the gate measures human preference.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pandas as pd
from pydantic import TypeAdapter

from storage.engine import lookup
from storage.engine.database import Database
from storage.gate_records import (
    CanaryResults,
    Candidate,
    Evidence,
    GateOverride,
    PolicyJudgment,
    Prediction,
    Ruling,
    StandingRuling,
)
from storage.records import LEARNED_FROM, MAX_REASON_LENGTH, Arm, new_id
from storage.tables import iterations, models

EVALUATION_ARMS: tuple[Arm, ...] = ("random", "previous", "reference")

_JUDGED = """
    SELECT j.comparison, c.prompt, c.iteration, f.policy AS first, s.policy AS second,
           CASE j.outcome WHEN 'first' THEN 1.0 WHEN 'second' THEN 0.0 ELSE 0.5 END::DOUBLE AS outcome,
           p.first AS predicted, p.reward_model, j.id AS judgment
    FROM current_judgments AS j
    JOIN (SELECT comparison, annotator, min(created_at) AS since FROM judgments GROUP BY ALL) AS made
        USING (comparison, annotator)
    JOIN annotators AS a ON a.id = j.annotator
    JOIN comparisons AS c ON c.id = j.comparison
    JOIN completions AS f ON f.id = c.first
    JOIN completions AS s ON s.id = c.second
    LEFT JOIN predictions AS p ON p.comparison = j.comparison
    WHERE list_contains($arms, c.arm) AND list_contains($kinds, a.kind) AND f.policy <> s.policy
      AND ($between IS NULL
           OR (list_contains($between, f.policy) AND list_contains($between, s.policy)))
    ORDER BY made.since, j.comparison, j.annotator
"""

_PAIRS = """
    SELECT c.id AS comparison, p.messages::VARCHAR AS messages,
           f.text AS first_text, s.text AS second_text
    FROM comparisons AS c
    JOIN prompts AS p ON p.id = c.prompt
    JOIN completions AS f ON f.id = c.first
    JOIN completions AS s ON s.id = c.second
    WHERE c.iteration = $iteration AND list_contains($arms, c.arm) AND f.policy <> s.policy
    ORDER BY c.id
"""
_CANARY = TypeAdapter(CanaryResults)
_OVERRIDES = "SELECT * FROM gate_overrides ORDER BY created_at, id"


def judged(db: Database, *, between: tuple[str, str] | None = None) -> list[PolicyJudgment]:
    """Current judgments between two policies by people, oldest first; `between` names the two.

    A revised judgment keeps the place of its annotator's first judgment of the pair: the sequential
    test reads judgments in this order, which a correction must not change.
    """
    rows = db.read(
        _JUDGED,
        arms=list(EVALUATION_ARMS),
        kinds=list(LEARNED_FROM),
        between=list(between) if between else None,
    )
    return [PolicyJudgment(**row) for row in rows]


def evidence(db: Database, *, between: tuple[str, str] | None = None) -> Evidence:
    """The current evidence; `between` leaves out judgments of other policies than these two."""
    references = models.listing(db, role="sft")
    newest = iterations.latest(db)
    evaluations = {
        each.policy_produced: each.evaluation
        for each in iterations.listing(db)
        if each.policy_produced
    }
    known = [*references[-1:], *models.listing(db, role="policy")]
    return Evidence(
        judged=judged(db, between=between),
        policies=[model.id for model in known],
        reference=references[-1].id if references else None,
        iteration=Candidate(
            number=newest.number,
            policy=iterations.candidate(db, newest),
            labels=newest.labels_wanted,
        )
        if newest
        else None,
        proxies={model.id: model.reward_model for model in known},
        kl_weights={model.id: model.summary.get("kl_weight") for model in known},
        leads={policy: found.get("lead", 1.0) for policy, found in evaluations.items()},
        canaries={
            policy: _CANARY.validate_python(results)
            for policy, found in evaluations.items()
            if (results := found.get("canary"))
        },
        overrides={
            o.policy: StandingRuling(
                ruling=o.ruling,
                reason=o.reason,
                researcher=o.researcher,
                at=o.created_at.isoformat(timespec="seconds"),
            )
            for o in overrides(db)
        },
    )


def overrides(db: Database) -> list[GateOverride]:
    """Every ruling by a researcher, oldest first."""
    return lookup.select(db, GateOverride, _OVERRIDES)


def override(
    db: Database, policy: str, ruling: str, *, reason: str, researcher: str = ""
) -> GateOverride:
    """Store a ruling (promote, block or evidence) on a policy.

    ValueError for an invalid ruling, a reason that is blank or longer than `MAX_REASON_LENGTH`, the
    reference, or `evidence` without a ruling to withdraw; NotFound for an unknown policy.
    """
    if len(reason) > MAX_REASON_LENGTH:
        raise ValueError(
            f"a reason has at most {MAX_REASON_LENGTH:,} characters; this one has {len(reason):,}"
        )
    if models.get(db, policy).role != "policy":
        raise ValueError(f"{policy} is not a trained policy; the gate judges only trained policies")
    rulings = {each.policy: each.ruling for each in overrides(db)}  # the latest of each
    if ruling == "evidence" == rulings.get(policy, "evidence"):
        raise ValueError(f"there is no ruling on {policy} to withdraw; the evidence decides")
    made = GateOverride(
        id=new_id("g"),
        policy=policy,
        ruling=cast("Ruling", ruling),  # the record checks it
        reason=reason.strip(),
        researcher=researcher,
    )
    db.write(lambda tx: tx.store(made))
    return made


def write_pairs_input(db: Database, inputs: Path, *, iteration: int, proxy: str | None) -> int:
    """Write evaluation_pairs.parquet, the iteration's comparisons of two policies.

    Returns their number; writes no file without comparisons or without a reward model.
    """
    if proxy is None:
        return 0
    arms = list(EVALUATION_ARMS)
    path = inputs / "evaluation_pairs.parquet"
    count = db.copy_to_parquet(_PAIRS, path, iteration=iteration, arms=arms)
    if not count:
        path.unlink()
    return count


def import_predictions_output(db: Database, outputs: Path, *, proxy: str | None) -> int:
    """Store outputs/predictions.parquet, if there is one; returns how many were new."""
    path = outputs / "predictions.parquet"
    if proxy is None or not path.exists():
        return 0
    rows: Sequence[dict[str, Any]] = pd.read_parquet(path).to_dict("records")
    made = [Prediction(reward_model=proxy, **row) for row in rows]
    return db.write(lambda tx: tx.store(*made))
