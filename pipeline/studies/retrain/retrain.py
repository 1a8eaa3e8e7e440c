"""Trains a reward model again without some of its judgments, and controls without random ones.

Each model is a worker with its own run directory in ``retrain/NAME/``; a stopped study can be
continued.  The study reads the run of the original reward stage and its own `inputs/`, which the plan
wrote (`pipeline.loop.retraining`), and no database.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.reward.quality.figures import Row
from pipeline.runs.repeat import Progress, copy_inputs, run_to_end
from pipeline.runs.rundir import RunDirectory, read_json, write_atomically
from pipeline.runs.study_folder import (
    EVALUATIONS,
    EVIDENCE,
    FACTS,
    ORIGINAL,
    RETRAINED,
    Spec,
    StudyFolder,
)
from pipeline.studies.retrain.files import (
    LEFT_OUT,
    ORIGINAL_SCORES,
    PARTS,
    SCORES,
    TRAINED,
    Fact,
    read_facts,
)
from pipeline.studies.retrain.report import HeldOut, Measured, RetrainReport, Scores, summary
from storage.gate_records import Evidence
from storage.records import HELD_OUT_FILE, derive_seed
from storage.reports import from_json

_COPIED = ("judgments.parquet", "edits.parquet", "gold.parquet", "judged_by.json")
"""Inputs of the reward stage that the worker needs; edits and gold pairs may be missing."""


def retrain(workspace: Path, spec: Spec, progress: Progress) -> RetrainReport:
    """Train the models that have not been trained yet; return the report.

    ValueError if the inputs are those of another study.
    """
    folder = StudyFolder(workspace, "retrain", spec.name)
    source = RunDirectory(workspace / "runs" / spec.repeats)
    facts = read_facts(folder.inputs / FACTS)
    original = _original(folder, spec)
    parts = folder.parts(spec)
    found = []
    for number, part in enumerate(parts):
        job = replace(
            source.job(),
            run=f"retrain-{spec.name}-{part.label}",
            stage="retrain",
            attempt=1,
            resume=False,
            repeats=spec.repeats,
        )
        control = part.label != RETRAINED
        left_out = random_draw(facts, seed=number) if control else _left_out(facts)
        if not control:
            path = str(workspace / original["path"])
            job = replace(job, models=dict(job.models) | {"original": path})
        title = f"{part.title} ({number + 1} of {len(parts)})"
        directory = run_to_end(
            part.directories[0].path,
            job,
            fill=_fill(source, folder.inputs / EVALUATIONS, left_out),
            progress=lambda text, title=title: progress(f"{title}: {text}"),
            apart=True,
        )
        found.append(_measured(directory))
    evidence = from_json(Evidence, read_json(folder.inputs / EVIDENCE) or {})
    return summary(
        spec,
        facts=facts,
        original=Measured(
            held_out=_held_out(source.outputs),
            scores=_scores(parts[0].directories[0].outputs / ORIGINAL_SCORES),
        ),
        retrained=found[0],
        controls=found[1:],
        evidence=evidence,
        tie_model=(source.result() or {})["tie_model"],
        not_evaluated=original["not_evaluated"],
    )


def _original(folder: StudyFolder, spec: Spec) -> dict[str, Any]:
    """What the inputs say about the original model; ValueError if they are not this study's.

    Two commands that plan different rules under one name write to the same folder; the later wins.
    """
    known = read_json(folder.inputs / ORIGINAL)
    plan = (known or {}).get("plan", {})  # an earlier version wrote none
    if known is None or any(spec.plan[key] != plan[key] for key in plan):
        raise ValueError(
            f"another command has planned another study in {folder.path}; give this one "
            "another --name"
        )
    return known


def random_draw(facts: Sequence[Fact], *, seed: int) -> list[str]:
    """As many random judgments as the study leaves out, of those with the same use.

    The control then learns from as many judgments, and as many decide when it stops.
    """
    coin = random.Random(derive_seed("control", str(seed)))
    drawn: list[str] = []
    for part in PARTS:
        members = sorted((fact for fact in facts if fact.part == part), key=lambda f: f.judgment)
        count = sum(fact.left_out for fact in members)
        drawn += [fact.judgment for fact in coin.sample(members, count)]
    return drawn


def _left_out(facts: Sequence[Fact]) -> list[str]:
    return [fact.judgment for fact in facts if fact.left_out and fact.part]


def _fill(
    source: RunDirectory, evaluations: Path, left_out: Sequence[str]
) -> Callable[[Path], Any]:
    """A `fill` with the original's inputs, the judgments to leave out, and the stored responses."""
    names = [name for name in _COPIED if (source.inputs / name).exists()]

    def fill(inputs: Path) -> None:
        copy_inputs(source, *names)(inputs)
        pd.DataFrame({"judgment": list(left_out)}).to_parquet(inputs / LEFT_OUT, index=False)
        (inputs / EVALUATIONS).write_bytes(evaluations.read_bytes())
        kept = (source.result() or {}).get("kept")
        write_atomically(inputs / TRAINED, json.dumps({"epochs": kept and kept["epoch"]}))

    return fill


def _measured(directory: RunDirectory) -> Measured:
    return Measured(
        held_out=_held_out(directory.outputs), scores=_scores(directory.outputs / SCORES)
    )


def _held_out(outputs: Path) -> HeldOut:
    return {row["judgment"]: row for row in _rows(outputs / HELD_OUT_FILE)}


def _scores(path: Path) -> Scores:
    found: dict[str, list[Row]] = {}
    for row in _rows(path):
        found.setdefault(row["policy"], []).append(row)
    return found


def _rows(path: Path) -> list[dict[str, Any]]:
    return [
        {str(key): value for key, value in row.items()}
        for row in pd.read_parquet(path).to_dict("records")
    ]
