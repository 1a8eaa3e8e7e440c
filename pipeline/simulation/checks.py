"""What gold pairs, re-asks and practice say about simulated annotators, whose profiles are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.simulation.annotators import AnnotatorProfile, SimulatedAnnotator
from storage.analysis.intervals import clearly_below


@dataclass(frozen=True, kw_only=True)
class CheckedAnnotator:
    """The checks of one annotator."""

    name: str
    profile: AnnotatorProfile
    gold: int
    """Gold pairs answered."""
    gold_share: float | None
    """The share of them answered as expected."""
    reasks: int
    reask_share: float | None
    """The share of re-asks judged the same again."""
    practice: str
    """Its state, as on the Annotators tab."""
    found: bool
    """Whether practice is below the mark, or one of the shares is below that of the others by more
    than chance (the remark of the Annotators tab)."""


@dataclass(frozen=True, kw_only=True)
class CheckedGroup:
    """The checks of all careful annotators, or of all bad ones."""

    group: Literal["careful", "bad"]
    annotators: int
    """Those who answered a check."""
    found: int
    gold: int
    gold_share: float | None
    reasks: int
    reask_share: float | None
    passed_practice: int
    """Annotators."""


@dataclass(frozen=True, kw_only=True)
class ChecksReport:
    """The checks at the end of a simulation; annotators who answered none are left out."""

    groups: tuple[CheckedGroup, ...]
    annotators: tuple[CheckedAnnotator, ...]


def checks_report(
    status: Mapping[str, Any], annotators: Sequence[SimulatedAnnotator]
) -> ChecksReport | None:
    """The report, from the ``checks`` of the workspace's status; None without answers."""
    profiles: dict[str, AnnotatorProfile] = {each.name: each.profile for each in annotators}
    rows = [row for row in status["annotators"] if row["name"] in profiles]
    if not rows:
        return None
    checked = [_checked(row, rows, profiles[row["name"]]) for row in rows]
    kinds: tuple[Literal["careful", "bad"], ...] = ("careful", "bad")
    groups = [
        _group(kind, [a for a in checked if (a.profile == "careful") == (kind == "careful")])
        for kind in kinds
    ]
    return ChecksReport(
        groups=tuple(group for group in groups if group.annotators), annotators=tuple(checked)
    )


def _checked(
    row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], profile: AnnotatorProfile
) -> CheckedAnnotator:
    others = [other for other in rows if other is not row]
    missed = [_misses(row[kind], [other[kind] for other in others]) for kind in ("gold", "reask")]
    return CheckedAnnotator(
        name=row["name"],
        profile=profile,
        gold=row["gold"]["answered"],
        gold_share=row["gold"]["share"],
        reasks=row["reask"]["answered"],
        reask_share=row["reask"]["share"],
        practice=row["practice_state"],
        found=any(missed) or row["practice_state"] == "below the mark",
    )


def _misses(mine: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> bool:
    answered = sum(other["answered"] for other in others)
    if not (mine["answered"] and answered):
        return False
    matched = sum(other["matched"] for other in others)
    return clearly_below(mine["matched"], mine["answered"], matched, answered)


def _group(kind: Literal["careful", "bad"], its: Sequence[CheckedAnnotator]) -> CheckedGroup:
    gold, reasks = (sum(getattr(each, name) for each in its) for name in ("gold", "reasks"))
    return CheckedGroup(
        group=kind,
        annotators=len(its),
        found=sum(each.found for each in its),
        gold=gold,
        gold_share=sum((a.gold_share or 0) * a.gold for a in its) / gold if gold else None,
        reasks=reasks,
        reask_share=sum((a.reask_share or 0) * a.reasks for a in its) / reasks if reasks else None,
        passed_practice=sum(each.practice == "passed" for each in its),
    )
