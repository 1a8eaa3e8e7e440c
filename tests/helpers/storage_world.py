"""A few comparisons to judge, written with the real modules; and a child that writes and dies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from storage.engine.database import Database
from storage.records import Annotator, Comparison, Completion, Iteration, Prompt
from storage.tables import comparisons, completions, iterations, prompts
from storage.tables.people import annotators

ROOT = Path(__file__).parents[2]


def fill(
    db: Database,
    pairs: int = 3,
    *,
    wanted: int = 1,
    iteration: int = 1,
    people: tuple[str, ...] = ("ann", "bob", "cat"),
) -> list[str]:
    """An iteration being labeled with comparisons c<iteration>-0, -1, …, served in that order."""
    asked = [Prompt.make(f"question {iteration}.{i}?", role="train") for i in range(pairs)]
    prompts.add(db, asked)
    completions.add(
        db,
        [
            Completion(id=f"k{iteration}-{i}-{side}", prompt=p.id, policy="m", text=f"{side} {i}")
            for i, p in enumerate(asked)
            for side in ("first", "second")
        ],
    )
    made = [
        Comparison(
            id=f"c{iteration}-{i}",
            prompt=p.id,
            first=f"k{iteration}-{i}-first",
            second=f"k{iteration}-{i}-second",
            iteration=iteration,
            arm="random",
            wanted=wanted,
            position=i,
        )
        for i, p in enumerate(asked)
    ]
    comparisons.add(db, made)
    for name in people:
        if annotators.by_name(db, name) is None:
            annotators.add(db, Annotator(id=name, name=name))
    iterations.save(db, Iteration(number=iteration, phase="labeling"))
    return [comparison.id for comparison in made]


def child(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Python code in a process of its own, from the repository's root."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcome_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for a child; its exit status and what it printed."""
    out, err = process.communicate(timeout=60)
    return process.returncode, out + err
