"""The promotion gate: do people prefer a new policy to SFT?

Three verdicts:

* *promoted*: the sequential test decided "better", and the policy keeps what SFT can do;
* *blocked*: it decided "worse", the over-optimization alarm is raised, or the policy lost at least
  `gate.canary_loss` on the canary and clearly more than nothing.  The next iteration samples the last
  promoted policy, and PPO uses a larger KL weight;
* *provisional*: too little evidence, or a loss on the canary that may be chance; the loop continues
  with the next policy.

The other limits are constants: `LOG_E_THRESHOLD` in pipeline/statistics/sequential_test.py for the test,
`ALARM_Z` in pipeline/promotion/overoptimization.py for the alarm.  pipeline/statistics/winrate.py
computes the win rate.

The loop (`Loop._with_verdict`) asks for a verdict when the reward stage has succeeded and when the next
iteration begins.  A blocked policy stays stored; `next_sampled` says which policy is sampled instead,
and `with_raised_kl_weight` changes the settings of the policy stage.

A researcher's ruling takes precedence over the evidence.  Verdicts are pure functions of
`storage.gate_records.Evidence`, so they can be computed again at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from pipeline.config.policy import ENGINE_METHODS
from pipeline.config.sections import Config
from pipeline.ppo.config import MAX_KL_WEIGHT
from pipeline.promotion.leaderboard import Match, leaderboard
from pipeline.promotion.overoptimization import ALARM_Z, MIN_PROMPTS, over_optimization
from pipeline.statistics.canary import canary_figures
from pipeline.statistics.sequential_test import LOG_E_THRESHOLD, SequentialResult, sequential_test
from pipeline.statistics.winrate import win_rate
from storage.analysis.intervals import WinRate
from storage.gate_records import Evidence, PolicyJudgment, StandingRuling
from storage.gate_report import (
    CanaryFigures,
    GateProgress,
    GateReport,
    OverOptimization,
    SequentialEvidence,
    Standing,
    Verdict,
    Versus,
)
from storage.records import Arm, Iteration
from storage.wording import decimal

RULINGS: dict[str, Verdict] = {"promote": "promoted", "block": "blocked"}
ALARM = "Over-optimization alarm."
"""Begins the sentence about an alarm that is raised."""
CANARY = "Capability canary."
"""Begins the sentence about the canary."""
_POINTS = 200
"""Maximum number of points of the curve of log E in a report."""


# --- the comparisons of an iteration ------------------------------------------------------------


def labels_wanted(config: Config, labels: int) -> int:
    """How many judgments of an iteration with `labels` compare its candidate with SFT.

    The larger of gate.labels and sampling.reference_share, but at most the share gate.most: a small
    iteration must also train the reward model, so its verdict may stay provisional.
    """
    wanted = max(config.gate.labels, round(config.sampling.reference_share * labels))
    most = max(config.gate.most, config.sampling.reference_share)
    return min(wanted, round(most * labels))


def shares(
    config: Config, current: Iteration, *, previous: str | None, reference: str
) -> dict[Arm, float]:
    """Each evaluation arm's share of an iteration's comparisons; `previous` is the other policy.

    After a block the arm `reference` compares SFT with the candidate policy, which has no verdict
    yet (`pipeline.stages.sample`).  If SFT itself is sampled, the arm `previous` makes that
    comparison.
    """
    wanted = labels_wanted(config, current.labels_wanted) / current.labels_wanted
    sampled = current.policy_sampled or reference
    opponent = previous not in (None, reference, sampled)
    if sampled == reference:
        return {"previous": wanted} if opponent else {}
    found: dict[Arm, float] = {"reference": wanted}
    if opponent:
        found["previous"] = min(config.sampling.previous_share, 1 - wanted)
    return found


# --- verdicts -----------------------------------------------------------------------------------


def verdict(evidence: Evidence, policy: str | None) -> Verdict | None:
    """The verdict on a policy; None for the reference, which needs none."""
    if policy is None or policy == evidence.reference:
        return None
    rows = judgments_against(evidence, policy, evidence.reference)
    return _ruled(evidence, policy) or _decide(
        _test(rows), _alarm(evidence, policy, rows), _canary(evidence, policy)
    )


def last_promoted(evidence: Evidence) -> str | None:
    """The newest policy that was promoted, else the SFT reference."""
    for policy in reversed(evidence.policies[1:]):
        if verdict(evidence, policy) == "promoted":
            return policy
    return evidence.reference


def next_sampled(evidence: Evidence, done: Iteration) -> str | None:
    """The policy that the next iteration samples: the one that `done` produced, unless blocked.

    A block of the policy that `done` sampled, or of its candidate, also holds back the policy that
    `done` produced, because it was trained in the same way.  People first compare that policy with
    SFT and with the last promoted policy.
    """
    others = (done.policy_sampled, done.policy_produced)
    blocked = "blocked" in (done.verdict, *(verdict(evidence, name) for name in others))
    return last_promoted(evidence) if blocked else done.policy_produced


def with_raised_kl_weight(config: Config, evidence: Evidence) -> tuple[Config, dict[str, str]]:
    """The settings for the next policy, and the reason by name if they differ from `config`.

    If policies were blocked, ``ppo.kl_weight`` is at least ``gate.kl_raise`` times the largest of
    their weights.  The settings stay unchanged for an adaptive weight, which follows
    ``ppo.kl_target``, and for methods outside the engine, which have no weight.
    """
    raised = config.gate.kl_raise > 1 and config.optimize.method in ENGINE_METHODS
    if not raised or config.ppo.kl_control != "fixed":
        return config, {}
    blocked = {
        policy: used
        for policy in evidence.policies[1:]
        if (used := evidence.kl_weights[policy]) and verdict(evidence, policy) == "blocked"
    }
    policy = max(blocked, key=lambda name: blocked[name], default=None)
    if policy is None:
        return config, {}
    weight = min(config.gate.kl_raise * blocked[policy], MAX_KL_WEIGHT)
    if weight <= config.ppo.kl_weight:
        return config, {}
    why = (
        f"ppo.kl_weight is {weight:g} instead of {config.ppo.kl_weight:g}: {policy}, "
        f"trained with {blocked[policy]:g}, is blocked by the gate "
        f"(gate.kl_raise = {config.gate.kl_raise:g})"
    )
    return replace(config, ppo=replace(config.ppo, kl_weight=weight)), {"kl_raise": why}


def judgments_against(
    evidence: Evidence, policy: str, opponent: str | None
) -> list[PolicyJudgment]:
    """Judgments between the two policies, oriented so that `policy` is `first`."""
    if opponent is None:
        return []
    found = []
    for row in evidence.by_pair.get(frozenset((policy, opponent)), ()):
        if (row.first, row.second) == (policy, opponent):
            found.append(row)
        else:
            predicted = None if row.predicted is None else 1 - row.predicted
            reversed_fields = {"first": row.second, "second": row.first, "outcome": 1 - row.outcome}
            found.append(replace(row, **reversed_fields, predicted=predicted))
    return found


def _decide(
    test: SequentialResult, alarm: OverOptimization | None, canary: CanaryFigures | None
) -> Verdict:
    if test.decision == "worse" or (alarm and alarm.alarm) or (canary and canary.blocks):
        return "blocked"
    held = canary is not None and canary.holds
    return "promoted" if test.decision == "better" and not held else "provisional"


def _ruled(evidence: Evidence, policy: str) -> Verdict | None:
    ruling = evidence.overrides.get(policy)
    return RULINGS.get(ruling.ruling) if ruling else None


def _test(rows: Sequence[PolicyJudgment]) -> SequentialResult:
    return sequential_test([row.outcome for row in rows], [row.prompt for row in rows])


def _alarm(
    evidence: Evidence, policy: str, rows: Sequence[PolicyJudgment]
) -> OverOptimization | None:
    """The alarm on the predictions of the policy's own reward model; None without any.

    PPO exploits the reward model that trained the policy, so other models' predictions do not
    count.
    """
    own = [
        (row.predicted, row.outcome, row.prompt)
        for row in rows
        if row.predicted is not None and row.reward_model == evidence.proxies.get(policy)
    ]
    if not own:
        return None
    predicted, outcomes, prompts = zip(*own, strict=True)
    return over_optimization(predicted, outcomes, prompts, lead=evidence.leads.get(policy, 1.0))


def _canary(evidence: Evidence, policy: str) -> CanaryFigures | None:
    """What the policy lost on the canary; None if its evaluation had none."""
    results = evidence.canaries.get(policy)
    return canary_figures(results) if results else None


def _rate(rows: Sequence[PolicyJudgment]) -> WinRate | None:
    if not rows:
        return None
    return win_rate([row.outcome for row in rows], [row.prompt for row in rows])


# --- reports ------------------------------------------------------------------------------------


def standing(evidence: Evidence, policy: str) -> Standing:
    """The verdict on one policy with its evidence."""
    rows = judgments_against(evidence, policy, evidence.reference)
    rate, test, alarm = _rate(rows), _test(rows), _alarm(evidence, policy, rows)
    canary = _canary(evidence, policy)
    others = [name for name in reversed(evidence.policies[1:]) if name != policy]
    versus = [
        Versus(opponent=name, **asdict(found))
        for name in others
        if (found := _rate(judgments_against(evidence, policy, name)))
    ]
    ruling, by_evidence = evidence.overrides.get(policy), _decide(test, alarm, canary)
    return Standing(
        policy=policy,
        verdict=_ruled(evidence, policy) or by_evidence,
        by_evidence=by_evidence,
        ruling=ruling,
        win_rate=rate,
        versus=versus,
        sequential=_curve(test),
        may_stop=test.decision != "go on",
        alarm=alarm,
        words=[
            *_about_test(rate, test),
            *([] if rate is None else [_about_alarm(alarm)]),
            *([] if canary is None else [_about_canary(canary)]),
            *map(_about_opponent, versus),
            *_about_ruling(ruling),
        ],
        canary=canary,
    )


def report(evidence: Evidence, config: Config) -> GateReport:
    """The report that `launch.py gate` prints and the researcher's page shows."""
    if evidence.reference is None:
        return GateReport()
    matches = [
        Match(first=row.first, second=row.second, outcome=row.outcome, prompt=row.prompt)
        for row in evidence.judged
        if {row.first, row.second} <= set(evidence.policies)
    ]
    standings = [standing(evidence, name) for name in reversed(evidence.policies[1:])]
    return GateReport(
        policies=standings,
        leaderboard=leaderboard(matches, evidence.policies, anchor=evidence.reference),
        iteration=_progress(evidence, config),
        last_promoted=next(
            (each.policy for each in standings if each.verdict == "promoted"), evidence.reference
        ),
    )


def _progress(evidence: Evidence, config: Config) -> GateProgress | None:
    newest = evidence.iteration
    policy = newest.policy if newest else None
    if newest is None or policy is None or policy not in evidence.policies[1:]:
        return None
    rows = judgments_against(evidence, policy, evidence.reference)
    return GateProgress(
        number=newest.number,
        policy=policy,
        wanted=labels_wanted(config, newest.labels),
        judged=sum(row.iteration == newest.number for row in rows),
    )


def _curve(test: SequentialResult) -> SequentialEvidence:
    """The test with its path thinned; the last point is always kept."""
    step = max(1, -(-len(test.path) // _POINTS))
    kept = sorted({*range(step - 1, len(test.path), step), *range(len(test.path))[-1:]})
    path = [(i + 1, round(test.path[i], 4)) for i in kept]
    return SequentialEvidence(**asdict(test) | {"path": path, "limit": LOG_E_THRESHOLD})


# --- sentences ----------------------------------------------------------------------------------


def _about_test(rate: WinRate | None, test: SequentialResult) -> list[str]:
    if rate is None:
        return ["People have not compared it with SFT yet."]
    preferred = (
        f"People preferred it to SFT in {rate.win_rate:.0%} of {rate.comparisons} judgments on "
        f"{rate.prompts} prompts (95% interval {rate.low:.0%} to {rate.high:.0%}; a tie counts as "
        "half)."
    )
    if test.decision == "go on":
        decided = (
            f"The sequential test is undecided: log E is {decimal(test.log_e, 1)}, and the test decides at "
            f"{LOG_E_THRESHOLD:.1f}."
        )
    else:
        decided = (
            f"The sequential test decided at prompt {test.stopped_at}: {test.decision} than SFT. "
            "You can stop comparing it with SFT."
        )
    return [preferred, decided]


def _about_alarm(alarm: OverOptimization | None) -> str:
    if alarm is None:
        return "Its reward model has not scored these pairs yet."
    z = decimal(alarm.z, 1)
    comparison = (
        f"On {alarm.comparisons} of these judgments its reward model predicted {alarm.predicted:.0%} "
        f"wins{_discounted(alarm)}, and people gave {alarm.human:.0%}"
    )
    if alarm.alarm:
        return (
            f"{ALARM} {comparison} (z = {z}, the limit is {ALARM_Z:g}). Raise "
            "ppo.kl_weight, or label more pairs before you train again."
        )
    if alarm.prompts < MIN_PROMPTS:
        return f"{comparison}. The over-optimization alarm needs {MIN_PROMPTS} prompts."
    return f"{comparison} (z = {z}). This shows no over-optimization."


def _discounted(alarm: OverOptimization) -> str:
    if alarm.lead == 1:
        return ""
    own = 0.5 + (alarm.predicted - 0.5) / alarm.lead
    return f" ({own:.0%} before the discount for its KL)"


def _about_canary(found: CanaryFigures) -> str:
    rates = (
        f"{CANARY} Its answers pass on {found.policy:.0%} of {found.prompts} fixed prompts, and SFT's on "
        f"{found.reference:.0%}"
    )
    limit = f"{100 * found.allowed_loss:g} points (gate.canary_loss)"
    if found.loss < 0:
        gain, low, high = (decimal(100 * x, 1) for x in (-found.loss, -found.high, -found.low))
        return f"{rates}. It gains {gain} points (95% interval {low} to {high})."
    loss, low, high = (decimal(100 * x, 1) for x in (found.loss, found.low, found.high))
    lost = f"it loses {loss} points (95% interval {low} to {high}), and the limit is {limit}."
    if not found.holds:
        return f"{rates}: {lost}"
    most = max(found.checks, key=lambda check: check.reference - check.policy)
    named = (
        f" The check that loses most is “{most.name}”: {most.reference:.0%} to {most.policy:.0%}."
        if len(found.checks) > 1
        else ""
    )
    if found.blocks:
        return f"{rates}: {lost} The loss is more than chance, so the policy is blocked.{named} Raise ppo.kl_weight."
    return f"{rates}: {lost} The loss may be chance, but the policy is not promoted.{named}"


def _about_opponent(found: Versus) -> str:
    return (
        f"People preferred it to {found.opponent} in {found.win_rate:.0%} of {found.comparisons} "
        f"judgments on {found.prompts} prompts ({found.low:.0%} to {found.high:.0%})."
    )


def _about_ruling(ruling: StandingRuling | None) -> list[str]:
    if ruling is None or ruling.ruling not in RULINGS:
        return []
    # Control characters would reach a terminal.
    reason = "".join(c if c.isprintable() else " " for c in ruling.reason)
    return [f"{ruling.researcher or 'A researcher'} ruled “{ruling.ruling}”: {reason}"]


def format_verdict(found: Standing) -> str:
    """A policy's standing as text."""
    return "\n".join([f"{found.policy}: {found.verdict}", *(f"  {w}" for w in found.words)])


def format_gate(found: GateReport) -> str:
    """The report as text."""
    if not found.policies:
        return "There is no trained policy to judge yet."
    lines = [format_verdict(each) for each in found.policies]
    lines.append(f"\n{'policy':<16} {'wins against SFT':<28} judgments")
    trained = {each.policy for each in found.policies}
    for rank in found.leaderboard:
        chance = "not connected by judgments"
        if rank.policy not in trained:
            chance = "reference"
        elif rank.win_rate is not None:
            chance = f"{rank.win_rate:.0%} ({rank.low:.0%} to {rank.high:.0%})"
        lines.append(f"{rank.policy:<16} {chance:<28} {rank.judgments}")
    if now := found.iteration:
        lines.append(
            f"\niteration {now.number}: {now.judged} judgments of {now.policy} against SFT, "
            f"{now.wanted} wanted; last promoted: {found.last_promoted}"
        )
    return "\n".join(lines)
