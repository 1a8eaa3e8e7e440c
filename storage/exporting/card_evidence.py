"""The judgments behind a model or a dataset, as its card states them: counts, never names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from storage.analysis.agreement import Agreement
from storage.engine.database import Database
from storage.records import LEARNED_FROM, AnnotatorKind
from storage.tables.policy_judgments import EVALUATION_ARMS
from storage.wording import plural

_OF_SNAPSHOT = "SELECT judgment AS id FROM snapshot_judgments WHERE snapshot = $snapshot"
_OF_POLICY = """
    SELECT j.id FROM current_judgments AS j
    JOIN annotators AS a ON a.id = j.annotator
    JOIN comparisons AS c ON c.id = j.comparison
    JOIN completions AS f ON f.id = c.first
    JOIN completions AS s ON s.id = c.second
    WHERE list_contains($arms, c.arm) AND list_contains($kinds, a.kind)
      AND f.policy <> s.policy AND $policy IN (f.policy, s.policy)
"""
_CURRENT = "SELECT id FROM current_judgments"
_JUDGED = "WITH judged AS (SELECT j.* FROM judgments AS j JOIN ({chosen}) AS c ON c.id = j.id)"
_KINDS = f"""
    {_JUDGED} SELECT a.kind, count(*) AS judgments, count(DISTINCT j.annotator) AS annotators
    FROM judged AS j JOIN annotators AS a ON a.id = j.annotator GROUP BY a.kind ORDER BY a.kind
"""
_GUIDELINES = f"""
    {_JUDGED} SELECT guidelines AS version, count(*) AS judgments
    FROM judged GROUP BY 1 ORDER BY min(created_at), version
"""
# The newest ruling on each pair, beside the outcome that most people gave, NULL if there is none.
_RULINGS = f"""
    {_JUDGED},
    votes AS (
        SELECT j.comparison, j.outcome, count(*) AS n FROM current_judgments AS j
        JOIN annotators AS a ON a.id = j.annotator WHERE a.kind <> 'model' GROUP BY ALL),
    most AS (SELECT * FROM votes QUALIFY n = max(n) OVER (PARTITION BY comparison)),
    winner AS (
        SELECT comparison, CASE count(*) WHEN 1 THEN min(outcome) END AS outcome
        FROM most GROUP BY comparison)
    SELECT count(*) AS pairs, count(*) FILTER (r.outcome = w.outcome) AS confirmed,
           count(*) FILTER (r.outcome <> w.outcome) AS changed
    FROM rulings AS r LEFT JOIN winner AS w USING (comparison)
    WHERE r.comparison IN (SELECT comparison FROM judged)
"""
_NOUNS = {
    "person": ("person", "people"),
    "simulated": ("simulated annotator", "simulated annotators"),
    "model": ("model judge", "model judges"),
}


@dataclass(frozen=True, kw_only=True)
class KindCount:
    """The judgments of the annotators of one kind."""

    kind: AnnotatorKind
    judgments: int
    annotators: int


@dataclass(frozen=True, kw_only=True)
class Rulings:
    """Pairs with a ruling of an adjudicator; the newest ruling on each counts.

    `confirmed` have the outcome that most people gave, `changed` another one; on the others, no
    outcome has the most votes.
    """

    pairs: int = 0
    confirmed: int = 0
    changed: int = 0


@dataclass(frozen=True, kw_only=True)
class JudgmentGroup:
    """A group of judgments; `guidelines` counts them by version, oldest first, None if unknown."""

    kinds: Sequence[KindCount] = ()
    guidelines: Mapping[str | None, int]
    rulings: Rulings

    @property
    def judgments(self) -> int:
        return sum(each.judgments for each in self.kinds)


def of_snapshot(db: Database, snapshot: str) -> JudgmentGroup:
    """The judgments of a snapshot, also those that were revised since."""
    return _group(db, _OF_SNAPSHOT, snapshot=snapshot)


def of_policy(db: Database, policy: str) -> JudgmentGroup:
    """The judgments that compare a policy with another model, as the gate counts them."""
    arms, kinds = list(EVALUATION_ARMS), list(LEARNED_FROM)
    return _group(db, _OF_POLICY, policy=policy, arms=arms, kinds=kinds)


def all_rulings(db: Database) -> Rulings:
    """The rulings on all pairs with current judgments."""
    return Rulings(**db.read(_RULINGS.format(chosen=_CURRENT))[0])


def _group(db: Database, chosen: str, **parameters: object) -> JudgmentGroup:
    kinds, versions, [ruled] = (
        db.read(sql.format(chosen=chosen), **parameters) for sql in (_KINDS, _GUIDELINES, _RULINGS)
    )
    return JudgmentGroup(
        kinds=[KindCount(**row) for row in kinds],
        guidelines={row["version"]: row["judgments"] for row in versions},
        rulings=Rulings(**ruled),
    )


# --- sentences ----------------------------------------------------------------------------------


def judged_by(kinds: Sequence[KindCount]) -> str:
    """As in "96 judgments by 3 people and 8 judgments by 1 model judge"."""
    counted = [
        f"{plural(each.judgments, 'judgment')} by {plural(each.annotators, *_NOUNS[each.kind])}"
        for each in kinds
    ]
    return " and ".join(counted) or "none"


def under_guidelines(counts: Mapping[str | None, int]) -> str:
    """As in "version `0a1b` (80 judgments), not recorded (3 judgments)"."""
    named = [
        f"{'not recorded' if version is None else f'version `{code(version)}`'} ({plural(n, 'judgment')})"
        for version, n in counts.items()
    ]
    return ", ".join(named) or "not recorded"


def ruled(found: Rulings) -> str:
    """What adjudicators decided, and that no figure uses it."""
    if not found.pairs:
        return "none on these pairs."
    open_votes = found.pairs - found.confirmed - found.changed
    parts = [
        f"{found.confirmed} confirmed the outcome with the most votes",
        f"{found.changed} changed it",
        *([f"{open_votes} decided a pair on which no outcome had the most votes"] if open_votes else []),
    ]  # fmt: skip
    return (
        f"on {plural(found.pairs, 'pair')}: {', '.join(parts)}. Training and figures use the "
        "judgments, not the rulings."
    )


def agreed(found: Agreement) -> str:
    """Agreement with its intervals, or that it was not measured."""
    if not found.items or found.percent is None:
        return "not measured, because no pair was judged by two annotators."
    alpha = (
        "undefined"
        if found.alpha is None
        else f"{found.alpha:.2f}{_interval(found.alpha_interval, '.2f')}"
    )
    return (
        f"{found.percent:.1%}{_interval(found.percent_interval, '.1%')} on "
        f"{plural(found.items, 'pair')} of the workspace that two or more annotators judged; "
        f"Krippendorff's alpha (nominal) {alpha}."
    )


def code(text: str) -> str:
    """A text that cannot end a code span or a line: imported versions are free text."""
    return " ".join(text.replace("`", "'").split())


def _interval(bounds: Sequence[float] | None, form: str) -> str:
    return f" (95% interval {bounds[0]:{form}} to {bounds[1]:{form}})" if bounds else ""
