"""The files of a worker: `write_*_input` writes `inputs/`, `import_*_output` stores `outputs/`.

Every `import_*_output` function may be called again after a crash: stored records are skipped.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from storage.allocation import PromptUsage, allocate_prompts
from storage.engine.database import Database
from storage.records import (
    CHECKS,
    KEPT_APART,
    LEARNED_FROM,
    LIVE,
    PROBE,
    RANDOM_STREAM,
    WRITTEN,
    AnnotatorKind,
    Arm,
    Comparison,
    Completion,
    EvaluatedCompletion,
    Iteration,
    Prompt,
    PromptRole,
    digest,
    messages_json,
)
from storage.tables import comparisons, completions, iterations, models, prompts
from storage.tables.runs import runs
from storage.tables.settings import learn_from

_SAMPLED_SO_FAR = """
    SELECT prompt, count(*) AS n, count(*) FILTER (list_contains($stream, arm)) AS of_stream
    FROM comparisons WHERE NOT list_contains($apart, arm) GROUP BY prompt
"""

_JUDGED = """
    FROM current_judgments AS j
    JOIN annotators AS a ON a.id = j.annotator
    JOIN comparisons AS c ON c.id = j.comparison
"""
_JOINED = f"{_JUDGED} JOIN prompts AS p ON p.id = c.prompt"

# A probe on an audit prompt would decide when training stops, and train the audit model.
_LEARNED = "p.role <> 'held-out' AND NOT (c.arm = 'probe' AND p.role = 'audit')"
_JUDGMENTS = f"""
    SELECT j.id AS judgment, j.comparison, c.prompt, p.messages::VARCHAR AS messages,
           c.first, c.second, f.text AS first_text, s.text AS second_text,
           j.outcome, j.strength, j.annotator, a.kind AS annotator_kind, j.shown_swapped, c.arm,
           j.milliseconds, p.role AS prompt_role
    {_JOINED}
    JOIN completions AS f ON f.id = c.first
    JOIN completions AS s ON s.id = c.second
    WHERE {_LEARNED} AND list_contains($kinds, a.kind)
    ORDER BY j.id
"""

_GOLD = """
    SELECT j.annotator, k.answer, j.outcome, j.strength, j.shown_swapped
    FROM standing_judgments AS j
    JOIN checks AS k ON k.comparison = j.comparison
    JOIN annotators AS a ON a.id = j.annotator
    WHERE k.kind = 'gold' AND k.active AND list_contains($kinds, a.kind)
    ORDER BY j.id
"""

# The edit is better than the response that it improves.  Nobody saw the two side by side.
_EDITS = f"""
    SELECT j.id AS judgment, j.comparison, c.prompt, p.messages::VARCHAR AS messages,
           'edit-' || j.id AS first, j.edit AS first_text,
           CASE j.outcome WHEN 'first' THEN c.first ELSE c.second END AS second,
           CASE j.outcome WHEN 'first' THEN f.text ELSE s.text END AS second_text,
           'first' AS outcome, NULL::BIGINT AS strength, j.annotator, a.kind AS annotator_kind,
           false AS shown_swapped, '{WRITTEN}' AS arm, p.role AS prompt_role, true AS edited
    {_JOINED}
    JOIN completions AS f ON f.id = c.first
    JOIN completions AS s ON s.id = c.second
    WHERE p.role NOT IN ('held-out', 'audit') AND list_contains($kinds, a.kind) AND j.edit <> ''
    ORDER BY j.id
"""

_KINDS = f"""
    SELECT a.kind, count(*) AS n {_JOINED} WHERE {_LEARNED}
    GROUP BY a.kind ORDER BY a.kind
"""

_BY_PROMPT = f"""
    SELECT c.prompt, count(*) AS judgments,
           count(*) FILTER (j.outcome IN ('first', 'second')) AS decisive,
           bool_or(list_contains($stream, c.arm)) AS random_stream
    {_JOINED} WHERE p.role <> 'held-out' AND c.arm <> 'probe' AND list_contains($kinds, a.kind)
    GROUP BY c.prompt ORDER BY c.prompt
"""

_LABELS = f"""
    SELECT c.iteration, c.arm, count(*) AS labels
    {_JUDGED} WHERE list_contains($kinds, a.kind)
    GROUP BY ALL ORDER BY ALL
"""

_DEMONSTRATIONS = """
    SELECT p.id AS prompt, p.messages::VARCHAR AS messages, c.text AS response
    FROM completions AS c JOIN prompts AS p ON p.id = c.prompt
    WHERE c.policy = 'demonstrations' AND NOT list_contains($kept_apart, p.role) ORDER BY c.id
"""
_EDITED_DEMONSTRATIONS = f"""
    FROM ({_DEMONSTRATIONS}) UNION ALL
    (SELECT c.prompt, p.messages::VARCHAR, j.edit {_JOINED}
     WHERE j.edit <> '' AND list_contains($kinds, a.kind)
       AND NOT list_contains($kept_apart, p.role)
     ORDER BY j.id)
"""


def _demonstrations(edits: bool) -> tuple[str, dict[str, Any]]:
    """The query and its parameters.  Edits by models are no demonstrations."""
    apart = {"kept_apart": list(KEPT_APART)}
    if not edits:
        return _DEMONSTRATIONS, apart
    return _EDITED_DEMONSTRATIONS, apart | {"kinds": list(LEARNED_FROM)}


def has_demonstrations(db: Database, *, edits: bool = False) -> bool:
    """Whether there are demonstrations for SFT; with `edits`, edited responses count."""
    query, parameters = _demonstrations(edits)
    return bool(db.read(f"FROM ({query}) LIMIT 1", **parameters))


def write_demonstrations_input(db: Database, inputs: Path, *, edits: bool = False) -> int:
    """Write examples.parquet for SFT, without held-out and audit prompts; return its number of
    rows.  With `edits`, the responses that people, or simulated annotators, edited are demonstrations
    too."""
    query, parameters = _demonstrations(edits)
    return db.copy_to_parquet(query, inputs / "examples.parquet", **parameters)


def write_edits_input(db: Database, inputs: Path, *, kinds: Sequence[AnnotatorKind]) -> int:
    """Write edits.parquet: pairs of an edited response, which is better, and its original.

    They have the columns of judgments.parquet and `edited`; return their number.
    """
    return db.copy_to_parquet(_EDITS, inputs / "edits.parquet", kinds=list(kinds))


def write_prompts_input(
    db: Database, inputs: Path, *, role: PromptRole, limit: int | None = None, seed: int = 0
) -> int:
    """Write prompts.parquet with prompts of one role in a seeded random order."""
    stored = prompts.listing(db, role=role)
    chosen = sorted(stored, key=lambda p: digest("order", str(seed), p.id))[:limit]
    if not chosen:
        raise ValueError(f"there are no {role} prompts; import some with `launch.py import`")
    _write(inputs / "prompts.parquet", [_row(p) for p in chosen])
    return len(chosen)


def write_sampling_plan_input(
    db: Database,
    inputs: Path,
    *,
    pairs: int,
    shares: Mapping[Arm, float],
    chosen: tuple[Arm, float] | None,
    prompts_per_pair: float,
    seed: int,
) -> int:
    """Write prompts.parquet: the prompts to sample, with their arm and number of pairs.

    Arguments as for `allocation.allocate_prompts`.
    """
    asked = {p.id: p for p in prompts.listing(db, role="train")}
    if not asked:
        raise ValueError("there are no train prompts; import some with `launch.py import`")
    rows = db.read(
        _SAMPLED_SO_FAR, stream=list(RANDOM_STREAM), apart=[WRITTEN, LIVE, PROBE, *CHECKS]
    )
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


def import_comparisons_output(
    db: Database, outputs: Path, *, run: str, iteration: int, overlap: float, seed: int
) -> int:
    """Store the output of the sampling stage `run`; return the number of new comparisons.

    Raises ValueError, with nothing stored, if there are none.

    A share `overlap` (`labeling.overlap`, default 0.1) of the pairs wants judgments of two people.
    Both judgments count and are learned from; disagreements are not adjudicated.  The choice of
    these pairs and the order of the queue depend on the seed, the run and the comparison.
    Annotators never see the id of a run; without it, an annotator who knows the seed could compute
    which of their judgments are compared with others'.
    """
    new = [
        Comparison(
            id=row["id"],
            prompt=row["prompt"],
            first=row["first"],
            second=row["second"],
            iteration=iteration,
            arm=row["arm"],
            wanted=2 if _uniform("overlap", seed, run, row["id"]) < overlap else 1,
            position=int(_uniform("position", seed, run, row["id"]) * 2**62),
        )
        for row in _rows(outputs / "comparisons.parquet")
    ]
    if not new:
        raise ValueError("sampling produced no comparisons")
    import_completions_output(db, outputs)
    return comparisons.add(db, new)


def knows_prompts(db: Database, outputs: Path) -> bool:
    """Whether every prompt of these completions is stored as a train prompt."""
    stored = {p.id for p in prompts.listing(db, role="train")}
    return {row["prompt"] for row in _rows(outputs / "completions.parquet")} <= stored


def import_completions_output(db: Database, outputs: Path) -> int:
    """Store outputs/completions.parquet; return the number of new completions."""
    rows = _rows(outputs / "completions.parquet")
    return completions.add(db, [Completion(**row) for row in rows])


def judgment_counts_by_kind(
    db: Database, kinds: Sequence[AnnotatorKind]
) -> dict[str, dict[str, int]]:
    """Current judgments by kind of annotator, without held-out prompts: those of `kinds`
    (``used``) and of other kinds (``left_out``)."""
    found = {row["kind"]: row["n"] for row in db.read(_KINDS)}
    used = {kind: n for kind, n in found.items() if kind in kinds}
    return {"used": used, "left_out": {k: n for k, n in found.items() if k not in kinds}}


@dataclasses.dataclass(frozen=True, kw_only=True)
class JudgedPrompt:
    """Counts of the judgments on one prompt."""

    prompt: str
    judgments: int
    decisive: int
    """Those that prefer a response."""
    random_stream: bool
    """Whether any of its pairs belongs to the random stream."""


def judged_prompts(db: Database, kinds: Sequence[AnnotatorKind]) -> list[JudgedPrompt]:
    """Counts, by prompt, of the judgments that `write_judgments_input` would write and that measure a
    reward model: no probes, and none by models if people gave some."""
    for measuring in ([kind for kind in kinds if kind != "model"], list(kinds)):
        rows = db.read(_BY_PROMPT, kinds=measuring, stream=list(RANDOM_STREAM))
        if rows:
            break
    return [JudgedPrompt(**row) for row in rows]


def write_judgments_input(
    db: Database, inputs: Path, *, iteration: int, kinds: Sequence[AnnotatorKind] = LEARNED_FROM
) -> tuple[str, list[str]]:
    """Write judgments.parquet, the current judgments by these kinds of annotators without those on
    held-out prompts and without probes on audit prompts; judged_by.json, the result of `judgment_counts_by_kind`; and gold.parquet,
    their answers to gold pairs.

    Returns the snapshot's hash (of the sorted judgment ids) and the ids.  Raises ValueError if
    there are no judgments.
    """
    path = inputs / "judgments.parquet"
    with db.snapshot():  # labeling continues meanwhile
        counted = judgment_counts_by_kind(db, kinds)
        if not db.copy_to_parquet(_JUDGMENTS, path, kinds=list(kinds)):
            raise ValueError(no_labels(counted))
        db.copy_to_parquet(_GOLD, inputs / "gold.parquet", kinds=list(kinds))
    (inputs / "judged_by.json").write_text(json.dumps(counted))
    ids = pd.read_parquet(path, columns=["judgment"])["judgment"].tolist()
    h = hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:16]
    return f"s-{iteration}-{h}", ids


def evaluated(db: Database, iteration: int) -> list[EvaluatedCompletion]:
    """Held-out completions of an iteration's evaluation; ValueError if it was not evaluated."""
    run = runs.newest(db, iteration, "evaluate")
    if run is None or run.status != "succeeded":
        raise ValueError(f"iteration {iteration} has not been evaluated")
    outputs = db.workspace / run.directory / "outputs"
    roles: dict[str, Literal["policy", "reference"]]
    roles = {m.id: "reference" for m in models.listing(db, role="sft")}
    roles[iterations.get(db, iteration).policy_produced or ""] = "policy"
    # Earlier versions stored no own_reward.
    scores = {
        row["completion"]: {
            "reward": row["reward"],
            "own_reward": row.get("own_reward", row["reward"]),
        }
        for row in _rows(outputs / "scores.parquet")
    }
    asked = {p.id: p for p in prompts.listing(db, role="held-out", retired=True)}
    return [
        EvaluatedCompletion(
            prompt=row["prompt"],
            messages=asked[row["prompt"]].messages,
            policy_role=roles.get(row["policy"], "previous"),
            policy=row["policy"],
            text=row["text"],
            **scores.get(row["id"], {}),
        )
        for row in _rows(outputs / "completions.parquet")
    ]


def no_labels(counted: dict[str, dict[str, int]]) -> str:
    """Why there are no labels to learn from; `counted` is from `judgment_counts_by_kind`."""
    others = counted["left_out"]
    if not others:
        return "There are no labels yet."
    found = " and ".join(f"{n} by annotators of kind {kind}" for kind, n in others.items())
    return (
        f"There are no labels to learn from except {found}: to use them, name the kind in "
        "reward.learn_from."
    )


def labels_by_arm(db: Database) -> dict[int, dict[str, int]]:
    """Current judgments by iteration and arm, by the kinds of annotators that the models learn
    from.  Arms without judgments are left out."""
    found: dict[int, dict[str, int]] = {}
    for row in db.read(_LABELS, kinds=list(learn_from(db))):
        found.setdefault(row["iteration"], {})[row["arm"]] = row["labels"]
    return found


def labels_in(db: Database, iteration: Iteration) -> int:
    """The number of labels of one iteration, over all arms of the queue.

    Live turns and probes are not among them: they would end labeling before the pairs are judged
    that measure the policy and the reward model.
    """
    found = labels_by_arm(db).get(iteration.number, {})
    return sum(labels for arm, labels in found.items() if arm not in (LIVE, PROBE))


def _row(prompt: Prompt) -> dict[str, Any]:
    messages = messages_json(prompt.messages)
    return {"id": prompt.id, "messages": messages, "category": prompt.category}


def _uniform(name: str, seed: int, *ids: str) -> float:
    """A uniform number in [0, 1) that depends only on its arguments."""
    return int(digest(name, str(seed), *ids), 16) / 2**64


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    pd.DataFrame(rows).to_parquet(path, index=False)


def _rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a parquet file; missing values are None."""
    frame = pd.read_parquet(path)
    return frame.astype(object).where(frame.notna(), None).to_dict("records")
