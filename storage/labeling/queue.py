"""The queue of comparisons.  A lease reserves a pair for one annotator and survives a restart.

`lease` chooses the pairs.  A lease lasts `LEASE_LIFETIME` (30 minutes, storage/records.py).
After that, `lease` can give the pair to another annotator; no job runs when a lease expires.
A judgment that arrives later still counts.  `storage/labeling/queue_cache.py` keeps the order;
`storage/sides.py` decides which response is A.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import TypeVar

from storage.engine.database import Database
from storage.engine.transaction import Transaction
from storage.errors import NotLeased
from storage.labeling.check_queue import mixed
from storage.labeling.check_schedule import due
from storage.labeling.queue_cache import (
    IN_EVERY_PHASE,
    IN_USE,
    QUEUED,
    SERVED,
    QueueCache,
    QueueItem,
    grant,
)
from storage.labeling.text_cache import TextCache, Texts
from storage.records import LEASE_LIFETIME, CheckKind, Comparison, Prompt
from storage.sides import shown_swapped
from storage.tables import comparisons, settings
from storage.tables.people.pseudonyms import SECRET, key_of

T = TypeVar("T")

AT_ONCE = 16
READ_AHEAD = 64
MAX_LEASES = 64
"""Limit of live leases per annotator.  The page holds `Leased.share` pairs."""
LEAST_SHARE = 4
"""Pairs that a page may hold even if the queue is short: enough for a slow connection."""
MAX_SHARE = 40
"""Pairs that a page may hold if the queue is long: enough to label 30 offline."""


@dataclass(frozen=True)
class LeasedPair:
    """A comparison as shown on the screen; `swapped` if `first` is on the right."""

    comparison: Comparison
    prompt: Prompt
    left: str
    right: str
    swapped: bool


@dataclass(frozen=True)
class Leased:
    """The answer to a page: further pairs, and what it should know about those it holds.

    `gone` are the ids in `holding` that the annotator answered or that others have now.
    `share` is how many pairs the page should hold, so that enough are left for others.
    """

    pairs: list[LeasedPair]
    gone: list[str]
    share: int


def lease(
    db: Database,
    annotator: str,
    n: int,
    *,
    holding: Sequence[str] = (),
    lifetime: timedelta = LEASE_LIFETIME,
) -> Leased:
    """Lease up to `n` pairs to this annotator, from the newest iteration that has pairs and from
    the written pairs and probes.

    Pairs that they already hold come first, except the ids in `holding`: a reloaded page gets the
    same pairs again, and so does an undo.  Pairs that another annotator has judged come next, then
    the others by position.  A pair is not leased to more annotators at a time than it wants
    judgments.  Checks are mixed in (`check_queue.mixed`).  Leases on `holding` are extended when half
    their time is over, and leased again if they ended and nobody else has the pair; beyond
    `MAX_LEASES` the oldest leases end.  No pairs are returned if none is left for the annotator.
    """
    n = max(0, min(n, AT_ONCE))
    named = set(holding)

    def operation(tx: Transaction) -> tuple[list[Comparison], list[str], list[str], int]:
        cache = tx.observer(QueueCache)
        cache.load(tx)
        moment = tx.now()
        unanswered = cache.unanswered(annotator, moment)
        again = [item for item in unanswered if item.comparison.id not in named][:n]
        seen = {item.comparison.id for item in unanswered} | named
        others = (
            item for item in cache.available(annotator, moment) if item.comparison.id not in seen
        )
        lapsed = cache.to_renew(annotator, holding, moment)
        held = {item.comparison.id for item in (*unanswered, *lapsed)}
        new = list(islice(mixed(tx, annotator, others, held), n - len(again)))
        back = lapsed[: max(0, MAX_LEASES - len(unanswered) - len(new))]
        ended = lease_items(tx, [*new, *back], annotator, moment, lifetime, keep=again)
        for item in unanswered:
            lease, id = item.leases[annotator], item.comparison.id
            if id in named - ended and lease.expires - moment < lifetime / 2:
                grant(tx, id, annotator, lease.granted, moment + lifetime)
        open_ids = {item.comparison.id for item in (*unanswered, *back)} - ended
        gone = [id for id in holding if id not in open_ids]
        share = _share(cache, annotator, moment)
        chosen = [item.comparison for item in again + new]
        ahead: list[str] = []
        if not all(comparison.id in db.cache(TextCache) for comparison in chosen):
            ahead = [item.comparison.id for item in islice(others, READ_AHEAD)]
        return chosen, ahead, gone, share

    chosen, ahead, gone, share = db.write(operation)
    return Leased(pairs(db, annotator, chosen, ahead=ahead), gone, share)


def release(db: Database, annotator: str, ids: Sequence[str]) -> int:
    """End the annotator's leases on these pairs, so that others get them; returns how many ended.

    The annotator can still judge them, and holds them again if they ask first (`lease`).
    """
    named = set(ids)

    def operation(tx: Transaction) -> int:
        cache = tx.observer(QueueCache)
        cache.load(tx)
        moment = tx.now()
        spare = [
            item for item in cache.unanswered(annotator, moment) if item.comparison.id in named
        ]
        for item in spare:
            grant(tx, item.comparison.id, annotator, item.leases[annotator].granted, moment)
        return len(spare)

    return db.write(operation)


def _share(cache: QueueCache, annotator: str, moment: datetime) -> int:
    """How many pairs the annotator's page should hold.

    One more annotator could come at any time, so the pairs that nobody else holds are divided by
    one more than the annotators who hold some.
    """
    held, others = cache.held_by_others(annotator, moment, MAX_SHARE)
    free = cache.unfinished - held
    return max(LEAST_SHARE, min(MAX_SHARE, free // (others + 2)))


def lease_items(
    tx: Transaction,
    items: Sequence[QueueItem],
    annotator: str,
    moment: datetime,
    lifetime: timedelta = LEASE_LIFETIME,
    *,
    keep: Sequence[QueueItem] = (),
) -> set[str]:
    """Lease these items to an annotator.  All new leases are made here.

    Beyond `MAX_LEASES` the oldest leases end, except those on `items` and `keep`.  Returns the ids
    of comparisons whose leases ended: others can get them, and the annotator can still judge them.
    """
    kept = {item.comparison.id for item in (*items, *keep)}
    unanswered = tx.observer(QueueCache).unanswered_with_flagged(annotator, moment)
    others = [item for item in unanswered if item.comparison.id not in kept]
    ended = others[::-1][: max(0, len(others) + len(kept) - MAX_LEASES)]
    for item in ended:
        grant(tx, item.comparison.id, annotator, item.leases[annotator].granted, moment)
    for item in items:
        grant(tx, item.comparison.id, annotator, moment, moment + lifetime)
    return {item.comparison.id for item in ended}


def pairs(
    db: Database, annotator: str, chosen: Sequence[Comparison], *, ahead: Sequence[str] = ()
) -> list[LeasedPair]:
    """The comparisons as this annotator sees them, in the same order, with stable sides.

    `ahead` has ids of comparisons whose texts the same query caches for later calls.
    """
    texts = db.cache(TextCache).fetch(db.read, [comparison.id for comparison in chosen], ahead)
    return [_pair(comparison, texts[comparison.id], annotator) for comparison in chosen]


def _pair(comparison: Comparison, texts: Texts, annotator: str) -> LeasedPair:
    swapped = shown_swapped(annotator, comparison.id)
    left, right = (texts.second, texts.first) if swapped else (texts.first, texts.second)
    return LeasedPair(comparison, texts.prompt, left, right, swapped)


def pair(db: Database, annotator: str, comparison: str) -> LeasedPair:
    """One comparison as this annotator sees it, or NotFound."""
    return pairs(db, annotator, [comparisons.get(db, comparison)])[0]


def received_pair(db: Database, annotator: str, comparison: str) -> LeasedPair:
    """The same of a comparison that this annotator has received; NotLeased for another one."""
    db.write(lambda tx: require_lease(tx.observer(QueueCache).item(tx, comparison), annotator))
    return pair(db, annotator, comparison)


def require_lease(item: QueueItem, annotator: str) -> None:
    """Raise NotLeased unless this annotator has ever had a lease on the item."""
    if annotator not in item.leases:
        raise NotLeased(
            f"the comparison {item.comparison.id!r} was never leased to you; request the next one"
        )


def midnight(moment: datetime, offset: int = 0) -> datetime:
    """Midnight before `moment` in a time zone `offset` minutes ahead of UTC."""
    there = moment.astimezone(timezone(timedelta(minutes=offset)))
    return there.replace(hour=0, minute=0, second=0, microsecond=0)


# The view current_judgments would read a million judgments, and only those of the queue are needed:
# a judgment is always revised on the same comparison.
UNFINISHED = f"""
    queued AS (SELECT c.id, c.wanted FROM comparisons AS c WHERE {IN_USE}),
    given AS (
        SELECT j.id, j.comparison, j.annotator, j.replaces
        FROM judgments AS j SEMI JOIN queued AS q ON q.id = j.comparison),
    people AS (
        SELECT g.comparison, count(DISTINCT g.annotator) AS n
        FROM given AS g
        SEMI JOIN (FROM annotators WHERE kind <> 'model') AS a ON a.id = g.annotator
        ANTI JOIN given AS later ON later.replaces = g.id
        ANTI JOIN withdrawals AS w ON w.replaces = g.id
        GROUP BY g.comparison),
    unfinished AS (
        SELECT q.id, q.wanted - coalesce(p.n, 0) AS missing
        FROM queued AS q LEFT JOIN people AS p ON p.comparison = q.id
        WHERE q.wanted > coalesce(p.n, 0) AND q.id NOT IN (SELECT comparison FROM open_flags))
"""
"""Common table expressions of the pairs that still need judgments by people, and how many."""
_COUNT_UNFINISHED = f"WITH {UNFINISHED} SELECT count(*) AS n FROM unfinished"
_BEGUN = f"""
    SELECT coalesce(max(created_at), '-infinity'::TIMESTAMPTZ) FROM iterations
    WHERE number = ({SERVED})
"""
_PROGRESS = f"""
    WITH {UNFINISHED},
    known AS (SELECT unnest($known)),
    own AS (
        SELECT id, comparison, replaces, created_at FROM judgments WHERE annotator = $annotator),
    mine AS (
        FROM own
        ANTI JOIN own AS later ON later.replaces = own.id
        ANTI JOIN withdrawals AS w ON w.replaces = own.id),
    past AS (
        SELECT comparison FROM mine
        UNION ALL SELECT comparison FROM open_skips WHERE annotator = $annotator),
    acted AS (
        FROM past UNION SELECT comparison FROM open_flags WHERE annotator = $annotator),
    checked AS (SELECT k.kind FROM acted JOIN checks AS k USING (comparison)),
    gold AS (
        SELECT k.comparison, i.item FROM checks AS k JOIN items AS i USING (comparison)
        WHERE k.kind = 'gold' AND k.active AND k.comparison NOT IN (FROM acted)
          AND k.comparison NOT IN (FROM known)),
    familiar AS (
        SELECT i.item FROM items AS i SEMI JOIN gold AS g ON g.item = i.item
        SEMI JOIN own ON own.comparison = i.comparison)
    SELECT (SELECT count(*) FROM mine) AS judged,
           (SELECT count(*) FROM mine WHERE created_at >= $since) AS today,
           (SELECT count(*) FROM unfinished
            WHERE id NOT IN (FROM past) AND id NOT IN (FROM known)) AS remaining,
           ({SERVED}) AS iteration,
           (SELECT count(*) FROM mine JOIN comparisons AS c ON c.id = mine.comparison
            WHERE ({QUEUED} AND NOT {IN_EVERY_PHASE})
               OR (({IN_EVERY_PHASE} OR c.id IN (SELECT comparison FROM checks))
                   AND mine.created_at >= ({_BEGUN}))) AS done,
           (SELECT count(*) FROM acted ANTI JOIN checks USING (comparison)) AS pairs,
           (SELECT count(*) FROM mine ANTI JOIN checks USING (comparison)) AS own_pairs,
           (SELECT count(*) FROM checked WHERE kind = 'gold') AS gold,
           (SELECT count(*) FROM checked WHERE kind = 'reask') AS reask,
           (SELECT count(*) FROM gold WHERE item NOT IN (FROM familiar)) AS gold_left,
           (SELECT count(*) FROM checks WHERE kind = 'practice' AND active
            AND comparison NOT IN (FROM acted)) AS practice_left
"""


@dataclass(frozen=True)
class Progress:
    """An annotator's judgments in all and `today`, and the pairs `remaining` for them.

    Remaining pairs are unfinished ones in the queue that the annotator has neither judged nor
    skipped, including pairs leased to others, and the checks that will be among them.  Pairs that
    they are never asked about (`QueueItem.familiar`) are not among them.  `iteration`
    is the one being labeled, or None.  `done` are their judgments of this round: those of pairs in
    the queue, and of written pairs, probes and checks only since the iteration began.
    """

    judged: int
    today: int
    remaining: int
    iteration: int | None
    done: int


def progress(db: Database, annotator: str, *, since: datetime) -> Progress:
    """The annotator's progress; `today` counts from `since`."""
    # Copied by the writer thread, which changes the set while people judge.
    known = _cached(db, lambda cache, _: sorted(cache.familiar_to(annotator)))
    [row] = db.read(_PROGRESS, annotator=annotator, since=since, known=known)
    pairs, own = row.pop("pairs"), row.pop("own_pairs")
    left, practice = row.pop("gold_left"), row.pop("practice_left")
    kinds: tuple[CheckKind, ...] = ("gold", "reask")
    answered = {kind: row.pop(kind) for kind in kinds}
    plan = settings.check_plan_of(db)
    remaining = row["remaining"]
    row["remaining"] += practice if plan.practice else 0
    # If checks were not counted, a client could tell them from the count before and after.
    secret = settings.get(db, SECRET)
    key = bytes.fromhex(secret) if secret else key_of(db)
    ahead = {
        kind: due(plan, kind, key, annotator, pairs + remaining) - answered[kind] for kind in kinds
    }
    # Only judged pairs are asked again, some pairs later.
    judged = own + max(0, remaining - plan.reask_after)
    again = max(0, min(ahead["reask"], judged - answered["reask"]))
    row["remaining"] += min(max(0, ahead["gold"]), left) + again
    return Progress(**row)


def unfinished(db: Database) -> int:
    """How many pairs, except flagged ones, still need a judgment by a person."""
    return db.read(_COUNT_UNFINISHED)[0]["n"]


def leased_to_others(db: Database, annotator: str) -> int:
    """How many pairs this annotator could judge if they were not leased to others."""
    return _cached(db, lambda cache, moment: cache.leased_to_others(annotator, moment))


def _cached(db: Database, ask: Callable[[QueueCache, datetime], T]) -> T:
    """What the writer thread's cache of the queue answers now."""

    def operation(tx: Transaction) -> T:
        cache = tx.observer(QueueCache)
        cache.load(tx)
        return ask(cache, tx.now())

    return db.write(operation)
