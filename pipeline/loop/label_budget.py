"""How many more labels an iteration needs, in words, and when training starts by itself.

Pure functions.  `pipeline/loop/budgets.py` reads what they need from the workspace.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pipeline.config.sections import LabelingConfig
from pipeline.promotion.gate import RULINGS
from pipeline.promotion.time_to_decision import (
    HORIZON,
    LabelsToDecision,
    Tally,
    time_to_decision,
)
from pipeline.statistics.sequential_test import first_outcomes, sequential_test
from storage.gate_records import PolicyJudgment
from storage.gate_report import Standing
from storage.reports import ExpectedGain, GateNeed, LabelBudget
from storage.wording import plural, points

LEAST_SHARE = 0.5
"""Share of labeling.labels before which autopilot never starts training."""
SMALL_GAIN = 0.01
"""Autopilot ends labeling if the labels that are left add less: the upper end of the 95% interval."""
LIKELY = 0.5
"""Autopilot waits for the test at this probability of a decision."""
_HARDLY = 0.05
"""Below this probability nobody should wait for the test."""


def needed(
    budget: LabelBudget,
    candidate: Standing,
    *,
    rows: Sequence[PolicyJudgment],
    prompts: int,
    wait: int,
) -> LabelBudget:
    """The budget with what the test of the `candidate` against SFT needs.

    `rows` are the judgments between the two, the oldest first.  The queue still offers a first
    judgment on `prompts` prompts, and the researcher lets autopilot wait for `wait` labels.
    """
    policy, canary = candidate.policy, candidate.canary
    outcomes = [row.outcome if row.first == policy else 1 - row.outcome for row in rows]
    asked = [row.prompt for row in rows]
    test = sequential_test(outcomes, asked)
    gate = GateNeed(
        policy=policy,
        decision=test.decision,
        ruled=candidate.ruling is not None and candidate.ruling.ruling in RULINGS,
        alarm=candidate.alarm is not None and candidate.alarm.alarm,
        canary=None if not (canary and canary.holds) else "blocks" if canary.blocks else "holds",
        judgments=test.prompts,
        pairs=prompts,
        horizon=HORIZON,
    )
    if gate.settled or gate.decision != "go on":
        return replace(budget, gate=gate)
    forecast = time_to_decision(Tally.of(first_outcomes(outcomes, asked).tolist()))
    in_labels = LabelsToDecision(forecast, budget.offered, prompts)
    low, high = forecast.interval
    more_low, more_high = in_labels.interval
    gate = replace(
        gate,
        median=forecast.quantile(0.5),
        low=low,
        high=high,
        by_labels=in_labels.within(budget.left),
        by_wait=in_labels.within(budget.wanted + wait - budget.labels),
        by_pairs=forecast.within(prompts),
    )
    more = in_labels.quantile(0.5)
    return replace(budget, gate=gate, more=more, more_low=more_low, more_high=more_high)


@dataclass(frozen=True, kw_only=True)
class Holds:
    """Why `training` cannot start, and why it does not start by itself; "" if nothing prevents it."""

    training: str = ""
    automatic: str = ""


def in_words(budget: LabelBudget, labeling: LabelingConfig, holds: Holds = Holds()) -> LabelBudget:
    """The budget with its sentences."""
    if budget.phase != "labeling":
        return replace(budget, says=_not_labeling(budget))
    blocked = holds.training
    says = [_about_gate(budget.gate, budget), _about_labels(budget, bool(blocked))]
    return replace(
        budget,
        says=" ".join(filter(None, says)),
        blocked=f"Training cannot start yet. {blocked}" if blocked else "",
        starts=_starts(budget, labeling, holds) if labeling.auto_train else "",
    )


# --- when training starts by itself -------------------------------------------------------------


def why_start(budget: LabelBudget, labeling: LabelingConfig) -> str | None:
    """Why training starts by itself now; None if it does not."""
    if not labeling.auto_train:
        return None
    gate, gain = budget.gate, budget.gain
    if budget.left:
        early = labeling.autopilot and budget.labels >= least_labels(budget)
        if not (early and gate and gate.settled and gain and gain.high < SMALL_GAIN):
            return None
        return f"{_settled(gate)}, and {plural(budget.left, 'more label')} would {_adds(gain)}"
    full = f"all {plural(budget.wanted, 'label')} are in"
    if not labeling.autopilot or gate is None:
        return full
    if gate.settled:
        return f"{full}, and {_settled(gate)}"
    if gate.decision != "go on":
        return f"{full}, and {_alarmed(gate)}"
    if _waits(budget, labeling):
        return None
    if not (allowed := _allowed(budget, labeling)):
        waits = "waits no longer" if labeling.autopilot_wait else "does not wait"
        return f"{full}, and autopilot {waits} for {_test(gate)}"
    return (
        f"{full}, and {_test(gate)} decides within the {plural(allowed, 'label')} that autopilot may "
        f"wait for with a probability of {gate.by_wait:.0%}"
    )


def least_labels(budget: LabelBudget) -> int:
    """The labels before which autopilot never starts training."""
    return math.ceil(LEAST_SHARE * budget.wanted)


def _allowed(budget: LabelBudget, labeling: LabelingConfig) -> int:
    """The labels that autopilot may still wait for."""
    return max(0, budget.wanted + labeling.autopilot_wait - budget.labels)


def _waits(budget: LabelBudget, labeling: LabelingConfig) -> bool:
    gate = budget.gate
    return gate is not None and bool(_allowed(budget, labeling)) and gate.by_wait >= LIKELY


def _starts(budget: LabelBudget, labeling: LabelingConfig, holds: Holds) -> str:
    if holds.automatic:
        return holds.automatic
    if holds.training:
        return "Training starts by itself when the labels are in and nothing prevents it."
    if not labeling.autopilot:
        return f"Training starts by itself with {plural(budget.wanted, 'label')}."
    if why := why_start(budget, labeling):
        return f"Autopilot starts training now: {why}."
    if not budget.left:
        return (
            "Autopilot waits until the test has decided, for at most "
            f"{plural(_allowed(budget, labeling), 'more label')}."
        )
    whole = f"Autopilot starts training with {plural(budget.wanted, 'label')}"
    if budget.gate is None:  # the first iteration
        return f"{whole}."
    if budget.gain is None:
        return f"{whole}. To start earlier, it needs a learning curve on enough labels."
    decided = "the test has decided"
    if budget.gate.alarm and not budget.gate.settled:
        decided = f"the alarm has ended, {decided}"
    return (
        f"{whole}, or from {least_labels(budget):,} on when {decided} and the labels that are left "
        "would add less than a point of accuracy."
    )


# --- sentences ----------------------------------------------------------------------------------


def _not_labeling(budget: LabelBudget) -> str:
    if budget.iteration is None:
        return "The loop has not started."
    if budget.phase == "sampling":
        return f"Iteration {budget.iteration} needs no labels yet: its pairs are being sampled."
    doing = "is done" if budget.phase == "done" else "trains"
    return (
        f"Iteration {budget.iteration} {doing} and needs no more labels. New labels count for the "
        "next training."
    )


def _about_gate(gate: GateNeed | None, budget: LabelBudget) -> str:
    if gate is None:
        return ""
    if gate.settled:
        return f"{_capital(_settled(gate))}: the gate needs no more judgments."
    if gate.decision != "go on":
        return f"{_capital(_alarmed(gate))}: more judgments on the gate may end the alarm."
    return " ".join(filter(None, (_until_decision(gate, budget), *_whatever_it_decides(gate))))


def _until_decision(gate: GateNeed, budget: LabelBudget) -> str:
    test = _test(gate)
    if budget.more is not None and gate.median is not None:
        within = _range(budget.more_low, budget.more_high, budget.offered)
        return (
            f"About {plural(_rounded(budget.more), 'more judgment')} until {test} decides "
            f"(90%: {within}), {_rounded(gate.median):,} of them on the gate."
        )
    decides = f"decides in this iteration with a probability of {gate.by_pairs:.0%}"
    if _hopeless(gate):
        decides = f"{'will hardly' if gate.pairs else 'cannot'} decide in this iteration"
    return f"{_capital(test)} {_needs(gate)}. {_capital(_pairs(gate))} left, so it {decides}."


def _whatever_it_decides(gate: GateNeed) -> Iterator[str]:
    if gate.alarm:
        yield f"The over-optimization alarm blocks {gate.policy} until more judgments end it."
    if gate.canary:
        yield f"The canary keeps {gate.policy} from being promoted, whatever the test decides."


def _hopeless(gate: GateNeed) -> bool:
    return gate.by_pairs < _HARDLY


def _needs(gate: GateNeed) -> str:
    within = _range(gate.low, gate.high, gate.horizon)
    if gate.median is None:
        needs = f"probably needs more than {gate.horizon:,} further judgments"
    else:
        needs = f"needs about {plural(_rounded(gate.median), 'more judgment')}"
    return f"{needs} on the gate (90%: {within})"


def _pairs(gate: GateNeed) -> str:
    """The pairs that are left, with their verb."""
    if gate.pairs == 1:
        return "one such pair is"
    return f"{gate.pairs or 'no'} such pairs are"


def _test(gate: GateNeed) -> str:
    return f"the test of {gate.policy} against SFT"


def _settled(gate: GateNeed) -> str:
    if gate.ruled:
        return f"a researcher has ruled on {gate.policy}"
    if gate.canary == "blocks":
        return f"the canary blocks {gate.policy}"
    held = gate.canary and gate.decision == "better"
    return f"{_decided(gate)}, but the canary holds {gate.policy} back" if held else _decided(gate)


def _decided(gate: GateNeed) -> str:
    return f"{_test(gate)} has decided ({gate.decision})"


def _alarmed(gate: GateNeed) -> str:
    return f"{_decided(gate)}, but the over-optimization alarm blocks {gate.policy}"


def _about_labels(budget: LabelBudget, blocked: bool) -> str:
    gate, gain = budget.gate, budget.gain
    waiting = gate.policy if gate and not gate.settled and not _hopeless(gate) else ""
    if not budget.left:
        full = f"All {plural(budget.wanted, 'label')} are in"
        then = "you can train, or label until the test decides" if waiting else "you can train"
        return f"{full}." if blocked else f"{full}: {then}."
    if gain is None:
        stays = f"; if you train before the test decides, {waiting} stays provisional"
        if gate and gate.alarm:
            stays = f"; if you train before the alarm ends, {waiting} stays blocked"
        are = "is" if budget.left == 1 else "are"
        counted = f"{budget.left:,} of {plural(budget.wanted, 'label')} {are} left"
        return f"{counted}{stays if waiting else ''}."
    found = f"The {plural(budget.left, 'label')} left would {_adds(gain)}"
    if gain.high >= SMALL_GAIN:
        return f"{found}."
    return f"{found}: you can stop {'when the test decides' if waiting else 'now'}."


def _adds(gain: ExpectedGain) -> str:
    between = f"95%: {points(gain.low)} to {points(gain.high)}"
    if gain.high < SMALL_GAIN:
        return f"add less than a point of accuracy ({between})"
    uncertain = "" if gain.low > 0 else ", which is uncertain"
    return f"add {points(gain.gain)} points of accuracy ({between}){uncertain}"


def _range(low: int | None, high: int | None, most: int) -> str:
    """An interval, rounded outward; None stands for more than `most`."""
    if low is None:
        return f"more than {most:,}"
    end = f"more than {most:,}" if high is None else f"{_rounded(high, up=True):,}"
    return f"{_rounded(low, up=False):,} to {end}"


def _rounded(count: int, *, up: bool | None = None) -> int:
    """A number of about two digits: to 5 from 20 on, and to 10 from 100 on."""
    step = 1 if count < 20 else 5 if count < 100 else 10
    to = round if up is None else math.ceil if up else math.floor
    return step * int(to(count / step))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
