"""Which annotator gets which gold pair, and which of their judgments is asked again.

`mixed` puts checks among the pairs that the queue leases.  A check is a comparison of its own, so
leases, sides, undo and the list of own judgments treat it like any other pair
(docs/architecture.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

from storage.engine.codec import StoredSetting, from_row
from storage.engine.lookup import Reader
from storage.engine.transaction import Transaction
from storage.labeling.check_schedule import due
from storage.labeling.queue_cache import QueueCache, QueueItem
from storage.records import (
    LIVE,
    PROBE,
    Check,
    CheckKind,
    Comparison,
    Flag,
    Judgment,
    Skip,
    Withdrawal,
)
from storage.sides import shown_swapped
from storage.tables.people.pseudonyms import SECRET, keyed
from storage.tables.settings import CHECK_PLAN, CheckPlan, check_plan, secret_in

_CHECKS = "SELECT * FROM checks"
# In the order of the acts; of a skipped or flagged pair, `judgment` is NULL.
_ACTS = """
    WITH own AS (FROM judgments WHERE annotator = $annotator)
    SELECT comparison, id AS judgment, seq FROM own
    ANTI JOIN own AS later ON later.replaces = own.id
    ANTI JOIN withdrawals AS w ON w.replaces = own.id
    UNION ALL SELECT comparison, NULL, seq FROM open_skips WHERE annotator = $annotator
    UNION ALL SELECT comparison, NULL, seq FROM open_flags WHERE annotator = $annotator
    ORDER BY seq
"""
# Gold pairs whose two responses the annotator judged in another comparison.
_FAMILIAR = """
    SELECT DISTINCT g.comparison
    FROM items AS g
    JOIN items AS i ON i.item = g.item AND i.comparison <> g.comparison
    JOIN judgments AS j ON j.comparison = i.comparison AND j.annotator = $annotator
    WHERE g.comparison IN (SELECT unnest($ids))
"""


@dataclass
class _Asked:
    """What one annotator has answered.

    `pairs` maps the pairs that are no checks to the current judgment, None after a skip or a flag,
    in the order of the acts.  `familiar` are gold pairs that they must not get.
    """

    pairs: dict[str, str | None] = field(default_factory=dict)
    checks: set[str] = field(default_factory=set)
    familiar: set[str] = field(default_factory=set)

    def add(self, comparison: str, judgment: str | None, *, is_check: bool) -> None:
        if is_check:
            self.checks.add(comparison)
        else:
            self.pairs.pop(comparison, None)  # a revised judgment moves to the end
            self.pairs[comparison] = judgment


class CheckQueue:
    """The writer thread's cache of the checks and of what annotators have answered."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Drop everything; the next call reads the tables again."""
        self._plan: CheckPlan | None = None
        self._checks: dict[str, Check] | None = None
        self._asked: dict[str, _Asked] = {}

    def apply(self, record: object) -> None:
        """Apply a record that has just been stored."""
        if isinstance(record, StoredSetting) and record.key == CHECK_PLAN:
            self._plan = None
        elif isinstance(record, Check) and self._checks is not None:
            self._checks[record.comparison] = record
        elif isinstance(record, Judgment | Skip | Flag):
            if asked := self._asked.get(record.annotator):
                judgment = record.id if isinstance(record, Judgment) else None
                is_check = record.comparison in (self._checks or {})
                asked.add(record.comparison, judgment, is_check=is_check)
        elif isinstance(record, Withdrawal):  # of this annotator or, for a flag, of another one
            self._asked.clear()

    def plan(self, reader: Reader) -> CheckPlan:
        if self._plan is None:
            self._plan = check_plan(reader)
        return self._plan

    def checks(self, reader: Reader) -> dict[str, Check]:
        """All checks by their comparison."""
        if self._checks is None:
            found = (from_row(Check, row) for row in reader.rows(_CHECKS))
            self._checks = {check.comparison: check for check in found}
        return self._checks

    def asked(self, reader: Reader, annotator: str) -> _Asked:
        if annotator not in self._asked:
            checks, found = self.checks(reader), _Asked()
            for row in reader.rows(_ACTS, annotator=annotator):
                is_check = row["comparison"] in checks
                found.add(row["comparison"], row["judgment"], is_check=is_check)
            self._asked[annotator] = found
        return self._asked[annotator]


def mixed(
    tx: Transaction, annotator: str, others: Iterator[QueueItem], held: set[str]
) -> Iterator[QueueItem]:
    """The annotator's next pairs: `others` with the checks that are due among them.

    `held` are the pairs that they hold.  A re-ask is stored when the iterator reaches it, so take
    no more items than will be leased.
    """
    queue = tx.observer(CheckQueue)
    plan = queue.plan(tx)
    if plan.practice:
        yield from _practice(tx, annotator, held)
    if not (plan.gold_share or plan.reask_share):
        yield from others
        return
    asked, checks = queue.asked(tx, annotator), queue.checks(tx)
    held = set(held)
    key = secret_in(tx, SECRET)
    pairs = len(asked.pairs.keys() | (held - checks.keys()))
    given = Counter(checks[id].kind for id in asked.checks | (held & checks.keys()))
    choose: Mapping[CheckKind, Callable[..., QueueItem | None]]
    choose = {"gold": _next_gold, "reask": _next_reask}
    missing: set[CheckKind] = set()
    while True:
        for kind in choose:
            while kind not in missing and given[kind] < due(plan, kind, key, annotator, pairs):
                item = choose[kind](tx, annotator, held)
                if item is None:
                    missing.add(kind)
                    break
                given[kind] += 1
                held.add(item.comparison.id)
                yield item
        item = next(others, None)
        if item is None:
            return
        pairs += 1
        yield item


def practice_left(tx: Transaction, annotator: str) -> int:
    """How many practice pairs the annotator has yet to answer."""
    queue = tx.observer(CheckQueue)
    return len(_practice(tx, annotator, set())) if queue.plan(tx).practice else 0


def _practice(tx: Transaction, annotator: str, held: set[str]) -> list[QueueItem]:
    """The practice pairs that the annotator has neither answered nor holds, oldest first."""
    queue, cache = tx.observer(CheckQueue), tx.observer(QueueCache)
    had = queue.asked(tx, annotator).checks | held
    left = [
        check
        for check in queue.checks(tx).values()
        if check.kind == "practice" and check.active and check.comparison not in had
    ]
    left.sort(key=lambda check: (check.created_at, check.comparison))
    items = [cache.item(tx, check.comparison) for check in left]
    return [item for item in items if not item.flags]


def _next_gold(tx: Transaction, annotator: str, held: Iterable[str]) -> QueueItem | None:
    """A gold pair that the annotator has not had, in an order of their own."""
    queue, cache = tx.observer(CheckQueue), tx.observer(QueueCache)
    asked = queue.asked(tx, annotator)
    had = asked.checks | asked.familiar | set(held)
    left = [
        check.comparison
        for check in queue.checks(tx).values()
        if check.kind == "gold" and check.active and check.comparison not in had
    ]
    if not left:
        return None
    rows = tx.rows(_FAMILIAR, annotator=annotator, ids=left)
    asked.familiar |= {row["comparison"] for row in rows}
    key = secret_in(tx, SECRET)
    items = [cache.item(tx, id) for id in left if id not in asked.familiar]
    fit = [
        item.comparison.id for item in items if not item.flags and annotator not in item.familiar
    ]
    chosen = min(fit, key=lambda id: keyed(key, f"gold {annotator} {id}"), default=None)
    return cache.item(tx, chosen) if chosen else None


def _next_reask(tx: Transaction, annotator: str, held: Iterable[str]) -> QueueItem | None:
    """One of the annotator's judgments, with the sides swapped: one that was leased and not
    answered, otherwise a new one of a random judgment."""
    queue, cache = tx.observer(CheckQueue), tx.observer(QueueCache)
    asked = queue.asked(tx, annotator)
    own = [c for c in queue.checks(tx).values() if c.annotator == annotator]
    for check in own:
        if check.comparison not in asked.checks and check.comparison not in held:
            item = cache.item(tx, check.comparison)
            if not item.flags:
                return item
    again = {check.source for check in own}
    before = list(asked.pairs)[: -queue.plan(tx).reask_after or None]
    key = secret_in(tx, SECRET)
    cache.load(tx)
    # What an annotator said of a pair with a follow-up, the page of follow-ups shows them again.
    shown = cache.followed_up
    left = [id for id in before if asked.pairs[id] not in {None, *shown} and id not in again]
    for id in sorted(left, key=lambda id: keyed(key, f"reask {annotator} {id}")):
        judgment = asked.pairs[id]
        item = cache.item(tx, id)
        # A live turn belongs to its conversation, an imported pair was judged elsewhere, and nobody
        # is measured with a probe.
        others = (LIVE, PROBE, "imported")
        fits = item.comparison.arm not in others and annotator not in item.familiar
        if judgment and not item.flags and fits:
            return _ask_again(tx, item.comparison, annotator, judgment, key)
    return None


def _ask_again(
    tx: Transaction, source: Comparison, annotator: str, judgment: str, key: bytes
) -> QueueItem:
    """Store a re-ask.  The sides follow from the id, so ids are tried until the sides are swapped."""
    before = shown_swapped(annotator, source.id)
    ids = (f"c-{keyed(key, f'reask {judgment} {n}')}" for n in count())
    id = next(each for each in ids if shown_swapped(annotator, each) != before)
    moment = tx.now()
    made = Comparison(
        id=id,
        prompt=source.prompt,
        first=source.first,
        second=source.second,
        iteration=0,
        arm="reask",
        position=int(keyed(key, f"position of {id}"), 16) >> 2,
        item=source.item,
        created_at=moment,
    )
    check = Check(
        comparison=id,
        kind="reask",
        annotator=annotator,
        judgment=judgment,
        source=source.id,
        created_at=moment,
    )
    tx.store(made, check)
    return tx.observer(QueueCache).item(tx, id)
