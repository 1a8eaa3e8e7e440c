"""Live conversations: an annotator writes, two replies are sampled, and the better one goes on.

Each turn is an ordinary comparison of the arm `live`, leased only to the annotator who wrote it.
It is stored when both replies are complete; a turn that was interrupted leaves nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from storage.engine.codec import from_row
from storage.engine.database import Database
from storage.engine.transaction import Transaction
from storage.errors import Conflict, NotFound
from storage.generation_records import ReplyEnd
from storage.labeling.queue_cache import QueueCache, grant
from storage.records import (
    KEPT_APART,
    LIVE,
    Comparison,
    Completion,
    Message,
    Outcome,
    Prompt,
    as_messages,
    new_id,
)
from storage.sides import canonical_outcome, shown_swapped
from storage.tables import iterations, prompts

MAX_MESSAGE_LENGTH = 20_000
"""Characters of a message that an annotator writes."""
UNJUDGED = "Judge the last turn first."
LAST_TURN = "The conversation has reached its last turn. Start a new one."
BOTH_BAD = "Neither reply can be answered after Both bad. Start a new conversation."
SET_ASIDE = "You skipped or flagged the last turn. Start a new conversation."
EVALUATION = "This text is one of the project's evaluation prompts. Change it or write another one."
ELSEWHERE = "The conversation went on in another tab. Reload the page."
LEASE = timedelta(days=7)
"""How long the annotator can judge the turn; nobody else can."""

_TURNS = """
    SELECT c.*, p.messages::VARCHAR AS messages, f.text AS first_text, s.text AS second_text,
           j.outcome
    FROM comparisons AS c
    JOIN leases AS l ON l.comparison = c.id AND l.annotator = $annotator
    JOIN prompts AS p ON p.id = c.prompt
    JOIN completions AS f ON f.id = c.first
    JOIN completions AS s ON s.id = c.second
    LEFT JOIN standing_judgments AS j ON j.comparison = c.id AND j.annotator = $annotator
    WHERE c.conversation = $conversation ORDER BY c.turn
"""
_LATEST = """
    SELECT c.conversation FROM comparisons AS c
    JOIN leases AS l ON l.comparison = c.id AND l.annotator = $annotator
    WHERE c.arm = 'live' ORDER BY c.created_at DESC, c.turn DESC LIMIT 1
"""
_LEFT = """
    SELECT 1 FROM open_skips WHERE comparison = $comparison
    UNION ALL SELECT 1 FROM open_flags WHERE comparison = $comparison
"""
_SUGGESTED = """
    SELECT id, messages::VARCHAR AS messages FROM prompts
    WHERE role = 'train' AND json_array_length(messages) = 1
      AND id NOT IN (FROM retired_prompts)
    ORDER BY hash(id || $seed) LIMIT $n
"""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A stored turn.  `outcome` is its annotator's current judgment, None before it."""

    comparison: Comparison
    messages: tuple[Message, ...]
    first: str
    second: str
    outcome: Outcome | None

    def continued(self, annotator: str) -> str | None:
        """The reply that the conversation goes on with: the better one, or A after a tie.

        None without a judgment, and after *both bad*: neither reply is worth an answer.
        """
        outcome = self.outcome
        if outcome == "tie":
            swapped = shown_swapped(annotator, self.comparison.id)
            outcome = canonical_outcome("a", shown_swapped=swapped)
        return {"first": self.first, "second": self.second}.get(outcome or "")


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """An annotator's conversation with its turns, oldest first."""

    id: str
    turns: tuple[Turn, ...]

    def context(self, annotator: str) -> tuple[Message, ...] | None:
        """All messages so far; None if the conversation cannot go on."""
        last = self.turns[-1]
        reply = last.continued(annotator)
        return None if reply is None else (*last.messages, Message("assistant", reply))


@dataclass(frozen=True, kw_only=True)
class NextTurn:
    """A turn before its replies are sampled.

    The ids are random and known before the replies, so the sides of the screen can be too.
    `first` is the id of the completion that is stored first; the order says nothing about models.
    """

    annotator: str
    conversation: str
    number: int
    messages: tuple[Message, ...]
    comparison: str
    completions: tuple[str, str]

    def side(self, completion: str) -> Literal["a", "b"]:
        """On which side of the screen a completion is, a or b."""
        is_first = completion == min(self.completions)
        return "a" if is_first != shown_swapped(self.annotator, self.comparison) else "b"


@dataclass(frozen=True, kw_only=True)
class SampledReply:
    """A complete reply, with the settings that it was sampled with."""

    policy: str
    text: str
    end: ReplyEnd
    temperature: float
    top_p: float
    seed: int


def latest(db: Database, annotator: str) -> Conversation | None:
    """The annotator's newest conversation."""
    rows = db.read(_LATEST, annotator=annotator)
    return get(db, annotator, rows[0]["conversation"]) if rows else None


def get(db: Database, annotator: str, conversation: str) -> Conversation:
    """A conversation of this annotator; NotFound for another person's."""
    rows = db.read(_TURNS, annotator=annotator, conversation=conversation)
    if not rows:
        raise NotFound(f"you have no conversation {conversation!r}; start a new one")
    return Conversation(id=conversation, turns=tuple(map(_turn, rows)))


def is_over(db: Database, conversation: Conversation, annotator: str, most: int) -> str | None:
    """Why the conversation cannot go on, in one sentence; None if it can."""
    last = conversation.turns[-1]
    if len(conversation.turns) >= most:
        return LAST_TURN
    if last.outcome == "both_bad":
        return BOTH_BAD
    if db.read(_LEFT, comparison=last.comparison.id):
        return SET_ASIDE
    if last.continued(annotator) is None:
        return UNJUDGED
    return None


def next_turn(
    db: Database, annotator: str, text: str, *, conversation: str | None, most: int
) -> NextTurn:
    """The turn that the annotator's message `text` begins.

    Raises ValueError for a message that cannot be sent, NotFound for another person's
    conversation, and Conflict if the conversation cannot go on or the prompt is kept apart.
    """
    if not text.strip():
        raise ValueError("Write a message first.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("The message contains half of a character (a lone surrogate).") from None
    if len(text) > MAX_MESSAGE_LENGTH:
        raise ValueError(f"A message has at most {MAX_MESSAGE_LENGTH:,} characters.")
    earlier: tuple[Message, ...] = ()
    number = 1
    if conversation is not None:
        found = get(db, annotator, conversation)
        if reason := is_over(db, found, annotator, most):
            raise Conflict(reason)
        earlier, number = found.context(annotator) or (), len(found.turns) + 1
    messages = (*earlier, Message("user", text))
    _require_open(db, messages)
    return NextTurn(
        annotator=annotator,
        conversation=conversation or new_id("v"),
        number=number,
        messages=messages,
        comparison=new_id("c"),
        completions=(new_id("r"), new_id("r")),
    )


def _require_open(db: Database, messages: Sequence[Message]) -> None:
    """Conflict if the prompt measures models: a judgment on it would teach them."""
    id = Prompt.make(messages, role="live").id
    known = prompts.get_many(db, [id]).get(id)
    if known is not None and known.role in KEPT_APART:
        raise Conflict(EVALUATION)


def store(db: Database, turn: NextTurn, replies: Mapping[str, SampledReply]) -> Comparison:
    """Store a turn whose replies, by the ids of their completions, are complete.

    The comparison is leased to its annotator.  Raises Conflict if the conversation has gone on in
    another tab.
    """
    iteration = iterations.latest(db)
    prompt = Prompt.make(turn.messages, role="live", source="live")
    first, second = sorted(turn.completions)

    def operation(tx: Transaction) -> Comparison:
        rows = tx.rows(_TURNS, annotator=turn.annotator, conversation=turn.conversation)
        if len(rows) != turn.number - 1:
            raise Conflict(ELSEWHERE)
        moment = tx.now()
        made = Comparison(
            id=turn.comparison,
            prompt=prompt.id,
            first=first,
            second=second,
            iteration=iteration.number if iteration else 0,
            arm=LIVE,
            # Two people who get the same replies have not judged one item independently.
            item=turn.comparison,
            conversation=turn.conversation,
            turn=turn.number,
            created_at=moment,
        )
        completions = [
            Completion(
                id=id,
                prompt=prompt.id,
                policy=reply.policy,
                text=reply.text,
                tokens=reply.end.tokens,
                finish_reason=reply.end.finish_reason,
                temperature=reply.temperature,
                top_p=reply.top_p,
                seed=reply.seed,
                created_at=moment,
            )
            for id, reply in replies.items()
        ]
        tx.store(prompt, *completions, made)
        tx.observer(QueueCache).item(tx, made.id)  # a lease needs the item in the cache
        grant(tx, made.id, turn.annotator, moment, moment + LEASE)
        return made

    return db.write(operation)


def suggested(db: Database, seed: str, n: int) -> list[str]:
    """The texts of `n` prompts to begin with: single messages of the role `train`."""
    rows = db.read(_SUGGESTED, seed=seed, n=n)
    return [as_messages(_messages(row))[0].content for row in rows]


def _turn(row: Mapping[str, Any]) -> Turn:
    names = Comparison.__dataclass_fields__
    return Turn(
        comparison=from_row(Comparison, {name: row[name] for name in names}),
        messages=as_messages(_messages(row)),
        first=row["first_text"],
        second=row["second_text"],
        outcome=row["outcome"],
    )


def _messages(row: Mapping[str, Any]) -> Any:
    return json.loads(row["messages"])
