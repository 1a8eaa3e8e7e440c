"""Votes from files.  `plan.plan_votes` turns them into comparisons and judgments."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Literal

from storage.records import (
    AnnotatorKind,
    CheckKind,
    Completion,
    Mark,
    ModelVersion,
    Prompt,
    ScreenOutcome,
    digest,
)


@dataclass(frozen=True)
class Answer:
    """A response in a file: its text and the name of the model that wrote it."""

    text: str
    model: str = "imported"

    @property
    def policy(self) -> str:
        """The id of the external ModelVersion for this name."""
        return f"external-{digest(self.model)}"

    def completion_id(self, prompt: str) -> str:
        return f"r-{digest(prompt, self.policy, self.text)}"

    def completion(self, prompt: str, when: datetime) -> Completion:
        return Completion(
            id=self.completion_id(prompt),
            prompt=prompt,
            policy=self.policy,
            text=self.text,
            created_at=when,
        )


@dataclass(frozen=True, kw_only=True)
class Vote:
    """One row: `a` was on the left and `b` on the right, unless the sides are unknown.

    `kind` is the annotator's kind, None if the row does not have it.  Only raw exports have `id`,
    `comparison`, `swapped`, `replaces`, `withdrawn_at`, `excluded`, `exclusion_reason`, and of checks
    `check`, `expected`, `explanation` and `repeats`, which are stored unchanged; `live_turn` is a live
    conversation and its turn, and `probe` says that the pair is a probe.
    """

    line: int
    prompt: Prompt
    a: Answer
    b: Answer
    annotator: str
    outcome: ScreenOutcome
    sides_known: bool = True
    kind: AnnotatorKind | None = None
    strength: int | None = None
    criteria: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, Sequence[str]] = field(default_factory=dict)
    safety: Mapping[str, str] = field(default_factory=dict)
    marks: Mapping[str, Sequence[Mark]] = field(default_factory=dict)
    comment: str = ""
    edit: str = ""
    milliseconds: int | None = None
    guidelines: str | None = None
    created_at: datetime | None = None
    item: str | None = None
    id: str | None = None
    comparison: str | None = None
    swapped: bool | None = None
    replaces: str | None = None
    withdrawn_at: datetime | None = None
    excluded: bool = False
    exclusion_reason: str = ""
    check: CheckKind | None = None
    expected: Literal["a", "b"] | None = None
    repeats: str | None = None
    explanation: str = ""
    live_turn: tuple[str, int] | None = None
    probe: bool = False

    def comparison_id(self) -> str:
        """The comparison's id, which depends on the item and not on the order of the responses."""
        if self.comparison is not None:
            return self.comparison
        texts = sorted([self.a.text, self.b.text])
        item = [] if self.item is None else ["item", self.item]
        return f"c-{digest(*item, self.prompt.id, *texts)}"

    def judgment_id(self) -> str:
        """A digest of the whole row, so that the same row is the same judgment."""
        if self.id is not None:
            return self.id
        said = [self.outcome, self.strength, self.criteria, self.comment, self.milliseconds]
        if self.guidelines is not None:  # rows of earlier versions keep their ids
            said.append(self.guidelines)
        marks = {side: [asdict(mark) for mark in given] for side, given in self.marks.items()}
        said += [each for each in (self.reasons, self.safety, self.edit, marks) if each]
        # Includes which text was on the left: a vote with swapped sides is a different vote.
        shown = digest(self.a.text, self.b.text) if self.sides_known else ""
        when = self.created_at.isoformat() if self.created_at else ""
        content = json.dumps([*said, shown, when], sort_keys=True)
        # With unknown sides, a is the chosen response.
        won = "" if self.sides_known else self.a.text
        return f"j-{digest(self.annotator, self.comparison_id(), won, content)}"


@dataclass(frozen=True)
class Pair:
    """The texts of a comparison, in canonical order."""

    prompt: str
    first: Answer
    second: Answer

    @classmethod
    def of(cls, vote: Vote) -> Pair:
        first, second = sorted([vote.a, vote.b], key=lambda answer: (answer.text, answer.model))
        if vote.swapped is not None:
            first, second = (vote.b, vote.a) if vote.swapped else (vote.a, vote.b)
        return cls(vote.prompt.id, first, second)

    def a_is_first(self, vote: Vote) -> bool:
        """Whether the vote's `a` is the canonical `first`; ValueError if the pair differs."""
        same = {self.first.text, self.second.text} == {vote.a.text, vote.b.text}
        if not same or self.prompt != vote.prompt.id:
            raise ValueError(
                "this comparison has another prompt or other responses than in an earlier row"
            )
        if vote.a.text == vote.b.text:
            if vote.swapped is not None:
                return not vote.swapped
            return (vote.a, vote.b) != (self.second, self.first) or vote.a == vote.b
        a_is_first = vote.a.text == self.first.text
        if vote.swapped is not None and vote.swapped == a_is_first:
            raise ValueError("shown_swapped contradicts the order in which the pair is stored")
        return a_is_first


def external_model(answer: Answer, when: datetime) -> ModelVersion:
    """The ModelVersion of a model that is known only by name."""
    return ModelVersion(id=answer.policy, role="external", name=answer.model, created_at=when)


def in_order(votes: Iterable[Vote], when: datetime) -> list[Vote]:
    """Votes ordered by time (`when` for a vote without one), then by line.

    A vote comes after the one that it revises even if both have the same time, as in an import
    without times.
    """
    votes = list(votes)
    by_id: dict[str | None, Vote] = {vote.id: vote for vote in votes if vote.id}
    ordered: list[Vote] = []
    placed: set[int] = set()  # object ids, because equal rows are separate votes
    for vote in sorted(votes, key=lambda v: (v.created_at or when, v.line)):
        chain = {id(vote): vote}
        earlier = by_id.get(vote.replaces)
        while earlier and earlier.created_at == vote.created_at and id(earlier) not in placed:
            if id(earlier) in chain:  # a cycle of revisions has no first vote
                chain = {id(vote): vote}
                break
            chain[id(earlier)] = earlier
            earlier = by_id.get(earlier.replaces)
        for each in reversed(chain.values()):
            if id(each) not in placed:
                placed.add(id(each))
                ordered.append(each)
    return ordered


def without_sides(vote: Vote) -> Vote:
    """The vote with the preferred response as `a`, for a file that does not know the sides."""
    if vote.outcome == "b":
        vote = replace(vote, a=vote.b, b=vote.a, outcome="a")
    return replace(vote, sides_known=False)
