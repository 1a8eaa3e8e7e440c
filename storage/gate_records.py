"""The evidence of the promotion gate: judgments, predictions of reward models, and rulings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Literal

from storage.records import check_choice, now

Ruling = Literal["promote", "block", "evidence"]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The prediction of a policy's own reward model for one comparison.

    `first` is the expected outcome for the comparison's first completion: the probability that it
    is preferred, plus half the probability of a tie.
    """

    comparison: str
    reward_model: str
    first: float
    first_score: float
    second_score: float
    created_at: datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        if not (0 <= self.first <= 1 and math.isfinite(self.first_score - self.second_score)):
            raise ValueError(
                f"the prediction for {self.comparison} must be a probability with two finite scores"
            )


@dataclass(frozen=True, kw_only=True)
class GateOverride:
    """A researcher's ruling on a policy, which overrides the evidence; `evidence` withdraws it."""

    id: str
    policy: str
    ruling: Ruling
    reason: str
    researcher: str = ""
    created_at: datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        check_choice("ruling", self.ruling, Ruling)
        if not self.reason.strip():
            raise ValueError("an override needs a written reason; it stays in the history")


@dataclass(frozen=True, kw_only=True)
class PolicyJudgment:
    """One judgment between two policies.

    `outcome` is 1 when `first` won, ½ for a tie or both bad, 0 when `second` won.  `predicted` is
    the expected outcome by `reward_model`, None without a prediction.  `judgment` is its id.
    """

    comparison: str
    prompt: str
    iteration: int
    first: str
    second: str
    outcome: float
    predicted: float | None = None
    reward_model: str | None = None
    judgment: str = ""


@dataclass(frozen=True, kw_only=True)
class StandingRuling:
    """The latest ruling on a policy; `at` is in ISO 8601."""

    ruling: Ruling
    reason: str
    researcher: str
    at: str


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """The policy that iteration `number` compares with SFT, and the judgments it needs."""

    number: int
    policy: str | None
    labels: int


@dataclass(frozen=True, kw_only=True)
class ModelJudgment:
    """A person's judgment of two models' responses: 1 if `first` won, ½ for a tie or *both bad*."""

    first: str
    second: str
    outcome: float
    prompt: str
    category: str


@dataclass(frozen=True, kw_only=True)
class CheckResults:
    """Which prompts' answers pass a check of the canary.

    `prompts` are the numbers of the prompts; `policy` and `reference` have a character for each: 1
    if the model's answer passes, else 0.
    """

    name: str
    prompts: tuple[int, ...]
    policy: str
    reference: str

    def __post_init__(self) -> None:
        marks = (self.policy, self.reference)
        if any(len(each) != len(self.prompts) or set(each) - {"0", "1"} for each in marks):
            raise ValueError(f"the check {self.name!r} needs a 0 or 1 for each prompt and model")


@dataclass(frozen=True, kw_only=True)
class LostAnswer:
    """A policy's answer that fails a `check` that SFT's answer passes; texts may be shortened."""

    check: str
    prompt: str
    answer: str


@dataclass(frozen=True, kw_only=True)
class CanaryResults:
    """What the answers of a policy and of the SFT reference pass on the canary (`gate.canary`).

    `allowed_loss` is `gate.canary_loss`; `lost` has a few answers that only SFT passes.
    """

    function: str
    allowed_loss: float
    checks: tuple[CheckResults, ...]
    lost: tuple[LostAnswer, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All inputs of the gate's decision.

    `judged` is in the order of the sequential test.  `policies` has the ids of all versions, the
    oldest first and the SFT `reference` before them; both are empty before there is a reference.
    `proxies` and `kl_weights` are the reward model and ppo.kl_weight of each policy's training.
    `leads` has the share of its predicted lead over SFT that each evaluated policy is expected to
    keep, `canaries` the evaluation's results of each policy on the canary, if it was on.  `overrides`
    has the latest ruling on each policy, `iteration` the newest iteration.
    """

    judged: Sequence[PolicyJudgment] = ()
    policies: Sequence[str] = ()
    reference: str | None = None
    iteration: Candidate | None = None
    proxies: Mapping[str, str | None] = field(default_factory=dict)
    kl_weights: Mapping[str, float | None] = field(default_factory=dict)
    leads: Mapping[str, float] = field(default_factory=dict)
    canaries: Mapping[str, CanaryResults] = field(default_factory=dict)
    overrides: Mapping[str, StandingRuling] = field(default_factory=dict)

    @cached_property
    def by_pair(self) -> Mapping[frozenset[str], Sequence[PolicyJudgment]]:
        """The judgments of each two models, in the order of `judged`."""
        found: dict[frozenset[str], list[PolicyJudgment]] = {}
        for row in self.judged:
            found.setdefault(frozenset((row.first, row.second)), []).append(row)
        return found
