"""The plan of an import: the records that it adds to the database."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from storage.engine.lookup import known_models, prompt_roles
from storage.importing.files.row_notes import BadRow, RowNotes
from storage.importing.planning.votes import Answer, Pair, Vote, external_model, in_order
from storage.importing.target import ByOthers
from storage.records import (
    KEPT_APART,
    LIVE,
    PROBE,
    Annotator,
    AnnotatorKind,
    Check,
    CheckKind,
    Comparison,
    Completion,
    Exclusion,
    Judgment,
    ModelVersion,
    Outcome,
    Prompt,
    PromptRole,
    Withdrawal,
    digest,
    new_id,
)
from storage.sides import canonical_outcome, canonical_sides, shown_swapped
from storage.tables.people.annotators import require_name
from storage.tables.people.pseudonyms import known_key, pseudonyms_here, written_id

if TYPE_CHECKING:
    from storage.engine.lookup import Reader

DEMONSTRATIONS = "demonstrations"
"""The id of the external model that represents the authors of demonstrations."""


@dataclass
class Plan:
    """New records by id, with bad rows and warnings.

    `known` counts the rows whose content is already stored.
    """

    prompts: dict[str, Prompt] = field(default_factory=dict)
    models: dict[str, ModelVersion] = field(default_factory=dict)
    completions: dict[str, Completion] = field(default_factory=dict)
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    annotators: dict[str, Annotator] = field(default_factory=dict)
    checks: dict[str, Check] = field(default_factory=dict)
    judgments: dict[str, Judgment] = field(default_factory=dict)
    withdrawals: dict[str, Withdrawal] = field(default_factory=dict)
    exclusions: dict[str, Exclusion] = field(default_factory=dict)
    known: int = 0
    bad: RowNotes = field(default_factory=RowNotes)
    warnings: RowNotes = field(default_factory=RowNotes)

    def warn(self, line: int, reason: str) -> None:
        self.warnings.append(BadRow(line, reason))

    def add_pair(
        self, comparison: Comparison, answers: Sequence[Answer], known_models: set[str]
    ) -> None:
        """Add a comparison, its completions, and their models that are not in `known_models`."""
        when = comparison.created_at
        for answer in answers:
            if answer.policy not in known_models:
                self.models[answer.policy] = external_model(answer, when)
            completion = answer.completion(comparison.prompt, when)
            self.completions[completion.id] = completion
        self.comparisons[comparison.id] = comparison

    def groups(self) -> dict[str, Mapping[str, Any]]:
        """The records by kind and id, ordered so that each kind refers only to earlier ones."""
        groups: dict[str, Mapping[str, Any]] = {
            "prompts": self.prompts,
            "models": self.models,
            "completions": self.completions,
            "comparisons": self.comparisons,
            "annotators": self.annotators,
            "judgments": self.judgments,
            "withdrawals": self.withdrawals,
        }
        if self.checks:
            groups["checks"] = self.checks
        if self.exclusions:
            groups["exclusions"] = self.exclusions
        return groups

    def people(self) -> set[str]:
        """Ids and names of the annotators whose accounts and acts the plan depends on."""
        accounts = {x for each in self.annotators.values() for x in (each.id, each.name)}
        acts = (*self.judgments.values(), *self.withdrawals.values())
        return accounts | {act.annotator for act in acts}

    def is_changed_by(self, record: ByOthers) -> bool:
        """Whether the plan would differ if it had read this record of one of its `people`."""
        if isinstance(record, Annotator):
            return True
        if isinstance(record, Withdrawal):
            return record.replaces in self._replaced
        return (record.annotator, record.comparison) in self._judged

    @cached_property
    def _judged(self) -> set[tuple[str, str]]:
        return {(each.annotator, each.comparison) for each in self.judgments.values()}

    @cached_property
    def _replaced(self) -> set[str | None]:
        acts = (*self.judgments.values(), *self.withdrawals.values())
        return {act.replaces for act in acts}


_ANSWERS = "SELECT id FROM completions WHERE id IN (SELECT unnest($ids))"


def plan_prompts(reader: Reader, found: Sequence[tuple[int, Prompt]]) -> Plan:
    """New prompts of (line, prompt); a prompt that is stored with another role keeps it."""
    stored = prompt_roles(reader, [p.id for _, p in found])
    plan = Plan(known=sum(prompt.id in stored for _, prompt in found))
    roles: dict[str, PromptRole] = dict(stored)
    for line, prompt in found:
        known = roles.setdefault(prompt.id, prompt.role)
        if known != prompt.role:
            kept = _keeps_role(known)
            if prompt.role == "sft" and known in KEPT_APART:
                kept += "; its demonstration is stored, but not used for training"
            plan.warn(line, kept)
        plan.prompts.setdefault(prompt.id, prompt)
    return plan


def _keeps_role(known: str) -> str:
    return f"this prompt is already stored with the role {known} and keeps it"


def plan_demonstrations(
    reader: Reader, found: Sequence[tuple[int, Prompt, Completion]], *, when: datetime
) -> Plan:
    """Plan (line, prompt, answer) rows, and the model that represents the authors."""
    plan = plan_prompts(reader, [(line, prompt) for line, prompt, _ in found])
    plan.completions |= {answer.id: answer for _, _, answer in found}
    stored = {row["id"] for row in reader.rows(_ANSWERS, ids=list(plan.completions))}
    plan.known = sum(answer.id in stored for _, _, answer in found)
    if found and not known_models(reader, {DEMONSTRATIONS}):
        plan.models[DEMONSTRATIONS] = ModelVersion(
            id=DEMONSTRATIONS, role="external", name=DEMONSTRATIONS, created_at=when
        )
    return plan


STORED_PAIRS = """
    SELECT c.id, c.prompt, c.arm, f.text AS first, s.text AS second,
           coalesce(fm.name, f.policy) AS first_model, coalesce(sm.name, s.policy) AS second_model
    FROM comparisons AS c
    JOIN completions AS f ON f.id = c.first
    JOIN completions AS s ON s.id = c.second
    LEFT JOIN models AS fm ON fm.id = f.policy
    LEFT JOIN models AS sm ON sm.id = s.policy
    WHERE c.id IN (SELECT unnest($ids))
"""
_KNOWN_JUDGMENTS = """
    SELECT j.id, j.comparison, a.name AS annotator, j.outcome, r.id IS NOT NULL AS revised,
           w.id IS NOT NULL AS withdrawn
    FROM judgments AS j
    JOIN annotators AS a ON a.id = j.annotator
    LEFT JOIN judgments AS r ON r.replaces = j.id
    LEFT JOIN withdrawals AS w ON w.replaces = j.id
    WHERE j.id IN (SELECT unnest($ids))
"""
_CURRENT = """
    SELECT a.name AS annotator, j.comparison, j.id, j.created_at
    FROM standing_judgments AS j JOIN annotators AS a ON a.id = j.annotator
    ANTI JOIN checks AS k ON k.comparison = j.comparison
    WHERE j.comparison IN (SELECT unnest($ids))
"""
_REPLACED = """
    SELECT replaces FROM judgments WHERE replaces IN (SELECT unnest($ids))
    UNION ALL SELECT replaces FROM withdrawals WHERE replaces IN (SELECT unnest($ids))
"""


_SOURCES = "SELECT id, comparison FROM judgments WHERE id IN (SELECT unnest($ids))"
# Checks are stored last, so an interrupted import may lack some.
_UNFINISHED = """
    SELECT id, arm FROM comparisons AS c
    WHERE c.arm IN ('gold', 'practice', 'reask') AND c.id IN (SELECT unnest($ids))
      AND NOT EXISTS (FROM checks WHERE comparison = c.id)
"""


def plan_votes(reader: Reader, votes: Iterable[Vote], *, when: datetime) -> Plan:
    """The new records of these votes; `when` is the time of votes without one.

    A later vote of an annotator on the same comparison revises the earlier one.  A vote on an
    imported pair of this workspace belongs to that pair's comparison.
    """
    return _Planner(reader, _on_written_pairs(reader, list(votes)), when).plan()


_COMPARISONS = "SELECT id FROM comparisons WHERE id IN (SELECT unnest($ids))"


def _on_written_pairs(reader: Reader, votes: list[Vote]) -> list[Vote]:
    """The votes; those on imported pairs of this workspace get the ids of their comparisons."""
    key = known_key(reader)
    if key is None:
        return votes
    contents = {vote.comparison_id() for vote in votes if vote.comparison is None}
    own = {content: written_id(key, content) for content in contents}
    found = {row["id"] for row in reader.rows(_COMPARISONS, ids=list(own.values()))}
    return [
        # The judgment's id must not depend on the pair: the same row is the same judgment.
        replace(vote, comparison=id, id=vote.judgment_id())
        if vote.comparison is None and (id := own[vote.comparison_id()]) in found
        else vote
        for vote in votes
    ]


class _Planner:
    def __init__(self, reader: Reader, votes: list[Vote], when: datetime) -> None:
        self._when = when
        self._plan = Plan()
        self._votes = in_order(votes, when)
        comparisons = list({v.comparison_id() for v in votes})
        self._pairs = {row["id"]: _pair(row) for row in reader.rows(STORED_PAIRS, ids=comparisons)}
        ids = [v.judgment_id() for v in votes]
        self._known = {row["id"]: row for row in reader.rows(_KNOWN_JUDGMENTS, ids=ids)}
        self._current = {
            (row["annotator"], row["comparison"]): (row["id"], row["created_at"])
            for row in reader.rows(_CURRENT, ids=comparisons)
        }
        named = [v.replaces for v in votes if v.replaces]
        self._replaced = {row["replaces"] for row in reader.rows(_REPLACED, ids=named)}
        named = [v.repeats for v in votes if v.repeats]
        self._sources = {row["id"]: row["comparison"] for row in reader.rows(_SOURCES, ids=named)}
        named = [v.comparison_id() for v in votes if v.check]
        self._unfinished = {row["id"]: row["arm"] for row in reader.rows(_UNFINISHED, ids=named)}
        prompts = list({v.prompt.id for v in votes})
        self._roles = prompt_roles(reader, prompts)
        self._models = known_models(reader, {x.policy for v in votes for x in (v.a, v.b)})
        people = reader.rows("SELECT id, name, kind FROM annotators")
        self._annotators = {row["name"]: row["id"] for row in people}
        self._pseudonyms = pseudonyms_here(reader, self._annotators.values())
        # Random ids: sides follow from the id, so a digest of the name would reveal the name.
        self._new_annotators: dict[str, str] = defaultdict(lambda: new_id("a"))
        self._kinds: dict[str, tuple[AnnotatorKind, str]] = {}
        for vote in sorted(votes, key=lambda v: v.line):
            if vote.kind:
                self._kinds.setdefault(vote.annotator, (vote.kind, f"on line {vote.line}"))
        self._kinds |= {row["name"]: (row["kind"], "in this workspace") for row in people}
        self._items: dict[str, tuple[int, str]] = {}
        self._seen: dict[str, Vote] = {}
        self._revised: set[str] = set()

    def plan(self) -> Plan:
        for vote in self._votes:
            try:
                self._add(vote)
            except ValueError as problem:
                self._plan.bad.append(BadRow(vote.line, str(problem)))
        return self._plan

    def _add(self, vote: Vote) -> None:
        self._check_item(vote)
        self._check_annotator(vote)
        comparison, id = vote.comparison_id(), vote.judgment_id()
        pair = self._pairs.get(comparison) or Pair.of(vote)
        judgment, a_is_first = self._judgment(vote, pair)
        if id in self._known:
            self._know(vote, judgment)
            self._finish_check(vote, comparison, a_is_first)
            return
        if id in self._seen:
            self._repeated(vote, self._seen[id])
            return
        if vote.repeats and vote.repeats not in self._sources:
            self._plan.warn(
                vote.line,
                f"not imported: it repeats the judgment {vote.repeats}, which is neither in the file nor "
                "in this workspace",
            )
            return
        if vote.replaces == id or id in self._revised:
            raise ValueError(f"judgment {id} is revised by an earlier one or by itself")
        judgment = replace(judgment, replaces=self._replaces(vote, comparison))
        self._seen[id] = vote
        self._sources[id] = comparison
        self._keep_prompt(vote)
        self._keep_pair(vote, comparison, pair, a_is_first)
        self._keep_annotator(vote)
        self._keep_judgment(vote, judgment)

    def _know(self, vote: Vote, judgment: Judgment) -> None:
        """Check a judgment that is already stored, and add its withdrawal if that is new."""
        known = self._known[judgment.id]
        expected = (vote.annotator, judgment.comparison, judgment.outcome)
        if (known["annotator"], known["comparison"], known["outcome"]) != expected:
            raise ValueError(
                f"judgment {judgment.id} is already in this workspace, by another annotator or "
                "with another outcome"
            )
        self._plan.known += 1
        if vote.withdrawn_at is None or known["withdrawn"]:
            return
        if known["revised"] or judgment.id in self._revised:
            self._plan.warn(
                vote.line, "this judgment was revised here, so its withdrawal was not imported"
            )
            return
        self._withdraw(vote, judgment, vote.withdrawn_at)

    def _withdraw(self, vote: Vote, judgment: Judgment, moment: datetime) -> None:
        withdrawal = Withdrawal(
            id=f"w-{digest(judgment.id)}",
            replaces=judgment.id,
            annotator=judgment.annotator,
            created_at=moment,
        )
        self._plan.withdrawals[withdrawal.id] = withdrawal
        self._replaced.add(judgment.id)
        self._current.pop((vote.annotator, judgment.comparison), None)

    def _check_item(self, vote: Vote) -> None:
        if vote.item is None:
            return
        line, comparison = self._items.setdefault(vote.item, (vote.line, vote.comparison_id()))
        if comparison != vote.comparison_id():
            raise ValueError(
                f"item {vote.item} is another pair on line {line}; rows of one item must have "
                "the same prompt and the same two responses"
            )

    def _check_annotator(self, vote: Vote) -> None:
        """Require one kind per name, and no pseudonym of an annotator who would count twice."""
        if vote.annotator in self._pseudonyms:
            raise ValueError(
                f"{vote.annotator} is the pseudonym of an annotator in this workspace, who would "
                "count twice; import an export made with --names, or use another workspace"
            )
        if vote.annotator not in self._annotators:
            require_name(vote.annotator)
        if vote.kind is None:
            return
        kind, where = self._kinds[vote.annotator]
        if vote.kind != kind:
            raise ValueError(
                f"annotator_kind is {vote.kind}, and {vote.annotator} is a {kind} {where}; give "
                "one of them another name"
            )

    def _judgment(self, vote: Vote, pair: Pair) -> tuple[Judgment, bool]:
        """The judgment without `replaces`, and whether a is the canonical first response."""
        a_is_first, comparison = pair.a_is_first(vote), vote.comparison_id()
        annotator = self._annotators.get(vote.annotator) or self._new_annotators[vote.annotator]
        swapped = not a_is_first
        if not vote.sides_known:
            # Drawn: a chosen response that is always on the left would look like a side bias.
            swapped = shown_swapped(annotator, comparison)
        judgment = Judgment(
            id=vote.judgment_id(),
            comparison=comparison,
            annotator=annotator,
            outcome=canonical_outcome(vote.outcome, shown_swapped=not a_is_first),
            shown_swapped=swapped,
            strength=vote.strength,
            criteria={k: _side(v, a_is_first) for k, v in vote.criteria.items()},
            reasons=canonical_sides(vote.reasons, shown_swapped=not a_is_first),
            safety=canonical_sides(vote.safety, shown_swapped=not a_is_first),
            marks=canonical_sides(vote.marks, shown_swapped=not a_is_first),
            comment=vote.comment,
            edit=vote.edit,
            milliseconds=vote.milliseconds,
            guidelines=vote.guidelines,
            created_at=vote.created_at or self._when,
        )
        return judgment, a_is_first

    def _repeated(self, vote: Vote, earlier: Vote) -> None:
        alike = replace(vote, line=earlier.line, prompt=earlier.prompt, kind=earlier.kind)
        if alike != earlier:
            raise ValueError(
                f"id {vote.judgment_id()} was used on line {earlier.line} for other content"
            )
        self._plan.warn(vote.line, f"repeats line {earlier.line} and was counted once")

    def _replaces(self, vote: Vote, comparison: str) -> str | None:
        """The judgment that this one revises: by default the annotator's current one."""
        id, made = self._current.get((vote.annotator, comparison), (None, None))
        if id is not None and vote.replaces not in (None, id):
            raise ValueError(f"{vote.annotator} has another judgment of this pair, {id}")
        if vote.replaces in self._replaced:
            raise ValueError(f"judgment {vote.replaces} was already revised or withdrawn")
        if made is not None and made > (vote.created_at or self._when):
            raise ValueError(f"{vote.annotator} judged this pair again later, on {made:%Y-%m-%d}")
        if id in self._seen and vote.replaces is None:
            self._plan.warn(
                vote.line,
                f"{vote.annotator} judged this pair before, on line {self._seen[id].line}; the later "
                "judgment revises the earlier one",
            )
        return vote.replaces or id

    def _keep_prompt(self, vote: Vote) -> None:
        known, role = self._roles.get(vote.prompt.id), vote.prompt.role
        if known is None:
            self._roles[vote.prompt.id] = role
            self._plan.prompts[vote.prompt.id] = vote.prompt
        elif known != role and {known, role} & set(KEPT_APART):
            kept = _keeps_role(known)
            if known in KEPT_APART:
                learns = "no reward model" if known == "held-out" else "only the audit model"
                kept += f"; {learns} learns from the judgment"
            self._plan.warn(vote.line, kept)

    def _keep_pair(self, vote: Vote, comparison: str, pair: Pair, a_is_first: bool) -> None:
        if comparison in self._pairs:
            first, second = (vote.a, vote.b) if a_is_first else (vote.b, vote.a)
            if (first.model, second.model) != (pair.first.model, pair.second.model):
                kept = f"{pair.first.model} against {pair.second.model}"
                self._plan.warn(
                    vote.line, f"the pair is already known as {kept}; these names were kept"
                )
            self._finish_check(vote, comparison, a_is_first)
            return
        if vote.a.text == vote.b.text:
            self._plan.warn(vote.line, "the two responses are the same")
        self._pairs[comparison] = pair
        conversation, turn = vote.live_turn or (None, None)
        made = Comparison(
            id=comparison,
            prompt=pair.prompt,
            first=pair.first.completion_id(pair.prompt),
            second=pair.second.completion_id(pair.prompt),
            iteration=0,  # before the loop: judged elsewhere, and never in the queue
            # A live pair or a probe measures nothing here either.
            arm=LIVE if vote.live_turn else PROBE if vote.probe else vote.check or "imported",
            item=vote.item,
            conversation=conversation,
            turn=turn,
            created_at=self._when,
        )
        self._plan.add_pair(made, (pair.first, pair.second), self._models)
        if vote.check:
            self._plan.checks[comparison] = self._check(vote, vote.check, comparison, a_is_first)

    def _finish_check(self, vote: Vote, comparison: str, a_is_first: bool) -> None:
        """Add the check of a stored pair if an interrupted import left it out."""
        if vote.check is None or self._unfinished.get(comparison) != vote.check:
            return
        if vote.repeats is None or vote.repeats in self._sources:
            self._plan.checks[comparison] = self._check(vote, vote.check, comparison, a_is_first)

    def _check(self, vote: Vote, kind: CheckKind, comparison: str, a_is_first: bool) -> Check:
        if vote.expected:
            answer = canonical_outcome(vote.expected, shown_swapped=not a_is_first)
            return Check(
                comparison=comparison,
                kind=kind,
                answer=answer,
                explanation=vote.explanation,
                created_at=self._when,
            )
        assert vote.repeats is not None  # `imports._check` requires one of the two
        name = vote.annotator
        return Check(
            comparison=comparison,
            kind=kind,
            annotator=self._annotators.get(name) or self._new_annotators[name],
            judgment=vote.repeats,
            source=self._sources[vote.repeats],
            created_at=self._when,
        )

    def _keep_annotator(self, vote: Vote) -> None:
        if vote.annotator in self._annotators:
            return
        id = self._annotators[vote.annotator] = self._new_annotators[vote.annotator]
        kind, _ = self._kinds.get(vote.annotator, ("person", ""))
        self._plan.annotators[id] = Annotator(
            id=id, name=vote.annotator, kind=kind, created_at=self._when
        )

    def _keep_judgment(self, vote: Vote, judgment: Judgment) -> None:
        self._plan.judgments[judgment.id] = judgment
        self._current[vote.annotator, judgment.comparison] = (judgment.id, judgment.created_at)
        if judgment.replaces:
            self._replaced.add(judgment.replaces)
            self._revised.add(judgment.replaces)
        if vote.withdrawn_at is not None:
            self._withdraw(vote, judgment, vote.withdrawn_at)
        if vote.excluded:
            self._plan.exclusions[judgment.id] = Exclusion(
                judgment=judgment.id,
                excluded=True,
                reason=vote.exclusion_reason or "excluded before it was imported",
                created_at=self._when,
            )


def _pair(row: Mapping[str, Any]) -> Pair:
    first = Answer(row["first"], row["first_model"])
    return Pair(row["prompt"], first, Answer(row["second"], row["second_model"]))


def _side(choice: str, a_is_first: bool) -> Outcome:
    """A criterion's outcome on canonical sides; both_bad is not allowed."""
    if choice not in ("a", "b", "tie"):
        raise ValueError(f"a criterion says {choice!r} and must be one of a, b, tie")
    return canonical_outcome(choice, shown_swapped=not a_is_first)  # type: ignore[arg-type]
