"""What a retrained reward model shows, in sentences, and the report as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.statistics.paired import Shift
from pipeline.studies.retrain.report import (
    Count,
    Figure,
    GateShift,
    HeldOutShift,
    RetrainReport,
)
from storage.wording import decimal, plural, points, signed

FEW = 20
"""With fewer judgments left, a note says that the results mean little."""
GROUPS = {"remaining": "that remain", "all": "all", "left_out": "that are left out"}
USES = {
    "learned": "learned from",
    "set_aside": "set aside (early stopping, audit model)",
    "held_out": "held out (never learned from)",
}


def criteria(plan: Mapping[str, Any]) -> list[str]:
    """What the rule leaves out, as phrases."""
    found = [f"judgments by {', '.join(plan['without'])}"] if plan["without"] else []
    if plan["only"]:
        found.append(
            f"judgments by other annotators than those of kind {' or '.join(plan['only'])}"
        )
    if plan["guidelines"]:
        found.append(f"judgments not under the guidelines {' or '.join(plan['guidelines'])}")
    if plan["before"]:
        found.append(f"judgments from {plan['before']} on")
    return found


def findings(report: RetrainReport) -> tuple[str, ...]:
    """The results: held-out judgments, the order of policies, and the gate."""
    return (
        *(_about_held_out(each) for each in report.held_out if each.group == "remaining"),
        *_about_order(report),
        *_about_gate(report.gate),
    )


def _about_held_out(found: HeldOutShift) -> str:
    if found.accuracy is None:
        return "No held-out preference remains, so there is nothing to measure accuracy on."
    figure = found.accuracy
    preferences = plural(found.preferences, "held-out preference")
    return (
        f"On the {preferences} {GROUPS[found.group]}, accuracy goes {_from_to(figure)}. "
        f"{beside_chance(figure)}"
    )


def beside_chance(figure: Figure, *, controls: str = "controls") -> str:
    """The conclusion on a shift: whether it differs from 0, and from what chance gives.

    `controls` is what the sentence calls them.
    """
    if figure.chance is None:
        return (
            "The interval includes 0: no shift is shown."
            if not figure.clear
            else "The interval excludes 0, but it does not contain the chance of training; controls "
            "show how much that is."
        )
    chance = figure.chance
    if chance.low is None or chance.high is None:
        return (
            "As many random judgments left out shift it by "
            f"{points(chance.controls[0])} points; one control gives no limit."
        )
    shifts = (
        "As many random judgments left out shift it by "
        f"{points(min(chance.controls))} to {points(max(chance.controls))} points "
        f"({len(chance.controls)} {controls}, 95% limit {points(chance.low)} to {points(chance.high)})"
    )
    if not chance.beyond:
        return f"{shifts}: the shift is within chance."
    if not figure.clear:
        return f"{shifts}: the shift is beyond chance, but its interval includes 0."
    return f"{shifts}: the shift is beyond chance."


def _about_order(report: RetrainReport) -> Iterator[str]:
    if not report.policies:
        yield "No policy has a stored evaluation, so the order of policies is unknown."
        return
    before, after = ", ".join(report.order_before), ", ".join(report.order_after)
    if before == after:
        yield f"The order of policies by predicted win rate stays the same: {before}."
        return
    yield f"The order of policies by predicted win rate changes: before {before}; after {after}."
    for swap in report.swaps:
        yield (
            f"{swap.above} leads {swap.below} by {points(swap.lead.before)} before and by "
            f"{points(swap.lead.after)} after: a shift of {shifted(swap.lead)}. "
            f"{beside_chance(swap.lead)}"
        )


def _about_gate(found: Sequence[GateShift]) -> Iterator[str]:
    judged = [each for each in found if each.rate_before]
    if not judged:
        yield "People have not compared a policy with SFT, so no verdict can change."
        return
    changed = [each for each in judged if each.before != each.after]
    for each in changed:
        verdict = f"The gate's verdict on {each.policy} changes from {each.before} to {each.after}."
        if each.shift is None:
            yield verdict
            continue
        yield (
            f"{verdict} Its win rate among people goes {_from_to(each.shift)}. "
            f"{beside_chance(each.shift, controls='draws')}"
        )
    if not changed:
        names = ", ".join(f"{each.policy} {each.before}" for each in judged)
        yield f"No verdict of the gate changes: {names}."


def notes(report: RetrainReport) -> tuple[str, ...]:
    """What limits the results."""
    made = []
    if not report.plan["controls"]:
        made.append(
            "Training again with other judgments also shifts figures by chance. Controls show by how "
            "much (Controls in the form, --control 3 in a terminal). Each takes as long as the retraining."
        )
    remain = sum(each.judgments - each.left_out for each in report.counts.by_use)
    if remain < FEW:
        made.append(
            f"Only {remain} of the model's judgments {'remains' if remain == 1 else 'remain'}. "
            "With so few, it learns little, and intervals are too narrow."
        )
    if report.not_evaluated:
        made.append(f"Without a stored evaluation: {', '.join(report.not_evaluated)}.")
    if any(each.before != each.after for each in report.gate):
        made.append(
            "The sequential test errs in at most 5% of cases if judgments are left out for reasons that "
            "do not depend on their outcomes. A choice made after seeing them has no such guarantee."
        )
    if any(each.ruled for each in report.gate):
        names = ", ".join(each.policy for each in report.gate if each.ruled)
        made.append(f"A researcher's ruling on {names} takes precedence over the evidence.")
    return tuple(made)


# --- numbers ------------------------------------------------------------------------------------


def shifted(shift: Shift) -> str:
    """A shift of a share with its interval, in percentage points."""
    if shift.low is None or shift.high is None:
        return f"{points(shift.shift)} points (one prompt, so no interval)"
    return (
        f"{points(shift.shift)} points (95% interval {points(shift.low)} to {points(shift.high)})"
    )


def _from_to(figure: Figure) -> str:
    return f"from {_percent(figure.before)} to {_percent(figure.after)}: {shifted(figure)}"


def _percent(share: float) -> str:
    return f"{share:.1%}"


def change(before: object, after: object) -> str:
    """``1 → 2``, or one of the two if they are equal."""
    return str(before) if before == after else f"{before} → {after}"


# --- text ---------------------------------------------------------------------------------------


def format_retraining(report: RetrainReport, plot: Path) -> str:
    """The report for a terminal."""
    total = report.counts.total
    lines = [
        f"{report.model} of iteration {report.iteration}, trained again without "
        + ", ".join(criteria(report.plan)),
        f"{total.left_out} of {total.judgments} judgments are left out, "
        f"{total.judgments - total.left_out} remain",
        "",
        *_count_lines(report),
        "",
        *findings(report),
        "",
        f"{'':<34}{'before':>9}{'after':>9}  {'shift (95% interval)':<28}  by chance",
        *_held_out_lines(report),
        *_policy_lines(report),
        *_gate_lines(report),
        *(f"\nnote: {each}" for each in report.notes),
    ]
    text = "\n".join([*lines, f"\n{plot}"])
    # Control characters of names would reach a terminal.
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)


def _count_lines(report: RetrainReport) -> Iterator[str]:
    yield f"{'judgments':<44}{'before':>8}{'left out':>10}{'remain':>8}"
    named = [
        *((USES[each.name], each) for each in report.counts.by_use),
        *((f"by {each.name}", each) for each in report.counts.by_annotator),
        *((f"by annotators of kind {each.name}", each) for each in report.counts.by_kind),
    ]
    for name, each in named:
        yield f"{name:<44}{each.judgments:>8}{each.left_out:>10}{_remain(each):>8}"


def _remain(count: Count) -> int:
    return count.judgments - count.left_out


def _held_out_lines(report: RetrainReport) -> Iterator[str]:
    for each in report.held_out:
        yield f"held-out judgments: {GROUPS[each.group]} ({each.judgments})"
        if each.accuracy:
            yield _line("  accuracy", each.accuracy, percent=True)
        if each.log_loss:
            yield _line("  log-loss, nats (less is better)", each.log_loss, percent=False)


def _policy_lines(report: RetrainReport) -> Iterator[str]:
    for each in report.policies:
        yield f"{each.policy} by the reward model: place {change(each.rank_before, each.rank_after)}"
        yield _line("  predicted win rate against SFT", each.win_rate, percent=True)
        yield _line("  reward above SFT, sd", each.gain, percent=False)


def _gate_lines(report: RetrainReport) -> Iterator[str]:
    for each in report.gate:
        if each.rate_before is None:
            continue
        yield f"{each.policy} at the gate: {change(each.before, each.after)}"
        if each.shift:
            yield _line("  wins against SFT among people", each.shift, percent=True)
        logs = f"{signed(each.log_e_before, 2):>9}{signed(each.log_e_after, 2):>9}"
        yield f"{'  sequential test, log E':<34}{logs}"


def _line(name: str, figure: Figure, *, percent: bool) -> str:
    def number(value: float) -> str:
        return f"{value:.1%}" if percent else decimal(value, 3)

    def moved(value: float) -> str:
        return points(value) if percent else signed(value, 3)

    interval = " (one prompt)"
    if figure.low is not None and figure.high is not None:
        interval = f" ({moved(figure.low)} to {moved(figure.high)})"
    chance = figure.chance
    aside = ""
    if chance and chance.low is not None and chance.high is not None:
        verdict = "beyond" if chance.beyond else "within"
        aside = f"  {verdict} {moved(chance.low)} to {moved(chance.high)}"
    elif chance:
        aside = f"  {moved(chance.controls[0])} (one control)"
    shift = f"{moved(figure.shift)}{interval}"
    return f"{name:<34}{number(figure.before):>9}{number(figure.after):>9}  {shift:<28}{aside}".rstrip()
