"""Live conversations in storage: who may judge a turn, what continues, and what never happens."""

from __future__ import annotations

import pandas as pd
import pytest

from labeler.research import reading
from storage import worker_files
from storage.analysis.agreement import agreement
from storage.engine.backup import rebuild
from storage.engine.database import Database
from storage.errors import Conflict, NotFound, NotLeased
from storage.exporting.exports import export
from storage.generation_records import ReplyEnd
from storage.importing.imports import import_judgments
from storage.labeling import judgments, live, queue
from storage.labeling.live import NextTurn, SampledReply
from storage.lineage.tree import lineage
from storage.records import LIVE, RANDOM_STREAM, Comparison, Message, Prompt, new_id, now
from storage.sides import shown_swapped
from storage.status import status
from storage.tables import comparisons, iterations, policy_judgments, prompts
from tests.helpers.policy_world import add_iteration, add_models, compare

REPLIES = ("Eight minutes.", "Ask a cook.")


@pytest.fixture
def world(db: Database) -> Database:
    """A trained policy whose responses are being labeled, and the random stream's judgments."""
    add_models(db, policies=2)
    add_iteration(db, 1)
    add_iteration(db, 2, phase="labeling", policy_produced=None, reward_model=None)
    compare(db, "policy-1", "sft-1", ["first", "second", "tie"])
    return db


def begin(
    db: Database, text: str, conversation: str | None = None, *, who: str = "ann", most: int = 5
) -> NextTurn:
    return live.next_turn(db, who, text, conversation=conversation, most=most)


def finish(
    db: Database,
    turn: NextTurn,
    texts: tuple[str, str] = REPLIES,
    policies: tuple[str, str] = ("policy-1", "sft-1"),
) -> Comparison:
    """Store a turn with these replies."""
    replies = {
        id: SampledReply(
            policy=policy,
            text=text,
            end=ReplyEnd(finish_reason="stop", tokens=5),
            temperature=1.0,
            top_p=0.9,
            seed=3,
        )
        for id, policy, text in zip(turn.completions, policies, texts, strict=True)
    }
    return live.store(db, turn, replies)


def judge(db: Database, pair: Comparison, outcome: str = "a", who: str = "ann") -> None:
    judgments.judge(db, id=new_id(), comparison=pair.id, annotator=who, outcome=outcome)


def text_of(db: Database, pair: Comparison, side: str, who: str = "ann") -> str:
    shown = queue.pair(db, who, pair.id)
    return shown.left if side == "a" else shown.right


def talk(db: Database, turns: int, who: str = "ann") -> list[Comparison]:
    """A conversation of so many judged turns, always with reply B."""
    made: list[Comparison] = []
    conversation = None
    for n in range(turns):
        made.append(finish(db, begin(db, f"Question {n} by {who}?", conversation, who=who)))
        judge(db, made[-1], "b", who)
        conversation = made[-1].conversation
    return made


def test_a_turn_is_an_ordinary_comparison_with_its_models_and_its_conversation(
    world: Database,
) -> None:
    turn = begin(world, "How do I boil an egg?")
    made = finish(world, turn)
    assert (made.arm, made.iteration, made.wanted) == (LIVE, 2, 1)
    assert (made.conversation, made.turn) == (turn.conversation, 1)
    assert comparisons.get(world, made.id) == made
    rows = world.read(
        "SELECT * FROM completions WHERE id IN ($a, $b) ORDER BY policy",
        a=made.first, b=made.second,
    )  # fmt: skip
    assert [(row["policy"], row["text"]) for row in rows] == [
        ("policy-1", "Eight minutes."), ("sft-1", "Ask a cook."),
    ]  # fmt: skip
    assert [(r["tokens"], r["finish_reason"], r["top_p"], r["seed"]) for r in rows] == [
        (5, "stop", 0.9, 3)
    ] * 2
    [prompt] = prompts.get_many(world, [made.prompt]).values()
    assert (prompt.role, prompt.messages) == ("live", (Message("user", "How do I boil an egg?"),))


def test_the_sides_are_known_before_the_replies(world: Database) -> None:
    for n in range(12):
        turn = begin(world, f"Question {n}?")
        before = {turn.side(id): text for id, text in zip(turn.completions, REPLIES, strict=True)}
        made = finish(world, turn)
        assert {side: text_of(world, made, side) for side in "ab"} == before


def test_the_stored_order_says_nothing_about_the_models(world: Database) -> None:
    first = []
    for n in range(40):
        turn = begin(world, f"Question {n}?")
        first.append(finish(world, turn).first == turn.completions[0])
    assert 8 <= sum(first) <= 32  # a fair coin leaves this range once in 30,000 runs


def test_only_the_person_who_wrote_it_gets_a_turn(world: Database) -> None:
    made = finish(world, begin(world, "Mine?"))
    for who in ("ann", "bob"):
        taken = queue.lease(world, who, 16).pairs
        assert made.id not in [pair.comparison.id for pair in taken]
    with pytest.raises(NotLeased):
        judge(world, made, who="bob")
    with pytest.raises(NotFound):
        live.get(world, "bob", made.conversation or "")
    with pytest.raises(NotFound):
        begin(world, "And now?", made.conversation, who="bob")
    judge(world, made)


def test_the_chosen_reply_becomes_the_context(world: Database) -> None:
    one = finish(world, begin(world, "How long?"))
    with pytest.raises(Conflict, match="Judge the last turn first"):
        begin(world, "And then?", one.conversation)
    judge(world, one, "b")
    two = begin(world, "And then?", one.conversation)
    assert two.number == 2
    assert two.messages == (
        Message("user", "How long?"),
        Message("assistant", text_of(world, one, "b")),
        Message("user", "And then?"),
    )


def test_after_a_tie_the_conversation_goes_on_with_a(world: Database) -> None:
    for n in range(8):  # A is the first completion in some and the second in others
        one = finish(world, begin(world, f"Question {n}?"))
        judge(world, one, "tie")
        two = begin(world, "And then?", one.conversation)
        assert two.messages[1].content == text_of(world, one, "a")


def test_a_revised_judgment_continues_with_the_other_reply(world: Database) -> None:
    one = finish(world, begin(world, "How long?"))
    judge(world, one, "a")
    judge(world, one, "b")
    two = begin(world, "And then?", one.conversation)
    assert two.messages[1].content == text_of(world, one, "b")


@pytest.mark.parametrize("act", ["both_bad", "skip", "flag", "most"])
def test_what_ends_a_conversation(world: Database, act: str) -> None:
    one = finish(world, begin(world, "How long?"))
    if act in ("skip", "flag"):
        getattr(judgments, act)(world, id=new_id(), comparison=one.id, annotator="ann")
    else:
        judge(world, one, "both_bad" if act == "both_bad" else "a")
    most = 1 if act == "most" else 5
    words = {"both_bad": "Both bad", "most": "reached its last turn"}.get(act, "skipped or flagged")
    with pytest.raises(Conflict, match=words):
        begin(world, "And then?", one.conversation, most=most)


@pytest.mark.parametrize(
    ("text", "words"),
    [(" \n", "Write a message"), ("x" * 20_001, "at most 20,000"), ("a\ud800", "surrogate")],
)
def test_a_message_that_cannot_be_sent(world: Database, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        begin(world, text)


def test_an_evaluation_prompt_is_not_talked_about(world: Database) -> None:
    with pytest.raises(Conflict, match="evaluation prompts"):
        begin(world, "What is held out?")
    prompts.add(world, [Prompt.make("Audited?", role="audit")])
    with pytest.raises(Conflict, match="evaluation prompts"):
        begin(world, "Audited?")
    begin(world, "How many is 3?")  # a train prompt


def test_a_second_tab_cannot_add_the_same_turn(world: Database) -> None:
    one = finish(world, begin(world, "How long?"))
    judge(world, one)
    here, there = (begin(world, text, one.conversation) for text in ("Here?", "There?"))
    finish(world, here)
    with pytest.raises(Conflict, match="another tab"):
        finish(world, there)
    assert len(live.get(world, "ann", one.conversation or "").turns) == 2


def test_the_newest_conversation_is_found_again(world: Database) -> None:
    assert live.latest(world, "ann") is None
    talk(world, 2)
    newest = talk(world, 3)
    talk(world, 1, who="bob")
    found = live.latest(world, "ann")
    assert found is not None
    assert [turn.comparison.id for turn in found.turns] == [pair.id for pair in newest]
    context = found.context("ann")
    assert context is not None
    assert [message.role for message in context] == ["user", "assistant"] * 3


def test_suggestions_are_single_messages_of_the_role_train(world: Database) -> None:
    prompts.add(
        world,
        [Prompt.make([Message("system", "Be brief."), Message("user", "Hi")], role="train")],
    )
    found = live.suggested(world, "seed", 100)
    assert len(found) == 40 + 3  # those of the world and of its compared pairs
    assert "Hi" not in found
    assert "What is held out?" not in found
    assert live.suggested(world, "seed", 3) == live.suggested(world, "seed", 3)
    assert live.suggested(world, "seed", 3) != live.suggested(world, "other", 3)


def test_a_rebuild_has_every_turn_and_judgment(world: Database) -> None:
    made = talk(world, 3)
    folder = world.workspace
    world.close()
    rebuild(folder)
    with Database.open(folder) as db:
        assert [comparisons.get(db, pair.id) for pair in made] == made
        rows = db.read("SELECT comparison, outcome FROM current_judgments ORDER BY created_at")
        assert {row["comparison"] for row in rows} >= {pair.id for pair in made}


def test_a_raw_export_and_its_import_keep_arm_conversation_and_turn(
    world: Database, tmp_path
) -> None:
    made = talk(world, 2)
    file = tmp_path / "raw.jsonl"
    export(world, out=str(file), format="raw")
    rows = pd.read_json(file, lines=True, dtype=False).set_index("comparison")
    assert [(rows.arm[p.id], rows.conversation[p.id], rows.turn[p.id]) for p in made] == [
        (LIVE, made[0].conversation, 1), (LIVE, made[0].conversation, 2),
    ]  # fmt: skip
    assert set(rows.prompt_role[[p.id for p in made]]) == {"live"}
    with Database.open(tmp_path / "other") as other:
        import_judgments(other, file)
        kept = [comparisons.get(other, pair.id) for pair in made]
        assert [(c.arm, c.conversation, c.turn) for c in kept] == [
            (LIVE, pair.conversation, pair.turn) for pair in made
        ]
        others = [c for c in rows.index if c not in {p.id for p in made}]
        assert {comparisons.get(other, id).arm for id in others} == {"imported"}


# -- statistics ----------------------------------------------------------------------------------


def test_live_turns_are_learned_from(world: Database, tmp_path) -> None:
    made = talk(world, 5) + talk(world, 5, who="bob")
    _, ids = worker_files.write_judgments_input(world, tmp_path, iteration=2)
    rows = pd.read_parquet(tmp_path / "judgments.parquet").set_index("comparison")
    assert len(ids) == 3 + 10
    assert set(rows.arm[[pair.id for pair in made]]) == {LIVE}
    current = iterations.latest(world)
    assert current is not None
    assert worker_files.labels_by_arm(world)[2] == {"reference": 3, LIVE: 10}
    assert worker_files.labels_in(world, current) == 3  # live turns do not end labeling
    assert status(world).iteration.labels == 3
    assert reading.state(world, midnight=now()).labels == 3


def test_live_turns_enter_no_win_rate(world: Database, tmp_path) -> None:
    before = policy_judgments.judged(world)
    talk(world, 5)
    assert policy_judgments.judged(world) == before
    assert len(before) == 3
    assert LIVE not in policy_judgments.EVALUATION_ARMS
    # Nor is a reward model asked to predict them, which the alarm would compare.
    assert policy_judgments.write_pairs_input(world, tmp_path, iteration=2, proxy="reward-1") == 3


def test_live_turns_are_outside_the_random_stream(world: Database) -> None:
    """Held-out accuracy, calibration and the ceiling read only the random stream."""
    assert LIVE not in RANDOM_STREAM
    made = talk(world, 2)
    judged = {
        each.prompt: each for each in worker_files.judged_prompts(world, ("person", "simulated"))
    }
    assert [judged[pair.prompt].random_stream for pair in made] == [False, False]


def test_prompts_of_conversations_are_never_sampled_or_trained_on(
    world: Database, tmp_path
) -> None:
    made = talk(world, 3)
    mine = {pair.prompt for pair in made}
    for role in ("train", "held-out"):
        worker_files.write_prompts_input(world, tmp_path, role=role)
        assert not mine & set(pd.read_parquet(tmp_path / "prompts.parquet")["id"])
    plan = {
        "pairs": 30, "shares": {"reference": 0.2}, "chosen": ("bald", 0.5),
        "prompts_per_pair": 1.0, "seed": 0,
    }  # fmt: skip
    worker_files.write_sampling_plan_input(world, tmp_path, **plan)
    assert not mine & set(pd.read_parquet(tmp_path / "prompts.parquet")["id"])


def test_talking_about_a_train_prompt_does_not_change_what_is_sampled(
    world: Database, tmp_path
) -> None:
    plan = {
        "pairs": 20, "shares": {"reference": 0.2}, "chosen": ("bald", 0.5),
        "prompts_per_pair": 1.0, "seed": 0,
    }  # fmt: skip
    worker_files.write_sampling_plan_input(world, tmp_path, **plan)
    before = pd.read_parquet(tmp_path / "prompts.parquet")
    for row in before[before.arm == "bald"].itertuples():
        [prompt] = prompts.get_many(world, [row.id]).values()
        judge(world, finish(world, begin(world, prompt.messages[0].content)))
    worker_files.write_sampling_plan_input(world, tmp_path, **plan)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "prompts.parquet"), before)


def test_two_people_with_the_same_replies_are_not_compared(world: Database) -> None:
    """They chose the prompt, so their agreement would not be that of two independent judges."""
    before = agreement(world)
    for who in ("ann", "bob"):
        judge(world, finish(world, begin(world, "The same?", who=who)), "a", who)
    assert agreement(world) == before


def test_live_turns_have_lineage(world: Database) -> None:
    before = lineage(world, "policy-1")
    talk(world, 3)
    after = lineage(world, "policy-1")
    assert after.completions - before.completions == 3
    assert after.judgments - before.judgments == 3


def test_a_live_pair_needs_its_conversation_and_no_other_pair_has_one() -> None:
    given = {"id": "c", "prompt": "p", "first": "a", "second": "b", "iteration": 1}
    with pytest.raises(ValueError, match="conversation and a turn"):
        Comparison(**given, arm=LIVE)
    with pytest.raises(ValueError, match="conversation and a turn"):
        Comparison(**given, arm="random", conversation="v", turn=1)


def test_the_side_that_a_person_sees_depends_on_the_person(world: Database) -> None:
    turns = [begin(world, f"Question {n}?") for n in range(40)]
    swapped = [shown_swapped("ann", turn.comparison) for turn in turns]
    assert 8 <= sum(swapped) <= 32
