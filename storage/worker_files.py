"""What goes to a worker and what comes back: parquet in `inputs/`, parquet from `outputs/`.

Every `take_*` function may be called again after a crash; ids decide what is new.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from storage.allocation import PromptUsage, allocate_prompts
from storage.engine.database import Database
from storage.records import (
    KEPT_APART,
    LEARNED_FROM,
    RANDOM_STREAM,
    AnnotatorKind,
    Arm,
    Comparison,
    Completion,
    Iteration,
    Prompt,
    PromptRole,
    digest,
    messages_json,
)
from storage.tables import comparisons, completions, iterations, models, prompts, runs
from storage.tables.settings import learn_from

_SAMPLED_SO_FAR = """
    SELECT prompt, count(*) AS n, count(*) FILTER (list_contains($stream, arm)) AS of_stream
    FROM comparisons WHERE arm <> 'written' GROUP BY prompt
"""

_JUDGMENTS = """
    SELECT j.id AS judgment, j.comparison, c.prompt, p.messages::VARCHAR AS messages,
           c.first, c.second, f.text AS first_text, s.text AS second_text,
           j.outcome, j.strength, j.annotator, a.kind AS annotator_kind, j.shown_swapped, c.arm,
           p.role AS prompt_role
    FROM current_judgments AS j
    JOIN annotators AS a ON a.id = j.annotator
    JOIN comparisons AS c ON c.id = j.comparison
    JOIN prompts AS p ON p.id = c.prompt
    JOIN completions AS f ON f.id = c.first
    JOIN completions AS s ON s.id = c.second
    WHERE p.role <> 'held-out' AND list_contains($kinds, a.kind)
    ORDER BY j.id
"""

_KINDS = """
    SELECT a.kind, count(*) AS n
    FROM current_judgments AS j
    JOIN annotators AS a ON a.id = j.annotator
    JOIN comparisons AS c ON c.id = j.comparison
    JOIN prompts AS p ON p.id = c.prompt
    WHERE p.role <> 'held-out'
    GROUP BY a.kind ORDER BY a.kind
"""

_BY_PROMPT = """
    SELECT c.prompt, count(*) AS judgments,
           count(*) FILTER (j.outcome IN ('first', 'second')) AS decisive,
           bool_or(list_contains($stream, c.arm)) AS random_stream
    FROM current_judgments AS j
    JOIN annotators AS a ON a.id = j.annotator
    JOIN comparisons AS c ON c.id = j.comparison
    JOIN prompts AS p ON p.id = c.prompt
    WHERE p.role <> 'held-out' AND list_contains($kinds, a.kind)
    GROUP BY c.prompt ORDER BY c.prompt
"""

_LABELS = """
    SELECT c.iteration, c.arm, count(*) AS labels
    FROM current_judgments AS j
    JOIN annotators AS a ON a.id = j.annotator
    JOIN comparisons AS c ON c.id = j.comparison
    WHERE list_contains($kinds, a.kind)
    GROUP BY ALL ORDER BY ALL
"""


_DEMONSTRATIONS = """
    SELECT p.id AS prompt, p.messages::VARCHAR AS messages, c.text AS response
    FROM completions AS c JOIN prompts AS p ON p.id = c.prompt
    WHERE c.policy = 'demonstrations' AND NOT list_contains($kept_apart, p.role) ORDER BY c.id
"""


def has_demonstrations(db: Database) -> bool:
    """Whether there is anything to fine-tune on."""
    return bool(db.read(f"FROM ({_DEMONSTRATIONS}) LIMIT 1", kept_apart=list(KEPT_APART)))


def give_demonstrations(db: Database, inputs: Path) -> int:
    """Write examples.parquet for SFT; return its number of rows.

    Demonstrations of prompts that are kept apart are left out.
    """
    path = inputs / "examples.parquet"
    return db.copy_to_parquet(_DEMONSTRATIONS, path, kept_apart=list(KEPT_APART))


def give_prompts(
    db: Database, inputs: Path, *, role: PromptRole, limit: int | None = None, seed: int = 0
) -> int:
    """Write prompts.parquet with prompts of one role in a seeded random order."""
    chosen = _shuffled(prompts.listing(db, role=role), seed)[:limit]
    if not chosen:
        raise ValueError(f"there are no {role} prompts; import some with `launch.py import`")
    _write(inputs / "prompts.parquet", [_row(p) for p in chosen])
    return len(chosen)


def give_sampling_plan(
    db: Database,
    inputs: Path,
    *,
    pairs: int,
    shares: Mapping[Arm, float],
    chosen: tuple[Arm, float] | None,
    prompts_per_pair: float,
    seed: int,
) -> int:
    """Write prompts.parquet: which prompts to sample, for which arm, how many pairs of each.

    `allocation.allocate_prompts` divides them among the arms.
    """
    asked = {p.id: p for p in prompts.listing(db, role="train")}
    if not asked:
        raise ValueError("there are no train prompts; import some with `launch.py import`")
    rows = db.read(_SAMPLED_SO_FAR, stream=list(RANDOM_STREAM))
    used = PromptUsage(
        all={row["prompt"]: row["n"] for row in rows},
        stream={row["prompt"]: row["of_stream"] for row in rows},
    )
    plan = allocate_prompts(
        list(asked),
        pairs=pairs,
        shares=shares,
        chosen=chosen,
        prompts_per_pair=prompts_per_pair,
        used=used,
        seed=seed,
    )
    made = [_row(asked[row.prompt]) | {"arm": row.arm, "pairs": row.pairs} for row in plan]
    _write(inputs / "prompts.parquet", made)
    return pairs


def take_comparisons(
    db: Database, outputs: Path, *, run: str, iteration: int, overlap: float, seed: int
) -> int:
    """Store what the sampling stage `run` made; return the number of new comparisons.

    ValueError, with nothing stored, where it made none.

    A share `overlap` of them is wanted twice.  Which ones, and the order in the queue, follow from
    the seed, the run and the comparison.  Annotators never see a run's id; without it, whoever knows
    the seed could tell which of their answers are compared with somebody's.
    """
    new = [
        Comparison(
            id=row["id"],
            prompt=row["prompt"],
            first=row["first"],
            second=row["second"],
            iteration=iteration,
            arm=row["arm"],
            wanted=2 if _coin("overlap", seed, run, row["id"]) < overlap else 1,
            position=int(_coin("position", seed, run, row["id"]) * 2**62),
        )
        for row in _rows(outputs / "comparisons.parquet")
    ]
    if not new:
        raise ValueError("sampling made no comparisons")
    take_completions(db, outputs)
    return comparisons.add(db, new)


def knows_prompts(db: Database, outputs: Path) -> bool:
    """Whether every prompt of these completions is stored as a train prompt."""
    stored = {p.id for p in prompts.listing(db, role="train")}
    return {row["prompt"] for row in _rows(outputs / "completions.parquet")} <= stored


def take_completions(db: Database, outputs: Path) -> int:
    """Store outputs/completions.parquet; return the number of new completions."""
    return completions.add(
        db, [Completion(**row) for row in _rows(outputs / "completions.parquet")]
    )


def judged_by(db: Database, kinds: Sequence[AnnotatorKind]) -> dict[str, dict[str, int]]:
    """How many current judgments each kind of annotator gave: ``used`` and ``left_out``.

    Those on held-out prompts are not counted.
    """
    found = {row["kind"]: row["n"] for row in db.read(_KINDS)}
    used = {kind: n for kind, n in found.items() if kind in kinds}
    return {"used": used, "left_out": {k: n for k, n in found.items() if k not in kinds}}


def judged_prompts(db: Database, kinds: Sequence[AnnotatorKind]) -> list[dict[str, Any]]:
    """What `give_judgments` would hand over, by prompt: ``judgments``, those that are ``decisive``
    (prefer a response), and whether a pair is of the ``random_stream``."""
    return db.read(_BY_PROMPT, kinds=list(kinds), stream=list(RANDOM_STREAM))


def give_judgments(
    db: Database, inputs: Path, *, iteration: int, kinds: Sequence[AnnotatorKind] = LEARNED_FROM
) -> tuple[str, list[str]]:
    """Write judgments.parquet: the current judgments of these kinds of annotators.

    Those on held-out prompts are left out.  judged_by.json counts what is in it by kind, and
    what was left out for its kind.  Returns the snapshot's hash (of the sorted judgment ids) and
    the ids themselves.
    """
    path = inputs / "judgments.parquet"
    with db.snapshot():  # people go on judging
        counted = judged_by(db, kinds)
        if not db.copy_to_parquet(_JUDGMENTS, path, kinds=list(kinds)):
            raise ValueError(no_labels(counted))
    (inputs / "judged_by.json").write_text(json.dumps(counted))
    ids = pd.read_parquet(path, columns=["judgment"])["judgment"].tolist()
    h = hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:16]
    return f"s-{iteration}-{h}", ids


def evaluated(db: Database, iteration: int) -> list[dict[str, Any]]:
    """Held-out completions of an iteration's evaluation, each with the role of its policy.

    Rows have prompt, messages, policy_role (policy | reference | previous), policy, text, reward
    (as was paid before shaping) and own_reward (the iteration's own model's).
    """
    found = [r for r in runs.listing(db, iteration=iteration) if r.stage == "evaluate"]
    if not found or found[-1].status != "succeeded":
        raise ValueError(f"iteration {iteration} has not been evaluated")
    outputs = db.workspace / found[-1].directory / "outputs"
    record = iterations.get(db, iteration)
    references = {m.id for m in models.listing(db, role="sft")}
    # Evaluations of before kept only what was paid.
    scores = {
        row["completion"]: {
            "reward": row["reward"],
            "own_reward": row.get("own_reward", row["reward"]),
        }
        for row in _rows(outputs / "scores.parquet")
    }
    asked = {p.id: p for p in prompts.listing(db, role="held-out")}
    return [
        {
            "prompt": row["prompt"],
            "messages": [dataclasses.asdict(m) for m in asked[row["prompt"]].messages],
            "policy_role": "policy"
            if row["policy"] == record.policy_produced
            else "reference"
            if row["policy"] in references
            else "previous",
            "policy": row["policy"],
            "text": row["text"],
        }
        | scores.get(row["id"], {"reward": None, "own_reward": None})
        for row in _rows(outputs / "completions.parquet")
    ]


def no_labels(counted: dict[str, dict[str, int]]) -> str:
    """Why there is nothing to learn from, where `judged_by` counts none as used."""
    others = counted["left_out"]
    if not others:
        return "There are no labels yet."
    found = " and ".join(f"{n} by annotators of kind {kind}" for kind, n in others.items())
    return f"There are no labels to learn from but {found}: name the kind in reward.learn_from."


def labels_by_arm(db: Database) -> dict[int, dict[str, int]]:
    """Current judgments on each iteration's comparisons, by the arm that chose the pair.

    Those by annotators that are learned from; an arm without any is not named.
    """
    found: dict[int, dict[str, int]] = {}
    for row in db.read(_LABELS, kinds=list(learn_from(db))):
        found.setdefault(row["iteration"], {})[row["arm"]] = row["labels"]
    return found


def labels_in(db: Database, iteration: Iteration) -> int:
    """The same for one iteration, of all arms together."""
    return sum(labels_by_arm(db).get(iteration.number, {}).values())


def _row(prompt: Prompt) -> dict[str, Any]:
    return {
        "id": prompt.id,
        "messages": messages_json(prompt.messages),
        "category": prompt.category,
    }


def _shuffled(records: list[Prompt], seed: int) -> list[Prompt]:
    return sorted(records, key=lambda p: digest("order", str(seed), p.id))


def _coin(name: str, seed: int, *ids: str) -> float:
    """A uniform number in [0, 1) that depends on nothing but its arguments."""
    return int(digest(name, str(seed), *ids), 16) / 2**64


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    pd.DataFrame(rows).to_parquet(path, index=False)


def _rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a parquet file with None where a value is missing."""
    frame = pd.read_parquet(path)
    return frame.astype(object).where(frame.notna(), None).to_dict("records")
