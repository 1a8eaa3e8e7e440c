"""Runs a study in this process, with its outcome in the study's folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pipeline.runs.repeat import Progress
from pipeline.runs.rundir import RunDirectory
from pipeline.runs.study_folder import Spec, conducting
from pipeline.simulation.preference import load_gold, score
from pipeline.studies import compare, compare_report, sweep
from pipeline.studies.retrain import plot as retrain_plot
from pipeline.studies.retrain.findings import findings, notes
from pipeline.studies.retrain.report import RetrainReport
from pipeline.studies.retrain.retrain import retrain


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


def run_retraining(workspace: Path, spec: Spec, progress: Progress) -> tuple[RetrainReport, Path]:
    """Train a reward model again without some judgments; returns the report and its plot's path."""
    with conducting(workspace, spec) as folder:
        found = retrain(workspace, spec, progress)
        told = replace(found, findings=findings(found), notes=notes(found))
        return told, retrain_plot.write_report(folder.path, told)


def run_study(workspace: Path, spec: Spec, progress: Progress) -> None:
    """Run a study of any kind to its end."""
    run = {"sweep": run_sweep, "compare": run_comparison, "retrain": run_retraining}[spec.kind]
    run(workspace, spec, progress)
