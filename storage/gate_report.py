"""The report of the promotion gate: computed by `pipeline.promotion`, shown by pages and commands.

`dataclasses.asdict` turns a report into JSON; `storage.reports.from_json` reads it back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from storage.analysis.intervals import WinRate
from storage.gate_records import CheckResults, LostAnswer, StandingRuling

Verdict = Literal["promoted", "blocked", "provisional"]
Decision = Literal["better", "worse", "go on"]


@dataclass(frozen=True, kw_only=True)
class OverOptimization:
    """Predicted and human win rate over the same `comparisons` judgments of `prompts` prompts.

    `predicted` is discounted: `lead` is the share of the lead over ½ that is left of the reward
    model's own prediction.
    `z` is (predicted − human)/`error`; `alarm` is raised at z > 2 with enough prompts.  `error` is
    None for a single prompt, where the standard error is unknown.
    """

    predicted: float
    human: float
    error: float | None
    z: float
    alarm: bool
    comparisons: int
    prompts: int
    lead: float = 1.0


@dataclass(frozen=True, kw_only=True)
class CheckRates:
    """Shares of the answers to `prompts` prompts that pass one check of the canary."""

    name: str
    prompts: int
    policy: float
    reference: float

    @classmethod
    def of(cls, check: CheckResults) -> Self:
        prompts = len(check.prompts)
        policy, reference = (
            marks.count("1") / prompts for marks in (check.policy, check.reference)
        )
        return cls(name=check.name, prompts=prompts, policy=policy, reference=reference)


@dataclass(frozen=True, kw_only=True)
class CanaryFigures:
    """Shares of the canary's prompts whose answers pass all checks, of a policy and of SFT.

    `loss` is reference − policy, with its paired 95% interval.  The canary `holds` a policy that
    loses at least `allowed_loss`: it is not promoted.  It `blocks` the policy if the whole interval
    is also above 0.
    """

    function: str
    prompts: int
    policy: float
    reference: float
    loss: float
    low: float
    high: float
    allowed_loss: float
    holds: bool
    blocks: bool
    checks: Sequence[CheckRates]
    lost: Sequence[LostAnswer]


@dataclass(frozen=True, kw_only=True)
class SequentialEvidence:
    """The sequential test against SFT, for a chart.

    `log_e` (nats) is the evidence after all `prompts`.  `path` has pairs (prompts, log E), thinned.
    `stopped_at` is the number of prompts at which log E first exceeded `limit`, or None.
    """

    decision: Decision
    log_e: float
    prompts: int
    stopped_at: int | None
    path: Sequence[tuple[int, float]]
    limit: float


@dataclass(frozen=True, kw_only=True)
class Versus(WinRate):
    """A policy's win rate against another policy."""

    opponent: str


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The verdict on one policy and its evidence.

    `by_evidence` is the verdict without the researcher's `ruling`.  `win_rate` and `sequential` are
    against SFT, `versus` against other policies, the newest first.  `alarm` covers the judgments
    that the policy's own reward model predicted.  `canary` is None if the evaluation had none.
    `words` has all this as sentences.  `may_stop` says that further judgments against SFT cannot
    change the decision of the test.
    """

    policy: str
    verdict: Verdict
    by_evidence: Verdict
    ruling: StandingRuling | None
    win_rate: WinRate | None
    versus: Sequence[Versus]
    sequential: SequentialEvidence
    may_stop: bool
    alarm: OverOptimization | None
    words: Sequence[str]
    canary: CanaryFigures | None = None


@dataclass(frozen=True, kw_only=True)
class Rating:
    """A place on a leaderboard, from `judgments` against any other model.

    `rating` is in logits, 0 for the anchor, with the standard error `error`.  `win_rate` is
    σ(rating), the chance against the anchor, with its 95% interval.  These are None when no chain
    of judgments connects the model to the anchor.
    """

    judgments: int
    rating: float | None = None
    error: float | None = None
    win_rate: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Rank(Rating):
    """A policy's place on the leaderboard of policies."""

    policy: str


@dataclass(frozen=True, kw_only=True)
class GateProgress:
    """The candidate `policy` of iteration `number`: judgments against SFT `wanted` and `judged`."""

    number: int
    policy: str
    wanted: int
    judged: int


@dataclass(frozen=True, kw_only=True)
class GateReport:
    """Every trained policy's standing, the newest first, and the leaderboard with SFT as anchor.

    `iteration` is None when the newest iteration has no candidate.  `last_promoted` is the policy
    that is sampled after a block: a promoted policy or the reference, None before there is one.
    """

    policies: Sequence[Standing] = ()
    leaderboard: Sequence[Rank] = ()
    iteration: GateProgress | None = None
    last_promoted: str | None = None

    def standing(self, policy: str) -> Standing:
        """One policy's standing; ValueError for an unknown policy."""
        for found in self.policies:
            if found.policy == policy:
                return found
        known = ", ".join(each.policy for each in self.policies) or "none yet"
        raise ValueError(f"there is no trained policy {policy}; there are: {known}")


@dataclass(frozen=True, kw_only=True)
class ModelRank(Rating):
    """A model's place on the leaderboard of all models; it won the share `won` of its judgments."""

    model: str
    won: float


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """The judgments between two models; ties are half a win each."""

    model: str
    opponent: str
    judgments: int
    wins: float


@dataclass(frozen=True, kw_only=True)
class ModelBoard:
    """The models in the judgments, best first.

    `anchor` is None without judgments.  `meetings` has each pair of models in both orders.
    `categories` counts the judgments of each category of prompts, also of those not shown.
    """

    anchor: str | None
    category: str | None
    judgments: int
    prompts: int
    ranks: Sequence[ModelRank]
    meetings: Sequence[Meeting]
    categories: Mapping[str, int]
