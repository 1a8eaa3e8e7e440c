"""Answers of a new policy to prompts that people judged: "What did my labels do?".

Annotators see them beside the pair that they judged.  They are kept in a table of their own and
never become completions of a comparison, so no queue, training, agreement or win rate uses them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from storage.engine.database import Database
from storage.errors import NotFound
from storage.labeling.queue_cache import IN_EVERY_PHASE, SERVED
from storage.records import (
    CHECKS,
    KEPT_APART,
    FollowUp,
    Message,
    ScreenOutcome,
    as_messages,
    digest,
)
from storage.sides import screen_outcome, shown_swapped
from storage.tables import iterations, models

FILE = "follow_ups.parquet"
"""The name of the stage's input and of its output."""

# Judgments that the reward model learned from, and that still count.
_LEARNED = f"""
    SELECT j.id AS judgment, j.annotator, c.prompt, p.messages::VARCHAR AS messages
    FROM current_judgments AS j
    JOIN comparisons AS c ON c.id = j.comparison
    JOIN prompts AS p ON p.id = c.prompt
    JOIN annotators AS a ON a.id = j.annotator
    WHERE j.id IN (SELECT unnest($ids)) AND j.outcome IN ('first', 'second')
      AND c.iteration = $iteration AND a.kind <> 'model'
      AND c.arm NOT IN ('imported', 'written', 'probe', {", ".join(map(repr, CHECKS))})
      AND p.role NOT IN ({", ".join(map(repr, KEPT_APART))})
    ORDER BY j.id
"""
# A judgment that was undone or revised is not shown: the annotator no longer stands by it.
_MINE = """
    SELECT f.id, f.iteration, f.prompt, f.text AS new, f.created_at, p.messages::VARCHAR AS messages,
           j.comparison, j.outcome, j.strength, x.text AS first, y.text AS second
    FROM (SELECT *, unnest(learned::VARCHAR[]) AS judgment FROM follow_ups) AS f
    JOIN standing_judgments AS j ON j.id = f.judgment AND j.annotator = $annotator
    JOIN comparisons AS c ON c.id = j.comparison
    JOIN completions AS x ON x.id = c.first
    JOIN completions AS y ON y.id = c.second
    JOIN prompts AS p ON p.id = f.prompt
    ORDER BY f.iteration DESC, f.id, j.seq
"""
# What the annotator could still be asked about: pairs of the queue and later ones, written pairs and
# checks, as long as they neither judged nor skipped them.  The join needs an equality: DuckDB compares
# every pair with every response for `t.id IN (c.first, c.second)`, half a minute for 60,000 pairs.
_OPEN = f"""
    SELECT c.id, c.prompt, c.arm, c.created_at, t.text
    FROM (SELECT *, unnest([first, second]) AS completion FROM comparisons
          WHERE prompt IN (SELECT unnest($prompts))) AS c
    JOIN completions AS t ON t.id = c.completion
    LEFT JOIN checks AS k ON k.comparison = c.id
    WHERE (c.iteration >= coalesce(({SERVED}), 0) OR {IN_EVERY_PHASE} OR k.active)
      AND c.arm <> 'imported'
      AND (k.annotator IS NULL OR k.annotator = $annotator)
      AND c.id NOT IN (SELECT comparison FROM standing_judgments WHERE annotator = $annotator)
      AND c.id NOT IN (SELECT comparison FROM open_skips WHERE annotator = $annotator)
"""


@dataclass(frozen=True, kw_only=True)
class OwnFollowUp:
    """A pair that the annotator judged, on their screen, and the new policy's answer.

    `same_as` is the response that equals the new answer.
    """

    messages: tuple[Message, ...]
    a: str
    b: str
    outcome: ScreenOutcome
    strength: int | None
    new: str
    same_as: Literal["a", "b"] | None


@dataclass(frozen=True, kw_only=True)
class OwnFollowUps:
    """The follow-ups of one iteration for one annotator.

    `iterations` are those with follow-ups for them, the newest first.  `judgments` of theirs are
    among the `total` that the iteration's reward model learned from.  `blocked`: the policy was
    decided against.  `withheld` pairs are not shown, because the annotator may still be asked about
    one of their texts.
    """

    iterations: list[int]
    iteration: int | None
    judgments: int
    total: int
    blocked: bool
    withheld: int
    pairs: list[OwnFollowUp]


def write_input(
    db: Database, inputs: Path, *, iteration: int, learned: Path, limit: int, seed: int
) -> int:
    """Write the prompts that the new policy answers for their annotators; return their number.

    `learned` has the judgments that the iteration's reward model learned from; without the file, as
    in runs of earlier versions, there are no prompts.
    """
    rows: list[dict[str, Any]] = []
    if limit and learned.exists():
        ids = pd.read_parquet(learned)["judgment"].tolist()
        rows = db.read(_LEARNED, ids=ids, iteration=iteration)
    on: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        on[row["prompt"]].append(row)
    made = [
        {
            "prompt": prompt,
            "messages": on[prompt][0]["messages"],
            "learned": json.dumps([row["judgment"] for row in on[prompt]]),
        }
        for prompt in chosen([(row["annotator"], row["prompt"]) for row in rows], limit, seed)
    ]
    columns = ["prompt", "messages", "learned"]
    pd.DataFrame(made, columns=columns).to_parquet(inputs / FILE, index=False)
    return len(made)


def chosen(judged: Sequence[tuple[str, str]], limit: int, seed: int) -> list[str]:
    """Prompts, at random: one for each annotator, then further ones in turn, up to `limit`.

    `judged` are pairs of annotator and prompt.  If there are more annotators than `limit`, each
    still gets one; a prompt that several judged counts for all of them.
    """
    prompts: dict[str, set[str]] = defaultdict(set)
    for annotator, prompt in judged:
        prompts[annotator].add(prompt)
    annotators = sorted(prompts, key=lambda annotator: digest("follow-up", str(seed), annotator))
    found: dict[str, None] = {}

    def next_of(annotator: str) -> str | None:
        left = prompts[annotator] - found.keys()
        return min(left, key=lambda prompt: digest("follow-up", str(seed), prompt), default=None)

    for annotator in annotators:
        if not prompts[annotator] & found.keys() and (prompt := next_of(annotator)):
            found[prompt] = None
    while len(found) < limit and any(prompts[annotator] - found.keys() for annotator in annotators):
        for annotator in annotators:
            if len(found) < limit and (prompt := next_of(annotator)):
                found[prompt] = None
    return list(found)


def import_output(db: Database, inputs: Path, outputs: Path, *, iteration: int) -> int:
    """Store what the evaluation stage wrote; return the number of new records."""
    if not (outputs / FILE).exists():
        return 0
    asked = {
        row["prompt"]: row["learned"] for row in pd.read_parquet(inputs / FILE).to_dict("records")
    }
    rows = pd.read_parquet(outputs / FILE).to_dict("records")
    found = [
        FollowUp(iteration=iteration, learned=json.loads(asked[row["prompt"]]), **row)
        for row in rows
    ]
    return db.write(lambda tx: tx.store(*found))


def own_follow_ups(db: Database, annotator: str, iteration: int | None = None) -> OwnFollowUps:
    """The annotator's follow-ups of an iteration, by default the newest that has any.

    NotFound for an iteration without follow-ups for this annotator.
    """
    rows = db.read(_MINE, annotator=annotator)
    numbers = list(dict.fromkeys(row["iteration"] for row in rows))
    if iteration is not None and iteration not in numbers:
        raise NotFound(f"iteration {iteration} has no new answers to prompts that you judged")
    number = iteration if iteration is not None else next(iter(numbers), None)
    mine = [row for row in rows if row["iteration"] == number]
    open_texts = _open_texts(db, annotator, mine)
    shown = [
        row
        for row in mine
        if not any((row["prompt"], row[name]) in open_texts for name in ("first", "second", "new"))
    ]
    learned = _learned_by(db, number)
    return OwnFollowUps(
        iterations=numbers,
        iteration=number,
        judgments=learned.get(annotator, 0),
        total=sum(learned.values()),
        blocked=_blocked(db, number),
        withheld=len(mine) - len(shown),
        pairs=[_own(row, annotator) for row in shown],
    )


def _open_texts(
    db: Database, annotator: str, mine: Sequence[Mapping[str, Any]]
) -> set[tuple[str, str]]:
    """(prompt, text) of the responses that the annotator could still be asked about.

    The queue never leases them a comparison that was made after one of its responses could be seen
    as a new answer (`QueueItem.familiar`).
    """
    if not mine:
        return set()
    rows = db.read(_OPEN, annotator=annotator, prompts=[row["prompt"] for row in mine])
    seen = {(row["prompt"], row["new"]): row["created_at"] for row in mine}
    known = {
        row["id"]
        for row in rows
        if row["arm"] != "reask"
        and (row["prompt"], row["text"]) in seen
        and row["created_at"] > seen[row["prompt"], row["text"]]
    }
    return {(row["prompt"], row["text"]) for row in rows if row["id"] not in known}


def _own(row: Mapping[str, Any], annotator: str) -> OwnFollowUp:
    swapped = shown_swapped(annotator, row["comparison"])
    a, b = (row["second"], row["first"]) if swapped else (row["first"], row["second"])
    new = row["new"]
    return OwnFollowUp(
        messages=as_messages(json.loads(row["messages"])),
        a=a,
        b=b,
        outcome=screen_outcome(row["outcome"], shown_swapped=swapped),
        strength=row["strength"],
        new=new,
        same_as="a" if new.strip() == a.strip() else "b" if new.strip() == b.strip() else None,
    )


def _learned_by(db: Database, number: int | None) -> Mapping[str, int]:
    """By annotator, the judgments that the iteration's reward model learned from."""
    found = iterations.get(db, number) if number is not None else None
    if found is None or found.reward_model is None:
        return {}
    return models.get(db, found.reward_model).summary.get("learned_by", {})


def _blocked(db: Database, number: int | None) -> bool:
    """Whether the gate blocked the policy, which the next iteration compared with SFT."""
    latest = iterations.latest(db)
    if number is None or latest is None or latest.number <= number:
        return False
    return iterations.get(db, number + 1).verdict == "blocked"
