"""From a policy back to the votes that shaped it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.browsing.pair import pair_in_full
from storage.engine.database import Database
from storage.errors import NotFound
from storage.lineage.graph import lineage_graph, render_graph
from storage.lineage.tree import LineageNode, lineage, render
from storage.records import (
    Annotator,
    Comparison,
    Completion,
    Iteration,
    Judgment,
    ModelVersion,
    Prompt,
    Snapshot,
    Withdrawal,
    as_messages,
    now,
)
from storage.reports import from_json, to_json
from storage.tables import snapshot_contents


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Two iterations: three votes on the reference's answers, then two more on policy-1's.

    The second snapshot holds all five; one of its votes was withdrawn afterwards.
    """
    with Database.open(tmp_path_factory.mktemp("lineage") / "workspace") as db:
        db.write(lambda tx: tx.store(*records()))
        yield db


def records() -> Iterator[Any]:
    yield ModelVersion(id="sft-0", role="sft", name="demo")
    yield Annotator(id="a", name="Ann")
    yield Annotator(id="b", name="Bob")
    for n in range(3):
        yield from pair(n, 1, "sft-0", "sft-0")
        yield judgment(n, "a")
    yield Snapshot(hash="s-1", iteration=1, judgments=("j0", "j1", "j2"), created_at=now())
    yield ModelVersion(
        id="reward-1", role="reward", name="reward-1", parent="sft-0", iteration=1, snapshot="s-1"
    )
    yield ModelVersion(
        id="policy-1", role="policy", name="policy-1", parent="sft-0", iteration=1,
        reward_model="reward-1", run="run-7",
    )  # fmt: skip
    yield from pair(3, 2, "policy-1", "policy-1")
    yield from pair(4, 2, "policy-1", "sft-0")
    yield judgment(3, "a")
    yield judgment(4, "b")
    everything = tuple(f"j{n}" for n in range(5))
    yield Snapshot(hash="s-2", iteration=2, judgments=everything, created_at=now())
    yield Withdrawal(id="w", replaces="j3", annotator="a")
    yield ModelVersion(
        id="reward-2", role="reward", name="reward-2", parent="sft-0", iteration=2, snapshot="s-2"
    )
    yield ModelVersion(
        id="policy-2", role="policy", name="kite", parent="sft-0", iteration=2,
        reward_model="reward-2", summary={"method": "dpo"},
    )  # fmt: skip


def pair(n: int, iteration: int, first: str, second: str) -> Iterator[Any]:
    yield Completion(id=f"f{n}", prompt="p", policy=first, text="x")
    yield Completion(id=f"s{n}", prompt="p", policy=second, text="y")
    yield Comparison(
        id=f"c{n}", prompt="p", first=f"f{n}", second=f"s{n}", iteration=iteration, arm="random"
    )


def judgment(n: int, annotator: str) -> Judgment:
    return Judgment(
        id=f"j{n}",
        comparison=f"c{n}",
        annotator=annotator,
        outcome="first",
        shown_swapped=False,
    )


def test_a_policy_leads_back_to_votes_policies_and_the_reference(db: Database) -> None:
    tree = lineage(db, "policy-2")
    assert from_json(LineageNode, json.loads(json.dumps(to_json(tree)))) == tree
    assert (tree.completions, tree.comparisons, tree.judgments) == (0, 0, 0)
    assert tree.parent.id == "sft-0"
    # 3 × 2 answers to its own prompts and one against policy-1, in four pairs with four votes
    counted = ("completions", "comparisons", "judgments")
    assert [getattr(tree.parent, name) for name in counted] == [7, 4, 4]
    snapshot = tree.reward_model.snapshot
    assert (snapshot.hash, snapshot.judgments, snapshot.annotators) == ("s-2", 5, 2)
    # The vote on c4 was between the two, so it counts for both.
    judged = {each.policy.id: each.judgments for each in snapshot.judged}
    assert judged == {"sft-0": 4, "policy-1": 2}
    earlier = next(e.policy for e in snapshot.judged if e.policy.id == "policy-1")
    # The snapshot keeps the vote that was withdrawn since; what stands now does not.
    assert [getattr(earlier, name) for name in counted] == [3, 2, 1]
    assert earlier.run == "run-7"
    assert earlier.reward_model.snapshot.judgments == 3


def test_the_tree_reads_as_text(db: Database) -> None:
    assert render(lineage(db, "policy-2")) == (
        "policy-2 'kite' (policy by DPO, iteration 2)\n"
        "  started from sft-0 'demo' (sft)\n"
        "    sampled 7 completions for 4 comparisons with 4 judgments\n"
        "  measured by reward-2 (reward, iteration 2)\n"
        "    started from sft-0 'demo' (see above)\n"
        "    trained on snapshot s-2: 5 judgments by 2 annotators\n"
        "      4 judgments on responses of sft-0 'demo' (see above)\n"
        "      2 judgments on responses of policy-1 (policy by PPO, iteration 1)\n"
        "        sampled 3 completions for 2 comparisons with 1 judgment\n"
        "        started from sft-0 'demo' (see above)\n"
        "        rewarded by reward-1 (reward, iteration 1)\n"
        "          started from sft-0 'demo' (see above)\n"
        "          trained on snapshot s-1: 3 judgments by 1 annotator\n"
        "            3 judgments on responses of sft-0 'demo' (see above)"
    )


def test_a_name_finds_its_model_and_an_unknown_one_the_nearest(db: Database) -> None:
    assert lineage(db, "kite").id == "policy-2"
    with pytest.raises(NotFound, match=r"there is no model 'policy-3'; did you mean policy-.*\?$"):
        lineage(db, "policy-3")
    with pytest.raises(NotFound, match=r"no model 'zzz'; there are .*sft-0"):
        lineage(db, "zzz")
    with pytest.raises(
        NotFound, match=r"no model 'policy'; there are|no model 'policy'; did you mean policy-"
    ):
        lineage(db, "policy")


def test_what_is_not_in_the_workspace_is_said(tmp_path: Path) -> None:
    with Database.open(tmp_path / "workspace") as db:
        with pytest.raises(NotFound, match="this workspace has none yet"):
            lineage(db, "policy-1")
        lost = ModelVersion(
            id="reward-9", role="reward", name="reward-9", parent="gone", snapshot="s-9"
        )
        db.write(lambda tx: tx.store(lost))
        assert render(lineage(db, "reward-9")) == (
            "reward-9 (reward)\n"
            "  started from gone (not in this workspace)\n"
            "  trained on snapshot s-9, which is not in this workspace"
        )


def test_the_graph_names_what_shaped_each_node(db: Database) -> None:
    graph = lineage_graph(db)
    assert [(node.id, node.kind, node.iteration) for node in graph.nodes] == [
        ("sft-0", "sft", 0), ("pairs-1", "pairs", 1), ("s-1", "snapshot", 1), ("reward-1", "reward", 1),
        ("policy-1", "policy", 1), ("pairs-2", "pairs", 2), ("s-2", "snapshot", 2),
        ("reward-2", "reward", 2), ("policy-2", "policy", 2),
    ]  # fmt: skip
    nodes = {node.id: node for node in graph.nodes}
    # One of the two votes of the second iteration was withdrawn; its snapshot still has it.
    assert (nodes["pairs-2"].pairs, nodes["pairs-2"].judgments) == (2, 1)
    assert (nodes["s-2"].judgments, nodes["s-2"].annotators) == (5, 2)
    assert (nodes["policy-1"].method, nodes["policy-2"].method) == ("ppo", "dpo")
    edges = {(edge.source, edge.target): (edge.kind, edge.judgments) for edge in graph.edges}
    assert edges == {
        ("pairs-1", "s-1"): ("judged", 3),
        ("pairs-1", "s-2"): ("judged", 3),
        ("pairs-2", "s-2"): ("judged", 2),
        ("s-1", "s-2"): ("extended", 3),
        ("s-1", "reward-1"): ("trained", 0),
        ("s-2", "reward-2"): ("trained", 0),
        ("reward-1", "policy-1"): ("rewarded", 0),
        ("reward-2", "policy-2"): ("rewarded", 0),
        ("sft-0", "reward-1"): ("started", 0),
        ("sft-0", "reward-2"): ("started", 0),
        ("sft-0", "policy-1"): ("started", 0),
        ("sft-0", "policy-2"): ("started", 0),
    }
    text = render_graph(graph)
    assert (
        "iteration 2: Snapshot 2 (5 judgments, 2 annotators)\n  has judgments of Pairs 1: 3" in text
    )
    assert "iteration 2: kite (DPO)\n  rewarded by reward-2" in text


def test_the_graph_says_from_which_policy_pairs_were_sampled(tmp_path: Path) -> None:
    with Database.open(tmp_path / "workspace") as db:
        db.write(lambda tx: tx.store(*records(), Iteration(number=2, policy_sampled="policy-1", policy_produced="policy-2", verdict="blocked")))  # fmt: skip
        graph = lineage_graph(db)
    assert ("policy-1", "pairs-2", "sampled") in [(e.source, e.target, e.kind) for e in graph.edges]
    assert {n.id: n.verdict for n in graph.nodes if n.kind == "policy"} == {
        "policy-1": None, "policy-2": "blocked",
    }  # fmt: skip


def test_a_snapshot_that_comes_later_is_counted_and_the_earlier_one_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = list(records())
    at = next(i for i, each in enumerate(every) if isinstance(each, Snapshot)) + 1
    with Database.open(tmp_path / "workspace") as db:
        db.write(lambda tx: tx.store(*every[:at]))
        [first] = snapshot_contents.contents(db)
        asked: list[list[str]] = []
        read = db.read
        monkeypatch.setattr(
            db,
            "read",
            lambda sql, **named: asked.append(named.get("hashes", [])) or read(sql, **named),
        )
        db.write(lambda tx: tx.store(*every[at:]))
        again, second = snapshot_contents.contents(db)
    assert again is first
    assert {hash for hashes in asked for hash in hashes} == {"s-2"}
    assert (second.by_iteration, second.by_policy) == ({1: 3, 2: 2}, {"sft-0": 4, "policy-1": 2})


def test_an_empty_workspace_has_an_empty_graph(tmp_path: Path) -> None:
    with Database.open(tmp_path / "workspace") as db:
        assert lineage_graph(db).nodes == ()
        assert render_graph(lineage_graph(db)) == "this workspace has no models yet"


def test_a_judgment_names_the_models_that_were_trained_on_it(tmp_path: Path) -> None:
    prompt = Prompt(id="p", role="train", messages=as_messages("Hi"))
    with Database.open(tmp_path / "workspace") as db:
        db.write(lambda tx: tx.store(prompt, *records()))
        shaped = {n: pair_in_full(db, f"c{n}").judgments[0] for n in (0, 4)}
    assert (shaped[0].learned_by, shaped[0].shaped) == (
        ["reward-1", "reward-2"], ["policy-1", "policy-2"],
    )  # fmt: skip
    assert (shaped[4].learned_by, shaped[4].shaped) == (["reward-2"], ["policy-2"])
