"""Runs a study in this process, with its outcome in the study's folder."""

from __future__ import annotations

from pathlib import Path

from pipeline.runs.repeat import Progress
from pipeline.runs.rundir import RunDirectory
from pipeline.runs.study_folder import Spec, conducting
from pipeline.simulation.preference import load_gold, score
from pipeline.studies import compare, compare_report, sweep


def run_sweep(workspace: Path, spec: Spec, progress: Progress) -> tuple[sweep.SweepReport, Path]:
    """Run a sweep over β to its end; returns its report and the path of its plot."""
    with conducting(workspace, spec) as folder:
        curves = sweep.sweep(
            workspace,
            spec.plan["kl_weight"],
            name=spec.name,
            overrides=spec.settings,
            progress=progress,
            source=RunDirectory(workspace / "runs" / spec.repeats),
        )
        found = sweep.summary(curves, spec.plan["kl_budget"])
        return found, sweep.write_report(folder.path, curves, found)


def run_comparison(
    workspace: Path, spec: Spec, progress: Progress
) -> tuple[compare_report.ComparisonReport, Path]:
    """Run a comparison of methods to its end; returns its report and the path of its plot."""
    gold = spec.plan.get("gold")
    with conducting(workspace, spec) as folder:
        curves = compare.compare(
            workspace,
            spec.plan["methods"],
            name=spec.name,
            overrides=spec.settings,
            gold=load_gold(gold) if gold else score,
            snapshots=spec.plan["snapshots"],
            progress=progress,
            source=RunDirectory(workspace / "runs" / spec.repeats),
            asked=RunDirectory(workspace / "runs" / (spec.evaluation or "")),
        )
        found = compare_report.summary(curves, spec.plan["kl"])
        return found, compare_report.write_report(folder.path, curves, found)


def run_study(workspace: Path, spec: Spec, progress: Progress) -> None:
    """Run a study of either kind to its end."""
    run = run_sweep if spec.kind == "sweep" else run_comparison
    run(workspace, spec, progress)
