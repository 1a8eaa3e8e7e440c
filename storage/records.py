"""The nouns of Kitestring: frozen records shared by storage, pipeline and labeler.

Data flow, once round the loop::

    Prompt ──sampling──▶ Completion ×2 ──▶ Comparison ──annotator──▶ Judgment
      ▲                      ▲                                          │ snapshot
      └── Iteration ◀── policy (ModelVersion) ◀── PPO ◀── reward (ModelVersion)

A record that exists is valid: constructors raise ``ValueError`` with a sentence that says
what to do.  `first`/`second` are canonical; `left`/`right` and `a`/`b` mean the screen.
Times are aware UTC datetimes.  Only the standard library is imported here.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args

LEASE_LIFETIME = timedelta(minutes=30)
"""How long a pair is kept for the annotator it was given to."""
PromptRole = Literal["sft", "train", "held-out", "audit"]
Outcome = Literal["first", "second", "tie", "both_bad"]
ScreenOutcome = Literal["a", "b", "tie", "both_bad"]
FinishReason = Literal["stop", "length"]
AnnotatorRole = Literal["annotator", "researcher"]
AnnotatorKind = Literal["person", "simulated", "model"]
ModelRole = Literal["sft", "reward", "policy", "external"]
Phase = Literal["sampling", "labeling", "reward", "policy", "evaluating", "done"]
Stage = Literal["sft", "sampling", "reward", "policy", "evaluate"]
RunStatus = Literal["running", "succeeded", "failed", "cancelled"]
Arm = Literal[
    "random", "previous", "reference", "repeated", "imported", "written",
    "bald", "uncertainty", "d_optimal",
]  # fmt: skip

WRITTEN: Arm = "written"
"""Pairs that were written elsewhere to be judged here: they belong to no iteration (their number is 0),
wait for people in every phase, and no figure about policies or reward models rests on them."""

RANDOM_STREAM: tuple[Arm, ...] = ("random", "previous", "reference", "repeated", "imported")
"""Arms whose pairs no reward model chose.  Accuracy, calibration and win rates are measured on their
judgments alone: a model chooses where it is unsure, and such pairs speak for no others."""

LEARNED_FROM: tuple[AnnotatorKind, ...] = ("person", "simulated")
"""Whose judgments are learned from unless somebody asks for others by name."""

KEPT_APART: tuple[PromptRole, ...] = ("held-out", "audit")
"""Roles of prompts that nothing is trained on but the audit model."""

CRITERIA = ("helpful", "truthful", "harmless", "clear")
STRENGTHS = {1: "slightly", 2: "clearly", 3: "much"}


def now() -> datetime:
    """The current time in UTC."""
    return datetime.now(UTC)


def new_id(prefix: str = "") -> str:
    """A fresh random identifier, e.g. ``run-3f…``; a bare uuid without a prefix."""
    return f"{prefix}-{uuid.uuid4().hex[:16]}" if prefix else str(uuid.uuid4())


def digest(*parts: str) -> str:
    """16 hex digits that identify a sequence of texts (length-prefixed, so unambiguous)."""
    h = hashlib.blake2b(digest_size=8)
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        h.update(len(raw).to_bytes(8, "big") + raw)
    return h.hexdigest()


def derive_seed(*parts: str) -> int:
    """A seed for what these texts name, from 0 to 2³¹ - 1; the same on every machine."""
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
    """A conversation that ends with the user's turn and waits for a completion."""

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
    """One answer to a prompt; `policy` is the id of the ModelVersion that gave it."""

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
class Comparison:
    """Two completions of one prompt put before annotators.

    `first` and `second` are canonical and say nothing about the screen.  `wanted` is how many
    annotators should judge it (2 or more where overlap is asked for).  `position` is a random
    key: the queue serves comparisons in its order.
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
    created_at: datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        check_choice("arm", self.arm, Arm)
        if self.wanted < 1:
            raise ValueError(f"wanted={self.wanted} must be at least 1")


MAX_VIEW_MS = 7 * 24 * 3600 * 1000
"""Milliseconds somebody may look at a pair; a forgotten tab is not a week of thought."""


@dataclass(frozen=True, kw_only=True)
class Judgment:
    """What one annotator said of one comparison; never changed once stored.

    `shown_swapped` is True when `first` stood on the right (as B).  `strength` is 1 slightly,
    2 clearly, 3 much.  `criteria` maps a criterion to the canonical outcome on it.  `replaces`
    names the earlier judgment of the same annotator that this one revises.
    """

    id: str
    comparison: str
    annotator: str
    outcome: Outcome
    shown_swapped: bool
    strength: int | None = None
    criteria: Mapping[str, str] = field(default_factory=dict)
    comment: str = ""
    milliseconds: int | None = None
    replaces: str | None = None
    created_at: datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        check_choice("outcome", self.outcome, Outcome)
        if self.strength is not None and self.strength not in STRENGTHS:
            raise ValueError(f"strength={self.strength} must be 1, 2 or 3")
        if self.strength is not None and self.outcome in ("tie", "both_bad"):
            raise ValueError("strength goes with a preference, not with a tie or both bad")
        for name, side in self.criteria.items():
            check_choice("criterion", name, CRITERIA)
            check_choice(f"criterion {name}", side, ("first", "second", "tie"))


def canonical_outcome(outcome: ScreenOutcome, *, shown_swapped: bool) -> Outcome:
    """Turn what was pressed on the screen into a canonical outcome."""
    check_choice("outcome", outcome, ScreenOutcome)
    if outcome == "tie" or outcome == "both_bad":
        return outcome
    return "first" if (outcome == "a") != shown_swapped else "second"


def shown_swapped(annotator: str, comparison: str) -> bool:
    """Whether this annotator sees `first` on the right: a fair coin that a reload cannot re-toss."""
    return int(digest("sides", annotator, comparison)[-1], 16) % 2 == 1


@dataclass(frozen=True, kw_only=True)
class Withdrawal:
    """Takes back a judgment, skip or flag; history keeps both."""

    id: str
    replaces: str
    annotator: str
    created_at: datetime = field(default_factory=now)


@dataclass(frozen=True, kw_only=True)
class Skip:
    """The annotator passed on this comparison and is not asked again."""

    id: str
    comparison: str
    annotator: str
    created_at: datetime = field(default_factory=now)


@dataclass(frozen=True, kw_only=True)
class Flag:
    """The annotator reports a problem; the comparison leaves everybody's queue until cleared."""

    id: str
    comparison: str
    annotator: str
    comment: str = ""
    created_at: datetime = field(default_factory=now)


@dataclass(frozen=True, kw_only=True)
class Annotator:
    """Somebody who judges (or researches); `password_hash` is None until a password is set."""

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
    """A secret that signs somebody in; only its SHA-256 is stored."""

    hash: str
    annotator: str
    kind: Literal["session", "api", "invite"]
    created_at: datetime = field(default_factory=now)
    expires_at: datetime | None = None
    revoked: bool = False


@dataclass(frozen=True, kw_only=True)
class ModelVersion:
    """A model with its lineage.  `path` is relative to the workspace, or a hub id / outside path."""

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
class Iteration:
    """One turn of the loop.  `settings` are the overrides given when it was started."""

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
    """One job of a worker process.  `directory` is relative to the workspace and lies in `runs`."""

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
    finished_at: datetime | None = None

    def __post_init__(self) -> None:
        check_choice("stage", self.stage, Stage)
        check_choice("status", self.status, RunStatus)
        parts = self.directory.split("/")
        if parts[0] != "runs" or len(parts) < 2 or {"", ".", ".."} & {*parts}:
            raise ValueError(f"the directory {self.directory!r} of run {self.id!r} is not in runs/")


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number of a run; `seq` is the event line it came from."""

    run: str
    seq: int
    step: int
    name: str
    value: float


@dataclass(frozen=True, kw_only=True)
class RunNote:
    """A red flag, warning or sample that a run reported; `payload` depends on `kind`."""

    run: str
    seq: int
    step: int
    kind: str
    name: str
    message: str
    payload: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The judgments one reward model was trained on; `hash` follows from their ids."""

    hash: str
    iteration: int
    judgments: tuple[str, ...]
    created_at: datetime = field(default_factory=now)
