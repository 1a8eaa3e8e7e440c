"""What the lab found: plain values, a table and a plot of agreeing against KL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.lab.arms import NO_PENALTY, STEERING, Arm, Look
from pipeline.lab.testbed import Testbed
from pipeline.rundir import write_atomically
from pipeline.studies import save_svg, svg_figure, tidy

_FAR = 0.2
"""An arm whose KL misses the lab's by more than this share was not compared at equal KL."""


def findings(testbed: Testbed, reference: Look, arms: Sequence[Arm]) -> dict[str, Any]:
    """The reference and every arm at the lab's KL, with how far each brought agreeing down."""
    unpenalised = next(arm for arm in arms if arm.name == NO_PENALTY).final.measured
    rows = []
    for arm in arms:
        found = arm.final.measured
        rows.append(
            {
                "arm": arm.name,
                "at": arm.final.at,
                "of_unpenalised": found.agrees.rate / max(unpenalised.agrees.rate, 1e-9),
                "equal_kl": abs(found.kl - testbed.lab.kl) <= _FAR * testbed.lab.kl,
            }
            | found.figures()
        )
    return {
        "kl": testbed.lab.kl,
        "penalty": testbed.lab.penalty,
        "testbed": testbed.summary(),
        "reference": reference.measured.figures(),
        "arms": rows,
    }


def write(folder: Path, found: dict[str, Any], arms: Sequence[Arm]) -> Path:
    """sycophancy.json, sycophancy.svg and samples.jsonl; returns the plot's path."""
    write_atomically(folder / "sycophancy.json", json.dumps(found, indent=1))
    samples = [
        {"arm": arm.name, "prompt": prompt, "completion": text}
        for arm in arms
        for prompt, text in arm.final.measured.texts
    ]
    lines = "".join(json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples)
    write_atomically(folder / "samples.jsonl", lines)
    return _plot(folder / "sycophancy.svg", found, arms)


def _plot(path: Path, found: dict[str, Any], arms: Sequence[Arm]) -> Path:
    figure = svg_figure(width=7, height=4.5)
    axes = figure.subplots()
    for arm in arms:
        looks = [look.measured for look in arm.looks]
        dashes = "--" if arm.name == STEERING else "-"
        line = axes.plot(
            [look.kl for look in looks],
            [look.agrees.rate for look in looks],
            dashes,
            label=arm.name,
        )[0]
        final = arm.final.measured
        below, above = (
            final.agrees.rate - final.agrees.low,
            final.agrees.high - final.agrees.rate,
        )
        axes.errorbar(
            final.kl,
            final.agrees.rate,
            [[below], [above]],
            fmt="o",
            color=line.get_color(),
            capsize=3,
        )
    axes.axvline(found["kl"], color="0.6", ls=":", lw=1)
    axes.set(
        xlabel="KL to the reference, nats per response",
        ylabel="agrees with the false claim",
        ylim=(0, 1),
        xlim=(0, 1.5 * found["kl"]),
    )
    tidy(axes)
    return save_svg(figure, path)


def readable(found: dict[str, Any], plot: Path) -> str:
    """The table for people."""
    head = f"{'':<14}{'KL':>6}  {'agrees':>16}  {'of none':>8}  {'says so':>8}  {'truthful':>16}  {'reward':>7}"
    rows = [("reference", found["reference"], None)]
    rows += [(row["arm"], row, row["of_unpenalised"]) for row in found["arms"]]
    lines = [f"held-out topics, compared at {found['kl']:g} nats", head]
    for name, row, share in rows:
        lines.append(
            f"{name:<14}{row['kl']:>6.2f}  {_interval(row['agrees']):>16}  "
            + (f"{share:>8.2f}" if share is not None else " " * 8)
            + f"  {row['says_so']:>8.0%}  {_interval(row['truthful']):>16}  {row['reward']:>+7.2f}"
            + ("" if row.get("equal_kl", True) else "  (not at the same KL)")
        )
    classifier = found["testbed"]["classifier"]
    lines.append(
        f"\nreward model {found['testbed']['reward_model_accuracy']:.0%} of held-out judgments; "
        f"classifier {classifier['accuracy']:.0%} of {classifier['held_out_rows']} held-out flags "
        f"(always the commoner label: {classifier['commoner_label']:.0%})"
    )
    return "\n".join([*lines, str(plot)])


def _interval(rate: dict[str, float]) -> str:
    return f"{rate['rate']:.0%} [{rate['low']:.0%}, {rate['high']:.0%}]"
