"""The report of a simulated iteration: the policy by the gold preference, and the gate's figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.promotion.overoptimization import over_optimization
from pipeline.simulation import preference as builtin
from pipeline.simulation.annotators import Choice, SimulatedAnnotator
from pipeline.simulation.clients import LeasedPair, conversation
from pipeline.simulation.edits import editing_ms, improved
from pipeline.simulation.preference import GoldReward, scored
from pipeline.statistics.canary import canary_figures
from pipeline.statistics.sequential_test import Decision, sequential_test
from pipeline.statistics.winrate import outcome, win_rate
from storage.gate_report import CanaryFigures, OverOptimization
from storage.records import EvaluatedCompletion, digest
from storage.reports import Evaluation, HeldOutFigures, from_json

if TYPE_CHECKING:
    from pipeline.reward.likelihood import TieModel

GATE_LABELS = 60
"""Fresh judgments of a policy against SFT, as many as `gate.labels` asks for."""

_OUTCOMES = {"a": 1.0, "b": 0.0, "tie": 0.5, "both_bad": 0.5}


class PairJudge:
    """One annotator's judgments of pairs.

    The noise depends only on the seed, the annotator and the pair.  With `shuffle` each pair gets
    the judgment of the previous pair.  The share `edits` of the preferences comes with an edit, if
    the preferred response has a fault and the annotator tells better responses from worse ones.
    """

    def __init__(
        self,
        annotator: SimulatedAnnotator,
        gold: GoldReward,
        *,
        seed: int,
        shuffle: bool,
        edits: float = 0.0,
    ) -> None:
        self._annotator, self._gold, self._seed, self._shuffle = annotator, gold, seed, shuffle
        self._edits = edits if annotator.slope > 0 else 0.0
        left, right = self._rng("first").normal(size=2)
        self._previous = (float(left), float(right))

    def __call__(self, pair: LeasedPair) -> Choice:
        scores = scored(self._gold, pair.prompt, (pair.left, pair.right))
        if self._shuffle:
            scores, self._previous = self._previous, scores
        left, right = scores
        rng = self._rng(pair.id)
        choice = self._annotator.judge(left=left, right=right, words=pair.words, rng=rng)
        return self._edited(pair, choice)

    def _edited(self, pair: LeasedPair, choice: Choice) -> Choice:
        """The choice with an edit, drawn apart, so that edits change no judgment."""
        preferred = {"a": pair.left, "b": pair.right}.get(choice.outcome)
        if preferred is None or self._rng(f"edit {pair.id}").random() >= self._edits:
            return choice
        edit = improved(pair.prompt, preferred, self._gold)
        if edit is None:
            return choice
        spent = self._annotator.time_factor * editing_ms(preferred, edit)
        return replace(choice, edit=edit, milliseconds=choice.milliseconds + int(spent))

    def _rng(self, pair: str) -> np.random.Generator:
        return np.random.default_rng([self._seed, int(digest(self._annotator.name, pair), 16)])


@dataclass(frozen=True, kw_only=True)
class GoldComparison:
    """The new policy against SFT under a gold preference."""

    sft: float
    """Mean score of SFT's completions."""
    policy: float
    """Mean score of the policy's completions."""
    win_rate: float
    low: float
    """With `high`, the 95% interval, clustered by prompt."""
    high: float


@dataclass(frozen=True, kw_only=True)
class GateFigures(OverOptimization):
    """The gate's figures from fresh judgments of the policy against SFT, one per prompt."""

    low: float
    """With `high`, the 95% interval of the win rate."""
    high: float
    log_e: float
    decision: Decision


@dataclass(frozen=True, kw_only=True)
class Labeled:
    """What the annotators of an iteration did."""

    by_arm: Mapping[str, int]
    edits: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class IterationReport:
    """One iteration of a simulation."""

    iteration: int
    labels_by_arm: Mapping[str, int]
    """Judgments; ``live`` are those of live conversations."""
    edits: int
    """Judgments with an edit."""
    gold: GoldComparison
    yardsticks: Mapping[str, GoldComparison]
    """The comparison under the built-in gold preference and under length, by name."""
    reward_model: HeldOutFigures
    gate: GateFigures | None
    """None if all texts are equal."""
    verdict: str | None
    """The gate's verdict on the policy that the iteration sampled."""
    canary: CanaryFigures | None
    """What the new policy lost on the canary; None without one."""
    kl: float | None
    """KL to SFT, nats per response."""
    reward: float | None
    length: float | None
    """Tokens per response."""
    seconds: Mapping[str, float]
    """Duration of each stage and of labeling."""


def compare(completions: Iterable[EvaluatedCompletion], gold: GoldReward) -> GoldComparison:
    """The new policy against SFT under `gold`.

    Every completion of the policy is compared with every one of the reference on the same prompt.
    """
    scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in completions:
        text = conversation([asdict(message) for message in each.messages])
        scores[each.prompt][each.policy_role] += scored(gold, text, (each.text,))
    meetings = [
        (prompt, outcome(ours, theirs))
        for prompt, by_role in scores.items()
        for ours in by_role["policy"]
        for theirs in by_role["reference"]
    ]
    if not meetings:
        raise ValueError("the evaluation left no held-out completions to compare")
    rate = win_rate([o for _, o in meetings], [prompt for prompt, _ in meetings])
    sft, policy = (
        float(np.mean([score for by_role in scores.values() for score in by_role[role]]))
        for role in ("reference", "policy")
    )
    return GoldComparison(
        sft=sft, policy=policy, win_rate=rate.win_rate, low=rate.low, high=rate.high
    )


def gate_figures(
    completions: Iterable[EvaluatedCompletion],
    judges: Sequence[PairJudge],
    *,
    theta: float | None,
    tie_model: TieModel,
    seed: int,
    labels: int = GATE_LABELS,
    lead: float = 1.0,
) -> GateFigures | None:
    """The gate's figures from `labels` fresh judgments of the policy against SFT, one per prompt.

    `theta` and `tie_model` are those of the iteration's own reward model, and `lead` is its
    evaluation's.  Annotators take turns, sides are random, and pairs of equal texts are left out.
    None if all texts are equal.
    """
    # Imported here, because torch is slow to import and only the end of a simulation needs it.
    import torch  # noqa: PLC0415

    from pipeline.reward.predictions import expected_outcome  # noqa: PLC0415

    sides: dict[str, dict[str, EvaluatedCompletion]] = defaultdict(dict)
    for each in completions:
        sides[each.prompt].setdefault(each.policy_role, each)
    differing = [p for p, s in sides.items() if s["policy"].text != s["reference"].text]
    asked = sorted(differing, key=lambda p: digest("gate", str(seed), p))[:labels]
    if not asked:
        return None
    outcomes = [
        _judged(sides[prompt], judges[n % len(judges)], prompt) for n, prompt in enumerate(asked)
    ]
    d = [_own_reward(sides[p]["policy"]) - _own_reward(sides[p]["reference"]) for p in asked]
    predicted = expected_outcome(
        torch.tensor(d, dtype=torch.float64),
        theta=theta or 0.0,
        tie_model=tie_model,
    ).tolist()
    rate, test = win_rate(outcomes, asked), sequential_test(outcomes, asked)
    return GateFigures(
        **asdict(over_optimization(predicted, outcomes, asked, lead=lead)),
        low=rate.low,
        high=rate.high,
        log_e=test.log_e,
        decision=test.decision,
    )


def _own_reward(completion: EvaluatedCompletion) -> float:
    if completion.own_reward is None:
        raise ValueError(f"a completion of the prompt {completion.prompt} was not scored")
    return completion.own_reward


def _judged(sides: Mapping[str, EvaluatedCompletion], judge: PairJudge, prompt: str) -> float:
    """1 if the annotator prefers the policy's answer, 0 for SFT's, ½ for neither."""
    swapped = int(digest("side", prompt), 16) % 2 == 1
    left, right = ("reference", "policy") if swapped else ("policy", "reference")
    shown = LeasedPair(
        id=f"gate-{prompt}",
        prompt=conversation([asdict(message) for message in sides["policy"].messages]),
        left=sides[left].text,
        right=sides[right].text,
    )
    won = _OUTCOMES[judge(shown).outcome]
    return 1 - won if swapped else won


def report(
    record: Mapping[str, Any],
    completions: Sequence[EvaluatedCompletion],
    gold: GoldReward,
    judges: Sequence[PairJudge],
    *,
    seed: int,
    labeled: Labeled,
) -> IterationReport:
    """The report of one iteration, from the JSON of its record and its held-out completions."""
    evaluation = from_json(Evaluation, record["evaluation"])
    evaluated = evaluation.policy
    fitted = record["reward_model_summary"]
    return IterationReport(
        iteration=record["number"],
        labels_by_arm=labeled.by_arm,
        edits=labeled.edits,
        gold=compare(completions, gold),
        yardsticks={
            "built-in gold": compare(completions, builtin.score),
            "longest": compare(completions, builtin.longest),
        },
        reward_model=from_json(HeldOutFigures, fitted),
        gate=gate_figures(
            completions,
            judges,
            theta=fitted["theta"],
            tie_model=fitted["tie_model"],
            seed=seed,
            lead=evaluation.lead,
        ),
        verdict=record["verdict"],
        canary=canary_figures(evaluation.canary) if evaluation.canary else None,
        kl=evaluated.kl,
        reward=evaluated.reward,
        length=evaluated.length,
        seconds={"labeling": labeled.seconds, **record["seconds"]},
    )
