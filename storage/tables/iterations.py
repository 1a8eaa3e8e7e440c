"""Iterations of the loop."""

from __future__ import annotations

from storage.engine import lookup
from storage.engine.database import Database
from storage.records import Iteration

_LATEST = "SELECT * FROM iterations ORDER BY number DESC LIMIT 1"
_LISTING = "SELECT * FROM iterations ORDER BY number"


def save(db: Database, iteration: Iteration) -> Iteration:
    """Store an iteration; it replaces the one with the same number."""
    db.write(lambda tx: tx.store(iteration))
    return iteration


def get(db: Database, number: int) -> Iteration:
    """The iteration with this number, or NotFound."""
    return lookup.by_key(db, Iteration, number)


def latest(db: Database) -> Iteration | None:
    """The newest iteration, or None before the first."""
    found = lookup.select(db, Iteration, _LATEST)
    return found[0] if found else None


def listing(db: Database) -> list[Iteration]:
    """All iterations, first to last."""
    return lookup.select(db, Iteration, _LISTING)


def before(db: Database, current: Iteration) -> Iteration | None:
    """The iteration before this one; None for the first."""
    return get(db, current.number - 1) if current.number > 1 else None


def opponent_of(current: Iteration, before: Iteration | None) -> str | None:
    """The policy that an iteration compares with the policy it samples.

    After a block, it is the policy that the previous iteration produced; otherwise the policy that
    the previous iteration sampled.
    """
    if before is None:
        return None
    made = before.policy_produced
    return before.policy_sampled if made in (None, current.policy_sampled) else made


def candidate_of(current: Iteration, before: Iteration | None) -> str | None:
    """The policy that an iteration compares with SFT: the one that the previous iteration produced,
    even if the gate blocked it; in the first iteration, the reference."""
    return (before.policy_produced if before else None) or current.policy_sampled


def candidate(db: Database, current: Iteration) -> str | None:
    """`candidate_of` for a stored iteration."""
    return candidate_of(current, before(db, current))
