"""The graph of the lineage as HTML: links to the pages of the nodes, lines between their places."""

from __future__ import annotations

import re
from collections.abc import Iterator

from labeler.research.models.lineage.graph import HEIGHT, draw
from storage.lineage.graph import GraphEdge, GraphNode, LineageGraph


def chain(iterations: int) -> LineageGraph:
    """A policy an iteration, each sampled from the one before it."""
    return LineageGraph(nodes=tuple(nodes(iterations)), edges=tuple(edges(iterations)))


def nodes(iterations: int) -> Iterator[GraphNode]:
    yield GraphNode(id="policy-0", kind="sft", name="<b>SFT</b>", iteration=0)
    for n in range(1, iterations + 1):
        yield GraphNode(
            id=f"pairs-{n}", kind="pairs", name=f"Pairs {n}", iteration=n, pairs=8, judgments=9
        )
        yield GraphNode(
            id=f"s-{n}",
            kind="snapshot",
            name=f"Snapshot {n}",
            iteration=n,
            judgments=9 * n,
            annotators=1,
        )
        yield GraphNode(
            id=f"reward-{n}", kind="reward", name=f"reward-{n}", iteration=n, accuracy=0.71
        )
        yield GraphNode(id=f"policy-{n}", kind="policy", name=f"policy-{n}", iteration=n, method="ppo", verdict="promoted")  # fmt: skip


def edges(iterations: int) -> Iterator[GraphEdge]:
    for n in range(1, iterations + 1):
        yield GraphEdge(source=f"policy-{n - 1}", target=f"pairs-{n}", kind="sampled")
        for later in range(n, iterations + 1):
            yield GraphEdge(source=f"pairs-{n}", target=f"s-{later}", kind="judged", judgments=9)
        yield GraphEdge(source=f"s-{n}", target=f"reward-{n}", kind="trained")
        yield GraphEdge(source=f"reward-{n}", target=f"policy-{n}", kind="rewarded")
        yield GraphEdge(source="policy-0", target=f"policy-{n}", kind="started")


def test_each_node_is_a_link_that_says_what_shaped_it():
    drawn = draw(chain(2))
    assert re.findall(r'<a [^>]*href="([^"]*)"', drawn) == [
        "?tab=models&amp;section=playground",
        "?tab=data&amp;iteration=1", "?tab=data&amp;iteration=1",
        "?tab=models&amp;section=reward-model&amp;model=reward-1", "?tab=models&amp;policy=policy-1",
        "?tab=data&amp;iteration=2", "?tab=data&amp;iteration=2",
        "?tab=models&amp;section=reward-model&amp;model=reward-2", "?tab=models&amp;policy=policy-2",
    ]  # fmt: skip
    assert (
        'aria-label="policy-1, PPO, promoted, rewarded by reward-1, started from &lt;b&gt;SFT'
        in drawn
    )
    assert (
        "Snapshot 2, 18 judgments, 1 annotator, has judgments of Pairs 1, has judgments of Pairs 2"
        in drawn
    )
    assert "<b>SFT</b>" not in drawn


def test_lines_run_from_node_to_node_and_pairs_have_one():
    drawn = draw(chain(12))
    assert f'viewBox="0 0 100 {13 * HEIGHT}"' in drawn
    paths = re.findall(
        r'<path d="([^"]*)" class="lg-(\w+)" data-source="([^"]*)" data-target="([^"]*)"', drawn
    )
    assert len([path for path in paths if path[1] == "judged"]) == 12
    found = {(source, target): d for d, _, source, target in paths}
    # Row 1 is below SFT: its middle is at 1.5 rows, from the pairs' right edge to the snapshot's left.
    assert found["pairs-1", "s-1"] == "M23 126C25 126 25 126 27 126"
    # From the lower edge of SFT (42 + 30) along the gap between the rows to the upper edge of the pairs.
    assert found["policy-0", "pairs-1"] == "M87.5 72V84H12.5V96"
    assert found["policy-0", "policy-2"] == "M98 42H99.4V210H98"


def test_a_graph_without_models_says_so():
    assert "No models yet" in draw(LineageGraph(nodes=(), edges=()))
