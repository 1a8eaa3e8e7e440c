"""The lineage of a model: from a policy to its reward model, that model's snapshot, the policies
whose responses were judged, and so on to the SFT reference."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from storage.engine.database import Database
from storage.errors import NotFound
from storage.records import ModelRole, ModelVersion
from storage.tables import models, snapshot_contents
from storage.wording import plural

# One query for all models each: a query for each model reads the same tables again.
_SHOWN = """
    shown AS (
        SELECT DISTINCT each.comparison, k.policy
        FROM (SELECT id AS comparison, unnest([first, second]) AS completion
              FROM comparisons) AS each
        JOIN completions AS k ON k.id = each.completion)
"""
_ANSWERS = "SELECT policy, count(*) AS completions FROM completions GROUP BY policy"
_JUDGED = f"""
    WITH {_SHOWN},
    judged AS (SELECT comparison, count(*) AS judgments FROM current_judgments GROUP BY comparison)
    SELECT s.policy, count(*) AS comparisons, coalesce(sum(j.judgments), 0)::BIGINT AS judgments
    FROM shown AS s
    ANTI JOIN checks AS k ON k.comparison = s.comparison
    LEFT JOIN judged AS j ON j.comparison = s.comparison
    GROUP BY s.policy
"""


@dataclass(frozen=True, kw_only=True)
class LineageNode:
    """A model in a lineage; a repeated or missing one has only its name."""

    id: str
    role: ModelRole | None = None
    name: str = ""
    missing: bool = False
    """Whether it is not in this workspace."""
    above: bool = False
    """Whether it is repeated."""
    iteration: int | None = None
    run: str | None = None
    method: str | None = None
    """Of a policy: ppo, rloo, dpo or best-of-n."""
    completions: int = 0
    """Its completions; 0 for a reward model."""
    comparisons: int = 0
    """Comparisons that show them."""
    judgments: int = 0
    """Current judgments of those."""
    parent: LineageNode | None = None
    """The model that its training started from."""
    reward_model: LineageNode | None = None
    """The model that rewarded a policy (dpo: measured it)."""
    snapshot: LineageSnapshot | None = None
    """What a reward model learned from."""


@dataclass(frozen=True, kw_only=True)
class LineageSnapshot:
    """A snapshot of `judgments` by so many `annotators`."""

    hash: str
    missing: bool = False
    """Whether it is not in this workspace."""
    iteration: int | None = None
    judgments: int = 0
    annotators: int = 0
    judged: tuple[JudgedPolicy, ...] = ()


@dataclass(frozen=True, kw_only=True)
class JudgedPolicy:
    """A policy, and the number of a snapshot's judgments on its responses."""

    judgments: int
    policy: LineageNode


def lineage(db: Database, model: str) -> LineageNode:
    """The lineage of a model as a tree; `model` is an id or a unique name.

    Raises `NotFound` with similar names.
    """
    with db.snapshot():
        versions = {version.id: version for version in models.listing(db)}
        return _Tree(db, versions).node(find_model(versions, model))


def find_model(versions: Mapping[str, ModelVersion], model: str) -> str:
    """The id of the model with this id or name.  NotFound names the most similar models."""
    if model in versions:
        return model
    named = [version.id for version in versions.values() if version.name == model]
    if len(named) == 1:
        return named[0]
    if named:
        raise NotFound(f"{len(named)} models are called {model!r}; use an id: {', '.join(named)}")
    known = [*versions, *(version.name for version in versions.values())]
    near = list(dict.fromkeys(difflib.get_close_matches(model, known, 3, 0.6)))
    if not versions:
        raise NotFound(f"there is no model {model!r}: this workspace has none yet")
    some = ", ".join(list(versions)[:5]) + ("" if len(versions) <= 5 else ", …")
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {some}"
    raise NotFound(f"there is no model {model!r}; {hint}")


class _Tree:
    def __init__(self, db: Database, versions: Mapping[str, ModelVersion]) -> None:
        self._versions = versions
        self._seen: set[str] = set()
        self._counts: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        for query in (_ANSWERS, _JUDGED):
            for row in db.read(query):
                self._counts[row.pop("policy")] |= row
        self._snapshots = {each.hash: each for each in snapshot_contents.contents(db)}

    def node(self, id: str) -> LineageNode:
        version = self._versions.get(id)
        if version is None:
            return LineageNode(id=id, missing=True)
        if id in self._seen:
            return LineageNode(id=id, role=version.role, name=version.name, above=True)
        self._seen.add(id)
        counts = {} if version.role == "reward" else self._counts[id]
        return LineageNode(
            id=id,
            role=version.role,
            name=version.name,
            iteration=version.iteration,
            run=version.run,
            method=version.summary.get("method", "ppo") if version.role == "policy" else None,
            **counts,
            parent=self.node(version.parent) if version.parent else None,
            reward_model=self.node(version.reward_model) if version.reward_model else None,
            snapshot=self._snapshot(version.snapshot) if version.snapshot else None,
        )

    def _snapshot(self, hash: str) -> LineageSnapshot:
        found = self._snapshots.get(hash)
        if found is None:
            return LineageSnapshot(hash=hash, missing=True)
        judged = tuple(
            JudgedPolicy(judgments=judgments, policy=self.node(policy))
            for policy, judgments in found.by_policy.items()
        )
        return LineageSnapshot(
            hash=hash,
            iteration=found.iteration,
            judgments=found.judgments,
            annotators=found.annotators,
            judged=judged,
        )


def render(tree: LineageNode) -> str:
    """The tree of `lineage` as indented text, one fact per line."""
    return "\n".join(_lines(tree, indent="", label=""))


def _lines(node: LineageNode, *, indent: str, label: str) -> Iterator[str]:
    yield f"{indent}{label}{_title(node)}"
    deeper = indent + "  "
    if node.completions:
        yield (
            f"{deeper}sampled {plural(node.completions, 'completion')} for "
            f"{plural(node.comparisons, 'comparison')} with {plural(node.judgments, 'judgment')}"
        )
    if node.parent:
        yield from _lines(node.parent, indent=deeper, label="started from ")
    if node.reward_model:
        learned = node.method != "dpo"  # which learns from the judgments themselves
        label = "rewarded by " if learned else "measured by "
        yield from _lines(node.reward_model, indent=deeper, label=label)
    snapshot = node.snapshot
    if not snapshot:
        return
    if snapshot.missing:
        yield f"{deeper}trained on snapshot {snapshot.hash}, which is not in this workspace"
        return
    yield (
        f"{deeper}trained on snapshot {snapshot.hash}: "
        f"{plural(snapshot.judgments, 'judgment')} by {plural(snapshot.annotators, 'annotator')}"
    )
    for judged in snapshot.judged:
        label = f"{plural(judged.judgments, 'judgment')} on responses of "
        yield from _lines(judged.policy, indent=deeper + "  ", label=label)


def _title(node: LineageNode) -> str:
    if node.missing:
        return f"{node.id} (not in this workspace)"
    name = "" if node.name == node.id else f" {node.name!r}"
    if node.above:
        return f"{node.id}{name} (see above)"
    turn = "" if node.iteration is None else f", iteration {node.iteration}"
    method = f" by {node.method.upper()}" if node.method else ""
    return f"{node.id}{name} ({node.role}{method}{turn})"
