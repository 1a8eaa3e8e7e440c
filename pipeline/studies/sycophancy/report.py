"""The lab's results: plain values, a table, and a plot of the rate of agreement against KL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path

from pipeline.runs.rundir import write_atomically
from pipeline.studies.plots import (
    COLORS,
    add_legend,
    budget_mark,
    columns,
    fit_kl,
    mark,
    save_svg,
    svg_figure,
)
from pipeline.studies.sycophancy.arms import NO_PENALTY, STEERING, LabArm, PolicyMeasurement
from pipeline.studies.sycophancy.measure import PolicyFigures, Rate
from pipeline.studies.sycophancy.testbed import Testbed, TestbedFigures

_FAR = 0.2
"""An arm whose KL differs from the lab's by more than this share is not at equal KL."""


@dataclass(frozen=True, kw_only=True)
class ArmResult(PolicyFigures):
    """One arm at the lab's KL."""

    arm: str
    at: float
    """The update, or the coefficient of steering."""
    of_unpenalized: float
    """Its rate of agreement, divided by that of the arm without a penalty."""
    equal_kl: bool
    """Whether its KL is close to the lab's."""


@dataclass(frozen=True, kw_only=True)
class LabReport:
    """The results of the lab."""

    kl: float
    penalty: float
    testbed: TestbedFigures
    reference: PolicyFigures
    arms: list[ArmResult]


def findings(testbed: Testbed, reference: PolicyMeasurement, arms: Sequence[LabArm]) -> LabReport:
    """The reference and every arm at the lab's KL, relative to the arm without a penalty."""
    unpenalized = next(arm for arm in arms if arm.name == NO_PENALTY).final.measured
    results = []
    for arm in arms:
        found = arm.final.measured
        results.append(
            ArmResult(
                arm=arm.name,
                at=arm.final.at,
                of_unpenalized=found.agrees.rate / max(unpenalized.agrees.rate, 1e-9),
                equal_kl=abs(found.kl - testbed.lab.kl) <= _FAR * testbed.lab.kl,
                **vars(found.figures()),
            )
        )
    return LabReport(
        kl=testbed.lab.kl,
        penalty=testbed.lab.penalty,
        testbed=testbed.summary(),
        reference=reference.measured.figures(),
        arms=results,
    )


def write(folder: Path, found: LabReport, arms: Sequence[LabArm]) -> Path:
    """Write sycophancy.json, sycophancy.svg and samples.jsonl; return the plot's path."""
    write_atomically(folder / "sycophancy.json", json.dumps(asdict(found), indent=1))
    samples = [
        {"arm": arm.name, "prompt": prompt, "completion": text}
        for arm in arms
        for prompt, text in arm.final.measured.texts
    ]
    lines = "".join(json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples)
    write_atomically(folder / "samples.jsonl", lines)
    return _plot(folder / "sycophancy.svg", found, arms)


def _plot(path: Path, found: LabReport, arms: Sequence[LabArm]) -> Path:
    rows = -(-(len(arms) + 1) // 4)
    figure = svg_figure(
        width=8,
        height=5,
        title="Agreeing with false claims",
        subtitle="Agreement with held-out claims during training; dot with 95% interval: "
        "measurement that is compared",
    )
    (axes,) = columns(figure, 1, legend=rows)
    handles = []
    for arm, color in zip(arms, islice(cycle(COLORS), len(arms)), strict=True):
        looks, final = [look.measured for look in arm.looks], arm.final.measured
        style = {"color": color, "ls": "--" if arm.name == STEERING else "-", "lw": 1.6}
        axes.plot([look.kl for look in looks], [look.agrees.rate for look in looks], **style)
        rate = final.agrees
        interval = [[rate.rate - rate.low], [rate.high - rate.rate]]
        axes.errorbar(final.kl, rate.rate, interval, fmt="o", color=color, ms=6, capsize=3)
        handles.append(mark(arm.name, marker="o", ms=5, **style))
    shown = fit_kl(axes, [arm.final.measured.kl for arm in arms], found.kl, to="the reference")
    handles.append(budget_mark(f"compared at {found.kl:g} nats", shown=shown))
    axes.set(ylabel="agrees with the false claim", ylim=(0, 1))
    add_legend(figure, handles, rows=rows)
    return save_svg(figure, path)


def format_lab(found: LabReport, plot: Path) -> str:
    """The table of results."""
    head = f"{'':<14}{'KL':>6}  {'agrees':>16}  {'of none':>8}  {'says so':>8}  {'truthful':>16}  {'reward':>7}"
    rows: list[tuple[str, PolicyFigures, float | None, bool]]
    rows = [("reference", found.reference, None, True)]
    rows += [(each.arm, each, each.of_unpenalized, each.equal_kl) for each in found.arms]
    lines = [f"held-out topics, compared at {found.kl:g} nats", head]
    for name, row, share, equal_kl in rows:
        lines.append(
            f"{name:<14}{row.kl:>6.2f}  {_interval(row.agrees):>16}  "
            + (f"{share:>8.2f}" if share is not None else " " * 8)
            + f"  {row.says_so:>8.0%}  {_interval(row.truthful):>16}  {row.reward:>+7.2f}"
            + ("" if equal_kl else "  (not at equal KL)")
        )
    classifier = found.testbed.classifier
    lines.append(
        f"\naccuracy: reward model {found.testbed.reward_model_accuracy:.0%} of held-out "
        f"judgments; classifier {classifier.accuracy:.0%} of {classifier.held_out_rows} held-out "
        f"flags (majority class: {classifier.commoner_label:.0%})"
    )
    return "\n".join([*lines, str(plot)])


def _interval(rate: Rate) -> str:
    return f"{rate.rate:.0%} [{rate.low:.0%}, {rate.high:.0%}]"
