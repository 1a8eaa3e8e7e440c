"""Follow-ups: which prompts get one, who sees it, and that nothing else ever uses it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest

from storage.analysis.agreement import agreement
from storage.engine.backup import rebuild
from storage.engine.database import Database
from storage.errors import NotFound
from storage.labeling import follow_ups, judgments, queue
from storage.labeling.follow_ups import FILE, chosen, own_follow_ups
from storage.labeling.queue_cache import QueueCache
from storage.records import (
    Check,
    Comparison,
    Completion,
    Iteration,
    Judgment,
    ModelVersion,
    Prompt,
)
from storage.sides import shown_swapped
from storage.tables import comparisons, completions, iterations, models, policy_judgments, settings
from storage.worker_files import judged_prompts, write_judgments_input
from tests.helpers.storage_world import fill


def say(db: Database, pair: str, who: str, outcome: str = "first", **more) -> str:
    judgment = Judgment(
        id=f"{pair} {who}", comparison=pair, annotator=who, outcome=outcome,
        shown_swapped=shown_swapped(who, pair), **more,
    )  # fmt: skip
    db.write(lambda tx: tx.store(judgment))
    return judgment.id


def prompt_of(number: int, iteration: int = 1) -> str:
    return Prompt.make(f"question {iteration}.{number}?", role="train").id


def write(db: Database, folder: Path, ids: Iterable[str], **more) -> list[dict]:
    """The rows of the input, with these judgments learned from."""
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame({"judgment": list(ids)}).to_parquet(folder / "learned.parquet")
    given = {"iteration": 1, "limit": 16, "seed": 0, "learned": folder / "learned.parquet"} | more
    count = follow_ups.write_input(db, folder, **given)
    rows = pd.read_parquet(folder / FILE).to_dict("records")
    assert len(rows) == count
    return rows


def store(db: Database, folder: Path, texts: dict[str, str], *, iteration: int = 1) -> int:
    """Outputs as the evaluation stage writes them, for these prompts."""
    outputs = folder / "outputs"
    outputs.mkdir(exist_ok=True)
    rows = [
        {
            "id": f"u-{iteration}-{prompt}", "prompt": prompt, "policy": f"policy-{iteration}",
            "text": text, "tokens": 3, "finish_reason": "stop", "temperature": 1.0, "top_p": 0.9,
            "seed": 5,
        }
        for prompt, text in texts.items()
    ]  # fmt: skip
    pd.DataFrame(rows).to_parquet(outputs / FILE)
    return follow_ups.import_output(db, folder, outputs, iteration=iteration)


def trained(db: Database, counts: dict[str, int], *, number: int = 1, **more) -> None:
    """The iteration is over; its reward model learned from so many judgments of each."""
    model = ModelVersion(
        id=f"reward-{number}", role="reward", name="r", summary={"learned_by": counts}
    )
    models.add(db, model)
    iterations.save(
        db, Iteration(number=number, phase="done", reward_model=f"reward-{number}", **more)
    )


def next_pair(db: Database, first: str, second: str) -> None:
    """The next iteration's only pair, on the first prompt."""
    prompt = prompt_of(0)
    texts = (("n1", first), ("n2", second))
    made = [Completion(id=id, prompt=prompt, policy="policy-1", text=text) for id, text in texts]
    completions.add(db, made)
    pair = Comparison(
        id="next", prompt=prompt, first="n1", second="n2", iteration=2, arm="random", position=0
    )
    comparisons.add(db, [pair])
    iterations.save(db, Iteration(number=2, phase="labeling"))


@pytest.fixture
def told(db: Database, tmp_path: Path) -> Path:
    """ann judged two pairs and bob one, all learned from; both get new answers to them."""
    fill(db)
    ids = [say(db, "c1-0", "ann"), say(db, "c1-1", "ann", "second", strength=2)]
    ids += [say(db, "c1-1", "bob")]
    write(db, tmp_path, ids)
    store(db, tmp_path, {prompt_of(0): "new 0", prompt_of(1): "second 1"})
    trained(db, {"ann": 2, "bob": 1})
    return tmp_path


def test_only_decisive_judgments_that_were_learned_from_are_chosen(db, tmp_path):
    fill(db, 8)
    learned = [say(db, "c1-0", "ann"), say(db, "c1-1", "ann", "tie")]
    say(db, "c1-2", "ann")  # not learned from: it measured the reward model
    learned.append(say(db, "c1-3", "ann"))
    judgments.undo(db, id="u", annotator="ann", replaces=learned[-1])
    for pair, kind in (("c1-4", "gold"), ("c1-5", "practice")):
        check = Check(comparison=pair, kind=kind, answer="first", explanation="Because.")  # type: ignore[arg-type]
        db.write(lambda tx, check=check: tx.store(check))
        learned.append(say(db, pair, "ann"))
    for n, role in ((6, "held-out"), (7, "audit")):
        sql = f"UPDATE prompts SET role = '{role}' WHERE id = '{prompt_of(n)}'"
        db.write(lambda tx, sql=sql: tx.execute(sql))
        learned.append(say(db, f"c1-{n}", "ann"))
    fill(db, 1, iteration=2)
    learned.append(say(db, "c2-0", "ann"))
    [row] = write(db, tmp_path, learned)
    assert row["prompt"] == prompt_of(0)
    assert json.loads(row["learned"]) == [learned[0]]
    assert json.loads(row["messages"])[0]["content"] == "question 1.0?"


def test_without_the_reward_stages_file_or_with_a_limit_of_0_there_are_none(db, tmp_path):
    fill(db)
    id = say(db, "c1-0", "ann")
    assert write(db, tmp_path, [id], learned=tmp_path / "missing") == []
    assert write(db, tmp_path, [id], limit=0) == []


def test_every_annotator_gets_one_and_the_rest_is_shared_in_turn():
    judged = [("ann", f"a{n}") for n in range(10)] + [("bob", "b0"), ("bob", "b1"), ("cat", "a0")]
    for seed in range(20):
        found = chosen(judged, 6, seed)
        assert len(found) == len(set(found)) == 6
        assert {"a0", "b0", "b1"} <= set(found)  # all that bob and cat judged
        assert chosen(judged, 6, seed) == found
        assert len(set(found) & {f"a{n}" for n in range(10)}) == 4
    assert len({tuple(chosen(judged, 6, seed)) for seed in range(20)}) > 1
    # Nobody is left out, even beyond the limit.
    crowd = [(f"p{n}", f"x{n}") for n in range(9)]
    assert sorted(chosen(crowd, 4, 0)) == sorted(f"x{n}" for n in range(9))
    assert chosen([], 4, 0) == []


@pytest.mark.usefixtures("told")
def test_an_annotator_sees_their_own_pairs_on_their_own_sides_with_the_new_answer(db):
    mine = own_follow_ups(db, "ann")
    assert (mine.iterations, mine.iteration, mine.judgments, mine.total) == ([1], 1, 2, 3)
    by_prompt = {pair.messages[-1].content: pair for pair in mine.pairs}
    assert sorted(by_prompt) == ["question 1.0?", "question 1.1?"]
    for n, won, strength, new in ((0, "first", None, "new 0"), (1, "second", 2, "second 1")):
        pair = by_prompt[f"question 1.{n}?"]
        sides = {"a": pair.a, "b": pair.b}
        assert sorted(sides.values()) == [f"first {n}", f"second {n}"]
        assert sides[pair.outcome] == f"{won} {n}"
        swapped = shown_swapped("ann", f"c1-{n}")
        assert pair.a == (f"second {n}" if swapped else f"first {n}")
        assert (pair.strength, pair.new) == (strength, new)
    unchanged = by_prompt["question 1.1?"]
    assert unchanged.same_as == unchanged.outcome  # the policy says what was preferred before
    assert by_prompt["question 1.0?"].same_as is None
    bobs = own_follow_ups(db, "bob")
    assert [pair.messages[-1].content for pair in bobs.pairs] == ["question 1.1?"]
    assert (bobs.judgments, bobs.total) == (1, 3)
    nobodys = own_follow_ups(db, "cat")
    assert (nobodys.iterations, nobodys.iteration, nobodys.pairs) == ([], None, [])
    with pytest.raises(NotFound, match="no new answers"):
        own_follow_ups(db, "cat", 1)


def test_the_newest_iteration_comes_first_and_each_has_its_own_counts(db, told):
    fill(db, 2, iteration=2)
    write(db, told, [say(db, "c2-0", "ann")], iteration=2)
    store(db, told, {prompt_of(0, 2): "newer"}, iteration=2)
    trained(db, {"ann": 5, "bob": 6}, number=2)
    mine = own_follow_ups(db, "ann")
    assert (mine.iterations, mine.iteration, mine.judgments, mine.total) == ([2, 1], 2, 5, 11)
    assert [pair.new for pair in mine.pairs] == ["newer"]
    first = own_follow_ups(db, "ann", 1)
    assert (first.iterations, first.iteration, first.judgments, first.total) == ([2, 1], 1, 2, 3)
    assert sorted(pair.new for pair in first.pairs) == ["new 0", "second 1"]
    assert own_follow_ups(db, "bob").iterations == [1]


@pytest.mark.usefixtures("told")
def test_a_judgment_that_the_annotator_took_back_is_not_shown(db):
    judgments.undo(db, id="u", annotator="ann", replaces="c1-0 ann")
    assert [pair.new for pair in own_follow_ups(db, "ann").pairs] == ["second 1"]


@pytest.mark.usefixtures("told")
def test_no_text_of_a_pair_that_the_annotator_could_still_judge_is_shown(db):
    # The next iteration's queue has one of the two responses that ann judged.
    next_pair(db, "second 0", "another")
    mine = own_follow_ups(db, "ann")
    assert ([each.new for each in mine.pairs], mine.withheld) == (["second 1"], 1)
    [leased] = queue.lease(db, "ann", 1).pairs
    judgments.flag(db, id="f", comparison="next", annotator="ann")
    assert leased.comparison.id == "next"
    assert own_follow_ups(db, "ann").withheld == 1  # a researcher may clear the flag
    judgments.undo(db, id="u", annotator="ann")
    judgments.judge(db, id="j", comparison="next", annotator="ann", outcome="a")
    mine = own_follow_ups(db, "ann")
    assert (len(mine.pairs), mine.withheld) == (2, 0)


def test_open_pairs_are_joined_with_their_responses_by_equality(db):
    """`id IN (first, second)` compared every pair with every response: 26 s for 60,000 pairs."""
    rows = db.read("EXPLAIN " + follow_ups._OPEN, annotator="ada", prompts=[prompt_of(0)])
    plan = str(rows[0]["explain_value"])
    assert "id = completion" in plan
    assert "IN (first, second)" not in plan


@pytest.mark.usefixtures("told")
def test_an_answer_that_an_annotator_may_have_seen_goes_to_others(db):
    queue.lease(db, "ann", 1)  # the queue was read before the pair is made
    next_pair(db, "new 0", "another")
    mine = own_follow_ups(db, "ann")
    assert (len(mine.pairs), mine.withheld) == (2, 0)
    start = datetime(2000, 1, 1, tzinfo=UTC)
    for _ in ("as stored", "read again"):
        assert queue.lease(db, "ann", 4).pairs == []
        assert queue.progress(db, "ann", since=start).remaining == 0
        assert queue.progress(db, "bob", since=start).remaining == 1
        assert queue.leased_to_others(db, "ann") == 0
        db.write(lambda tx: tx.observer(QueueCache).forget())
    # bob judged other prompts of the iteration, so he knows other answers.
    [leased] = queue.lease(db, "bob", 4).pairs
    assert leased.comparison.id == "next"
    assert queue.leased_to_others(db, "ann") == 0


@pytest.mark.usefixtures("told")
def test_an_answer_to_a_pair_that_was_made_before_is_withheld_until_it_is_judged(db, tmp_path):
    next_pair(db, "later", "another")
    store(db, tmp_path, {prompt_of(0): "later"}, iteration=2)
    trained(db, {"ann": 2}, number=2)
    assert own_follow_ups(db, "ann").withheld == 1
    [leased] = queue.lease(db, "ann", 4).pairs
    judgments.judge(db, id="j", comparison=leased.comparison.id, annotator="ann", outcome="b")
    assert own_follow_ups(db, "ann").withheld == 0


@pytest.mark.usefixtures("told")
def test_a_pair_that_is_shown_with_its_judgment_is_not_asked_again(db):
    plan = settings.CheckPlan(gold_share=0, reask_share=0.5, reask_after=1)
    settings.set_check_plan(db, plan)
    fill(db, 12, iteration=3)
    kinds = []
    for n in range(30):
        for leased in queue.lease(db, "ann", 1).pairs:
            kinds.append((leased.comparison.arm, leased.prompt.id))
            judgments.judge(
                db, id=f"j{n}", comparison=leased.comparison.id, annotator="ann", outcome="a"
            )
    again = {prompt for arm, prompt in kinds if arm == "reask"}
    assert len(again) >= 4
    assert not again & {prompt_of(0), prompt_of(1)}


@pytest.mark.usefixtures("told")
def test_a_re_ask_of_ones_own_pair_hides_it_until_it_is_answered(db):
    again = Comparison(
        id="again", prompt=prompt_of(1), first="k1-1-first", second="k1-1-second", iteration=0,
        arm="reask", position=0,
    )  # fmt: skip
    comparisons.add(db, [again])
    check = Check(
        comparison="again", kind="reask", annotator="ann", judgment="c1-1 ann", source="c1-1"
    )
    db.write(lambda tx: tx.store(check))
    assert own_follow_ups(db, "ann").withheld == 1
    assert own_follow_ups(db, "bob").withheld == 0
    say(db, "again", "ann")
    assert own_follow_ups(db, "ann").withheld == 0


@pytest.mark.usefixtures("told")
def test_a_blocked_policy_is_said_and_only_then(db):
    assert own_follow_ups(db, "ann").blocked is False
    for verdict, blocked in (("promoted", False), ("blocked", True)):
        iterations.save(db, Iteration(number=2, phase="policy", verdict=verdict))
        assert own_follow_ups(db, "ann").blocked is blocked


def test_follow_ups_are_in_no_queue_training_agreement_or_win_rate(db, tmp_path):
    fill(db)
    ids = [say(db, "c1-0", "ann"), say(db, "c1-1", "ann", "second"), say(db, "c1-1", "bob")]
    write(db, tmp_path, ids)

    def used() -> tuple:
        inputs = tmp_path / "inputs"
        inputs.mkdir(exist_ok=True)
        snapshot = write_judgments_input(db, inputs, iteration=1)
        return (
            snapshot,
            (inputs / "judgments.parquet").read_bytes(),
            judged_prompts(db, ["person"]),
            agreement(db),
            policy_judgments.evidence(db),
            queue.unfinished(db),
            db.read("SELECT count(*) FROM completions"),
            db.read("SELECT count(*) FROM comparisons"),
            db.read("SELECT count(*) FROM items"),
        )

    before = used()
    assert store(db, tmp_path, {prompt_of(0): "new 0", prompt_of(1): "new 1"}) == 2
    assert db.read("SELECT count(*) AS n FROM follow_ups") == [{"n": 2}]
    assert used() == before
    served = {p.left for p in queue.lease(db, "cat", 9).pairs}
    assert served
    assert not any(text.startswith("new") for text in served)


def test_storing_twice_stores_once_and_a_rebuild_loses_nothing(tmp_path):
    with Database.open(tmp_path / "w") as db:
        fill(db)
        write(db, tmp_path, [say(db, "c1-0", "ann")])
        assert store(db, tmp_path, {prompt_of(0): "new 0"}) == 1
        assert store(db, tmp_path, {prompt_of(0): "new 0"}) == 0
        trained(db, {"ann": 1})
        seen = own_follow_ups(db, "ann")
        before = db.read("FROM follow_ups")
    assert seen.pairs
    rebuild(tmp_path / "w")
    with Database.open(tmp_path / "w") as db:
        assert db.read("FROM follow_ups") == before
        assert own_follow_ups(db, "ann") == seen


def test_a_run_of_an_earlier_version_wrote_none(db, tmp_path):
    assert follow_ups.import_output(db, tmp_path, tmp_path, iteration=1) == 0
