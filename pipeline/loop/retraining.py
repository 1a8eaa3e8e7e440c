"""Plans a study that trains a reward model again without some of its judgments.

The rule that chooses judgments needs their annotators, times and guidelines, and the gate's evidence
is in the database too.  So the plan writes them to the study's `inputs/`, and the study itself
(`pipeline.studies.retrain`) reads no database.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from pipeline.reward.validation_split import LEARNED
from pipeline.runs.parquet import write_rows
from pipeline.runs.rundir import RunDirectory, write_atomically
from pipeline.runs.study_folder import (
    EVALUATIONS,
    EVIDENCE,
    FACTS,
    MAX_CONTROLS,
    ORIGINAL,
    Spec,
    StudyFolder,
)
from storage.engine.database import Database
from storage.records import HELD_OUT_FILE, PREFERENCES, AnnotatorKind, ModelVersion, now
from storage.reports import to_json
from storage.retraining import JudgmentFacts, judgment_facts, trained_model, write_evaluations
from storage.tables import models, policy_judgments

OLD = "it was trained before held-out judgments were stored; train once more, then retrain that one"
RULE = ("without", "only", "guidelines", "before")
"""The criteria of a rule, by which a plan names them."""
_EXAMPLE = "2026-11-28 or 2026-11-28T14:00+01:00"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Which judgments are kept: those that meet every criterion that is given.

    `without` names annotators whose judgments are left out.  Only judgments by the kinds `only` of
    annotators, under the versions `guidelines`, and given before `before` are kept.
    """

    without: tuple[str, ...] = ()
    only: tuple[AnnotatorKind, ...] = ()
    guidelines: tuple[str, ...] = ()
    before: datetime | None = None

    def keeps(self, judgment: JudgmentFacts) -> bool:
        return (
            judgment.annotator not in self.without
            and (not self.only or judgment.kind in self.only)
            and (not self.guidelines or judgment.guidelines in self.guidelines)
            and (self.before is None or judgment.created_at < self.before)
        )

    @property
    def plan(self) -> dict[str, Any]:
        """The criteria as JSON values."""
        return {
            "without": list(self.without),
            "only": list(self.only),
            "guidelines": list(self.guidelines),
            "before": self.before and self.before.isoformat(),
        }

    @property
    def _clock(self) -> str:
        """The format of the time of day in a name; empty for a date."""
        at = self.before
        return "" if at is None or (at.hour, at.minute, at.second) == (0, 0, 0) else "T%H%M%S"

    @property
    def name(self) -> str:
        """A name for the study that applies the rule."""
        parts = [
            *(f"without {each}" for each in self.without),
            *(f"only {each}" for each in self.only),
            *(f"guidelines {each[:8]}" for each in self.guidelines),
            *([self.before.strftime(f"before %Y-%m-%d{self._clock}")] if self.before else []),
        ]
        return re.sub(r"[^\w.=+-]+", "-", " ".join(parts)).strip("-.")[:80]


def read_rule(
    *,
    without: Sequence[str] = (),
    only: Sequence[str] = (),
    guidelines: Sequence[str] = (),
    before: str | None = None,
) -> Rule:
    """The rule that somebody typed; ValueError for a wrong value, or if nothing is given."""
    kinds = get_args(AnnotatorKind)
    for kind in only:
        if kind not in kinds:
            raise ValueError(f"{kind!r} is no kind of annotator; kinds are {', '.join(kinds)}")
    if not (without or only or guidelines or before):
        raise ValueError(
            "say which judgments to leave out: name annotators to do without, the only kinds of "
            "annotators, the only guidelines, or a date before which judgments are kept"
        )
    return Rule(
        without=tuple(dict.fromkeys(without)),
        only=tuple(dict.fromkeys(only)),  # type: ignore[arg-type]
        guidelines=tuple(dict.fromkeys(guidelines)),
        before=_time(before) if before else None,
    )


def _time(text: str) -> datetime:
    """The moment in UTC of a date or a time in ISO 8601, which is in UTC unless it says otherwise."""
    try:
        found = datetime.fromisoformat(text.strip())
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):  # in UTC, the year may be 0
        raise ValueError(f"{text!r} is no date in ISO 8601, such as {_EXAMPLE}") from None


def plan_retraining(
    db: Database,
    rule: Rule,
    *,
    iteration: int | None = None,
    controls: int = 0,
    name: str = "",
    created_by: str = "",
) -> Spec:
    """The study that applies the rule to the reward model of an iteration, by default the newest.

    ValueError if the model's run cannot be repeated.
    """
    if not 0 <= controls <= MAX_CONTROLS:
        raise ValueError(f"there can be 0 to {MAX_CONTROLS} controls, not {controls}")
    model, run = trained_model(db, iteration)
    _require_files(db.workspace, model, RunDirectory(db.workspace / run.directory))
    return Spec(
        kind="retrain",
        name=name.strip() or f"{model.id} {rule.name}",
        plan=rule.plan | {"controls": controls, "model": model.id},
        repeats=Path(run.directory).name,
        iteration=model.iteration or 0,
        created_by=created_by,
        created_at=now().isoformat(),
    )


def write_inputs(db: Database, spec: Spec) -> None:
    """Write the inputs of a planned study; those of a study that has started stay as they are.

    ValueError, with one sentence, if its rule leaves out nothing or everything.
    """
    folder = StudyFolder(db.workspace, "retrain", spec.name)
    # A started study reads its inputs until it ends.  ORIGINAL is the last file that is written.
    if folder.spec() is not None and (folder.inputs / ORIGINAL).exists():
        return
    rule = read_rule(**{key: spec.plan[key] for key in RULE})
    model = models.get(db, spec.plan["model"])
    source = RunDirectory(db.workspace / "runs" / spec.repeats)
    with db.snapshot():  # labeling continues meanwhile
        evidence = policy_judgments.evidence(db)
        facts = _facts(db, source, [row.judgment for row in evidence.judged])
        _require_change(facts, rule, model)
        folder.inputs.mkdir(parents=True, exist_ok=True)
        (folder.inputs / ORIGINAL).unlink(missing_ok=True)
        missing = write_evaluations(db, folder.inputs / EVALUATIONS)
    rows = [
        asdict(judgment) | {"part": part, "left_out": not rule.keeps(judgment)}
        for judgment, part in facts
    ]
    write_rows(folder.inputs / FACTS, rows, [*rows[0]])
    write_atomically(folder.inputs / EVIDENCE, json.dumps(to_json(evidence)))
    plan = {key: spec.plan[key] for key in (*RULE, "model")}
    known = {"path": model.path, "not_evaluated": missing, "plan": plan}
    write_atomically(folder.inputs / ORIGINAL, json.dumps(known))


def _require_files(workspace: Path, model: ModelVersion, source: RunDirectory) -> None:
    """ValueError unless the model's weights and the files of its run are there."""
    if not (source.inputs / "judgments.parquet").exists() or source.result() is None:
        raise ValueError(
            f"{model.id} cannot be trained again: the files of its run are not in {workspace}, as "
            "after a restore"
        )
    if not all((source.outputs / name).exists() for name in (LEARNED, HELD_OUT_FILE)):
        raise ValueError(f"{model.id} cannot be compared with another model: {OLD}")
    if not (workspace / model.path).is_dir():
        raise ValueError(
            f"{model.path} is missing from {workspace}: a backup does not contain models. Copy the "
            "directory from the workspace that was backed up"
        )


def _facts(
    db: Database, source: RunDirectory, judged: Sequence[str]
) -> list[tuple[JudgmentFacts, str]]:
    """The judgments of the snapshot and of the gate, each with its use by the reward model.

    The use is learned, held_out, set_aside, or "" for a judgment that is only the gate's.
    """
    part: dict[str, str] = {}
    for name, path in (
        ("set_aside", source.inputs / "judgments.parquet"),
        ("held_out", source.outputs / HELD_OUT_FILE),
        ("learned", source.outputs / LEARNED),
    ):
        found = pd.read_parquet(path, columns=["judgment"])["judgment"]
        part |= dict.fromkeys(found.tolist(), name)
    facts = judgment_facts(db, [*{**part, **dict.fromkeys(judged)}])
    if lost := part.keys() - {each.judgment for each in facts}:
        raise ValueError(f"{len(lost)} judgments of the snapshot are not in the database")
    return [(each, part.get(each.judgment, "")) for each in facts]


def _require_change(
    facts: Sequence[tuple[JudgmentFacts, str]], rule: Rule, model: ModelVersion
) -> None:
    """ValueError if a criterion names what the snapshot lacks, or the rule leaves out nothing that
    the model learned from, or too much."""
    snapshot = [judgment for judgment, part in facts if part]
    where = f"the snapshot of iteration {model.iteration}"
    lacks = f"{where} has no judgment"
    _require_known(rule.without, snapshot, lambda each: each.annotator, f"{lacks} by")
    _require_known(rule.only, snapshot, lambda each: each.kind, f"{lacks} by a")
    _require_known(
        rule.guidelines,
        snapshot,
        lambda each: each.guidelines or "unknown guidelines",
        f"{lacks} under the guidelines",
    )
    if not any(rule.keeps(each) for each in snapshot):
        raise ValueError(
            f"nothing would remain: all {len(snapshot)} judgments of {where} are left out"
        )
    learned = [judgment for judgment, part in facts if part == "learned"]
    remaining = [each for each in learned if rule.keeps(each)]
    if len(remaining) == len(learned):
        raise ValueError(
            f"this leaves out none of the {len(learned)} judgments that {model.id} learned from, so the "
            "model would be the same"
        )
    if not any(each.outcome in PREFERENCES for each in remaining):
        raise ValueError(
            f"nothing would remain to learn from: none of the {len(remaining)} remaining judgments "
            f"that {model.id} learned from prefers a response"
        )


def _require_known(
    named: Sequence[str],
    snapshot: Sequence[JudgmentFacts],
    value: Callable[[JudgmentFacts], str],
    lacks: str,
) -> None:
    counted: Mapping[str, int] = Counter(value(each) for each in snapshot)
    for each in named:
        if each not in counted:
            have = ", ".join(f"{key} ({n})" for key, n in sorted(counted.items()))
            raise ValueError(f"{lacks} {each}; it has: {have}")
