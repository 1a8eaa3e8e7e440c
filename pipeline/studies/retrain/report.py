"""The report of a reward model that was trained again without some judgments.

Both models predict the same held-out judgments, from which neither has learned, and score the same
stored responses.  All shifts are after − before, paired, and clustered by prompt
(`pipeline.statistics.paired`).  docs/counterfactuals.md explains the choices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean
from typing import Any, Literal

import numpy as np

from pipeline.promotion import gate
from pipeline.reward.quality.figures import Row, of_stream, outcomes, row_log_loss
from pipeline.runs.study_folder import Spec
from pipeline.statistics.paired import (
    Shift,
    chance_interval,
    mean_shift,
    share_shift,
    subset_shift,
)
from pipeline.studies.retrain.files import PARTS, Fact
from storage.analysis.intervals import WinRate
from storage.gate_records import Evidence, PolicyJudgment
from storage.gate_report import Standing, Verdict
from storage.records import derive_seed

Scores = Mapping[str, Sequence[Row]]
"""By policy: a model's rewards of its responses and of SFT's (`files.SCORES_COLUMNS`)."""
HeldOut = Mapping[str, Row]
"""By judgment: a model's prediction of it (`held_out.COLUMNS`)."""
Group = Literal["remaining", "all", "left_out"]
GROUPS: tuple[Group, ...] = ("remaining", "all", "left_out")
SFT = "SFT"
DRAWS = 20
"""Random draws of the gate's judgments; they need no training."""
_SHARE, _DIFFERENCE, _ALL = (0.0, 1.0), (-1.0, 1.0), (-math.inf, math.inf)
"""The least and the largest value of a share, of a difference of two, and of anything."""
_LEAST_SPREAD = 1e-12


@dataclass(frozen=True)
class Measured:
    """What a model predicts: held-out judgments, and scores of responses."""

    held_out: HeldOut
    scores: Scores


@dataclass(frozen=True, kw_only=True)
class Chance:
    """The shifts of `controls`, each without as many random judgments.

    `low` to `high` is the 95% prediction interval of a further control, None for fewer than two.
    `beyond` says that the shift is outside of it.
    """

    controls: tuple[float, ...]
    low: float | None
    high: float | None
    beyond: bool | None


@dataclass(frozen=True, kw_only=True)
class Figure(Shift):
    """A shift, beside what chance gives; None without controls."""

    chance: Chance | None = None


@dataclass(frozen=True, kw_only=True)
class Count:
    """How many judgments of the snapshot have a `name`, and how many of these are left out."""

    name: str
    judgments: int
    left_out: int


@dataclass(frozen=True, kw_only=True)
class Counts:
    """The judgments of the snapshot by what they are used for, by annotator and by kind."""

    total: Count
    by_use: tuple[Count, ...]
    by_annotator: tuple[Count, ...]
    by_kind: tuple[Count, ...]


@dataclass(frozen=True, kw_only=True)
class HeldOutShift:
    """The shift on held-out judgments of the random stream: those that remain, all, or the others.

    `accuracy` is over the `preferences` among them, `log_loss` in nats over all `judgments`; None
    without any.
    """

    group: Group
    judgments: int
    preferences: int
    accuracy: Figure | None
    log_loss: Figure | None


@dataclass(frozen=True, kw_only=True)
class PolicyShift:
    """How the two models rate a policy's stored responses.

    `win_rate` is the predicted rate against SFT's responses to the same prompts.  `gain` is the mean
    reward above theirs, in standard deviations of theirs by the same model.  Ranks count from 1 by
    the predicted win rate.
    """

    policy: str
    win_rate: Figure
    gain: Figure
    rank_before: int
    rank_after: int


@dataclass(frozen=True, kw_only=True)
class Swap:
    """Two policies that change places: `above` was above `below` by `lead.before`.

    `lead` is the difference of predicted win rates on the prompts that both answered.
    """

    above: str
    below: str
    lead: Figure


@dataclass(frozen=True, kw_only=True)
class GateShift:
    """A policy at the gate, before and after the judgments are left out.

    `before` and `after` are verdicts by the evidence; a researcher's ruling is in `ruled`.  `shift`
    is that of the win rate against SFT among people; None if no judgment remains.  Its controls are
    `DRAWS` random draws, which leave out as many judgments of the policy.
    """

    policy: str
    before: Verdict
    after: Verdict
    ruled: Verdict | None
    rate_before: WinRate | None
    rate_after: WinRate | None
    shift: Figure | None
    log_e_before: float
    log_e_after: float


@dataclass(frozen=True, kw_only=True)
class RetrainReport:
    """The results of a study that trained a reward model again without some judgments.

    `plan` is the study's; `order_before` and `order_after` are the evaluated policies and SFT, best
    first by predicted win rate.  `findings` are the results in sentences, `notes` what limits them.
    """

    model: str
    iteration: int
    plan: Mapping[str, Any]
    counts: Counts
    held_out: tuple[HeldOutShift, ...]
    policies: tuple[PolicyShift, ...]
    order_before: tuple[str, ...]
    order_after: tuple[str, ...]
    swaps: tuple[Swap, ...]
    gate: tuple[GateShift, ...]
    not_evaluated: tuple[str, ...]
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def summary(
    spec: Spec,
    *,
    facts: Sequence[Fact],
    original: Measured,
    retrained: Measured,
    controls: Sequence[Measured],
    evidence: Evidence,
    tie_model: str,
    not_evaluated: Sequence[str],
) -> RetrainReport:
    """Compare the models and the gate's verdicts, with and without the judgments."""
    left_out = {fact.judgment for fact in facts if fact.left_out}
    models = (original, retrained, *controls)
    scored, predicted = [each.scores for each in models], [each.held_out for each in models]
    before, after = orders(original.scores, retrained.scores)
    policies = policy_shifts(scored, before, after)
    return RetrainReport(
        model=spec.plan["model"],
        iteration=spec.iteration,
        plan=spec.plan,
        counts=counts(facts),
        held_out=tuple(
            held_out_shift(group, predicted, left_out=left_out, tie_model=tie_model)
            for group in GROUPS
        ),
        policies=policies,
        order_before=before,
        order_after=after,
        swaps=swaps(policies, scored),
        gate=gate_shifts(evidence, left_out),
        not_evaluated=tuple(not_evaluated),
    )


# --- judgments ----------------------------------------------------------------------------------


def counts(facts: Sequence[Fact]) -> Counts:
    """The judgments of the snapshot; `facts` also has judgments that are only the gate's."""
    snapshot = [fact for fact in facts if fact.part]

    def counted(name: str, members: Sequence[Fact]) -> Count:
        return Count(
            name=name, judgments=len(members), left_out=sum(fact.left_out for fact in members)
        )

    def by(value: Callable[[Fact], str], names: Sequence[str] = ()) -> tuple[Count, ...]:
        return tuple(
            counted(name, [fact for fact in snapshot if value(fact) == name])
            for name in names or sorted({value(fact) for fact in snapshot})
        )

    return Counts(
        total=counted("snapshot", snapshot),
        by_use=by(lambda fact: fact.part, PARTS),
        by_annotator=by(lambda fact: fact.annotator),
        by_kind=by(lambda fact: fact.kind),
    )


# --- held-out judgments -------------------------------------------------------------------------


def held_out_shift(
    group: Group, predicted: Sequence[HeldOut], *, left_out: set[str], tie_model: str
) -> HeldOutShift:
    """The shift on one group of the held-out judgments of the random stream.

    `predicted` are the predictions of the original, of the retrained model, and of the controls.
    """
    stream, decided = of_stream(
        [
            row
            for judgment, row in predicted[0].items()
            if group == "all" or (judgment in left_out) == (group == "left_out")
        ]
    )

    def figure(
        rows: Sequence[Row],
        values: Callable[[Sequence[Row]], np.ndarray],
        shift: Callable[..., Shift],
        *,
        share: bool = False,
    ) -> Figure | None:
        if not rows:
            return None
        prompts = [row["prompt"] for row in rows]
        found = [values([each[row["judgment"]] for row in rows]) for each in predicted]
        least = 1 / len(rows) if share else 0.0
        return _beside_chance(
            found,
            lambda one, two: shift(one, two, prompts),
            least=least,
            ends=_SHARE if share else _ALL,
        )

    def losses(rows: Sequence[Row]) -> np.ndarray:
        return np.array([row_log_loss(row, tie_model) for row in rows])

    return HeldOutShift(
        group=group,
        judgments=len(stream),
        preferences=len(decided),
        accuracy=figure(decided, lambda rows: outcomes(rows)[0], share_shift, share=True),
        log_loss=figure(decided if tie_model == "drop" else stream, losses, mean_shift),
    )


def _beside_chance(
    values: Sequence[np.ndarray],
    shift: Callable[[np.ndarray, np.ndarray], Shift],
    *,
    least: float = 0.0,
    ends: tuple[float, float] = _ALL,
) -> Figure:
    """The shift from the first to the second of `values`, beside the shifts to the controls'."""
    before, after, *others = values
    shifts = tuple(float((each - before).mean()) for each in others)
    return _figure(shift(before, after), shifts, least=least, ends=ends)


def _figure(
    found: Shift, shifts: tuple[float, ...], *, least: float, ends: tuple[float, float] = _ALL
) -> Figure:
    """The shift, beside those of the controls; `ends` are the least and the largest value."""
    if not shifts:
        return Figure(**vars(found))
    limits = chance_interval(shifts, least=least)
    beyond = None if limits is None else not limits[0] <= found.shift <= limits[1]
    # Few controls give limits that no value can reach.
    low = None if limits is None else max(limits[0], ends[0] - found.before)
    high = None if limits is None else min(limits[1], ends[1] - found.before)
    return Figure(**vars(found), chance=Chance(controls=shifts, low=low, high=high, beyond=beyond))


# --- policies -----------------------------------------------------------------------------------


def orders(original: Scores, retrained: Scores) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The policies and SFT, best first by predicted win rate, for each of the two models.

    SFT has ½.  In the second, rates that are equal except for rounding keep the order of the first.
    """
    before, after = (
        {policy: _rounded(fmean(r["expected"] for r in rows)) for policy, rows in scores.items()}
        | {SFT: 0.5}
        for scores in (original, retrained)
    )
    first = sorted(before, key=lambda policy: -before[policy])
    return tuple(first), tuple(sorted(first, key=lambda policy: -after[policy]))


def _rounded(rate: float) -> float:
    """A rate without the error of floating-point numbers, which would order equal policies."""
    return round(rate, 6)


def policy_shifts(
    scored: Sequence[Scores], before: Sequence[str], after: Sequence[str]
) -> tuple[PolicyShift, ...]:
    """The shift of each policy's predicted win rate and reward, best first by the original.

    `scored` are the scores by the original, by the retrained model, and by the controls; `before` and
    `after` are the `orders`.
    """
    return tuple(
        PolicyShift(
            policy=policy,
            **_policy([scores[policy] for scores in scored]),
            rank_before=before.index(policy) + 1,
            rank_after=after.index(policy) + 1,
        )
        for policy in before
        if policy != SFT
    )


def _policy(scored: Sequence[Sequence[Row]]) -> dict[str, Figure]:
    """The predicted win rate and the gain, by the original, the retrained model, and the controls."""
    prompts = [row["prompt"] for row in scored[0]]

    def shift(one: np.ndarray, two: np.ndarray) -> Shift:
        return mean_shift(one, two, prompts)

    expected = [np.array([row["expected"] for row in rows]) for rows in scored]
    return {
        "win_rate": _beside_chance(expected, shift, ends=_SHARE),
        "gain": _beside_chance([_gains(each) for each in scored], shift),
    }


def _gains(rows: Sequence[Row]) -> np.ndarray:
    """(n,) rewards above SFT's, in standard deviations of SFT's.

    Two models may differ in scale.  The standard deviation counts as known.
    """
    ours, theirs = (
        np.array([row[name] for row in rows]) for name in ("reward", "reference_reward")
    )
    return (ours - theirs) / max(float(theirs.std()), _LEAST_SPREAD)


def swaps(policies: Sequence[PolicyShift], scored: Sequence[Scores]) -> tuple[Swap, ...]:
    """The pairs of policies, SFT included, that change places; `scored` as in `policy_shifts`."""
    rates = {
        each.policy: (_rounded(each.win_rate.before), _rounded(each.win_rate.after))
        for each in policies
    }
    rates[SFT] = (0.5, 0.5)
    found = []
    for one, two in combinations(sorted(rates, key=lambda each: -rates[each][0]), 2):
        if not (rates[one][0] > rates[two][0] and rates[one][1] < rates[two][1]):
            continue
        leads = [_leads(scores, one, two) for scores in scored]
        if prompts := [*leads[0]]:
            values = [np.array([*each.values()]) for each in leads]
            lead = _beside_chance(
                values, lambda a, b, on=prompts: mean_shift(a, b, on), ends=_DIFFERENCE
            )
            found.append(Swap(above=one, below=two, lead=lead))
    return tuple(found)


def _leads(scores: Scores, one: str, two: str) -> dict[str, float]:
    """By prompt that both answered: the first policy's predicted win rate above the second's."""
    means = [_by_prompt(scores[policy]) if policy != SFT else None for policy in (one, two)]
    answered = [set(each) for each in means if each is not None]
    ours, theirs = ((each or {}) for each in means)
    return {
        prompt: ours.get(prompt, 0.5) - theirs.get(prompt, 0.5)
        for prompt in sorted(set.intersection(*answered))
    }


def _by_prompt(rows: Sequence[Row]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row["prompt"], []).append(row["expected"])
    return {prompt: fmean(values) for prompt, values in found.items()}


# --- the gate -----------------------------------------------------------------------------------


def gate_shifts(evidence: Evidence, left_out: set[str]) -> tuple[GateShift, ...]:
    """The verdicts of the gate on all its judgments and on those that remain, newest policy first."""
    remaining = [row for row in evidence.judged if row.judgment not in left_out]
    without = replace(evidence, judged=remaining)
    found = []
    for policy in reversed(evidence.policies[1:]):
        before, after = gate.standing(evidence, policy), gate.standing(without, policy)
        rows = gate.judgments_against(evidence, policy, evidence.reference)
        found.append(_gate_shift(before, after, _rate_shift(rows, left_out, seed=policy)))
    return tuple(found)


def _rate_shift(rows: Sequence[PolicyJudgment], left_out: set[str], *, seed: str) -> Figure | None:
    """The shift of the win rate, beside that of random draws; None if no judgment remains."""
    outcomes = [row.outcome for row in rows]
    kept = [row.judgment not in left_out for row in rows]
    shift = subset_shift(outcomes, kept, [row.prompt for row in rows]) if rows else None
    if shift is None:
        return None
    coin = np.random.default_rng(derive_seed("gate control", seed))
    drawn = [coin.choice(outcomes, sum(kept), replace=False) for _ in range(DRAWS)]
    shifts = tuple(float(each.mean()) - shift.before for each in drawn)
    return _figure(shift, shifts, least=1 / sum(kept), ends=_SHARE)


def _gate_shift(before: Standing, after: Standing, shift: Figure | None) -> GateShift:
    return GateShift(
        policy=before.policy,
        before=before.by_evidence,
        after=after.by_evidence,
        ruled=before.verdict if before.ruling else None,
        rate_before=before.win_rate,
        rate_after=after.win_rate,
        shift=shift,
        log_e_before=before.sequential.log_e,
        log_e_after=after.sequential.log_e,
    )
