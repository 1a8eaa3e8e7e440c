"""What the studio answers, as frozen dataclasses.  Times are in UTC; durations are in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from kitestring.client.rows import Rows, frame

if TYPE_CHECKING:
    import pandas as pd

Phase = Literal["sampling", "labeling", "reward", "policy", "evaluating", "done"]
Outcome = Literal["first", "second", "tie", "both_bad"]
ScreenOutcome = Literal["a", "b", "tie", "both_bad"]
Role = Literal["annotator", "adjudicator", "viewer", "researcher"]
Presence = Literal["off", "optional", "required"]
Ruling = Literal["promote", "block", "evidence"]


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, kw_only=True)
class IterationStatus:
    """The newest iteration; `labels` of the `labels_wanted` judgments exist."""

    number: int
    phase: Phase
    method: str
    labels_wanted: int
    labels: int
    labels_by_arm: Mapping[str, int]
    verdict: str | None


@dataclass(frozen=True, kw_only=True)
class RunState:
    """A run of the newest iteration; `progress` is from 0 to 1."""

    id: str
    stage: str
    name: str
    iteration: int
    status: str
    attempt: int
    progress: float
    message: str
    reason: str | None


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """A stage that failed or was cancelled; `suggestion` has settings that may help."""

    run: str
    attempt: int
    stage: str
    status: str
    reason: str
    resumable: bool
    may_label: bool
    method: str
    flag: str
    remedy: str
    suggestion: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Status:
    """Counts of the workspace and the state of the loop.

    `agreement`, `checks`, `policy`, `reward_model`, `label_budget`, which has how many more labels are
    needed, and `resources`, which has what the running stage uses, are as `launch.py status --json` prints them.
    `stopped` is the stage that somebody must resume or retry.  `waits` says why training cannot start
    now, and `trouble` why the loop cannot continue.
    """

    judgments: int
    comparisons: int
    annotators: int
    judgments_by_kind: Mapping[str, int]
    edits: int
    agreement: Mapping[str, Any]
    checks: Mapping[str, Any]
    prompts: Mapping[str, int]
    iteration: IterationStatus | None
    policy: Mapping[str, Any] | None
    reward_model: Mapping[str, Any] | None
    runs: tuple[RunState, ...]
    resources: Mapping[str, Any] | None
    label_budget: Mapping[str, Any] | None
    trouble: str | None
    stopped: Stopped | None
    waits: str | None


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A setting; `why_fixed` says why it cannot be changed now."""

    name: str
    value: int | float | str | bool
    default: int | float | str | bool
    help: str
    choices: tuple[str, ...] | None
    kind: str
    basic: Mapping[str, int]
    why_fixed: str | None
    offered: bool
    label: str
    group: str
    preset: int | float | str | bool | None
    last: int | float | str | bool | None
    applies: str
    applies_text: str
    note: str


@dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """The settings in the workspace's config.toml; `preset` names the preset for its model."""

    file: str
    version: str
    preset: str
    settings: tuple[Setting, ...]
    may_save: bool

    def frame(self) -> pd.DataFrame:
        """A row for each setting."""
        return frame(Setting, self.settings)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run in the list; `reward` and `kl` are its last values, `people` the win rate against SFT."""

    id: str
    name: str
    note: str
    stage: str
    method: str
    iteration: int
    status: str
    attempt: int
    started: datetime
    seconds: float | None
    policy: str | None
    changed: Mapping[str, Any]
    reward: float | None
    kl: float | None
    flags: int
    people: Mapping[str, float | None] | None
    verdict: str | None


@dataclass(frozen=True, kw_only=True)
class RunDetails:
    """One run with its settings; `changed` compares them with an earlier run."""

    id: str
    name: str
    note: str
    iteration: int
    stage: str
    method: str | None
    status: str
    progress: float
    attempt: int
    started: datetime
    seconds: float | None
    directory: str
    reason: str | None
    flags: tuple[str, ...]
    changed: tuple[Mapping[str, Any], ...]
    settings: Mapping[str, Any]
    resources: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A metric of a run: `values[i]` at `steps[i]`."""

    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class RaisedFlag:
    """A red flag at a step of a run."""

    step: int
    name: str
    message: str


@dataclass(frozen=True, kw_only=True)
class RunCurves:
    """Curves of a run by metric; `seconds` is the time worked after each step."""

    run: str
    curves: Mapping[str, Curve]
    seconds: Curve
    flags: tuple[RaisedFlag, ...]


@dataclass(frozen=True, kw_only=True)
class Point:
    """A value of a metric; `seconds` is the time worked until then, None if it is unknown."""

    run: str
    metric: str
    step: int
    value: float
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Curves of several runs; `metrics` are all metrics that any of them reports."""

    metrics: tuple[str, ...]
    runs: tuple[RunCurves, ...]

    def points(self) -> Rows[Point]:
        """All values in the long form: one for each run, metric and step."""
        found = []
        for each in self.runs:
            worked = dict(zip(each.seconds.steps, each.seconds.values, strict=True))
            found += [
                Point(run=each.run, metric=name, step=step, value=value, seconds=worked.get(step))
                for name, curve in each.curves.items()
                for step, value in zip(curve.steps, curve.values, strict=True)
            ]
        return Rows(Point, found)

    def frame(self) -> pd.DataFrame:
        """`points` as a DataFrame with the columns run, metric, step, value and seconds."""
        return frame(Point, self.points())


@dataclass(frozen=True, kw_only=True)
class JudgmentCount:
    """A value, such as an annotator's name, and the number of judgments that have it."""

    value: str
    judgments: int


@dataclass(frozen=True, kw_only=True)
class RetrainOffer:
    """The reward model that a study would train again now, and what of its judgments can be left out;
    `seconds` is how long the original took."""

    model: str
    iteration: int
    seconds: float | None
    annotators: tuple[JudgmentCount, ...]
    kinds: tuple[JudgmentCount, ...]
    guidelines: tuple[JudgmentCount, ...]
    first: datetime | None
    last: datetime | None
    reason: str | None


@dataclass(frozen=True, kw_only=True)
class StudyOffer:
    """The run that a study would repeat now; `reason` says why none can start, None if one can."""

    run: str | None
    method: str
    iteration: int | None
    kl_weight: float | None
    reason: str | None
    methods: tuple[str, ...]
    retrain: RetrainOffer | None


@dataclass(frozen=True, kw_only=True)
class StudyRunSummary:
    """A run of a study; `changed` has the settings that the repeated run had otherwise."""

    id: str
    study: str
    title: str
    method: str
    status: str
    attempt: int
    started: datetime
    seconds: float | None
    message: str
    reason: str | None
    changed: Mapping[str, Any]
    reward: float | None
    kl: float | None
    flags: int


@dataclass(frozen=True, kw_only=True)
class StudySummary:
    """A study with the runs that have started, of the number `planned`."""

    id: str
    kind: str
    name: str
    status: str
    stopping: bool
    repeats: str
    iteration: int
    plan: Mapping[str, Any]
    settings: Mapping[str, str]
    reason: str | None
    progress: float
    message: str
    planned: int
    by: str
    created: datetime
    started: datetime | None
    finished: datetime | None
    runs: tuple[StudyRunSummary, ...]


@dataclass(frozen=True, kw_only=True)
class StudyDetails(StudySummary):
    """A study with its report, which is None until it is finished."""

    report: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class EvaluationResponse:
    """A response that the evaluation sampled; `policy_role` is reference, previous or policy."""

    prompt: str
    messages: tuple[Message, ...]
    policy_role: str
    policy: str
    text: str
    reward: float | None
    own_reward: float | None


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The verdict on a policy; `by_evidence` is the verdict without a researcher's ruling."""

    policy: str
    verdict: str
    by_evidence: str
    ruling: Mapping[str, Any] | None
    win_rate: Mapping[str, Any] | None
    versus: tuple[Mapping[str, Any], ...]
    sequential: Mapping[str, Any]
    may_stop: bool
    alarm: Mapping[str, Any] | None
    words: tuple[str, ...]
    canary: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Gate:
    """Every trained policy's standing, the newest first."""

    policies: Rows[Standing]
    leaderboard: tuple[Mapping[str, Any], ...]
    iteration: Mapping[str, Any] | None
    last_promoted: str | None


@dataclass(frozen=True, kw_only=True)
class Rank:
    """A place on the leaderboard: `win_rate` against the anchor with its 95% interval."""

    model: str
    judgments: int
    rating: float | None
    error: float | None
    win_rate: float | None
    low: float | None
    high: float | None
    won: float


@dataclass(frozen=True, kw_only=True)
class Leaderboard:
    """The models in the judgments, best first; `categories` counts the judgments of each."""

    anchor: str | None
    category: str | None
    judgments: int
    prompts: int
    ranks: Rows[Rank]
    meetings: tuple[Mapping[str, Any], ...]
    categories: Mapping[str, int]

    def frame(self) -> pd.DataFrame:
        """A row for each model."""
        return self.ranks.frame()


@dataclass(frozen=True, kw_only=True)
class RewardReport:
    """Whether a reward model is good enough; `missing` says why there is no `quality`."""

    models: tuple[str, ...]
    model: str | None
    directory: str | None
    quality: Mapping[str, Any] | None
    verdict: Mapping[str, Any] | None
    curve: Mapping[str, Any] | None
    curve_seconds: float | None
    missing: str | None


@dataclass(frozen=True, kw_only=True)
class Judgment:
    """A judgment in the list; `annotator_name` is a name, `expected` the chance of `first` by a
    reward model."""

    id: str
    comparison: str
    annotator: str
    annotator_name: str
    outcome: Outcome
    strength: int | None
    arm: str
    iteration: int
    category: str
    prompt: str
    comment: str
    created_at: datetime
    disagreement: bool
    surprise: bool
    flagged: bool
    commented: bool
    excluded: bool
    expected: float | None


@dataclass(frozen=True, kw_only=True)
class GivenJudgment:
    """A judgment of a pair with everything that its annotator gave."""

    id: str
    annotator: str
    annotator_kind: str
    outcome: Outcome
    strength: int | None
    criteria: Mapping[str, str]
    reasons: Mapping[str, Any]
    safety: Mapping[str, str]
    marks: Mapping[str, Any]
    comment: str
    edit: str
    milliseconds: int | None
    guidelines: str | None
    created_at: datetime
    excluded: bool
    exclusion_reason: str
    excluded_by: str | None
    learned_by: tuple[str, ...]
    shaped: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Exclusion:
    """Whether a judgment is excluded, and why."""

    judgment: str
    excluded: bool
    reason: str
    researcher: str
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class FlagAnswer:
    """A researcher's answer to a flag."""

    id: str
    text: str
    researcher: str | None
    created_at: datetime
    read_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Flag:
    """A flag; `state` is open, cleared or undone."""

    id: str
    comparison: str
    annotator_id: str
    annotator: str | None
    comment: str
    prompt: str
    created_at: datetime
    state: str
    closed_at: datetime | None
    answers: tuple[FlagAnswer, ...]


@dataclass(frozen=True, kw_only=True)
class GivenRuling:
    """A ruling with the votes on the pair; `adjudicator` is a name, None for the command line."""

    id: str
    comparison: str
    adjudicator: str | None
    outcome: Outcome
    reason: str
    prompt: str
    created_at: datetime
    votes: tuple[Mapping[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A pair with its judgments, flags and rulings, in the stored order of the responses."""

    comparison: str
    prompt: str
    messages: tuple[Message, ...]
    role: str
    category: str
    iteration: int
    arm: str
    first: str
    second: str
    first_model: str
    second_model: str
    created_at: datetime
    judgments: Rows[GivenJudgment]
    flags: Rows[Flag]
    rulings: Rows[GivenRuling]
    predicted: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class WaitingPair:
    """A pair that waits for a ruling, as it is on the screen: `a` is on the left."""

    comparison: str
    messages: tuple[Message, ...]
    a: str
    b: str
    sent: bool


@dataclass(frozen=True, kw_only=True)
class Adjudication:
    """The pairs that wait for you, of `total`, and the rulings of all adjudicators."""

    waiting: Rows[WaitingPair]
    total: int
    rulings: Rows[GivenRuling]


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A prompt in the list; `text` is the beginning of its last message."""

    id: str
    role: str
    category: str
    source: str
    created_at: datetime
    turns: int
    text: str
    retired: bool
    pairs: int
    judgments: int


@dataclass(frozen=True, kw_only=True)
class GoldPair:
    """A gold pair: `matched` of the `answered` judgments are as expected."""

    id: str
    answer: str
    source: str | None
    active: bool
    explanation: str
    created_at: datetime
    messages: tuple[Message, ...]
    first: str
    second: str
    answered: int
    matched: int


@dataclass(frozen=True, kw_only=True)
class Person:
    """An account."""

    id: str
    name: str
    role: Role
    kind: str
    disabled: bool
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class NewAccount(Person):
    """An account with its invite link or API token; `added` is False if it existed."""

    added: bool
    invite: str | None = None
    token: str | None = None


@dataclass(frozen=True, kw_only=True)
class SavedGuidelines:
    """A saved text for all languages; `current` if annotators see it now."""

    version: str
    text: str
    current: bool


@dataclass(frozen=True, kw_only=True)
class Guidelines:
    """The guidelines in Markdown; `saved` are all texts for all languages, the current one last."""

    version: str
    text: str
    saved: Rows[SavedGuidelines]


@dataclass(frozen=True, kw_only=True)
class Form:
    """What annotators are asked about a pair (the settings of the same names in `labeling`)."""

    scale: str
    strength: str
    criteria: tuple[str, ...]
    reasons: tuple[str, ...]
    rationale: Presence
    safety: Presence
    marks: bool


@dataclass(frozen=True, kw_only=True)
class Practice:
    """Whether practice is asked for, and how many practice pairs there are."""

    asked: bool
    pairs: int


@dataclass(frozen=True, kw_only=True)
class AuditEntry:
    """Who did what: `via` is browser, token, command line, or studio for the studio itself."""

    time: datetime
    actor: str
    via: str
    action: str
    subject: str
    details: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Webhook:
    """A webhook with the numbers of its deliveries; only a new one, or a new secret, has `secret`."""

    id: str
    url: str
    events: tuple[str, ...]
    description: str
    active: bool
    reason: str
    rotated_at: datetime | None
    created_at: datetime
    delivered: int
    pending: int
    failed: int
    delivered_at: datetime | None
    secret: str | None = None
    previous_signs_until: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """An event of the type `type` for a webhook, and the state of its delivery."""

    id: str
    type: str
    url: str
    webhook: str
    event: str
    status: str
    attempts: int
    next_at: datetime | None
    code: int | None
    error: str
    attempted_at: datetime | None
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Ping:
    """What came of a ping: the `code` of the response, None without one."""

    status: str
    code: int | None
    error: str
    event: str


@dataclass(frozen=True, kw_only=True)
class Imported:
    """The report of an import: `added` records by kind, those that were `known`, and notes."""

    rows: int
    added: Mapping[str, int]
    known: int
    skipped: tuple[Mapping[str, Any], ...]
    warnings: tuple[Mapping[str, Any], ...]
    skipped_in_all: int
    warnings_in_all: int


@dataclass(frozen=True, kw_only=True)
class ImportJob:
    """A preview or an import: its `phase`, the `stored` of `total` records, and its report.

    `left_out` has the number of rows that are not imported (`count`), for each reason, and the first
    of them as `rows`.
    """

    id: str
    preview: bool
    file: str
    kind: str | None
    source: str | None
    detected: str | None
    phase: str
    stored: int
    total: int | None
    error: str | None
    report: Mapping[str, Any] | None
    left_out: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Push:
    """A push of a model to the hub: its `phase`, the bytes `sent` of `bytes`, and at the end the
    repository's `url`."""

    id: str
    model: str
    repository: str
    private: bool
    phase: str
    sent: int
    bytes: int | None
    error: str | None
    url: str | None


@dataclass(frozen=True, kw_only=True)
class Models:
    """The models that can be asked; `reason` says why none can reply now."""

    models: tuple[Mapping[str, Any], ...]
    chosen: tuple[str, ...]
    reward: str | None
    reference: str | None
    reason: str | None
    max_models: int
    max_tokens: int


@dataclass(frozen=True, kw_only=True)
class SentPair:
    """A pair that was sent to the annotators; `new` is False if it had been sent before."""

    id: str
    new: bool
    learned_from: bool


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A model's reply in the playground; `id` can be sent to the annotators.

    `kl` is the sum over the tokens in nats, None if it was not measured.  `error` says why there is
    no reply.
    """

    model: str
    id: str | None
    text: str
    finish_reason: str | None
    tokens: int | None
    reward: float | None
    audit: float | None
    kl: float | None
    error: str


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The replies of several models to one conversation, sampled with `seed`."""

    seed: int
    replies: Rows[Reply]

    def frame(self) -> pd.DataFrame:
        """A row for each model."""
        return self.replies.frame()


@dataclass(frozen=True, kw_only=True)
class ShownText:
    """A text and the same as safe HTML."""

    text: str
    html: str


@dataclass(frozen=True, kw_only=True)
class ShownMessage(ShownText):
    """A message of the conversation."""

    role: str


@dataclass(frozen=True, kw_only=True)
class ShownPair:
    """A pair as one annotator sees it: `a` is on the left."""

    id: str
    prompt: tuple[ShownMessage, ...]
    a: ShownText
    b: ShownText
    notice: str


@dataclass(frozen=True, kw_only=True)
class Progress:
    """An annotator's judgments in all, today and in this round (`done`), and the pairs `remaining`.

    `form` is what they are asked about a pair, and `latest` the act that `undo` takes back.
    """

    judged: int
    today: int
    remaining: int
    iteration: int | None
    done: int
    latest: str | None
    form: Form
    unread_answers: int
    annotator: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class OwnFigures:
    """An annotator's own figures; shares are from 0 to 1, None without data."""

    judgments: int
    today: int
    decided: int
    left_rate: float | None
    tie_rate: float | None
    both_bad_rate: float | None
    median_seconds: float | None
    agreement: float | None
    shared_pairs: int


@dataclass(frozen=True, kw_only=True)
class OwnJudgment:
    """A judgment of this annotator; `outcome` refers to their screen."""

    id: str
    outcome: ScreenOutcome
    strength: int | None
    edited: bool
    live: bool
    created_at: datetime
    prompt: str


@dataclass(frozen=True, kw_only=True)
class LabelingGuidelines:
    """The guidelines in Markdown and as HTML."""

    version: str
    text: str
    html: str
