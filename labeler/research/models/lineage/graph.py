"""The graph of `storage.lineage.graph` as HTML: links in rows of iterations, with lines behind them.

The SVG has only lines, because it stretches with the page; the nodes are links in a list, which a
keyboard and a screen reader follow in order.  Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from labeler.html import components
from labeler.html.components import Markup
from storage.lineage.graph import VERBS, GraphEdge, GraphNode, LineageGraph, NodeKind, describe

COLUMNS: Sequence[tuple[str, Sequence[NodeKind]]] = (
    ("Pairs", ("pairs",)),
    ("Judgments", ("snapshot",)),
    ("Reward model", ("reward",)),
    ("Policy", ("sft", "policy")),
)
HEIGHT, HALF = 84, 30
"""Pixels from one node to the next below it, and half of a node's height."""
_WIDTH, _INSET, _LANE = 100 / len(COLUMNS), 2.0, 99.4
"""In percent of the graph's width: a column, a node's distance from its edges, and the line at the
right that passes by nodes."""


@dataclass(frozen=True)
class _Place:
    """The middle of a node: its column, and pixels from the top."""

    column: int
    y: float
    row: int

    @property
    def x(self) -> float:
        return (self.column + 0.5) * _WIDTH

    @property
    def left(self) -> float:
        return self.column * _WIDTH + _INSET

    @property
    def right(self) -> float:
        return (self.column + 1) * _WIDTH - _INSET


def draw(graph: LineageGraph) -> Markup:
    """The whole graph."""
    if not graph.nodes:
        return components.empty("No models yet", "The first one is the SFT reference.")
    rows = _rows(graph.nodes)
    places, tops, height = _laid_out(rows)
    names = {node.id: node.name for node in graph.nodes}
    items = [
        Markup('<li style="height:{}px"><span class="lg-turn">{}</span>{}</li>').format(
            bottom - top,
            f"Iteration {number}" if number else "Start",
            components.lines(
                _node(node, places[node.id], top, graph, names)
                for column in cells
                for node in column
            ),
        )
        for (number, cells), top, bottom in zip(
            rows.items(), tops, [*tops[1:], height], strict=True
        )
    ]
    heads = [Markup("<span>{}</span>").format(title) for title, _ in COLUMNS]
    return Markup(
        '<div class="lg"><div class="lg-heads" aria-hidden="true">{}</div><div class="lg-body">{}<ol>{}</ol></div>'
        '<p class="ks-detail lg-key"><span class="lg-line"></span>shaped <span class="lg-line lg-dashed"></span>'
        "training started from. Point at a node to see what shaped it and what it shaped.</p></div>"
    ).format(components.lines(heads), _lines(graph, places, height), components.lines(items))


def _rows(nodes: Sequence[GraphNode]) -> dict[int, list[list[GraphNode]]]:
    """The nodes of each iteration by column."""
    rows: dict[int, list[list[GraphNode]]] = {}
    for node in nodes:
        cells = rows.setdefault(node.iteration, [[] for _ in COLUMNS])
        cells[next(i for i, (_, kinds) in enumerate(COLUMNS) if node.kind in kinds)].append(node)
    return rows


def _laid_out(
    rows: Mapping[int, Sequence[Sequence[GraphNode]]],
) -> tuple[dict[str, _Place], list[float], float]:
    """The place of each node, the top of each row, and the height of all."""
    places: dict[str, _Place] = {}
    tops: list[float] = []
    top = 0.0
    for row, cells in enumerate(rows.values()):
        tops.append(top)
        for column, nodes in enumerate(cells):
            for n, node in enumerate(nodes):
                places[node.id] = _Place(column, top + HEIGHT * (n + 0.5), row)
        top += HEIGHT * max(len(nodes) for nodes in cells)
    return places, tops, top


def _node(
    node: GraphNode, place: _Place, top: float, graph: LineageGraph, names: Mapping[str, str]
) -> Markup:
    shaped = [
        f"{VERBS[edge.kind]} {names[edge.source]}"
        for edge in graph.edges
        if edge.target == node.id and edge.source in names
    ]
    fact = describe(node)
    first, _, rest = fact.partition(", ")  # phones show only the first
    return Markup(
        '<a class="lg-node lg-{}" href="{}" data-node="{}" style="left:{}%;top:{}px" aria-label="{}">'
        '<b dir="auto">{}</b> <small>{}<i>{}</i></small></a>'
    ).format(
        node.kind,
        address(node),
        node.id,
        _number(place.left),
        _number(place.y - top - HALF),
        ", ".join(filter(None, (node.name, fact, *shaped))),
        node.name,
        first,
        f", {rest}" if rest else "",
    )


def address(node: GraphNode) -> str:
    """The page that shows a node."""
    match node.kind:
        case "pairs" | "snapshot":
            return "?" + urlencode({"tab": "data", "iteration": node.iteration})
        case "reward":
            return "?" + urlencode({"tab": "models", "section": "reward-model", "model": node.id})
        case "policy":
            return "?" + urlencode({"tab": "models", "policy": node.id})
        case _:
            return "?" + urlencode({"tab": "models", "section": "playground"})


def of_model(model: str) -> str:
    """The address of the graph with a model selected."""
    return "?" + urlencode({"tab": "models", "section": "lineage", "model": model})


def _lines(graph: LineageGraph, places: Mapping[str, _Place], height: float) -> Markup:
    """The edges.  Of the snapshots with judgments of the same pairs, only the first has a line: the
    later ones include it."""
    drawn: list[Markup] = []
    judged: set[str] = set()
    kinds = {node.id: node.kind for node in graph.nodes}
    for edge in graph.edges:
        if edge.kind == "started" and kinds.get(edge.target) == "reward":
            continue  # they all start from SFT
        if edge.kind == "judged":
            if edge.source in judged:
                continue
            judged.add(edge.source)
        path = _path(edge, places[edge.source], places[edge.target])
        drawn.append(
            Markup('<path d="{}" class="lg-{}" data-source="{}" data-target="{}"/>').format(
                path, edge.kind, edge.source, edge.target
            )
        )
    return Markup(
        '<svg viewBox="0 0 100 {0}" style="height:{0}px" preserveAspectRatio="none" aria-hidden="true">{1}</svg>'
    ).format(_number(height), components.lines(drawn))


def _path(edge: GraphEdge, a: _Place, b: _Place) -> str:
    """SVG path data from one node to another."""
    if edge.kind == "sampled":
        above = b.y - HALF - (HEIGHT / 2 - HALF)
        if a.row == b.row - 1 and a.y + HEIGHT > above:
            start = f"M{_number(a.x)} {_number(a.y + HALF)}"
        else:
            start = f"M{_number(a.right)} {_number(a.y)}H{_LANE}"
        return f"{start}V{_number(above)}H{_number(b.x)}V{_number(b.y - HALF)}"
    if edge.kind == "started":
        return f"M{_number(a.right)} {_number(a.y)}H{_LANE}V{_number(b.y)}H{_number(b.right)}"
    if a.column == b.column:
        return f"M{_number(a.x)} {_number(a.y + HALF)}V{_number(b.y - HALF)}"
    middle = _number((a.right + b.left) / 2)
    return (
        f"M{_number(a.right)} {_number(a.y)}C{middle} {_number(a.y)} {middle} {_number(b.y)} "
        f"{_number(b.left)} {_number(b.y)}"
    )


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
