"""Probes: pairs of replies that a researcher sends from the playground to the annotators.

A probe is in the queue until it is judged, like a written pair, and nothing that an annotator sees
tells it from other pairs.  Reward models learn from it, except on held-out and audit prompts, and no
figure uses it (docs/playground.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from storage.engine.database import Database
from storage.engine.lookup import prompt_roles
from storage.engine.transaction import Transaction
from storage.errors import Conflict
from storage.labeling.live import SampledReply
from storage.labeling.queue_cache import SERVED
from storage.records import (
    KEPT_APART,
    PROBE,
    Comparison,
    Completion,
    Message,
    Prompt,
    PromptRole,
)
from storage.tables import models
from storage.tables.people.pseudonyms import SECRET, keyed, random_bits
from storage.tables.settings import secret_in

SAME = "Both replies have the same text, so there is nothing to compare."
NO_QUEUE = "Annotators have no pairs yet. Send it when the first iteration has been sampled."
CONTINUES = (
    "The conversation continues a held-out or audit prompt, and a model would learn from it. "
    "Send another conversation."
)


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A stored probe.  `role` is its prompt's; `is_new` is False if the pair was sent before."""

    comparison: Comparison
    role: PromptRole
    is_new: bool

    @property
    def learned_from(self) -> bool:
        """Whether reward models learn from judgments of it."""
        return self.role not in KEPT_APART


def send(db: Database, messages: Sequence[Message], replies: dict[str, SampledReply]) -> Probe:
    """Store two replies, by the ids of their completions, as a pair for the annotators.

    Sending the same two replies again stores nothing.  Raises ValueError if there is nothing to
    compare, NotFound for an unknown model, and Conflict while no pairs are queued or if the
    conversation continues a held-out or audit prompt.
    """
    if len({reply.text.strip() for reply in replies.values()}) != 2:
        raise ValueError(SAME)
    for reply in replies.values():
        models.get(db, reply.policy)
    prompt = Prompt.make(messages, role="probe", source="playground")
    first, second = sorted(replies)

    def operation(tx: Transaction) -> Probe:
        [served] = tx.rows(SERVED)
        if served["number"] is None:
            raise Conflict(NO_QUEUE)
        earlier = _earlier_prompts(messages)
        roles = prompt_roles(tx, [*earlier, prompt.id])
        if any(roles.get(id) in KEPT_APART for id in earlier):
            raise Conflict(CONTINUES)
        key, moment = secret_in(tx, SECRET), tx.now()
        id = f"c-{keyed(key, f'probe {first} {second}')}"
        made = Comparison(
            id=id,
            prompt=prompt.id,
            first=first,
            second=second,
            iteration=served["number"],
            arm=PROBE,
            # Random, so that probes are mixed with the loop's own pairs.
            position=random_bits(key, f"position of {id}", bits=62),
            # An item of its own: a pair of the loop with the same texts does not count as judged twice.
            item=id,
            created_at=moment,
        )
        role = roles.get(prompt.id, prompt.role)
        if known := tx.rows("SELECT 1 FROM comparisons WHERE id = $id", id=id):
            return Probe(comparison=made, role=role, is_new=not known)
        if prompt.id not in roles:
            tx.store(prompt)
        stored = tx.rows(
            "SELECT id FROM completions WHERE id IN (SELECT unnest($ids))", ids=[*replies]
        )
        new = replies.keys() - {row["id"] for row in stored}
        tx.store(
            *(
                Completion(
                    id=name,
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
                for name, reply in replies.items()
                if name in new
            ),
            made,
        )
        return Probe(comparison=made, role=role, is_new=True)

    return db.write(operation)


def _earlier_prompts(messages: Sequence[Message]) -> list[str]:
    """The ids of the prompts that a conversation of several turns continues."""
    ends = [n for n, message in enumerate(messages[:-1], 1) if message.role == "user"]
    return [Prompt.make(messages[:end], role="probe").id for end in ends]
