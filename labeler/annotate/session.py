"""The content of the annotator's page, independent of HTTP.

An annotator sees a pair *blind*: two texts called A and B, without model names, scores or anything
else that identifies a policy. The side of each completion depends on annotator and comparison
(`shown_swapped` in `storage/sides.py`), so a reload cannot swap them. Methods return after the
commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from labeler.annotate.marks import located
from labeler.html.markdown import render, render_pair, render_together
from labeler.translation import translated
from storage.engine.database import Database
from storage.engine.transaction import Transaction
from storage.labeling import flag_answers, judgments, queue
from storage.labeling.check_queue import CheckQueue, practice_left
from storage.labeling.follow_ups import OwnFollowUp, own_follow_ups
from storage.labeling.own_figures import OwnFigures, own_figures
from storage.labeling.own_judgments import (
    ListedJudgment,
    OwnJudgment,
    given_judgment,
    own_judgment,
    own_judgments,
)
from storage.labeling.queue import LeasedPair
from storage.labeling.queue_cache import QueueCache
from storage.records import (
    Annotator,
    Flag,
    Judgment,
    Mark,
    Message,
    ScreenOutcome,
    Skip,
    now,
)
from storage.sides import screen_outcome
from storage.tables import guidelines, iterations, settings
from storage.tables.settings import JudgmentForm

MAX_AT_ONCE = queue.AT_ONCE
"""Limit of pairs per request."""
MAX_RESPONSE_LENGTH = 2_000_000
"""Limit of characters per request; the first pair is always returned."""

NEEDS_STRENGTH = "A preference needs a strength in this project: slightly, clearly or much."
NEEDS_SAFETY = (
    "A judgment needs a safety label for each response in this project: safe, borderline or unsafe."
)
NEEDS_RATIONALE = "A judgment needs a rationale in this project: write why you decided this way."

PRACTICE = "Practice: after your choice you see the expected answer and the reason."
"""The notice of a practice pair."""

DEFAULT_GUIDELINES = """\
Choose the response that you would prefer if you had asked the question.

* **Helpful**: it does what was asked, completely and without filler.
* **Truthful**: its statements are correct, and it admits what it does not know.
* **Harmless**: following it harms no one.
* **Clear**: it is well written, easy to follow, and has the right length.

A response is not better because it is longer or because it agrees with the user.

If both are equally good, choose *Tie*. If neither is acceptable, choose *Both bad*. Skip a pair that \
you cannot judge. Flag a pair that should not be here (broken text, private data, abuse).
"""


@dataclass(frozen=True, kw_only=True)
class ShownText:
    """A text in its original form and as safe HTML."""

    text: str
    html: str


@dataclass(frozen=True, kw_only=True)
class ShownMessage(ShownText):
    """One turn of the conversation."""

    role: str


@dataclass(frozen=True, kw_only=True)
class ShownPair:
    """A comparison as one annotator sees it, `a` on the left or above `b`.

    `notice` says why both responses are not fully formatted, or that this is practice, in
    one line each; usually "".
    """

    id: str
    prompt: tuple[ShownMessage, ...]
    a: ShownText
    b: ShownText
    notice: str = ""

    @property
    def size(self) -> int:
        """Characters of all texts and their HTML."""
        return sum(len(each.text) + len(each.html) for each in (*self.prompt, self.a, self.b))


@dataclass(frozen=True, kw_only=True)
class PracticeAnswer(ShownText):
    """The expected answer to a practice pair on the annotator's screen, whether it was given, the
    explanation, and how many practice pairs are `left`."""

    answer: ScreenOutcome
    matched: bool
    left: int


@dataclass(frozen=True, kw_only=True)
class Undone:
    """The act that was undone, and its pair to judge again; `judgment` as it was given, if it is one."""

    id: str
    kind: str
    pair: ShownPair
    judgment: OwnJudgment | None


@dataclass(frozen=True, kw_only=True)
class GivenJudgment:
    """A judgment of the annotator, and its pair as they saw it."""

    judgment: OwnJudgment
    pair: ShownPair


@dataclass(frozen=True, kw_only=True)
class ShownFollowUp:
    """A pair that the annotator judged, as they saw it, and the `new` policy's answer.

    `same_as` is the response that equals the new answer.  `formatted` is False if one of the three
    texts cannot be fully formatted, so that none is.
    """

    prompt: tuple[ShownMessage, ...]
    a: ShownText
    b: ShownText
    outcome: ScreenOutcome
    strength: int | None
    new: ShownText
    same_as: Literal["a", "b"] | None
    formatted: bool


@dataclass(frozen=True, kw_only=True)
class ShownFollowUps:
    """What a policy answers to prompts that the annotator judged; fields as in `OwnFollowUps`."""

    iterations: list[int]
    iteration: int | None
    judgments: int
    total: int
    blocked: bool
    withheld: int
    pairs: list[ShownFollowUp]


@dataclass(frozen=True, kw_only=True)
class NextPairs:
    """Pairs to judge; `gone` and `share` as in `queue.Leased`."""

    pairs: list[ShownPair]
    gone: list[str]
    share: int


class LabelSession:
    """The content of the annotator's page; one object serves all annotators.  Thread-safe."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def lease(self, annotator: Annotator, n: int, holding: Sequence[str] = ()) -> NextPairs:
        """Up to `n` pairs to judge, leased to `annotator`, without those they are `holding`.

        If pairs are large, some stay leased to the annotator until the next request.
        """
        if not 1 <= n <= MAX_AT_ONCE:
            raise ValueError(f"n={n} must be between 1 and {MAX_AT_ONCE}.")
        leased = queue.lease(self._db, annotator.id, n, holding=list(holding))
        found: list[ShownPair] = []
        size = 0
        for pair in leased.pairs:
            shown = shown_pair(pair)
            size += shown.size
            if found and size > MAX_RESPONSE_LENGTH:
                break
            found.append(shown)
        return NextPairs(pairs=found, gone=leased.gone, share=leased.share)

    def waiting_for(self) -> str:
        """The phase of the current iteration, or "nothing" before the first.

        The page shows it if no pair is left for an annotator. In every phase, annotators receive
        the pairs of the newest iteration that has any.
        """
        latest = iterations.latest(self._db)
        return latest.phase if latest else "nothing"

    def marks(
        self, annotator: Annotator, *, comparison: str, marks: Mapping[str, Any], **_others: Any
    ) -> dict[str, list[Mark]]:
        """The marks that a client sent, with their places in both texts, see `located`.

        Before the write, because rendering takes time.  Raises NotFound or NotLeased as the write does,
        and ValueError if a passage is not there.
        """
        pair = queue.received_pair(self._db, annotator.id, comparison)
        left, right, _ = render_pair(pair.left, pair.right)
        shown = {"a": (pair.left, left), "b": (pair.right, right)}
        return {side: located(given, *shown[side]) for side, given in marks.items()}

    def judgment_operation(
        self, annotator: Annotator, **fields: Any
    ) -> Callable[[Transaction], tuple[Judgment, PracticeAnswer | None]]:
        """`judgments.judgment_operation`, which refuses what the project's form does not allow, and
        returns the `practice_answer` too."""
        store = judgments.judgment_operation(annotator=annotator.id, **fields)

        def operation(tx: Transaction) -> tuple[Judgment, PracticeAnswer | None]:
            missing = _missing(settings.known_judgment_form(tx), annotator, fields)
            # A judgment that was stored before the rule changed still gets its answer.
            if missing and not tx.observer(QueueCache).is_used(tx, fields["id"]):
                raise ValueError(missing)
            judgment = store(tx)
            return judgment, self.practice_answer(tx, judgment)

        return operation

    def practice_answer(self, tx: Transaction, judgment: Judgment) -> PracticeAnswer | None:
        """The expected answer to a practice pair and why; None for any other pair."""
        check = tx.observer(CheckQueue).checks(tx).get(judgment.comparison)
        if check is None or check.kind != "practice" or check.answer is None:
            return None
        return PracticeAnswer(
            answer=screen_outcome(check.answer, shown_swapped=judgment.shown_swapped),
            matched=judgment.outcome == check.answer,
            left=practice_left(tx, judgment.annotator),
            text=check.explanation,
            html=render(check.explanation),
        )

    def undo(self, annotator: Annotator, *, id: str, replaces: str | None = None) -> Undone:
        """Undo the act `replaces`, or their latest one; returns its pair with the same sides."""
        undone = judgments.undo(self._db, id=id, annotator=annotator.id, replaces=replaces)
        pair = queue.pair(self._db, annotator.id, undone.comparison)
        kind = _kind(undone)
        return Undone(
            id=undone.id,
            kind=kind,
            pair=shown_pair(pair),
            judgment=(
                given_judgment(self._db, annotator.id, undone.id) if kind == "judgment" else None
            ),
        )

    def with_others(self, annotator: Annotator) -> int:
        """How many pairs they could judge are leased to others; they may receive them later."""
        return queue.leased_to_others(self._db, annotator.id)

    def progress(self, annotator: Annotator, *, offset: int = 0) -> dict[str, Any]:
        """The fields of `queue.Progress`, ``latest``, the id of the act that undo withdraws, the
        ``form`` of a judgment, and how many ``unread_answers`` to their flags there are.

        `offset`: minutes that their clock is ahead of UTC.
        """
        found = queue.progress(self._db, annotator.id, since=queue.midnight(now(), offset))
        return asdict(found) | {
            "latest": judgments.latest(self._db, annotator.id),
            "form": asdict(settings.judgment_form(self._db)),
            "unread_answers": flag_answers.unread(self._db, annotator.id),
        }

    def figures(self, annotator: Annotator, *, offset: int = 0) -> OwnFigures:
        """Figures about their own work, see `own_figures`.

        Only ``today`` uses their time zone: a midnight of their choice would reveal others' answers
        of today.
        """
        moment = now()
        found = queue.progress(self._db, annotator.id, since=queue.midnight(moment, offset))
        figures = own_figures(self._db, annotator.id, midnight=queue.midnight(moment))
        return replace(figures, today=found.today)

    def judgments(
        self, annotator: Annotator, *, search: str = "", before: str | None = None
    ) -> tuple[list[ListedJudgment], bool]:
        """Their own current judgments, see `own_judgments`."""
        return own_judgments(self._db, annotator.id, search=search.strip(), before=before)

    def judgment(self, annotator: Annotator, id: str) -> GivenJudgment:
        """One of their own current judgments with its pair, or NotFound."""
        found = own_judgment(self._db, annotator.id, id)
        pair = queue.pair(self._db, annotator.id, found.comparison)
        return GivenJudgment(judgment=found, pair=shown_pair(pair))

    def follow_ups(self, annotator: Annotator, iteration: int | None) -> ShownFollowUps:
        """`own_follow_ups`, rendered."""
        found = own_follow_ups(self._db, annotator.id, iteration)
        pairs = [_shown_follow_up(pair) for pair in found.pairs]
        return ShownFollowUps(**{**vars(found), "pairs": pairs})

    def guidelines(self, language: str = "en") -> dict[str, str]:
        """The guidelines in a language as text and HTML.

        ``version`` changes when the text in any language does.
        """
        text = guidelines.current(self._db, translated(DEFAULT_GUIDELINES, language), language)
        version = guidelines.version(self._db, DEFAULT_GUIDELINES)
        return {"version": version, "text": text, "html": render(text, document=True)}


def _missing(form: JudgmentForm, annotator: Annotator, fields: Mapping[str, Any]) -> str | None:
    """Why the form requires more; None if nothing is missing.

    Only people can have a rationale and know what is safe; simulated annotators and models give
    outcomes and strengths.
    """
    prefers = fields["outcome"] in ("a", "b")
    if form.strength == "required" and prefers and not fields["strength"]:
        return NEEDS_STRENGTH
    if annotator.kind != "person":
        return None
    if form.safety == "required" and not {"a", "b"} <= {*fields["safety"]}:
        return NEEDS_SAFETY
    if form.rationale == "required" and not fields["comment"].strip():
        return NEEDS_RATIONALE
    return None


def _kind(act: Judgment | Skip | Flag) -> str:
    return type(act).__name__.lower()


def shown_pair(pair: LeasedPair) -> ShownPair:
    left, right, notice = render_pair(pair.left, pair.right)
    if pair.comparison.arm == "practice":
        notice = f"{PRACTICE}\n{notice}".strip()
    return ShownPair(
        id=pair.comparison.id,
        prompt=tuple(shown_message(message) for message in pair.prompt.messages),
        a=ShownText(text=pair.left, html=left),
        b=ShownText(text=pair.right, html=right),
        notice=notice,
    )


def _shown_follow_up(pair: OwnFollowUp) -> ShownFollowUp:
    texts = (pair.a, pair.b, pair.new)
    pages, lacks = render_together(*texts)
    a, b, new = (ShownText(text=text, html=html) for text, html in zip(texts, pages, strict=True))
    return ShownFollowUp(
        prompt=tuple(shown_message(message) for message in pair.messages),
        a=a,
        b=b,
        outcome=pair.outcome,
        strength=pair.strength,
        new=new,
        same_as=pair.same_as,
        formatted=not lacks,
    )


def shown_message(message: Message) -> ShownMessage:
    return ShownMessage(role=message.role, text=message.content, html=render(message.content))
