"""TRL preference datasets into votes: paired or unpaired, plain text or chat messages.

The rows name no annotator and no side.  Each row is one vote of an unknown person: the second
vote on a pair counts as another voter's ("imported-2"), and the side is drawn by a fair coin.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from storage.cells import Cells
from storage.filetypes import BadRow
from storage.records import Message, Prompt, PromptRole, ScreenOutcome, as_messages
from storage.votes import Answer, Vote

UNKNOWN_ANNOTATOR = "imported"
_OUTCOMES = ("preference", "tie", "both_bad")


def paired_vote(cells: Cells, *, role: PromptRole, source: str) -> Vote:
    """The vote in a row of prompt / chosen / rejected; the prompt may be implicit.

    An `outcome` column, as `--ties keep` writes it, says tie or both_bad where chosen and
    rejected mean nothing.
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
        raise ValueError("prompt is not how the conversations in chosen and rejected begin")
    for column, turn in (("chosen", chosen[-1]), ("rejected", rejected[-1])):
        if not turn.content.strip():
            cells.warn(f"{column} is empty")
    return prompt, chosen[-1].content, rejected[-1].content


def _implicit_text(chosen: str, rejected: str) -> tuple[tuple[Message, ...], str, str]:
    """Two texts that begin alike: the shared beginning, up to a whole word, is the prompt."""
    shared = 0
    while shared < min(len(chosen), len(rejected)) and chosen[shared] == rejected[shared]:
        shared += 1
    if shared == len(chosen) == len(rejected):
        raise ValueError("chosen and rejected are the same text, which says nothing")
    while shared and not chosen[shared - 1].isspace():
        shared -= 1
    shared = len(chosen[:shared].rstrip())
    if not shared:
        raise ValueError("there is no prompt, and chosen and rejected do not begin alike")
    return as_messages(chosen[:shared]), chosen[shared:], rejected[shared:]


@dataclass(frozen=True)
class Labelled:
    """A row of an unpaired dataset: one completion that somebody found good or bad."""

    line: int
    prompt: Prompt
    text: str
    good: bool
    annotator: str


def labelled(cells: Cells, *, role: PromptRole, source: str) -> Labelled:
    """The content of a row of prompt / completion / label."""
    good = cells.boolean("label")
    if good is None:
        raise ValueError("label is missing")
    prompt = Prompt.make(cells.prompt(), role=role, source=source)
    annotator = cells.name("annotator", UNKNOWN_ANNOTATOR)
    return Labelled(cells.line, prompt, cells.response("completion"), good, annotator)


def pair_up(rows: Iterable[Labelled]) -> tuple[list[Vote], list[BadRow]]:
    """Votes from labelled completions, and the rows that found no partner.

    Within one prompt the n-th good completion is preferred to the n-th bad one.  Those left
    over are paired among themselves: two bad ones as both bad, two good ones as a tie.
    """
    by_prompt: dict[tuple[str, str], list[Labelled]] = defaultdict(list)
    for row in rows:
        by_prompt[row.prompt.id, row.annotator].append(row)
    votes: list[Vote] = []
    bad: list[BadRow] = []
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
                    "no other completion of this prompt is left to compare it with; Kitestring "
                    "keeps pairs",
                )
            )
    return votes, bad


def _vote_between(a: Labelled, b: Labelled, outcome: ScreenOutcome) -> Vote:
    return _vote(a.line, a.prompt, a.text, b.text, outcome, a.annotator)


def separate_voters(votes: Iterable[Vote]) -> list[Vote]:
    """Give the n-th anonymous vote on one pair to the n-th unknown annotator.

    Without this, a later vote would count as the same person changing their mind.
    """
    votes_on: Counter[str] = Counter()
    separated: list[Vote] = []
    for vote in sorted(votes, key=lambda v: v.line):
        if vote.annotator == UNKNOWN_ANNOTATOR:
            pair = vote.comparison_id()
            votes_on[pair] += 1
            if votes_on[pair] > 1:
                vote = replace(vote, annotator=f"{UNKNOWN_ANNOTATOR}-{votes_on[pair]}")
        separated.append(vote)
    return separated
