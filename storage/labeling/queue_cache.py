"""The writer thread's cache of the queue, which makes leasing fast.

The cache is filled from the tables, applies each stored record, and is dropped when a transaction
is rolled back.  It has the comparisons of the newest iteration that has any, the written pairs and
probes, the checks, and any other comparison for which an act arrives.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain

from storage.engine.codec import from_row
from storage.engine.lookup import Reader
from storage.engine.transaction import Transaction
from storage.errors import NotFound
from storage.records import (
    CHECKS,
    LIVE,
    PROBE,
    WRITTEN,
    Annotator,
    Comparison,
    Flag,
    FollowUp,
    Iteration,
    Judgment,
    PromptEdit,
    Skip,
    Withdrawal,
)

Act = Judgment | Skip | Flag

SERVED = "SELECT max(number) AS number FROM iterations WHERE phase <> 'sampling'"
"""The iteration whose pairs are leased, until those of the next one are sampled; NULL before the
first."""
IN_EVERY_PHASE = "(c.arm = 'written' OR (c.arm = 'probe' AND c.iteration > 0))"
"""Whether the comparison `c` stays in the queue until it is judged: a written pair, or a probe that
was not imported with judgments."""
QUEUED = f"((c.iteration = ({SERVED}) AND c.arm NOT IN ('imported', 'live')) OR {IN_EVERY_PHASE})"
"""Whether the comparison `c` is in the queue: it is of that iteration, or in every phase."""
IN_USE = f"({QUEUED} AND c.prompt NOT IN (FROM retired_prompts))"
"""Whether, in addition, its prompt is not retired: only such pairs are leased."""
_QUEUED = f"SELECT c.id FROM comparisons AS c WHERE {IN_USE}"
_RETIRED = "FROM retired_prompts"
# Gold pairs have one comparison for all annotators; a re-ask belongs to one, who answers it once.
_OPEN_CHECKS = """
    SELECT comparison AS id FROM checks
    WHERE kind <> 'reask' OR comparison NOT IN (SELECT comparison FROM judgments)
"""
_MODELS = "SELECT id FROM annotators WHERE kind = 'model'"
_COMPARISONS = "SELECT * FROM comparisons WHERE id IN (SELECT unnest($ids))"
_JUDGMENTS = "SELECT * FROM judgments WHERE comparison IN (SELECT unnest($ids)) ORDER BY created_at"
_SKIPS = "SELECT * FROM skips WHERE comparison IN (SELECT unnest($ids)) ORDER BY created_at"
_FLAGS = "SELECT * FROM flags WHERE comparison IN (SELECT unnest($ids)) ORDER BY created_at"
_WITHDRAWALS = "SELECT * FROM withdrawals WHERE replaces IN (SELECT unnest($acts))"
_USED = """
    SELECT id FROM judgments UNION ALL SELECT id FROM skips
    UNION ALL SELECT id FROM flags UNION ALL SELECT id FROM withdrawals
"""
_ALL_USED = f"SELECT list(id) AS ids FROM ({_USED})"
_IS_USED = f"SELECT 1 FROM ({_USED}) WHERE id = $id LIMIT 1"
_FOLLOW_UPS = "SELECT prompt, learned::VARCHAR[] AS learned FROM follow_ups"
# Who may know a response of a comparison as the new answer to a prompt that they judged.  Answers to
# prompts of earlier comparisons are withheld until those are judged (follow_ups.own_follow_ups).
_FAMILIAR = """
    SELECT DISTINCT c.id AS comparison, f.annotator
    FROM (SELECT u.prompt, u.text, u.created_at, j.annotator
          FROM (SELECT *, unnest(learned::VARCHAR[]) AS judgment FROM follow_ups) AS u
          JOIN judgments AS j ON j.id = u.judgment) AS f
    JOIN completions AS t ON t.prompt = f.prompt AND t.text = f.text
    JOIN comparisons AS c ON c.prompt = t.prompt AND (c.first = t.id OR c.second = t.id)
    WHERE c.id IN (SELECT unnest($ids)) AND c.created_at > f.created_at AND c.arm <> 'reask'
"""
_LEASES = "SELECT * FROM leases WHERE comparison IN (SELECT unnest($ids))"


@dataclass(slots=True)
class Lease:
    """A lease of a comparison to an annotator."""

    granted: datetime
    expires: datetime


@dataclass(slots=True)
class QueueItem:
    """One comparison with its leases and acts.

    `closed` has the ids of revised or withdrawn acts.  `judged` maps each annotator with a current
    judgment to its id; `skipped` are annotators who skipped, `past` those who did either; `flags`
    are uncleared reports.  `familiar` are annotators who know one of its responses as a new policy's
    answer: they could judge the policy instead of the response.  `models` are the annotators of kind model, shared by all items: their
    judgments do not count towards those wanted.
    """

    comparison: Comparison
    models: set[str]
    leases: dict[str, Lease] = field(default_factory=dict)
    acts: dict[str, Act] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    judged: dict[str, str] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)
    flags: set[str] = field(default_factory=set)
    past: set[str] = field(default_factory=set)
    familiar: set[str] = field(default_factory=set)

    def add(self, act: Act) -> None:
        self.acts[act.id] = act
        if isinstance(act, Judgment) and act.replaces is not None:
            self.closed.add(act.replaces)
        self._recount()

    def close(self, act: str) -> None:
        """Apply the withdrawal of an act."""
        self.closed.add(act)
        self._recount()

    def _recount(self) -> None:
        standing = [act for act in self.acts.values() if act.id not in self.closed]
        self.judged = {a.annotator: a.id for a in standing if isinstance(a, Judgment)}
        self.skipped = {a.annotator for a in standing if isinstance(a, Skip)}
        self.past = self.judged.keys() | self.skipped
        self.flags = {a.id for a in standing if isinstance(a, Flag)}

    @property
    def missing(self) -> int:
        """How many judgments by people are missing."""
        return self.comparison.wanted - len(self.judged.keys() - self.models)

    def may_go_to(self, annotator: str, moment: datetime) -> bool:
        """Whether the comparison can be leased to this annotator now.

        It cannot after they judged or skipped it, if they know a response, while it is flagged, or
        while as many annotators hold it as judgments are missing.  A check can go to any number of annotators.
        """
        if self.flags or annotator in self.past or annotator in self.familiar:
            return False
        if self.comparison.arm in CHECKS:
            return True
        leased = 0
        # This loop runs for every leased item; set operations would take twice as long.
        for holder, lease in self.leases.items():
            leased += (
                lease.expires > moment
                and holder != annotator
                and holder not in self.past
                and holder not in self.models
            )
        return self.missing > leased


class QueueCache:
    """The items, and the order in which unfinished ones are leased."""

    def __init__(self) -> None:
        # Hashes of the ids of all acts and undos of every iteration; None until first needed.
        # `forget` keeps them: an id that was rolled back costs one query.
        self._maybe_used: set[int] | None = None
        self.forget()

    def forget(self) -> None:
        """Drop everything; the next call reads the tables again."""
        self.iteration: int | None = None
        self._loaded = False
        self._items: dict[str, QueueItem] = {}
        self._models: set[str] = set()
        self._retired: set[str] = set()
        # Prompts with follow-ups, and the judgments that their annotators see beside them.
        self._followed: set[str] = set()
        self.followed_up: set[str] = set()
        self._familiar_to: dict[str, set[str]] = {}  # ids of items by annotator
        self._item_of_act: dict[str, str] = {}
        # Comparisons that an annotator was leased and has not answered, and when the last lease ends.
        self._leased_to: dict[str, set[str]] = {}
        self._leased_until: dict[str, datetime] = {}
        # Unfinished comparisons of the iteration as (position, id), in order.
        self._untouched: list[tuple[int, str]] = []
        self._started: list[tuple[int, str]] = []

    def load(self, reader: Reader) -> None:
        """Read the queue unless it is already cached."""
        if self._loaded:
            return
        self.forget()
        self._models |= {row["id"] for row in reader.rows(_MODELS)}
        self._retired = {row["prompt"] for row in reader.rows(_RETIRED)}
        for row in reader.rows(_FOLLOW_UPS):
            self._followed.add(row["prompt"])
            self.followed_up.update(row["learned"])
        [newest] = reader.rows(SERVED)
        self.iteration = newest["number"]
        rows = reader.rows(_QUEUED) + reader.rows(_OPEN_CHECKS)
        self._read(reader, [row["id"] for row in rows])
        self._loaded = True

    def item(self, reader: Reader, comparison: str) -> QueueItem:
        """The item of a comparison of any iteration, or NotFound."""
        self.load(reader)
        if comparison not in self._items:
            self._read(reader, [comparison])
        if comparison not in self._items:
            raise NotFound(f"there is no comparison {comparison!r}")
        return self._items[comparison]

    def unanswered(self, annotator: str, moment: datetime) -> list[QueueItem]:
        """Items with a live lease of this annotator and no answer yet, the latest lease first.

        An item that another annotator holds too is included: that one got it after a skip, and then
        the skip was undone.
        """
        return [item for item in self.unanswered_with_flagged(annotator, moment) if not item.flags]

    def unanswered_with_flagged(self, annotator: str, moment: datetime) -> list[QueueItem]:
        """Like `unanswered`, with flagged items: their leases count once the flag is cleared."""
        leased = [self._items[name] for name in self._leased_to.get(annotator, ())]
        open_items = [
            item
            for item in leased
            if item.leases[annotator].expires > moment
            and self._serves(item.comparison)
            and annotator not in item.past
        ]
        return sorted(
            open_items,
            key=lambda c: (
                c.comparison.arm != "practice",  # practice comes before everything else
                -c.leases[annotator].granted.timestamp(),
                c.comparison.position,
            ),
        )

    def available(self, annotator: str, moment: datetime) -> Iterator[QueueItem]:
        """Items that can be leased to the annotator, those with a judgment first, by position."""
        for _, name in chain(self._started, self._untouched):
            if self._items[name].may_go_to(annotator, moment):
                yield self._items[name]

    def leased_to_others(self, annotator: str, moment: datetime) -> int:
        """How many pairs the annotator could judge if they were not leased to others."""
        leased = set[str]().union(*self._leased_to.values())
        items = [item for name in leased if self._is_queued(item := self._items[name])]
        return sum(
            annotator not in item.past
            and annotator not in item.familiar
            and not _holds(item, annotator, moment)
            and not item.may_go_to(annotator, moment)
            for item in items
        )

    def familiar_to(self, annotator: str) -> set[str]:
        """The comparisons that the annotator is never asked about, because they know a response."""
        return self._familiar_to.get(annotator, set())

    @property
    def unfinished(self) -> int:
        """How many pairs in the queue still need a judgment by a person."""
        return len(self._started) + len(self._untouched)

    def held_by_others(self, annotator: str, moment: datetime, most: int) -> tuple[int, int]:
        """About how many pairs other annotators hold, `most` each, and how many annotators these are.

        Every page asks this often, so leases are counted, not looked at: some of them may have ended.
        """
        held = [
            min(len(names), most)
            for who, names in self._leased_to.items()
            if names
            and who != annotator
            and self._leased_until[who] > moment
            and who not in self._models
        ]
        return sum(held), len(held)

    def to_renew(self, annotator: str, ids: Iterable[str], moment: datetime) -> list[QueueItem]:
        """Items among `ids` whose lease to this annotator ended, and that nobody has instead."""
        leased = self._leased_to.get(annotator, set())
        items = [self._items[id] for id in ids if id in leased]
        return [
            item
            for item in items
            if self._serves(item.comparison)
            and not _holds(item, annotator, moment)
            and item.may_go_to(annotator, moment)
        ]

    def is_used(self, reader: Reader, act: str) -> bool:
        """Whether an act of any kind and iteration, or an undo, has this id."""
        if act in self._item_of_act:
            return True
        if self._maybe_used is None:
            [row] = reader.rows(_ALL_USED)
            self._maybe_used = set(map(hash, row["ids"] or ()))
        # A query per act would take as long as storing it.
        return hash(act) in self._maybe_used and bool(reader.rows(_IS_USED, id=act))

    # -- applying stored records -------------------------------------------------------------

    def apply(self, record: object) -> None:
        """Apply a record that has just been stored."""
        if self._maybe_used is not None and isinstance(record, Act | Withdrawal):
            self._maybe_used.add(hash(record.id))
        if isinstance(record, Iteration | PromptEdit):
            self._loaded = False
        elif isinstance(record, FollowUp):
            self._followed.add(record.prompt)
            self.followed_up.update(record.learned)
        elif isinstance(record, Annotator):
            if (record.kind == "model") != (record.id in self._models):
                self._loaded = False
        elif isinstance(record, Comparison):
            if record.prompt in self._followed and record.arm != "reask":
                self._loaded = False  # an annotator may know a response
            elif self._loaded and self._serves(record):
                self._put(QueueItem(record, self._models))
        elif isinstance(record, Judgment | Skip | Flag):
            if item := self._items.get(record.comparison):
                self._item_of_act[record.id] = record.comparison
                self._change(item, lambda: item.add(record))
        elif isinstance(record, Withdrawal) and record.replaces in self._item_of_act:
            name = self._item_of_act[record.id] = self._item_of_act[record.replaces]
            withdrawn = self._items[name]
            self._change(withdrawn, lambda: withdrawn.close(record.replaces))

    def lease(self, comparison: str, annotator: str, granted: datetime, expires: datetime) -> bool:
        """Record a lease on a cached item; returns whether the annotator already had one on it."""
        leases = self._items[comparison].leases
        known = annotator in leases
        leases[annotator] = Lease(granted, expires)
        self._leased_to.setdefault(annotator, set()).add(comparison)
        self._note_end(annotator, expires)
        return known

    # -- keeping the order -------------------------------------------------------------------

    def _change(self, item: QueueItem, change: Callable[[], None]) -> None:
        self._remove_from_order(item)
        change()
        self._put_in_order(item)

    def _put(self, item: QueueItem) -> None:
        self._items[item.comparison.id] = item
        self._put_in_order(item)

    def _put_in_order(self, item: QueueItem) -> None:
        self._index_leases(item)
        if self._is_queued(item):
            insort(self._order_of(item), _queue_position(item))

    def _remove_from_order(self, item: QueueItem) -> None:
        if self._is_queued(item):
            order = self._order_of(item)
            del order[bisect_left(order, _queue_position(item))]

    def _order_of(self, item: QueueItem) -> list[tuple[int, str]]:
        is_started = item.judged.keys() - self._models
        return self._started if is_started else self._untouched

    def _index_leases(self, item: QueueItem) -> None:
        for annotator, lease in item.leases.items():
            names = self._leased_to.setdefault(annotator, set())
            if annotator in item.past:
                names.discard(item.comparison.id)
            else:
                names.add(item.comparison.id)
            self._note_end(annotator, lease.expires)

    def _note_end(self, annotator: str, expires: datetime) -> None:
        self._leased_until[annotator] = max(self._leased_until.get(annotator, expires), expires)

    def _serves(self, comparison: Comparison) -> bool:
        """`IN_USE` in Python; checks, which are served outside the queue's order, are included."""
        if comparison.arm in CHECKS:
            return True
        if comparison.prompt in self._retired:
            return False
        if comparison.arm == WRITTEN:
            return True
        if comparison.arm == PROBE:
            return comparison.iteration > 0
        return comparison.iteration == self.iteration and comparison.arm not in ("imported", LIVE)

    def _is_queued(self, item: QueueItem) -> bool:
        return (
            item.comparison.arm not in CHECKS
            and self._serves(item.comparison)
            and not item.flags
            and item.missing > 0
        )

    # -- reading the tables ------------------------------------------------------------------

    def _read(self, reader: Reader, ids: list[str]) -> None:
        items = {
            row["id"]: QueueItem(from_row(Comparison, row), self._models)
            for row in reader.rows(_COMPARISONS, ids=ids)
        }
        acts: list[Act] = [
            *(from_row(Judgment, row) for row in reader.rows(_JUDGMENTS, ids=ids)),
            *(from_row(Skip, row) for row in reader.rows(_SKIPS, ids=ids)),
            *(from_row(Flag, row) for row in reader.rows(_FLAGS, ids=ids)),
        ]
        for act in acts:
            self._item_of_act[act.id] = act.comparison
            items[act.comparison].add(act)
        for row in reader.rows(_WITHDRAWALS, acts=[act.id for act in acts]):
            name = self._item_of_act[row["replaces"]]
            self._item_of_act[row["id"]] = name
            items[name].close(row["replaces"])
        for row in reader.rows(_LEASES, ids=ids):
            item = items[row["comparison"]]
            item.leases[row["annotator"]] = Lease(row["granted_at"], row["expires_at"])
        for row in reader.rows(_FAMILIAR, ids=ids) if self._followed else ():
            items[row["comparison"]].familiar.add(row["annotator"])
            self._familiar_to.setdefault(row["annotator"], set()).add(row["comparison"])
        self._put_all(items.values())

    def _put_all(self, items: Iterable[QueueItem]) -> None:
        """Add many items: sorting once is faster than inserting each in order."""
        for item in items:
            self._items[item.comparison.id] = item
            self._index_leases(item)
            if self._is_queued(item):
                self._order_of(item).append(_queue_position(item))
        self._untouched.sort()
        self._started.sort()


def grant(
    tx: Transaction, comparison: str, annotator: str, granted: datetime, expires: datetime
) -> None:
    """Lease a comparison to an annotator, or renew the lease, until `expires`."""
    row = {
        "comparison": comparison,
        "annotator": annotator,
        "granted_at": granted.isoformat(),
        "expires_at": expires.isoformat(),
    }
    known = tx.observer(QueueCache).lease(comparison, annotator, granted, expires)
    replace = "comparison, annotator" if known else None
    tx.defer("leases", (comparison, annotator), row, replace=replace)


def _holds(item: QueueItem, annotator: str, moment: datetime) -> bool:
    lease = item.leases.get(annotator)
    return lease is not None and lease.expires > moment


def _queue_position(item: QueueItem) -> tuple[int, str]:
    return item.comparison.position, item.comparison.id
