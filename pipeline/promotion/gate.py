"""The promotion gate: is a new policy really better than SFT, by people's judgments?

Three verdicts.  *Promoted*: the sequential test says better.  *Blocked*: it says worse, or the
over-optimisation alarm is raised; the next iteration then samples the last promoted policy, and PPO
keeps closer to the reference.
*Provisional*: too little evidence for either; the loop goes on with it.  A researcher's ruling goes
before the evidence.  Everything here is a function of what `storage.tables.policy_judgments.evidence`
returns, so a verdict can be worked out again at any time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

from pipeline.config.studio import Config
from pipeline.ppo.config import LARGEST_KL_WEIGHT
from pipeline.promotion.leaderboard import Match, leaderboard
from pipeline.promotion.overoptimization import (
    ALARM,
    FEWEST_PROMPTS,
    OverOptimization,
    over_optimization,
)
from pipeline.statistics.sequential_test import LIMIT, Sequential, sequential_test
from pipeline.statistics.winrate import WinRate, win_rate
from storage.records import Arm, Iteration

Verdict = Literal["promoted", "blocked", "provisional"]
Evidence = Mapping[str, Any]

RULINGS: dict[str, Verdict] = {"promote": "promoted", "block": "blocked"}
_POINTS = 200
"""Of the curve of log E, in what pages are sent."""


def labels_wanted(config: Config, labels: int) -> int:
    """Judgments of an iteration of `labels` that are to compare its policy with SFT.

    The larger of gate.labels and sampling.reference_share, but at most the share gate.most: an
    iteration of few labels has to teach the reward model as well, and its verdict may have to wait.
    """
    wanted = max(config.gate.labels, round(config.sampling.reference_share * labels))
    most = max(config.gate.most, config.sampling.reference_share)
    return min(wanted, round(most * labels))


def shares(
    config: Config, current: Iteration, *, previous: str | None, reference: str
) -> dict[Arm, float]:
    """Each evaluation arm's share of an iteration's comparisons; `previous` is the other policy.

    After a block the arm `reference` compares SFT with the policy that waits for a verdict, and not
    with the promoted one that is sampled (`pipeline.stages.sample`); where SFT itself is sampled, the arm
    `previous` is that comparison.
    """
    wanted = labels_wanted(config, current.labels_wanted) / current.labels_wanted
    sampled = current.policy_sampled or reference
    rival = previous not in (None, reference, sampled)
    if sampled == reference:
        return {"previous": wanted} if rival else {}
    found: dict[Arm, float] = {"reference": wanted}
    if rival:
        found["previous"] = min(config.sampling.previous_share, 1 - wanted)
    return found


def standing(evidence: Evidence, policy: str) -> dict[str, Any]:
    """The verdict on one policy with all that it rests on.

    ``win_rate`` and ``sequential`` are against SFT, ``alarm`` over the judgments that its
    own reward model predicted (each None without judgments), ``versus`` the win rates against other
    policies that it was compared with, the newest first, ``ruling`` a researcher's, ``words`` says it
    all in sentences, ``may_stop`` whether more judgments against SFT would decide nothing.
    """
    rows = against(evidence, policy, evidence["reference"])
    rate = _rate(rows)
    test = sequential_test([row["outcome"] for row in rows], [row["prompt"] for row in rows])
    others = [name for name in reversed(evidence["policies"][1:]) if name != policy]
    met = {name: _rate(against(evidence, policy, name)) for name in others}
    versus = {name: found for name, found in met.items() if found}
    # Another reward model's expectation says nothing of what this policy was trained to please.
    proxy = evidence["proxies"].get(policy)
    foreseen = [row for row in rows if proxy is not None and row["reward_model"] == proxy]
    alarm = (
        over_optimization(
            [row["predicted"] for row in foreseen],
            [row["outcome"] for row in foreseen],
            [row["prompt"] for row in foreseen],
        )
        if foreseen
        else None
    )
    ruling = evidence["overrides"].get(policy)
    by_evidence = _decide(test, alarm)
    decided: Verdict = RULINGS.get(ruling["ruling"], by_evidence) if ruling else by_evidence
    return {
        "policy": policy,
        "verdict": decided,
        "by_evidence": by_evidence,
        "ruling": ruling,
        "win_rate": asdict(rate) if rate else None,
        "versus": [{"opponent": name} | asdict(found) for name, found in versus.items()],
        "sequential": _curve(test),
        "may_stop": test.decision != "go on",
        "alarm": finite(asdict(alarm)) if alarm else None,
        "words": [*_words(rate, test, alarm), *_met(versus), *_ruled(ruling)],
    }


def verdict(evidence: Evidence, policy: str | None) -> Verdict | None:
    """The verdict alone; None for the reference, which needs none."""
    if policy is None or policy == evidence["reference"]:
        return None
    return standing(evidence, policy)["verdict"]


def last_promoted(evidence: Evidence) -> str:
    """The newest policy that was promoted, else the SFT reference."""
    for policy in reversed(evidence["policies"][1:]):
        if verdict(evidence, policy) == "promoted":
            return policy
    return evidence["reference"]


def next_sampled(evidence: Evidence, done: Iteration) -> str | None:
    """Whom the next iteration samples: what this one produced, unless the gate has blocked.

    Where the policy that was sampled, or that waited for its verdict, turned out harmful or
    over-optimised, its successor came of the same course, and waits: people compare it with SFT
    and with the last promoted one first.  The verdict of `done` is the one on the policy on trial.
    """
    others = (done.policy_sampled, done.policy_produced)
    blocked = "blocked" in (done.verdict, *(verdict(evidence, name) for name in others))
    return last_promoted(evidence) if blocked else done.policy_produced


def restrained(config: Config, evidence: Evidence) -> tuple[Config, dict[str, str]]:
    """The settings that the policy is to be trained with, and why, by name, where they are not `config`.

    What a policy that was blocked has shown is that its pull to the reference was too weak for
    its reward model: ``ppo.kl_weight`` is at least ``gate.kl_raise`` times the largest that was,
    our own choice of how much more.  An adaptive weight goes by ``ppo.kl_target`` wherever it
    begins, and other methods have none: both stay as they are.
    """
    raised = config.gate.kl_raise > 1 and config.optimize.method == "ppo"
    if not raised or config.ppo.kl_control != "fixed":
        return config, {}
    known = evidence["kl_weights"]
    blocked = [
        p for p in evidence["policies"][1:] if known[p] and verdict(evidence, p) == "blocked"
    ]
    policy = max(blocked, key=lambda name: known[name], default=None)
    if policy is None:
        return config, {}
    weight = min(config.gate.kl_raise * known[policy], LARGEST_KL_WEIGHT)
    if weight <= config.ppo.kl_weight:
        return config, {}
    why = (
        f"ppo.kl_weight is {weight:g} and not {config.ppo.kl_weight:g}: {policy}, trained with "
        f"{known[policy]:g}, is blocked by the gate (gate.kl_raise = {config.gate.kl_raise:g})"
    )
    return replace(config, ppo=replace(config.ppo, kl_weight=weight)), {"kl_raise": why}


def report(evidence: Evidence, config: Config) -> dict[str, Any]:
    """What `launch.py gate` prints and the research page shows; JSON-able.

    ``policies``: the standing of each trained policy, the newest first; ``leaderboard``: every
    policy's rank; ``iteration``: the newest one's number, whom it has compared with SFT, how many
    judgments of that it wants and has; ``last_promoted``: a policy, or the reference.
    """
    if evidence["reference"] is None:
        return {"policies": [], "leaderboard": [], "iteration": None, "last_promoted": None}
    matches = [
        Match(
            first=row["first"], second=row["second"], outcome=row["outcome"], prompt=row["prompt"]
        )
        for row in evidence["judged"]
        if {row["first"], row["second"]} <= set(evidence["policies"])
    ]
    ranks = leaderboard(matches, evidence["policies"], anchor=evidence["reference"])
    standings = [standing(evidence, name) for name in reversed(evidence["policies"][1:])]
    promoted = [each["policy"] for each in standings if each["verdict"] == "promoted"]
    return {
        "policies": standings,
        "leaderboard": [asdict(rank) for rank in ranks],
        "iteration": _iteration(evidence, config),
        "last_promoted": promoted[0] if promoted else evidence["reference"],
    }


def standing_in(found: Mapping[str, Any], policy: str) -> Mapping[str, Any]:
    """One policy's standing of a `report`; ValueError for a policy it does not know."""
    standings = {each["policy"]: each for each in found["policies"]}
    if policy not in standings:
        known = ", ".join(standings) or "none yet"
        raise ValueError(f"there is no trained policy {policy}; there are: {known}")
    return standings[policy]


def against(evidence: Evidence, policy: str, opponent: str) -> list[dict[str, Any]]:
    """Judgments between the two as the policy sees them: outcome and predicted are its own."""
    found = []
    for row in evidence["judged"]:
        if (row["first"], row["second"]) == (policy, opponent):
            found.append(dict(row))
        elif (row["first"], row["second"]) == (opponent, policy):
            predicted = row["predicted"]
            turned = None if predicted is None else 1 - predicted
            found.append(row | {"outcome": 1 - row["outcome"], "predicted": turned})
    return found


def _rate(rows: Sequence[Mapping[str, Any]]) -> WinRate | None:
    """The win rate of judgments; None where there are none."""
    if not rows:
        return None
    return win_rate([row["outcome"] for row in rows], [row["prompt"] for row in rows])


def _decide(test: Sequential, alarm: OverOptimization | None) -> Verdict:
    if test.decision == "worse" or (alarm and alarm.alarm):
        return "blocked"
    return "promoted" if test.decision == "better" else "provisional"


def _iteration(evidence: Evidence, config: Config) -> dict[str, Any] | None:
    """Whom the newest iteration's judgments are to compare with SFT, how many are wanted and in."""
    newest = evidence["iteration"]
    if newest is None or newest["on_trial"] not in evidence["policies"][1:]:
        return None
    policy = newest["on_trial"]
    rows = against(evidence, policy, evidence["reference"])
    return {
        "number": newest["number"],
        "policy": policy,
        "wanted": labels_wanted(config, newest["labels"]),
        "judged": sum(row["iteration"] == newest["number"] for row in rows),
    }


def _curve(test: Sequential) -> dict[str, Any]:
    """The test with its curve thinned to pairs (prompts, log E), the last one always kept."""
    step = max(1, -(-len(test.path) // _POINTS))
    kept = sorted({*range(step - 1, len(test.path), step), *range(len(test.path))[-1:]})
    curve = [(i + 1, round(test.path[i], 4)) for i in kept]
    return asdict(test) | {"path": curve, "limit": LIMIT}


def finite(values: dict[str, Any]) -> dict[str, Any]:
    """None for what is infinite: JSON has no word for it."""
    return {k: None if v in (float("inf"), float("-inf")) else v for k, v in values.items()}


def _words(rate: WinRate | None, test: Sequential, alarm: OverOptimization | None) -> Sequence[str]:
    if rate is None:
        return ["Nobody has compared it with SFT yet."]
    said = [
        f"People preferred it to SFT in {rate.win_rate:.0%} of {rate.comparisons} judgments on "
        f"{rate.prompts} prompts (95% interval {rate.low:.0%} to {rate.high:.0%}; ties count half)."
    ]
    log_e = f"{test.log_e:z.1f}".replace("-", "−")
    if test.decision == "go on":
        said.append(
            f"That settles nothing yet: the evidence log E stands at {log_e}, and "
            f"{LIMIT:.1f} would settle it."
        )
    else:
        said.append(
            f"It is settled since prompt {test.stopped_at}: {test.decision} than SFT.  You may "
            "stop judging it against SFT."
        )
    z = f"{alarm.z:z.1f}".replace("-", "−") if alarm else ""
    if alarm is None:
        said.append("Its reward model has not been asked about these pairs yet.")
    elif alarm.alarm:
        said.append(
            f"Alarm: its reward model expected {alarm.predicted:.0%} on {alarm.comparisons} of them "
            f"and people gave {alarm.human:.0%} (z = {z}, above {ALARM:g}).  It promises "
            "more than people see: raise ppo.kl_weight, or label more before training on."
        )
    elif alarm.prompts < FEWEST_PROMPTS:
        said.append(
            f"Its reward model expected {alarm.predicted:.0%} on {alarm.comparisons} of them and "
            f"people gave {alarm.human:.0%}: over-optimisation cannot be told on fewer than "
            f"{FEWEST_PROMPTS} prompts."
        )
    else:
        said.append(
            f"Its reward model expected {alarm.predicted:.0%} on {alarm.comparisons} of them and "
            f"people gave {alarm.human:.0%} (z = {z}): no sign of over-optimisation."
        )
    return said


def _met(versus: Mapping[str, WinRate]) -> list[str]:
    return [
        f"Against {name} they preferred it in {rate.win_rate:.0%} of {rate.comparisons} judgments on "
        f"{rate.prompts} prompts ({rate.low:.0%} to {rate.high:.0%})."
        for name, rate in versus.items()
    ]


def _ruled(ruling: Mapping[str, Any] | None) -> list[str]:
    if ruling is None or ruling["ruling"] not in RULINGS:
        return []
    who = ruling["researcher"] or "A researcher"
    # Control characters would reach a terminal.
    reason = "".join(c if c.isprintable() else " " for c in ruling["reason"])
    return [f"{who} ruled “{ruling['ruling']}”: {reason}"]


def format_verdict(found: Mapping[str, Any]) -> str:
    """A policy's standing for people."""
    return "\n".join(
        [f"{found['policy']}: {found['verdict']}", *(f"  {w}" for w in found["words"])]
    )


def format_gate(found: Mapping[str, Any]) -> str:
    """The report for people."""
    if not found["policies"]:
        return "There is no trained policy to judge yet."
    lines = [format_verdict(each) for each in found["policies"]]
    lines.append(f"\n{'policy':<16} {'wins against SFT':<28} judgments")
    for rank in found["leaderboard"]:
        chance = "cannot be ranked: no judgments lead to SFT"
        if rank["win_rate"] is not None:
            chance = f"{rank['win_rate']:.0%} ({rank['low']:.0%} to {rank['high']:.0%})"
        lines.append(f"{rank['policy']:<16} {chance:<28} {rank['judgments']}")
    now = found["iteration"]
    if now:
        lines.append(
            f"\niteration {now['number']}: {now['judged']} judgments of {now['policy']} against SFT, "
            f"{now['wanted']} wanted; last promoted: {found['last_promoted']}"
        )
    return "\n".join(lines)
