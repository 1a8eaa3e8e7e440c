"""The lineage of all models as one graph: pairs, snapshots of judgments, reward models, policies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from storage.engine.database import Database
from storage.records import ModelVersion
from storage.tables import iterations, models, snapshot_contents
from storage.tables.snapshot_contents import SnapshotContents
from storage.wording import plural

NodeKind = Literal["sft", "pairs", "snapshot", "reward", "policy"]
EdgeKind = Literal["sampled", "judged", "extended", "trained", "rewarded", "started"]
_PAIRS = """
    WITH judged AS (SELECT comparison, count(*) AS judgments FROM current_judgments GROUP BY comparison)
    SELECT c.iteration, count(*) AS pairs, coalesce(sum(j.judgments), 0)::BIGINT AS judgments
    FROM comparisons AS c
    ANTI JOIN checks AS k ON k.comparison = c.id
    LEFT JOIN judged AS j ON j.comparison = c.id
    GROUP BY c.iteration ORDER BY c.iteration
"""


@dataclass(frozen=True, kw_only=True)
class GraphNode:
    """A node.  `id` is that of a model or a snapshot's hash, or ``pairs-N``; `judgments` are those of
    a snapshot, or the current ones of the pairs of an iteration."""

    id: str
    kind: NodeKind
    name: str
    iteration: int
    """0 for SFT, and for imported judgments."""
    pairs: int = 0
    judgments: int = 0
    annotators: int = 0
    method: str | None = None
    """Of a policy: ppo, rloo, dpo or best-of-n."""
    verdict: str | None = None
    """Of the gate on a policy."""
    accuracy: float | None = None
    """Of a reward model on held-out preferences, 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class GraphEdge:
    """`source` shaped `target`: pairs were *sampled* from a policy and *judged* in a snapshot, which a
    later one *extended*; it *trained* a reward model (by DPO: a policy), which *rewarded* a policy; the
    training *started* from a model.  `judgments` are those that a snapshot has of its source."""

    source: str
    target: str
    kind: EdgeKind
    judgments: int = 0


@dataclass(frozen=True, kw_only=True)
class LineageGraph:
    """Nodes in order of iterations, and the edges between them."""

    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]


def lineage_graph(db: Database) -> LineageGraph:
    """The graph of the workspace's own models; other models have no node."""
    with db.snapshot():
        ours = [m for m in models.listing(db) if m.role in ("sft", "policy", "reward")]
        listed = iterations.listing(db)
        verdicts = {each.policy_produced: each.verdict for each in listed}
        sampled = {each.number: each.policy_sampled for each in listed}
        nodes = [_model(version, verdicts.get(version.id)) for version in ours]
        pairs = [GraphNode(id=f"pairs-{r['iteration']}", kind="pairs", name="Imported pairs" if r["iteration"] == 0 else f"Pairs {r['iteration']}", **r)
                 for r in db.read(_PAIRS)]  # fmt: skip
        frozen = snapshot_contents.contents(db)
        snapshots = [_snapshot(each) for each in frozen]
        nodes = sorted([*nodes, *pairs, *snapshots], key=lambda n: (n.iteration, _ORDER[n.kind]))
        known = {node.id for node in nodes}
        found = [*_of_pairs(sampled, frozen), *_between(db, frozen), *_of_models(ours)]
        edges = [edge for edge in found if {edge.source, edge.target} <= known]
    return LineageGraph(nodes=tuple(nodes), edges=tuple(edges))


_ORDER: dict[NodeKind, int] = {"sft": 0, "pairs": 1, "snapshot": 2, "reward": 3, "policy": 4}


def _model(version: ModelVersion, verdict: str | None) -> GraphNode:
    kind: NodeKind = version.role if version.role in ("sft", "reward") else "policy"
    accuracy = version.summary.get("accuracy")
    return GraphNode(
        id=version.id,
        kind=kind,
        name=version.name,
        iteration=version.iteration or 0,
        method=version.summary.get("method", "ppo") if kind == "policy" else None,
        verdict=verdict if kind == "policy" else None,
        accuracy=accuracy if kind == "reward" and isinstance(accuracy, int | float) else None,
    )


def _snapshot(each: SnapshotContents) -> GraphNode:
    return GraphNode(
        id=each.hash,
        kind="snapshot",
        name=f"Snapshot {each.iteration}",
        iteration=each.iteration or 0,
        judgments=each.judgments,
        annotators=each.annotators,
    )


def _of_pairs(
    sampled: dict[int, str | None], snapshots: Sequence[SnapshotContents]
) -> Iterator[GraphEdge]:
    for number, policy in sampled.items():
        if policy:
            yield GraphEdge(source=policy, target=f"pairs-{number}", kind="sampled")
    for each in snapshots:
        for iteration, judgments in each.by_iteration.items():
            yield GraphEdge(
                source=f"pairs-{iteration}", target=each.hash, kind="judged", judgments=judgments
            )


def _between(db: Database, snapshots: Sequence[SnapshotContents]) -> Iterator[GraphEdge]:
    """What each snapshot has of the one before it."""
    for earlier, later in pairwise(each.hash for each in snapshots):
        judgments = snapshot_contents.shared(db, earlier, later)
        if judgments:
            yield GraphEdge(source=earlier, target=later, kind="extended", judgments=judgments)


def _of_models(versions: list[ModelVersion]) -> Iterator[GraphEdge]:
    for version in versions:
        learns = version.role == "reward" or version.summary.get("method") == "dpo"
        if version.snapshot and learns:
            yield GraphEdge(source=version.snapshot, target=version.id, kind="trained")
        if version.reward_model:
            yield GraphEdge(source=version.reward_model, target=version.id, kind="rewarded")
        if version.parent:
            yield GraphEdge(source=version.parent, target=version.id, kind="started")


def render_graph(graph: LineageGraph) -> str:
    """The graph as text: an iteration a block, and below each node what shaped it."""
    shaped: dict[str, list[GraphEdge]] = {}
    for edge in graph.edges:
        shaped.setdefault(edge.target, []).append(edge)
    names = {node.id: node.name for node in graph.nodes}
    lines: list[str] = []
    for node in graph.nodes:
        lines.append(f"iteration {node.iteration}: {node.name} ({describe(node)})")
        lines += [
            f"  {VERBS[edge.kind]} {names[edge.source]}"
            + (f": {edge.judgments:,} judgments" if edge.judgments else "")
            for edge in shaped.get(node.id, ())
        ]
    return "\n".join(lines) or "this workspace has no models yet"


VERBS: dict[EdgeKind, str] = {
    "sampled": "sampled from",
    "judged": "has judgments of",
    "extended": "includes",
    "trained": "trained on",
    "rewarded": "rewarded by",
    "started": "started from",
}
"""What an edge says of its target."""


def describe(node: GraphNode) -> str:
    """One fact about a node."""
    match node.kind:
        case "pairs":
            return f"{node.pairs:,} pairs, {node.judgments:,} judgments"
        case "snapshot":
            return f"{node.judgments:,} judgments, {plural(node.annotators, 'annotator')}"
        case "reward":
            return "reward model" if node.accuracy is None else f"accuracy {node.accuracy:.0%}"
        case "policy":
            method = (node.method or "").upper().replace("BEST-OF-N", "best-of-N")
            return ", ".join(filter(None, (method, node.verdict)))
        case _:
            return "reference"
