"""The records that storage, pipeline and labeler share, as frozen dataclasses.

One iteration of the loop::

    Prompt ──sampling──▶ Completion ×2 ──▶ Comparison ──annotator──▶ Judgment
      ▲                      ▲                                          │ snapshot
      └── Iteration ◀── policy (ModelVersion) ◀── PPO ◀── reward (ModelVersion)

Constructors raise ``ValueError`` with a sentence that says what to do, so every record is valid.
`first` and `second` are the stored order of a pair; `a` and `b`, or `left` and `right`, are the
sides of the screen.  Times are aware datetimes in UTC.  Imports only the standard library.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args

LEASE_LIFETIME = timedelta(minutes=30)
"""How long a pair is reserved for the annotator who received it."""
INVITE_LIFETIME = timedelta(days=7)
"""How long an invite link is valid."""
PromptRole = Literal["sft", "train", "held-out", "audit", "live", "probe"]
Outcome = Literal["first", "second", "tie", "both_bad"]
ScreenOutcome = Literal["a", "b", "tie", "both_bad"]
FinishReason = Literal["stop", "length"]
AnnotatorRole = Literal["annotator", "adjudicator", "viewer", "researcher"]
AnnotatorKind = Literal["person", "simulated", "model"]
TokenKind = Literal["session", "api", "invite"]
ModelRole = Literal["sft", "reward", "policy", "external"]
Phase = Literal["sampling", "labeling", "reward", "policy", "evaluating", "done"]
Stage = Literal["sft", "sampling", "reward", "policy", "evaluate"]
RunStatus = Literal["running", "succeeded", "failed", "cancelled"]
StudyKind = Literal["sweep", "compare", "retrain"]
STUDY_NAME = r"(?!.*\.\.)\w[\w .=+-]{0,99}"
"""Names of studies, which are names of folders."""
STUDY_FOLDERS: Mapping[StudyKind, str] = {
    "sweep": "sweeps",
    "compare": "compare",
    "retrain": "retrain",
}
"""The folders of the workspace in which studies of each kind work."""
HELD_OUT_FILE = "held_out.parquet"
"""The reward stage's output with the model's predictions of held-out judgments
(`pipeline.reward.quality.held_out`)."""
Arm = Literal[
    "random", "previous", "reference", "repeated", "imported", "written",
    "bald", "uncertainty", "d_optimal",
    "gold", "reask", "practice", "live", "probe",
]  # fmt: skip
CheckKind = Literal["gold", "reask", "practice"]

WRITTEN: Arm = "written"
"""Pairs that were written elsewhere to be judged here.  They belong to no iteration (their number
is 0), are in the queue in every phase, and are not used to measure policies or reward models."""

CHECKS: tuple[CheckKind, ...] = get_args(CheckKind)
"""Arms of the pairs that measure annotators (`Check`).  Nothing is learned from their judgments, and
no figure except those about annotators uses them."""

LIVE: Arm = "live"
"""Pairs that an annotator asked for in a live conversation.  Only that annotator judges them, and
the reward model learns from them.  They measure nothing, because the annotator chose the prompt and
saw earlier replies of the same models."""

PROBE: Arm = "probe"
"""Pairs of replies that a researcher chose in the playground.  Any annotator may get them from the
queue, in every phase, and cannot tell them from other pairs.  The reward model learns from them,
except on held-out and audit prompts.  They measure nothing, because the researcher chose the prompt
and the replies."""

RANDOM_STREAM: tuple[Arm, ...] = ("random", "previous", "reference", "repeated", "imported")
"""Arms of imported pairs and of pairs that the loop sampled without a reward model's choice.
Accuracy, calibration and win rates are measured only on judgments of these pairs, because pairs on
which a model is uncertain do not represent the others."""

PREFERENCES: tuple[Outcome, ...] = ("first", "second")
"""The outcomes that prefer a response."""

LEARNED_FROM: tuple[AnnotatorKind, ...] = ("person", "simulated")
"""The kinds of annotators whose judgments the models learn from by default."""

KEPT_APART: tuple[PromptRole, ...] = ("held-out", "audit")
"""Roles of prompts whose judgments the reward model and the policy never learn from.  Judgments on
`audit` prompts train the audit model; those on `held-out` prompts train no model."""

Criterion = Literal["helpful", "truthful", "harmless", "clear"]
CRITERIA: tuple[Criterion, ...] = get_args(Criterion)
Scale = Literal["two-step", "one-press"]
"""How an annotator states a preference: a strength and then a side, or both in one press."""
StrengthRule = Literal["optional", "required"]
"""Whether a preference may be without a strength."""
STRENGTHS = {1: "slightly", 2: "clearly", 3: "much"}
Presence = Literal["off", "optional", "required"]
"""Whether the form has a part, and whether a judgment may be without it."""
SafetyLabel = Literal["safe", "borderline", "unsafe"]
"""The safety of one response by itself, not compared with the other."""
MAX_EDIT_LENGTH = 20_000
"""Characters of an edited response."""
MAX_ANSWER_LENGTH = 5_000
"""Characters of an answer to a flag."""
MAX_REASON_LENGTH = 2_000
"""Characters of a researcher's reason."""
MAX_RUN_NAME = 100
MAX_RUN_NOTE = 5_000
"""Characters of the name and the note of a run."""
MAX_CATEGORY = 100
"""Characters of a category that a researcher gives to a prompt."""
MAX_TAGS = 20
"""Reason tags of one response."""
MAX_TAG_LENGTH = 60
"""Characters."""
MAX_MARKS = 20
"""Marked passages of one response."""
MAX_QUOTE_LENGTH = 1_000
"""Characters of one marked passage."""
MAX_QUOTES_LENGTH = 5_000
"""Characters of all marked passages of a judgment."""


def now() -> datetime:
    """The current time in UTC."""
    return datetime.now(UTC)


def new_id(prefix: str = "") -> str:
    """A random identifier, e.g. ``run-3f…``; without a prefix, a UUID."""
    return f"{prefix}-{uuid.uuid4().hex[:16]}" if prefix else str(uuid.uuid4())


def digest(*parts: str) -> str:
    """A hash of a sequence of texts, 16 hex digits; the lengths are hashed too."""
    h = hashlib.blake2b(digest_size=8)
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        h.update(len(raw).to_bytes(8, "big") + raw)
    return h.hexdigest()


def check_tags(name: str, tags: Sequence[str]) -> tuple[str, ...]:
    """Reason tags as a tuple; ValueError for too many, for one given twice or one that is no short
    text.  `name` says in the message what they are."""
    for tag in tags:
        if not isinstance(tag, str) or not tag.strip() or not tag.isprintable():
            raise ValueError(f"{name}: {tag!r} must be printable text that is not blank")
        if len(tag) > MAX_TAG_LENGTH:
            raise ValueError(f"{name}: {tag!r} has more than {MAX_TAG_LENGTH} characters")
    if len(tags) > MAX_TAGS:
        raise ValueError(f"{name}: {len(tags)} tags; the limit is {MAX_TAGS}")
    if len(set(tags)) != len(tags):
        raise ValueError(f"{name}: each tag may be given once")
    return tuple(tags)


def check_reason(reason: str) -> None:
    """Raise ``ValueError`` for a reason that is too long or has a NUL."""
    if len(reason) > MAX_REASON_LENGTH or "\0" in reason:
        raise ValueError(
            f"a reason has at most {MAX_REASON_LENGTH:,} characters and no NUL; this one has "
            f"{len(reason):,}"
        )


def check_category(category: str) -> None:
    """Raise ``ValueError`` for a category that is no short line of text."""
    if category != category.strip() or not category.isprintable() or len(category) > MAX_CATEGORY:
        raise ValueError(
            f"the category {category[:80]!r} must be one line of at most {MAX_CATEGORY} characters "
            "without spaces around it"
        )


def derive_seed(*parts: str) -> int:
    """A seed from 0 to 2³¹ - 1 that depends only on these texts."""
    return int(digest(*parts), 16) % 2**31


def check_choice(name: str, value: str, choices: Any) -> None:
    """Raise ``ValueError`` unless `value` is one of the Literal's values."""
    allowed = get_args(choices) or tuple(choices)
    if value not in allowed:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, allowed))}")


@dataclass(frozen=True)
class Message:
    """One turn of a chat; `role` is system, user or assistant."""

    role: str
    content: str

    def __post_init__(self) -> None:
        check_choice("message role", self.role, ("system", "user", "assistant"))


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A conversation that ends with the user's turn."""

    id: str
    role: PromptRole
    messages: tuple[Message, ...]
    category: str = ""
    source: str = ""
    created_at: datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        check_choice("prompt role", self.role, PromptRole)
        if not self.messages or self.messages[-1].role != "user":
            raise ValueError("a prompt needs at least one message and must end with a user turn")
        if not any(m.content.strip() for m in self.messages if m.role == "user"):
            raise ValueError("a prompt needs a user message that is not blank")

    @classmethod
    def make(
        cls,
        messages: str | Sequence[Message | Mapping[str, str]],
        *,
        role: PromptRole,
        category: str = "",
        source: str = "",
    ) -> Prompt:
        """A prompt from plain text or chat messages; the same messages give the same id."""
        turns = as_messages(messages)
        return cls(
            id=f"p-{digest(messages_json(turns))}",
            role=role,
            messages=turns,
            category=category,
            source=source,
        )


def as_messages(messages: str | Sequence[Message | Mapping[str, str]]) -> tuple[Message, ...]:
    """Chat messages from plain text (one user turn), mappings or Message records."""
    if isinstance(messages, str):
        return (Message("user", messages),)
    return tuple(
        m if isinstance(m, Message) else Message(str(m["role"]), str(m["content"]))
        for m in messages
    )


def messages_json(messages: Sequence[Message]) -> str:
    """The stored form: a JSON list of {"role", "content"}."""
    return json.dumps(
        [{"role": m.role, "content": m.content} for m in messages], ensure_ascii=False
    )


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One response to a prompt; `policy` is the id of the ModelVersion that sampled it."""

    id: str
    prompt: str
    policy: str
    text: str
    tokens: int | None = None
    finish_reason: FinishReason | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    created_at: datetime = field(default_factory=now)


@dataclass(frozen=True, kw_only=True)
class FollowUp:
    """A new policy's answer to a prompt that people judged in the iteration that trained it.

    `learned` are the judgments of the prompt that the iteration's reward model learned from.  It is
    no completion: it belongs to no comparison, and nothing learns from it or measures with it.
    """

    id: str
    iteration: int
    prompt: str
    policy: str
    text: str
    learned: Sequence[str]
    tokens: int
    finish_reason: FinishReason
    temperature: float
    top_p: float
    seed: int
    created_at: datetime = field(default_factory=now)


@dataclass(frozen=True, kw_only=True)
class EvaluatedCompletion:
    """A policy's completion of a held-out prompt, with its rewards (None if not scored)."""

    prompt: str
    """The id of the prompt."""
    messages: tuple[Message, ...]
    policy_role: Literal["policy", "reference", "previous"]
    text: str
    policy: str = ""
    """The id of the model."""
    reward: float | None = None
    """Before shaping."""
    own_reward: float | None = None
    """By the reward model of the iteration itself."""


@dataclass(frozen=True, kw_only=True)
class OpenPair:
    """A comparison that a model judge has not judged."""

    id: str
    messages: str
    """In the form of `messages_json`."""
    first: str
    second: str
    swapped: bool
    """Whether `second` is on the left; depends on judge and comparison."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two completions of one prompt for annotators to compare.

    `first` and `second` are independent of the sides of the screen.  `wanted` is the number of
    annotators who should judge it.  `position` is random and orders the pairs that nobody has
    judged in the queue.  A pair of the arm `live` is the turn `turn` (from 1) of a `conversation`.
    """

    id: str
    prompt: str
    first: str
    second: str
    iteration: int
    arm: Arm
    wanted: int = 1
    position: int = 0
    item: str | None = None
    conversation: str | None = None
    turn: int | None = None
    created_at: datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        check_choice("arm", self.arm, Arm)
        if (self.arm == LIVE) != (self.conversation is not None and (self.turn or 0) >= 1):
            raise ValueError(
                "a pair has a conversation and a turn if, and only if, its arm is live"
            )
        if self.wanted < 1:
            raise ValueError(f"wanted={self.wanted} must be at least 1")


@dataclass(frozen=True, kw_only=True)
class Check:
    """Why a comparison measures annotators; its arm is `kind`.

    A gold pair has a known `answer`, and any annotator may get it.  So does a practice pair, whose
    `explanation` the annotator sees after answering it.  A re-ask belongs to one
    `annotator`, who gave `judgment` on the comparison `source` before, with the sides swapped.  The
    `source` of a gold pair is the comparison whose judgments agree, None for an imported pair.  A
    pair that is not `active` is not served any more.
    """

    comparison: str
    kind: CheckKind
    answer: Outcome | None = None
    annotator: str | None = None
    judgment: str | None = None
    source: str | None = None
    active: bool = True
    explanation: str = ""
    created_at: datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, CheckKind)
        if self.kind == "reask":
            if not (self.annotator and self.judgment and self.source):
                raise ValueError("a re-ask needs its annotator, judgment and source")
        elif self.answer not in ("first", "second"):
            raise ValueError(f"answer={self.answer!r} must be first or second")
        elif self.kind == "practice" and not self.explanation.strip():
            raise ValueError("a practice pair needs an explanation")


MAX_VIEW_MS = 7 * 24 * 3600 * 1000
"""The longest time that a judgment may take, in milliseconds."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A passage that an annotator marked in a response; `reason` is good, bad or a reason tag.

    `start` and `end` are the passage's place in the response, `rendered_start` and `rendered_end` its
    place in the text that the page shows: the response without its Markdown markup.  Offsets count
    Unicode characters; a pair of them is None if it is not known.  In at least one of both texts, the
    passage is exactly the `quote`; `prefix` and `suffix` are the characters around it there.
    """

    reason: str
    quote: str
    prefix: str = ""
    suffix: str = ""
    start: int | None = None
    end: int | None = None
    rendered_start: int | None = None
    rendered_end: int | None = None

    def __post_init__(self) -> None:
        check_tags("reason of a mark", [self.reason])
        if not self.quote.strip() or len(self.quote) > MAX_QUOTE_LENGTH:
            raise ValueError(
                f"a marked passage must have 1 to {MAX_QUOTE_LENGTH:,} characters and not be blank"
            )
        places = (self.start, self.end), (self.rendered_start, self.rendered_end)
        if places == ((None, None), (None, None)):
            raise ValueError("a mark needs start and end, or rendered_start and rendered_end")
        for start, end in places:
            if (start is None) != (end is None) or not 0 <= (start or 0) < (end or 1):
                raise ValueError(f"a mark from {start} to {end}: its end must be after its start")


def _check_marks(marks: Mapping[str, Sequence[Mark]]) -> None:
    for side, given in marks.items():
        check_choice("side of marks", side, ("first", "second"))
        if len(given) > MAX_MARKS:
            raise ValueError(f"{len(given)} marks in one response; the limit is {MAX_MARKS}")
    length = sum(len(mark.quote) for given in marks.values() for mark in given)
    if length > MAX_QUOTES_LENGTH:
        raise ValueError(
            f"the marked passages have {length:,} characters; the limit is {MAX_QUOTES_LENGTH:,}"
        )


@dataclass(frozen=True, kw_only=True)
class Judgment:
    """One annotator's judgment of one comparison; it never changes.

    `shown_swapped` is True if `first` was on the right (B).  `strength` is 1 slightly, 2 clearly or
    3 much better.  `criteria` maps a criterion to first, second or tie.  `reasons` maps first and second
    to the reason tags of that response, `safety` to its `SafetyLabel`, `marks` to the passages marked in it.
    `comment` is the rationale.
    `edit` is the preferred response as the annotator improved it, "" if they did not: the edit is
    better than the preferred response, which is better than the other.
    `replaces` is the id of the annotator's earlier judgment that this one revises.  `guidelines` is the version (digest) of
    the guidelines on the annotator's page, None if unknown.
    """

    id: str
    comparison: str
    annotator: str
    outcome: Outcome
    shown_swapped: bool
    strength: int | None = None
    criteria: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, Sequence[str]] = field(default_factory=dict)
    safety: Mapping[str, str] = field(default_factory=dict)
    marks: Mapping[str, Sequence[Mark]] = field(default_factory=dict)
    comment: str = ""
    edit: str = ""
    milliseconds: int | None = None
    guidelines: str | None = None
    replaces: str | None = None
    created_at: datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        check_choice("outcome", self.outcome, Outcome)
        if self.strength is not None and self.strength not in STRENGTHS:
            raise ValueError(f"strength={self.strength} must be 1, 2 or 3")
        if self.strength is not None and self.outcome in ("tie", "both_bad"):
            raise ValueError("strength goes with a preference, not with a tie or both bad")
        object.__setattr__(self, "edit", self.edit or "")  # None in rows from before the column
        if self.edit and (self.outcome in ("tie", "both_bad") or not self.edit.strip()):
            raise ValueError("an edit improves the preferred response: it needs A or B, and a text")
        for name, side in self.criteria.items():
            check_choice("criterion", name, CRITERIA)
            check_choice(f"criterion {name}", side, ("first", "second", "tie"))
        # None in rows from before the column.  Sorted: equal judgments are written alike.
        reasons = {k: check_tags("reasons", v) for k, v in sorted((self.reasons or {}).items())}
        object.__setattr__(self, "reasons", {side: tags for side, tags in reasons.items() if tags})
        object.__setattr__(self, "safety", dict(sorted((self.safety or {}).items())))
        for name, sides in {"reasons": self.reasons, "safety": self.safety}.items():
            for side in sides:
                check_choice(f"side of {name}", side, ("first", "second"))
        for side, label in self.safety.items():
            check_choice(f"safety of {side}", label, SafetyLabel)
        marks = {
            side: tuple(mark if isinstance(mark, Mark) else Mark(**mark) for mark in given)
            for side, given in sorted((self.marks or {}).items())
            if given
        }
        _check_marks(marks)
        object.__setattr__(self, "marks", marks)


@dataclass(frozen=True, kw_only=True)
class Withdrawal:
    """Undoes the judgment, skip or flag with the id `replaces`; both stay in the history."""

    id: str
    replaces: str
    annotator: str
    created_at: datetime = field(default_factory=now)


@dataclass(frozen=True, kw_only=True)
class Skip:
    """The annotator skipped this comparison and does not receive it again."""

    id: str
    comparison: str
    annotator: str
    created_at: datetime = field(default_factory=now)


@dataclass(frozen=True, kw_only=True)
class Flag:
    """The annotator reported a problem; nobody receives the comparison until it is cleared."""

    id: str
    comparison: str
    annotator: str
    comment: str = ""
    created_at: datetime = field(default_factory=now)


@dataclass(frozen=True, kw_only=True)
class FlagAnswer:
    """A researcher's answer to the flag with the id `flag`; `researcher` is "" for the operator of
    the command line, and `read_at` is None until the annotator has seen the answer."""

    id: str
    flag: str
    researcher: str
    text: str
    created_at: datetime = field(default_factory=now)
    read_at: datetime | None = None

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise ValueError("an answer to a flag needs a text")
        if len(self.text) > MAX_ANSWER_LENGTH or "\0" in self.text:
            raise ValueError(
                f"an answer to a flag has at most {MAX_ANSWER_LENGTH:,} characters and no NUL"
            )


@dataclass(frozen=True, kw_only=True)
class Exclusion:
    """Whether a researcher has excluded a judgment, and why; the latest record of a judgment counts.

    Nothing learns from an excluded judgment, and no figure uses it.  Its annotator does not see the
    difference.  `researcher` is "" for the operator of the command line.  The `reason` of a restored
    judgment may be empty.
    """

    judgment: str
    excluded: bool
    reason: str = ""
    researcher: str = ""
    created_at: datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        if self.excluded and not self.reason.strip():
            raise ValueError("to exclude a judgment, give a reason; it stays in the history")
        check_reason(self.reason)


@dataclass(frozen=True, kw_only=True)
class AdjudicationRequest:
    """A researcher sent this comparison to adjudication; `researcher` is as in `Exclusion`."""

    id: str
    comparison: str
    researcher: str = ""
    created_at: datetime = field(default_factory=now)


@dataclass(frozen=True, kw_only=True)
class Adjudication:
    """An adjudicator's ruling on a comparison, given without sight of the votes.

    It is stored beside the judgments and is none: no figure uses it and no model learns from it.
    `shown_swapped` is True if `first` was on the right (B).  `adjudicator` is "" for the operator of
    the command line.  The newest ruling of a comparison counts.
    """

    id: str
    comparison: str
    adjudicator: str
    outcome: Outcome
    shown_swapped: bool
    reason: str
    created_at: datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        check_choice("outcome", self.outcome, Outcome)
        if not self.reason.strip():
            raise ValueError("a ruling needs a reason; it stays in the history")
        check_reason(self.reason)


@dataclass(frozen=True, kw_only=True)
class PromptEdit:
    """What a researcher has changed about a prompt; the latest record of a prompt counts.

    A `retired` prompt is not sampled, and its pairs are not leased.  `category` is None if it is the
    one that the prompt was stored with.
    """

    prompt: str
    retired: bool = False
    category: str | None = None
    researcher: str = ""
    created_at: datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        check_category(self.category or "")


@dataclass(frozen=True, kw_only=True)
class Annotator:
    """An account; `password_hash` is None until a password is set."""

    id: str
    name: str
    role: AnnotatorRole = "annotator"
    kind: AnnotatorKind = "person"
    password_hash: str | None = None
    disabled: bool = False
    created_at: datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        check_choice("role", self.role, AnnotatorRole)
        check_choice("kind", self.kind, AnnotatorKind)
        if not self.name.strip():
            raise ValueError("an annotator needs a name")


@dataclass(frozen=True, kw_only=True)
class Token:
    """A stored secret that signs in its owner; `hash` is the secret's SHA-256."""

    hash: str
    annotator: str
    kind: TokenKind
    created_at: datetime = field(default_factory=now)
    expires_at: datetime | None = None
    revoked: bool = False


@dataclass(frozen=True, kw_only=True)
class LinkedIdentity:
    """An account at an OpenID provider that opens the account `annotator`; `id` is a hash of
    `issuer` and `subject`."""

    id: str
    annotator: str
    issuer: str
    subject: str
    created_at: datetime = field(default_factory=now)


@dataclass(frozen=True, kw_only=True)
class ModelVersion:
    """A model with its lineage.  `path` is relative to the workspace, a hub id or an outside
    path."""

    id: str
    role: ModelRole
    name: str
    path: str = ""
    parent: str | None = None
    iteration: int | None = None
    run: str | None = None
    reward_model: str | None = None
    snapshot: str | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)
    created_at: datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        check_choice("model role", self.role, ModelRole)


@dataclass(frozen=True, kw_only=True)
class TrainedRewardModel:
    """A reward model, the summary of its stage, and the directory of its run if that is known."""

    model: str
    summary: Mapping[str, Any]
    directory: str | None


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """One iteration of the loop.  `settings` are the overrides given at its start."""

    number: int
    phase: Phase = "sampling"
    policy_sampled: str | None = None
    reward_model: str | None = None
    policy_produced: str | None = None
    labels_wanted: int = 0
    verdict: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    created_at: datetime = field(default_factory=now)
    finished_at: datetime | None = None

    def __post_init__(self) -> None:
        check_choice("phase", self.phase, Phase)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One job of a worker process.  `directory` is relative to the workspace and inside `runs`.

    A retry is a run of its own; `attempt` counts the runs and resumes of a stage.  `started_at` is
    the start of the newest attempt after a resume.  `seconds` are those that the workers of the
    ended attempts of this run took; None before the end, and for adopted outputs.
    """

    id: str
    stage: Stage
    iteration: int
    status: RunStatus
    directory: str
    attempt: int = 1
    reason: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    progress: float = 0.0
    message: str = ""
    ingested_seq: int = 0
    created_at: datetime = field(default_factory=now)
    started_at: datetime | None = None
    finished_at: datetime | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        check_choice("stage", self.stage, Stage)
        check_choice("status", self.status, RunStatus)
        parts = self.directory.split("/")
        if parts[0] != "runs" or len(parts) < 2 or {"", ".", ".."} & {*parts}:
            raise ValueError(f"the directory {self.directory!r} of run {self.id!r} is not in runs/")


@dataclass(frozen=True, kw_only=True)
class RunLabel:
    """The name and the note that researchers gave a run; the latest record of a run counts."""

    run: str
    name: str = ""
    note: str = ""
    researcher: str = ""
    created_at: datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        if not (self.name.isprintable() and len(self.name) <= MAX_RUN_NAME):
            raise ValueError(
                f"the name of a run must be one line of at most {MAX_RUN_NAME} characters"
            )
        if len(self.note) > MAX_RUN_NOTE or "\0" in self.note:
            raise ValueError(
                f"the note of a run has at most {MAX_RUN_NOTE:,} characters and no NUL"
            )


@dataclass(frozen=True, kw_only=True)
class Study:
    """A group of runs outside the loop: a sweep over KL weights, a comparison of methods, or the reward
    model trained again without some judgments.

    `plan` has what is varied and how the results are compared; `settings` are those that differ from
    the repeated run's, as texts.  `repeats` is that run.  `created_by` is the id of an account, ""
    for the operator.  `started_at` is the start of the newest attempt.
    """

    id: str
    kind: StudyKind
    name: str
    status: RunStatus
    repeats: str
    iteration: int
    plan: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    reason: str | None = None
    progress: float = 0.0
    message: str = ""
    created_by: str = ""
    created_at: datetime = field(default_factory=now)
    started_at: datetime | None = None
    finished_at: datetime | None = None

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, StudyKind)
        check_choice("status", self.status, RunStatus)
        if self.id != f"{self.kind}-{self.name}" or not re.fullmatch(STUDY_NAME, self.name):
            raise ValueError(f"{self.name!r} cannot name the study {self.id!r}")


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """A run of a study: a value of the sweep, a method, or a reward model.

    It is no `Run`, so that nothing that reads the loop's runs can take it for one.  Its metrics and
    notes are those of runs, under its id, which has a slash and so is no run's.  `directory` is
    relative to the workspace and inside a study's folder.
    """

    id: str
    study: str
    title: str
    method: str
    status: RunStatus
    directory: str
    attempt: int = 1
    reason: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    progress: float = 0.0
    message: str = ""
    ingested_seq: int = 0
    created_at: datetime = field(default_factory=now)
    finished_at: datetime | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        check_choice("status", self.status, RunStatus)
        if not self.id.startswith(f"{self.study}/"):
            raise ValueError(f"{self.id!r} is no run of the study {self.study!r}")
        parts = self.directory.split("/")
        inside = parts[0] in STUDY_FOLDERS.values() and len(parts) > 2
        if not inside or {"", ".", ".."} & {*parts}:
            raise ValueError(f"the directory {self.directory!r} of {self.id!r} is not a study's")


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric of a run; `seq` is the number of its event."""

    run: str
    seq: int
    step: int
    name: str
    value: float


@dataclass(frozen=True, kw_only=True)
class RunNote:
    """A red flag, warning or sample of a run; `payload` depends on `kind`."""

    run: str
    seq: int
    step: int
    kind: str
    name: str
    message: str
    payload: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The judgments that one reward model was trained on; `hash` depends on their ids."""

    hash: str
    iteration: int
    judgments: tuple[str, ...]
    created_at: datetime = field(default_factory=now)
