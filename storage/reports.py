"""The reports of the pipeline that pages and commands show: dataclasses, converted to JSON.

`to_json` writes a report and `from_json` reads it back.  Shares and probabilities are from 0 to 1,
intervals are 95% intervals, clustered by prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, TypeAdapter

from storage.analysis.intervals import WinRate
from storage.gate_records import CanaryResults
from storage.gate_report import Decision
from storage.records import Phase, Stage

_T = TypeVar("_T")


def to_json(report: Any) -> dict[str, Any]:
    """Plain values of a report, ready for `json.dumps`."""
    return _adapter(type(report)).dump_python(report, mode="json", by_alias=True)


def from_json(kind: type[_T], data: Mapping[str, Any]) -> _T:
    """The report that `to_json` wrote; unknown keys are ignored.

    Raises pydantic's ValidationError, a ValueError, if a field is missing or of another type.
    """
    return _adapter(kind).validate_python(data)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


# ------------------------------------------------------------------ shares


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A number with its interval; the interval is None for a single prompt."""

    value: float
    low: float | None
    high: float | None


# ------------------------------------------------------------------ figures of trained models


@dataclass(frozen=True, kw_only=True)
class HeldOutFigures:
    """Figures of a reward model on judgments that it did not learn from; None for unknown ones."""

    accuracy: float | None = None
    """Share of preferences whose winner has the higher reward."""
    accuracy_low: float | None = None
    """With `accuracy_high`, the 95% interval, clustered by prompt."""
    accuracy_high: float | None = None
    log_loss: float | None = None
    """Nats per judgment."""
    ece: float | None = None
    """Expected calibration error on preferences."""


@dataclass(frozen=True, kw_only=True)
class RewardFigures(HeldOutFigures):
    """A reward model's figures in the summary of its stage."""

    held_out_preferences: int | None = None
    """The number of preferences on which `accuracy` is measured."""


@dataclass(frozen=True, kw_only=True)
class EvaluatedPolicy:
    """Means over one policy's responses to the held-out prompts; None for unknown ones."""

    kl: float | None = None
    """To the reference, nats per response."""
    kl_is_bound: bool = False
    """Whether `kl` is an upper bound, as for best-of-N."""
    reward: float | None = None
    length: float | None = None
    """Tokens per response."""
    distinct: float | None = None
    """Distinct bigrams over all bigrams of all responses."""
    unique: float | None = None
    """Distinct responses over all responses."""
    audit_reward: float | None = None
    """By the audit model; None without one."""
    canary: float | None = None
    """Share of the canary's prompts whose answers pass; None without a canary."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The summary of an evaluation stage; rewards and wins are by the iteration's reward model.

    It is empty for an iteration that is not evaluated yet.
    """

    policy: EvaluatedPolicy = EvaluatedPolicy()
    reference: EvaluatedPolicy = EvaluatedPolicy()
    previous: EvaluatedPolicy | None = None
    """None if it is the reference."""
    win_rate_against_reference: WinRate | None = None
    win_rate_against_previous: WinRate | None = None
    win_rate_reward_model: float | None = None
    """The win rate against the reference alone."""
    lead: float = 1.0
    """The share of its predicted lead over SFT that the policy is expected to keep
    (`gate.kl_discount`)."""
    canary: CanaryResults | None = None
    """Of the policy and the reference; None without a canary."""


# ------------------------------------------------------------------ a reward model's quality


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Accuracy on a group of `judgments`."""

    accuracy: float
    low: float
    high: float
    judgments: int


@dataclass(frozen=True, kw_only=True)
class AccuracyBin(Accuracy):
    """Accuracy on the judgments whose confidence or margin is from `start` to `end`."""

    start: Annotated[float, Field(alias="from")]
    end: Annotated[float, Field(alias="to")]
    stated: float
    """Mean confidence: the probability of the likelier preference, ½ to 1."""


@dataclass(frozen=True, kw_only=True)
class AccuracyByAgreement(Accuracy):
    """Accuracy on the pairs whose annotators all agree, do not all agree, or are only one."""

    group: Literal["unanimous", "split", "single"]


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """How stated probabilities compare with outcomes."""

    ece: float
    """Expected calibration error."""
    ece_by_chance: float
    """The 95% quantile of the ECE of a model with true probabilities, on as many judgments."""
    overconfidence: Interval
    """Mean confidence minus accuracy."""
    bins: tuple[AccuracyBin, ...]
    """The reliability diagram, by confidence."""


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """The best possible accuracy about one noisy human judgment."""

    value: float
    low: float
    high: float
    least: float
    """Lower bound for any distribution of items."""
    most: float
    """Upper bound for any distribution of items."""
    agreement: WinRate
    """How often a second person agrees with the first; the ceiling follows from it."""
    expected: float | None = None
    """The ceiling from the agreement that the fitted annotator model expects."""


@dataclass(frozen=True, kw_only=True)
class LengthBias:
    """The influence of length on rewards and on people's preferences."""

    correlation: Interval
    """Correlation, about 0, of differences in reward and differences in length."""
    rule: WinRate
    """How often people prefer the longer response."""
    reward: WinRate
    """How often the reward model prefers the longer response."""


@dataclass(frozen=True, kw_only=True)
class Quality:
    """How good a reward model is on held-out judgments of the random stream."""

    judgments: int
    decisive: int
    """Judgments with a preference."""
    prompts: int
    """Prompts of the judgments with a preference."""
    accuracy: WinRate | None
    """Share of preferences whose winner has the higher reward; None without a preference."""
    log_loss: float | None
    """Nats per judgment."""
    coin_log_loss: float | None
    """Log loss of a constant prediction: 50%, with the share of ties on other prompts."""
    calibration: Calibration | None
    by_margin: tuple[AccuracyBin, ...]
    """By the difference of rewards, in groups of equal size."""
    by_agreement: tuple[AccuracyByAgreement, ...]
    ceiling: Ceiling | None
    """None with too few pairs of preferences by two people."""
    overlap: int
    """Pairs of preferences on the same item by two people."""
    length: LengthBias | None
    """None if no preference is between different lengths."""
    share_of_ceiling: Interval | None
    """Accuracy divided by the ceiling."""


# ------------------------------------------------------------------ its learning curve and verdict


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """Accuracy of the models that were trained on a `share` of the labels."""

    share: float
    labels: float
    accuracy: float
    low: float
    high: float
    judgments: int
    prompts: int


@dataclass(frozen=True, kw_only=True)
class Trend:
    """Change of accuracy per doubling of the labels, with its interval."""

    slope: float
    low: float
    high: float
    judgments: int
    prompts: int
    orders: int
    """Orders in which the models were trained."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The gain in accuracy expected from `more` labels; None if nothing can be said."""

    more: int
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    trend: Trend | None = None
    says: str
    """The forecast, or why there is none, as a sentence without a period."""


@dataclass(frozen=True, kw_only=True)
class CurveLines:
    """The forecast as lines to draw."""

    trend: tuple[tuple[float, float], ...]
    """(labels, accuracy)."""
    band: tuple[tuple[float, float, float], ...]
    """(labels, low, high), from the current number of labels."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A learning curve and the state of the worker that computes it."""

    points: tuple[CurvePoint, ...] = ()
    """Empty until the models of one order are trained."""
    forecast: Forecast | None = None
    lines: CurveLines | None = None
    orders: int = 0
    state: Literal["none", "running", "cancelling", "stopped", "failed", "done"] = "none"
    progress: float = 0.0
    message: str = ""
    """What the worker is doing."""
    reason: str | None = None
    """Why it failed."""


Allows = Literal["ppo", "best_of_n", "labeling"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One reason of a verdict."""

    name: str
    allows: Allows
    """The most that this figure allows."""
    says: str
    known: bool = True
    """False if there is not enough evidence; then the check allows everything."""


@dataclass(frozen=True, kw_only=True)
class RewardVerdict:
    """What a reward model is good enough for: the least that any check allows."""

    verdict: Literal["enough for PPO", "best-of-N is safer", "keep labeling"]
    checks: tuple[Check, ...]


@dataclass(frozen=True, kw_only=True)
class RewardReport:
    """Whether a reward model is good enough.  Without a model, all fields but `models` are None."""

    models: tuple[str, ...]
    """All reward models, newest first."""
    model: str | None = None
    """The model of this report."""
    directory: str | None = None
    """The directory of the run that trained it, relative to the workspace."""
    quality: Quality | None = None
    verdict: RewardVerdict | None = None
    curve: Curve | None = None
    curve_seconds: float | None = None
    """Expected duration of the whole learning curve."""
    missing: str | None = None
    """Why there is no `quality`."""


# ------------------------------------------------------------------ how many more labels


@dataclass(frozen=True, kw_only=True)
class GateNeed:
    """How many more judgments the test of the iteration's candidate against SFT needs.

    A judgment counts if it is the first on its prompt.  `low` and `high` are a 90% interval; None,
    like a `median` of None, stands for more than `horizon`.
    """

    policy: str
    decision: Decision
    ruled: bool = False
    """Whether a researcher's ruling replaces the test."""
    alarm: bool = False
    """Whether the over-optimization alarm blocks the policy, until more judgments end it."""
    canary: Literal["holds", "blocks"] | None = None
    """Whether the canary keeps the policy from being promoted, or blocks it; no judgment changes that."""
    judgments: int
    """First judgments of a prompt so far."""
    median: int | None = None
    low: int | None = None
    high: int | None = None
    horizon: int
    pairs: int = 0
    """Prompts on which the queue still offers a first judgment."""
    by_labels: float = 0.0
    """Probability that the test decides with the labels that the iteration still wants."""
    by_wait: float = 0.0
    """The same with labeling.autopilot_wait more labels."""
    by_pairs: float = 0.0
    """The same with all pairs of the queue."""

    @property
    def settled(self) -> bool:
        """Whether further judgments cannot change the verdict, unless they raise an alarm."""
        if self.ruled or self.canary == "blocks" or self.decision == "worse":
            return True
        return self.decision == "better" and not self.alarm


@dataclass(frozen=True, kw_only=True)
class ExpectedGain:
    """The gain in accuracy that the newest learning curve expects from `labels` more labels, with its
    95% interval."""

    labels: int
    gain: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class LabelBudget:
    """How many more labels the newest iteration needs, and for what.

    `more` labels decide the gate's test (median), with the 90% interval from `more_low` to
    `more_high`; None stands for more than the `offered` labels of the queue, or for no open test.
    """

    iteration: int | None = None
    phase: Phase | None = None
    labels: int = 0
    wanted: int = 0
    offered: int = 0
    more: int | None = None
    more_low: int | None = None
    more_high: int | None = None
    gate: GateNeed | None = None
    """None without a candidate, as in the first iteration."""
    gain: ExpectedGain | None = None
    """Of the labels that are left; None without a learning curve that reaches so far."""
    says: str = ""
    """All this in a few sentences."""
    blocked: str = ""
    """Why training cannot start, in sentences; empty if it can."""
    starts: str = ""
    """When training starts by itself; empty if it does not."""

    @property
    def left(self) -> int:
        """The labels that the iteration still wants."""
        return max(0, self.wanted - self.labels)


# ------------------------------------------------------------------ the loop


@dataclass(frozen=True, kw_only=True)
class Blocked:
    """The stopped stage that blocks the loop."""

    run: str
    stage: str
    """Its name in sentences, as in PPO."""
    reason: str | None
    resumable: bool
    """Whether there is a checkpoint."""


@dataclass(frozen=True, kw_only=True)
class LoopState:
    """The state of the loop; `iteration` and `phase` are None before it has started."""

    iteration: int | None = None
    phase: str | None = None
    phase_name: str | None = None
    """The phase in sentences, as in PPO for policy."""
    message: str = ""
    """What the running stage is doing; empty if none runs."""
    blocked: Blocked | None = None
    trouble: str | None = None
    """The unexpected error that stops the loop."""


SettingValue = int | float | str | bool
Applies = Literal["now", "stage", "iteration", "restart", "workspace"]
"""When a change of a setting applies: now, from the next stage that reads it, from the next
iteration, after a restart, or only to new workspaces."""


@dataclass(frozen=True, kw_only=True)
class SettingView:
    """One setting as forms and commands show it."""

    name: str
    """As in ``ppo.kl_weight``."""
    value: SettingValue
    """The current value; lists and tables as TOML text."""
    default: SettingValue
    help: str
    choices: tuple[str, ...] | None = None
    """The permitted values, if there is a fixed list."""
    kind: Literal["int", "float", "str", "bool"] = "str"
    basic: Mapping[str, int] = field(default_factory=dict)
    """The place in the "Train" form for each method that shows it from the start."""
    why_fixed: str | None = None
    """Why the setting cannot be changed now; None if it can."""
    offered: bool = True
    """False if a stopped stage would not read it when it is retried."""
    label: str = ""
    """Its name on pages, as in KL weight (β)."""
    group: str = ""
    """The title of its section."""
    preset: SettingValue | None = None
    """The value in a new workspace for the same model; None if it is not known."""
    applies: Applies = "stage"
    """When a change of config.toml applies."""
    applies_text: str = ""
    """The same as a sentence, which names the stage."""
    last: SettingValue | None = None
    """The value in the last training; None without one."""
    note: str = ""
    """Which other value is in use now, and why; empty if the value is in use."""


@dataclass(frozen=True, kw_only=True)
class WorkspaceSettings:
    """The settings in a workspace's config.toml."""

    file: str
    """The path of config.toml."""
    version: str
    """The SHA-256 of the file as it was read; empty if there is none."""
    preset: str
    """The name of the preset for this model, such as demo."""
    settings: tuple[SettingView, ...]
    """All settings, in the order of their sections."""


class InvalidSettings(ValueError):
    """Settings that cannot be applied: `problems` has a sentence for each wrong setting."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__("; ".join(dict.fromkeys(problems.values())))
        self.problems = dict(problems)


@dataclass(frozen=True, kw_only=True)
class JudgmentCount:
    """A value, such as an annotator's name, and the number of judgments that have it."""

    value: str
    judgments: int


@dataclass(frozen=True, kw_only=True)
class RetrainOffer:
    """The reward model that a study would train again now, and what of its judgments can be left out.

    `seconds` is how long the original took, `first` and `last` the times of its first and last
    judgment.  `guidelines` are versions.  `reason` says why no study can start; None if one can.
    """

    model: str
    iteration: int
    seconds: float | None = None
    annotators: tuple[JudgmentCount, ...] = ()
    kinds: tuple[JudgmentCount, ...] = ()
    guidelines: tuple[JudgmentCount, ...] = ()
    first: datetime | None = None
    last: datetime | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class StudyOffer:
    """The run that a study would repeat now, and the methods that a comparison knows.

    `reason` says in a sentence why no study can start; None if one can.  `kl_weight` is the run's β.
    """

    run: str | None = None
    method: str = ""
    iteration: int | None = None
    kl_weight: float | None = None
    reason: str | None = None
    methods: tuple[str, ...] = ()
    retrain: RetrainOffer | None = None
    """None if there is no reward model yet."""


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """A stage that failed or was cancelled, and what may help."""

    run: str
    attempt: int
    stage: Stage
    status: str
    reason: str
    resumable: bool
    """Whether there is a checkpoint."""
    may_label: bool
    """Whether labeling can continue instead."""
    method: str = "ppo"
    """The method of the policy stage."""
    flag: str = ""
    """The worst red flag that the stage raised; empty without one."""
    remedy: str = ""
    """What the flag says to try first."""
    suggestion: Mapping[str, str] = field(default_factory=dict)
    """The remedy as settings."""
