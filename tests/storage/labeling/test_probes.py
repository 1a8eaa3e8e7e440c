"""Probes in storage: annotators get them like other pairs, models learn from them, nothing counts them."""

from __future__ import annotations

from dataclasses import asdict

import pandas as pd
import pytest

from labeler.annotate.session import shown_pair
from labeler.research import reading
from storage import worker_files
from storage.analysis.agreement import agreement
from storage.analysis.reliability import annotator_figures
from storage.engine.backup import rebuild
from storage.engine.database import Database
from storage.errors import Conflict, NotFound
from storage.exporting.exports import export
from storage.generation_records import ReplyEnd
from storage.importing.imports import import_judgments
from storage.labeling import follow_ups, gold, judgments, probes, queue
from storage.labeling.live import SampledReply
from storage.records import (
    PROBE,
    RANDOM_STREAM,
    Annotator,
    Comparison,
    Completion,
    Iteration,
    Judgment,
    Message,
    Prompt,
    digest,
    new_id,
    now,
)
from storage.status import status
from storage.tables import (
    comparisons,
    completions,
    iterations,
    model_judgments,
    policy_judgments,
    prompts,
    settings,
)
from storage.tables.people import annotators
from tests.helpers.policy_world import add_iteration, add_models, compare

KINDS = ("person", "simulated")


@pytest.fixture
def world(db: Database) -> Database:
    """Two policies, an iteration that is being labeled, and three judgments of its random stream."""
    add_models(db, policies=2)
    add_iteration(db, 1)
    add_iteration(db, 2, phase="labeling", policy_produced=None, reward_model=None)
    compare(db, "policy-1", "sft-1", ["first", "second", "tie"])
    return db


def replies(*texts: str, policies: tuple[str, str] = ("policy-2", "sft-1")) -> dict:
    return {
        new_id("r"): SampledReply(
            policy=policy, text=text, end=ReplyEnd(finish_reason="stop", tokens=4),
            temperature=0.7, top_p=0.9, seed=5,
        )
        for policy, text in zip(policies, texts, strict=True)
    }  # fmt: skip


def send(db: Database, prompt: str = "How long?", *texts: str) -> probes.Probe:
    return probes.send(db, [Message("user", prompt)], replies(*(texts or ("Eight.", "Ask."))))


def judge(db: Database, pair: str, who: str = "ann", outcome: str = "a") -> None:
    if pair not in [taken.comparison.id for taken in queue.lease(db, who, 16).pairs]:
        raise AssertionError(f"{pair} is not in the queue of {who}")
    judgments.judge(db, id=new_id(), comparison=pair, annotator=who, outcome=outcome)


def sent_and_judged(db: Database, count: int = 3) -> list[str]:
    made = [send(db, f"Probed {n}?").comparison.id for n in range(count)]
    for id in made:
        judge(db, id)
    return made


def test_a_probe_has_its_replies_and_a_prompt_that_nothing_samples(world: Database, tmp_path):
    made = send(world).comparison
    assert comparisons.get(world, made.id) == made
    rows = world.read(
        "SELECT k.* FROM completions AS k WHERE k.id IN ($first, $second)",
        first=made.first, second=made.second,
    )  # fmt: skip
    assert {(r["policy"], r["text"], r["temperature"], r["seed"]) for r in rows} == {
        ("policy-2", "Eight.", 0.7, 5), ("sft-1", "Ask.", 0.7, 5),
    }  # fmt: skip
    assert prompts.get_many(world, [made.prompt])[made.prompt].role == "probe"
    for role in ("train", "held-out"):
        worker_files.write_prompts_input(world, tmp_path, role=role)
        assert made.prompt not in set(pd.read_parquet(tmp_path / "prompts.parquet")["id"])


def test_probing_a_train_prompt_does_not_change_what_is_sampled(world: Database, tmp_path):
    plan = {
        "pairs": 20, "shares": {"reference": 0.2}, "chosen": ("bald", 0.5),
        "prompts_per_pair": 1.0, "seed": 0,
    }  # fmt: skip
    worker_files.write_sampling_plan_input(world, tmp_path, **plan)
    before = pd.read_parquet(tmp_path / "prompts.parquet")
    for id in before["id"]:
        [prompt] = prompts.get_many(world, [id]).values()
        assert send(world, prompt.messages[0].content).role == "train"
    worker_files.write_sampling_plan_input(world, tmp_path, **plan)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "prompts.parquet"), before)


# -- what annotators see -------------------------------------------------------------------------


def test_annotators_cannot_tell_a_probe_from_another_pair(world: Database):
    add_open_pairs(world, 20)
    ids = {send(world, f"Probed {n}?").comparison.id for n in range(20)}
    taken = [pair for _ in range(3) for pair in _lease_and_judge(world)]
    probed = [pair.comparison.id in ids for pair in taken]
    assert sum(probed) == 20
    # Mixed among the others, not before or after them.
    assert any(probed[:12])
    assert probed != sorted(probed)
    assert probed != sorted(probed, reverse=True)
    shown = {pair.comparison.id: asdict(shown_pair(pair)) for pair in taken}
    shapes = {(id in ids, *each, each["notice"], len(each["id"])) for id, each in shown.items()}
    one, other = shapes
    assert one[1:] == other[1:]
    assert not any("probe" in str(shown[id]).lower().replace("probed", "") for id in ids)


def add_open_pairs(db: Database, count: int) -> None:
    """Pairs of the random stream, with ids and positions as the sampling stage gives them."""
    asked = [Prompt.make(f"Sampled {n}?", role="train") for n in range(count)]
    prompts.add(db, asked)
    for prompt in asked:
        one, two = sorted(f"r-{digest(prompt.id, side)}" for side in "ab")
        made = [Completion(id=id, prompt=prompt.id, policy="sft-1", text=id) for id in (one, two)]
        completions.add(db, made)
        pair = Comparison(
            id=f"c-{digest(one, two)}", prompt=prompt.id, first=one, second=two, iteration=2,
            arm="random", position=int(digest("position", one), 16) >> 2,
        )  # fmt: skip
        comparisons.add(db, [pair])


def _lease_and_judge(db: Database) -> list[queue.LeasedPair]:
    taken = queue.lease(db, "bob", 16).pairs
    for pair in taken:
        judgments.judge(
            db, id=new_id(), comparison=pair.comparison.id, annotator="bob", outcome="a"
        )
    return taken


def test_a_probe_waits_in_every_phase_and_survives_a_restart(world: Database):
    made = send(world).comparison.id
    current = iterations.latest(world)
    assert current is not None
    for number, phase in ((2, "reward"), (2, "done"), (3, "sampling"), (3, "labeling")):
        iterations.save(world, type(current)(number=number, phase=phase))  # type: ignore[arg-type]
        assert queue.unfinished(world) == 1
    folder = world.workspace
    world.close()
    rebuild(folder)
    with Database.open(folder) as db:
        assert [pair.comparison.id for pair in queue.lease(db, "ann", 16).pairs] == [made]
        judge(db, made)
        assert queue.lease(db, "bob", 16).pairs == []
        progress = queue.progress(db, "ann", since=now())
        assert (progress.judged, progress.remaining, progress.done) == (3 + 1, 0, 1)


def test_the_same_replies_are_sent_once(world: Database):
    given = replies("Eight.", "Ask.")
    asked = [Message("user", "How long?")]
    one, two = (probes.send(world, asked, given) for _ in range(2))
    assert (one.is_new, two.is_new) == (True, False)
    assert one.comparison.id == two.comparison.id
    # A reply can be in two probes.
    names = sorted(given)
    other = {names[0]: given[names[0]], **dict(list(replies("Ten.", "-").items())[:1])}
    assert probes.send(world, asked, other).is_new


@pytest.mark.parametrize(
    ("texts", "policies", "error", "words"),
    [
        (("Same.", "Same. "), ("policy-1", "sft-1"), ValueError, "same text"),
        (("One.", "Two."), ("policy-9", "sft-1"), NotFound, "policy-9"),
    ],
)
def test_what_cannot_be_sent(world: Database, texts, policies, error, words):
    with pytest.raises(error, match=words):
        probes.send(world, [Message("user", "Hi")], replies(*texts, policies=policies))
    with pytest.raises(ValueError, match="user turn"):
        probes.send(world, [Message("assistant", "Hi")], replies("One.", "Two."))


def test_nothing_is_sent_before_the_first_pairs(db: Database):
    add_models(db, policies=2)
    with pytest.raises(Conflict, match="no pairs yet"):
        send(db)


# -- what learns from them -----------------------------------------------------------------------


def test_reward_models_learn_from_probes(world: Database, tmp_path):
    made = sent_and_judged(world)
    _, ids = worker_files.write_judgments_input(world, tmp_path, iteration=2)
    rows = pd.read_parquet(tmp_path / "judgments.parquet").set_index("comparison")
    assert len(ids) == 3 + 3
    assert set(rows.arm[made]) == {PROBE}
    out = tmp_path / "trl.jsonl"
    export(world, out=str(out), format="trl")
    assert "Probed 1?" in out.read_text()


@pytest.mark.parametrize("role", ["held-out", "audit"])
def test_nothing_learns_from_a_probe_on_an_evaluation_prompt(world: Database, tmp_path, role):
    prompts.add(world, [Prompt.make("Kept apart?", role=role)])
    sent = send(world, "Kept apart?")
    assert (sent.role, sent.learned_from) == (role, False)
    judge(world, sent.comparison.id)
    _, ids = worker_files.write_judgments_input(world, tmp_path, iteration=2)
    rows = pd.read_parquet(tmp_path / "judgments.parquet")
    assert sent.comparison.id not in set(rows.comparison)
    assert len(ids) == 3
    counted = worker_files.judgment_counts_by_kind(world, KINDS)
    assert counted["used"] == {"person": 3}
    out = tmp_path / "trl.jsonl"
    export(world, out=str(out), format="trl")
    assert "Kept apart?" not in out.read_text()


def test_a_conversation_that_continues_an_evaluation_prompt_is_refused(world: Database):
    talk = [Message("user", "What is held out?"), Message("assistant", "This."),
            Message("user", "Why?")]  # fmt: skip
    with pytest.raises(Conflict, match="continues a held-out or audit prompt"):
        probes.send(world, talk, replies("One.", "Two."))
    talk[0] = Message("user", "What is not?")
    assert probes.send(world, talk, replies("One.", "Two.")).learned_from


# -- what does not count them --------------------------------------------------------------------


def test_probes_enter_no_win_rate_gate_or_leaderboard(world: Database, tmp_path):
    before = policy_judgments.judged(world), model_judgments.judged(world)
    sent_and_judged(world)
    assert (policy_judgments.judged(world), model_judgments.judged(world)) == before
    assert PROBE not in (*policy_judgments.EVALUATION_ARMS, *model_judgments.BOARD_ARMS)
    # Nor is a reward model asked to predict them, which the alarm would compare.
    assert policy_judgments.write_pairs_input(world, tmp_path, iteration=2, proxy="reward-1") == 3


def test_probes_are_outside_the_random_stream_and_the_validation_split(world: Database):
    assert PROBE not in RANDOM_STREAM
    before = worker_files.judged_prompts(world, KINDS)
    sent_and_judged(world)
    assert worker_files.judged_prompts(world, KINDS) == before


def test_probes_do_not_end_labeling(world: Database):
    sent_and_judged(world)
    current = iterations.latest(world)
    assert current is not None
    assert worker_files.labels_by_arm(world)[2] == {"reference": 3, PROBE: 3}
    assert worker_files.labels_in(world, current) == 3
    assert (found := status(world).iteration)
    assert found.labels == 3
    assert reading.state(world, midnight=now()).labels == 3


def test_probes_enter_no_agreement_and_make_no_gold_pairs(world: Database):
    annotators.add(world, Annotator(id="robot-2", name="robot-2", kind="model"))
    before = agreement(world), annotator_figures(world)["ann"].shared_items
    made = send(world).comparison
    judge(world, made.id)
    for who in ("bob", "robot", "robot-2"):  # a second opinion, as after an undone skip
        world.write(lambda tx, who=who: tx.store(_vote(made.id, who)))
    assert len(world.read("SELECT 1 FROM judgments WHERE comparison = $id", id=made.id)) == 4
    assert agreement(world) == before[0]
    assert annotator_figures(world)["ann"].shared_items == before[1]
    assert gold.candidates(world) == 0


def _vote(comparison: str, who: str):
    return Judgment(
        id=new_id(), comparison=comparison, annotator=who, outcome="first", shown_swapped=False
    )


def test_nobody_is_asked_again_about_a_probe(world: Database):
    settings.set_check_plan(
        world, settings.CheckPlan(reask_share=1.0, reask_after=0, gold_share=0.0)
    )
    sent_and_judged(world, 6)
    for _ in range(4):
        for pair in queue.lease(world, "ann", 16).pairs:
            judgments.judge(
                world, id=new_id(), comparison=pair.comparison.id, annotator="ann", outcome="a"
            )
    asked = world.read("SELECT prompt FROM comparisons WHERE arm = 'reask'")
    probed = world.read("SELECT prompt FROM comparisons WHERE arm = 'probe'")
    assert not {row["prompt"] for row in asked} & {row["prompt"] for row in probed}


def test_probes_have_no_follow_ups_and_their_texts_are_withheld(world: Database):
    one, two = (send(world, f"Probed {n}?").comparison for n in range(2))
    judge(world, one.id)
    ids = [row["id"] for row in world.read("SELECT id FROM judgments")]
    found = world.read(follow_ups._LEARNED, ids=ids, iteration=2)
    assert len(found) == 2  # the decisive judgments of the random stream
    assert one.prompt not in {row["prompt"] for row in found}
    iterations.save(world, Iteration(number=3, phase="labeling"))
    asked = {"annotator": "ann", "prompts": [one.prompt, two.prompt]}
    assert {row["id"] for row in world.read(follow_ups._OPEN, **asked)} == {two.id}


def test_a_raw_export_and_its_import_keep_the_arm(world: Database, tmp_path):
    made = sent_and_judged(world, 2)
    file = tmp_path / "raw.jsonl"
    export(world, out=str(file), format="raw")
    with Database.open(tmp_path / "other") as other:
        import_judgments(other, file)
        kept = [comparisons.get(other, id) for id in made]
        assert {c.arm for c in kept} == {PROBE}
        iterations.save(other, Iteration(number=1, phase="labeling"))
        undone = [
            row["id"]
            for row in other.read("SELECT id FROM judgments WHERE comparison = $id", id=made[0])
        ]
        judgments.undo(other, id=new_id(), annotator=kept_by(other), replaces=undone[0])
        # It was judged elsewhere, so nobody else gets it here.
        assert queue.unfinished(other) == 0
        add_models(other, policies=1)
        assert queue.lease(other, "bob", 16).pairs == []
        judged = {each.prompt for each in worker_files.judged_prompts(other, KINDS)}
        assert not judged & {c.prompt for c in kept}


def kept_by(db: Database) -> str:
    [row] = db.read("SELECT DISTINCT annotator AS id FROM judgments")
    return row["id"]
