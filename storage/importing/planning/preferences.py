"""Votes from TRL preference datasets: paired or unpaired, plain text or chat messages.

Rows without an annotator are votes of unknown annotators: a second vote on a pair belongs to
another annotator ("imported-2").  Sides are unknown, so they are drawn at random.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count, takewhile
from typing import TYPE_CHECKING

from storage.importing.files.cells import Cells
from storage.importing.files.row_notes import BadRow, RowNotes
from storage.importing.planning.votes import Answer, Vote
from storage.records import Message, Prompt, PromptRole, ScreenOutcome, as_messages

if TYPE_CHECKING:
    from storage.engine.lookup import Reader

UNKNOWN_ANNOTATOR = "imported"
_OUTCOMES = ("preference", "tie", "both_bad")


def paired_vote(cells: Cells, *, role: PromptRole, source: str) -> Vote:
    """The vote in a row of prompt / chosen / rejected; the prompt may be implicit.

    An `outcome` column, which `--ties keep` writes, is tie or both_bad where chosen and rejected
    have no meaning.
    """
    messages, chosen, rejected = _split(cells)
    outcome = cells.choice("outcome", _OUTCOMES, "preference")
    return _vote(
        cells.line,
        Prompt.make(messages, role=role, source=source),
        chosen,
        rejected,
        "a" if outcome == "preference" else outcome,  # type: ignore[arg-type]
        cells.name("annotator", UNKNOWN_ANNOTATOR),
    )


def _vote(
    line: int, prompt: Prompt, a: str, b: str, outcome: ScreenOutcome, annotator: str
) -> Vote:
    return Vote(
        line=line,
        prompt=prompt,
        a=Answer(a),
        b=Answer(b),
        annotator=annotator,
        outcome=outcome,
        sides_known=False,
    )


def _split(cells: Cells) -> tuple[tuple[Message, ...], str, str]:
    """Prompt, chosen and rejected text of a row in any of TRL's paired forms."""
    if not cells.is_chat("chosen") and not cells.is_chat("rejected"):
        if cells.has_prompt():
            return cells.prompt(), cells.response("chosen"), cells.response("rejected")
        return _implicit_text(cells.text("chosen"), cells.text("rejected"))
    chosen, rejected = cells.chat("chosen"), cells.chat("rejected")
    if len(chosen) == len(rejected) == 1:
        return cells.prompt(), cells.response("chosen"), cells.response("rejected")
    if chosen[:-1] != rejected[:-1] or chosen[-1].role != "assistant" != rejected[-1].role:
        raise ValueError(
            "chosen and rejected must be the same conversation up to a last assistant message"
        )
    prompt = chosen[:-1]
    # Some datasets repeat the last question, or the whole chat so far, in `prompt`.
    if cells.has_prompt() and cells.prompt() not in (prompt, prompt[-1:]):
        raise ValueError("the conversations in chosen and rejected do not begin with prompt")
    for column, turn in (("chosen", chosen[-1]), ("rejected", rejected[-1])):
        if not turn.content.strip():
            cells.warn(f"{column} is empty")
    return prompt, chosen[-1].content, rejected[-1].content


def _implicit_text(chosen: str, rejected: str) -> tuple[tuple[Message, ...], str, str]:
    """Split two texts whose common beginning, cut at a whole word, is the prompt."""
    if chosen == rejected:
        raise ValueError("chosen and rejected are the same text, so there is no preference")
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False))
    shared = sum(1 for _ in alike)
    while shared and not chosen[shared - 1].isspace():
        shared -= 1
    shared = len(chosen[:shared].rstrip())
    if not shared:
        raise ValueError("there is no prompt, and chosen and rejected have no common beginning")
    return as_messages(chosen[:shared]), chosen[shared:], rejected[shared:]


@dataclass(frozen=True)
class Labeled:
    """A row of an unpaired dataset: one completion labeled good or bad."""

    line: int
    prompt: Prompt
    text: str
    good: bool
    annotator: str


def labeled(cells: Cells, *, role: PromptRole, source: str) -> Labeled:
    """A row of prompt / completion / label."""
    good = cells.boolean("label")
    if good is None:
        raise ValueError("label is missing")
    prompt = Prompt.make(cells.prompt(), role=role, source=source)
    annotator = cells.name("annotator", UNKNOWN_ANNOTATOR)
    return Labeled(cells.line, prompt, cells.response("completion"), good, annotator)


def pair_up(rows: Iterable[Labeled]) -> tuple[list[Vote], RowNotes]:
    """Votes from labeled completions, and the rows without a partner.

    For each prompt the n-th good completion is preferred to the n-th bad one.  The others are
    paired with each other: two good ones as a tie, two bad ones as both bad.
    """
    by_prompt: dict[tuple[str, str], list[Labeled]] = defaultdict(list)
    for row in rows:
        by_prompt[row.prompt.id, row.annotator].append(row)
    votes: list[Vote] = []
    bad = RowNotes()
    for group in by_prompt.values():
        good, poor = [r for r in group if r.good], [r for r in group if not r.good]
        decided = min(len(good), len(poor))
        votes += [_vote_between(*pair, "a") for pair in zip(good, poor, strict=False)]
        rest = good[decided:] or poor[decided:]
        outcome: ScreenOutcome = "tie" if good[decided:] else "both_bad"
        votes += [
            _vote_between(*pair, outcome) for pair in zip(rest[::2], rest[1::2], strict=False)
        ]
        if len(rest) % 2:
            bad.append(
                BadRow(
                    rest[-1].line,
                    "this prompt has no other completion left to pair it with; Kitestring stores "
                    "pairs",
                )
            )
    return votes, bad


def _vote_between(a: Labeled, b: Labeled, outcome: ScreenOutcome) -> Vote:
    return _vote(a.line, a.prompt, a.text, b.text, outcome, a.annotator)


_ANONYMOUS = """
    SELECT j.comparison, a.name AS annotator, j.id, j.outcome,
           CASE j.outcome WHEN 'first' THEN f.text WHEN 'second' THEN s.text ELSE '' END AS won
    FROM judgments AS j
    JOIN annotators AS a ON a.id = j.annotator
    JOIN comparisons AS c ON c.id = j.comparison
    JOIN completions AS f ON f.id = c.first
    JOIN completions AS s ON s.id = c.second
    WHERE regexp_full_match(a.name, $names) AND j.comparison IN (SELECT unnest($ids))
    ORDER BY j.created_at, j.id
"""
_Content = tuple[str, ScreenOutcome, str]
"""Comparison, outcome ("a" for a preference), and the preferred text."""


def separate_voters(reader: Reader, votes: Iterable[Vote]) -> list[Vote]:
    """Assign each anonymous vote on a pair to an unknown annotator who has not judged it.

    Otherwise a second vote would revise the first.  Each vote that equals a stored anonymous vote
    is matched with it, so that importing a file again adds nothing.
    """
    votes = sorted(votes, key=lambda v: v.line)
    anonymous = [vote for vote in votes if vote.annotator == UNKNOWN_ANNOTATOR]
    taken = {(v.comparison_id(), v.annotator) for v in votes if v.annotator != UNKNOWN_ANNOTATOR}
    stored: dict[_Content, deque[tuple[str, str]]] = defaultdict(deque)
    pairs = list({vote.comparison_id() for vote in anonymous})
    for row in reader.rows(_ANONYMOUS, names=f"{UNKNOWN_ANNOTATOR}(-[0-9]+)?", ids=pairs):
        taken.add((row["comparison"], row["annotator"]))
        outcome = "a" if row["outcome"] in ("first", "second") else row["outcome"]
        key = (row["comparison"], outcome, row["won"])
        stored[key].append((row["annotator"], row["id"]))
    voters: dict[str, Iterator[str]] = defaultdict(_unknown_annotators)
    separated: list[Vote] = []
    for vote in votes:
        if vote.annotator == UNKNOWN_ANNOTATOR:
            pair = vote.comparison_id()
            won = vote.a.text if vote.outcome == "a" else ""
            if same := stored[pair, vote.outcome, won]:
                annotator, id = same.popleft()
                vote = replace(vote, annotator=annotator, id=id)
            else:
                free = (name for name in voters[pair] if (pair, name) not in taken)
                vote = replace(vote, annotator=next(free))
        separated.append(vote)
    return separated


def _unknown_annotators() -> Iterator[str]:
    """imported, imported-2, imported-3, …"""
    yield UNKNOWN_ANNOTATOR
    yield from (f"{UNKNOWN_ANNOTATOR}-{n}" for n in count(2))
