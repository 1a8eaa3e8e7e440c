"""The files between a study that trains a reward model again and its workers.  Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import pandas as pd

LEFT_OUT = "left_out.parquet"
"""An input: the ids of the judgments that are left out."""
TRAINED = "trained.json"
"""An input: ``epochs``, those after which the original's training stopped, or null."""
SCORES, ORIGINAL_SCORES = "scores.parquet", "original_scores.parquet"
"""Outputs: the rewards of these responses by the model, and by the original."""
SCORES_COLUMNS = ("policy", "prompt", "reward", "reference_reward", "expected")
"""`expected` is P(the policy's response is preferred) + ½ P(tie)."""
PARTS = ("learned", "set_aside", "held_out")
"""What the original reward model used judgments for."""


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A judgment of the study: who gave it, what it was used for, and whether it is left out.

    `part` is one of `PARTS`, or "" for a judgment that only the gate uses.
    """

    judgment: str
    annotator: str
    kind: str
    part: str
    left_out: bool


def read_facts(path: Path) -> list[Fact]:
    """The judgments in the study's inputs."""
    columns = [each.name for each in fields(Fact)]
    rows = pd.read_parquet(path, columns=columns).to_dict("records")
    return [Fact(**{str(key): value for key, value in row.items()}) for row in rows]
