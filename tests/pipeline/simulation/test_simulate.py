"""The simulation against the real labeling routes and a real workspace; only training is scripted."""

import json
from collections import Counter
from random import Random

import httpx
import pytest

from pipeline.simulation.annotators import Choice, SimulatedAnnotator, population
from pipeline.simulation.clients import LabelClient, LeasedPair, ServerRefused, conversation
from pipeline.simulation.driver import SimulationFailed, simulate
from pipeline.simulation.report import PairJudge, compare, gate_figures
from storage.analysis.checks import check_results, in_all
from storage.commands import Commands
from storage.importing.imports import import_gold
from storage.labeling import judgments, queue
from storage.records import (
    Annotator,
    EvaluatedCompletion,
    Message,
    new_id,
)
from storage.status import status
from storage.tables.people import annotators
from storage.tables.settings import CheckPlan, set_check_plan
from tests.helpers.scripted_studio import (
    ScriptedStudio,
    agreement,
    drive,
    kindness,
    labeling_app,
    serving,
    stored,
)

CAREFUL = SimulatedAnnotator(name="sim-01", profile="careful", slope=1.1, tie=0.4)


def test_whole_iterations_label_exactly_as_asked_and_report_the_gold(db):
    told = []
    report = drive(db, iterations=2, progress=told.append)
    rows = stored(db)
    assert Counter(row["iteration"] for row in rows) == {1: 40, 2: 40}
    assert {a.kind for a in annotators.listing(db)} == {"simulated"}
    careful = {a.name for a in population(4, bad=0.25, seed=1) if a.profile == "careful"}
    # Canonical outcomes agree with the texts, so sides were mapped rightly on both swaps.
    for swapped in (False, True):
        seen = [r for r in rows if r["name"] in careful and r["shown_swapped"] == swapped]
        assert agreement(seen) == 1.0
        # Differences of 10 and more, so a preference is much of one; a tie has no strength.
        assert {r["strength"] for r in seen if r["outcome"] in ("first", "second")} == {3}
    assert all((row["strength"] is None) == (row["outcome"] in ("tie", "both_bad")) for row in rows)
    json.dumps(report)
    assert report["seed"] == 1
    assert [row["iteration"] for row in report["iterations"]] == [1, 2]
    first = report["iterations"][0]
    # Wins 1, 1, ½, 1 → 3.5/4; mean SFT score 100 · (1 + 1.5 + 2 − 1)/4 = 87.5.
    assert first["gold"]["win_rate"] == 0.875
    assert (first["gold"]["sft"], first["gold"]["policy"]) == (87.5, 200.0)
    assert first["gold"]["low"] < 0.875 < first["gold"]["high"]
    figures = {"accuracy": 0.7, "log_loss": 0.9, "ece": 0.04}
    assert first["reward_model"] == figures | {"accuracy_low": None, "accuracy_high": None}
    assert (first["kl"], first["length"], first["reward"]) == (3.5, 2.0, 1.25)
    # On three prompts the texts differ, and the reward model is as sure as can be.
    assert (first["gate"]["comparisons"], first["gate"]["predicted"]) == (3, 1.0)
    assert "labeling" in first["seconds"]
    assert any("training" in line for line in told)


def test_shuffled_labels_are_stored_without_their_meaning(db):
    drive(db, shuffle_labels=True, bad=0.0)
    assert 0.2 < agreement(stored(db)) < 0.8  # a fair coin misses this once in 10,000 times


def test_shuffled_verdicts_are_independent_of_the_pair():
    coin = Random(0)
    pairs = [
        LeasedPair(
            id=f"c-{n}",
            prompt="Question",
            left=f"kind {coin.gauss(0, 1)}",
            right=f"kind {coin.gauss(0, 1)}",
        )
        for n in range(2000)
    ]

    def right(shuffle: bool) -> float:
        judge = PairJudge(CAREFUL, lambda p, r: kindness(p, r) / 100, seed=0, shuffle=shuffle)
        decisive = [
            (kindness(pair.prompt, pair.left) > kindness(pair.prompt, pair.right))
            == (verdict == "a")
            for pair, verdict in ((pair, judge(pair).outcome) for pair in pairs)
            if verdict in "ab"
        ]
        assert len(decisive) > 1500
        return sum(decisive) / len(decisive)

    assert right(shuffle=True) == pytest.approx(0.5, abs=0.039)  # 3 standard errors
    assert right(shuffle=False) > 0.7


def test_a_judgment_whose_answer_was_lost_is_stored_once(db):
    drive(db, labels=12, lose_replies=5)
    assert len(stored(db)) == 12
    assert len(db.read("FROM current_judgments")) == 12


def test_a_workspace_with_peoples_judgments_is_refused(db):
    studio = ScriptedStudio(db)
    person = Annotator(id="a-1", name="Ada")
    annotators.add(db, person)
    [pair] = queue.lease(db, person.id, 1).pairs
    judgments.judge(
        db, id=new_id(), comparison=pair.comparison.id, annotator=person.id, outcome="a"
    )
    with pytest.raises(ValueError, match="person: 1"):
        simulate("http://127.0.0.1:9", studio.admin, gold=kindness)
    assert [a.name for a in annotators.listing(db)] == ["Ada"]  # nothing was begun


def test_a_workspace_without_prompts_is_refused_at_once(db):
    studio = Commands(db)
    studio.register("status", lambda: status(db))
    with pytest.raises(ValueError, match="no prompts with the role train"):
        simulate("http://127.0.0.1:9", studio.call, gold=kindness)


def test_a_failed_stage_ends_the_simulation_with_its_reason(db):
    with pytest.raises(
        SimulationFailed, match="reward stage of iteration 1 stopped: the disk is full"
    ):
        drive(db, labels=10, studio={"fails": True})


def test_running_out_of_pairs_is_an_error_that_says_so(db):
    # 20 pairs, two of them wanted twice: 22 judgments in all.
    with pytest.raises(SimulationFailed, match=r"ran out after 22 of 40.*--set sampling\.surplus"):
        drive(db, studio={"pairs": 20})


def test_a_loop_that_trains_by_itself_is_not_asked_twice(db):
    studio = ScriptedStudio(db, trains_at=40)

    def admin(command, arguments):
        if command == "train":
            studio.advance()  # the server's timer comes first
        return studio.admin(command, arguments)

    with serving(labeling_app(db)) as url:
        report = simulate(
            url, admin, labels=40, annotators=3, iterations=2, gold=kindness, poll=0.01, timeout=20
        )
    assert [each.iteration for each in report.iterations] == [1, 2]


def test_a_refused_annotator_stops_everybody_at_once(db):
    studio = ScriptedStudio(db, pairs=20)

    def admin(command, arguments):
        result = studio.admin(command, arguments)
        return result | {"token": "forged"} if arguments.get("name") == "sim-02" else result

    with serving(labeling_app(db)) as url, pytest.raises(ServerRefused, match="401 Sign in first"):
        simulate(url, admin, labels=40, annotators=3, gold=kindness, poll=0.01, timeout=20)


def test_a_client_gives_up_on_a_server_that_is_gone():
    with (
        LabelClient("http://127.0.0.1:9", "token", patience=0.3) as client,
        pytest.raises(httpx.TransportError),
    ):
        client.judge("c-1", Choice(outcome="tie", milliseconds=1))


def test_noise_depends_on_seed_annotator_and_pair_but_not_on_order():
    pairs = [
        LeasedPair(id=f"c-{n}", prompt="Question", left="kind 0.005", right="kind 0.0")
        for n in range(60)
    ]

    def verdicts(order, seed):
        judge = PairJudge(CAREFUL, kindness, seed=seed, shuffle=False)
        return {pair.id: judge(pair) for pair in order}

    assert verdicts(pairs, 1) == verdicts(pairs[::-1], 1)
    assert verdicts(pairs, 1) != verdicts(pairs, 2)


def test_win_rate_meets_every_completion_with_every_other_of_its_prompt():
    messages = (Message(role="user", content="Question"),)

    def rows(prompt, role, *scores):
        return [
            EvaluatedCompletion(
                prompt=prompt, messages=messages, policy_role=role, text=f"kind {s}"
            )
            for s in scores
        ]

    # p: 1 beats 0 but not 2, 3 beats both → 3/4; q: one tie → ½.  (3 + ½)/5 = .7.
    # Completions of the previous policy do not count.
    report = compare(
        rows("p", "policy", 1, 3)
        + rows("p", "reference", 0, 2)
        + rows("q", "policy", 1)
        + rows("q", "reference", 1)
        + rows("q", "previous", 9),
        kindness,
    )
    assert report.win_rate == 0.7
    assert report.sft == pytest.approx(100 * (0 + 2 + 1) / 3)


def test_a_gold_that_is_no_number_is_an_error():
    pair = LeasedPair(id="c-1", prompt="Question", left="x", right="y")
    judge = PairJudge(CAREFUL, lambda _prompt, _text: float("nan"), seed=0, shuffle=False)
    with pytest.raises(ValueError, match="nan"):
        judge(pair)


def test_conversations_read_as_text():
    user = {"role": "user", "content": "Hello"}
    assert conversation([user]) == "Hello"
    system = {"role": "system", "content": "Be brief."}
    assert conversation([system, user]) == "system: Be brief.\n\nuser: Hello"


class Obliging:
    """Prefers whatever `wins` says stands there, wherever it stands."""

    def __init__(self, wins) -> None:
        self.wins, self.seen = wins, []

    def __call__(self, pair):
        self.seen.append(pair)
        outcome = "a" if self.wins in pair.left else "b" if self.wins in pair.right else "tie"
        return Choice(outcome=outcome, milliseconds=1)


def held_out(count, *, same=()):
    """The policy's "new n" with reward 1 and SFT's "old n" with reward 0; some answers alike.

    Paid was something else, as by `shaping.ensemble=lower_bound`.
    """
    messages = (Message(role="user", content="Question"),)
    return [
        EvaluatedCompletion(
            prompt=f"p{n}",
            messages=messages,
            policy_role=role,
            text=f"same {n}" if n in same else f"{word} {n}",
            reward=3 * reward - 1,
            own_reward=reward,
        )
        for n in range(count)
        for role, word, reward in (("policy", "new", 1.0), ("reference", "old", 0.0))
    ]


MODEL = {"theta": 0.5, "tie_model": "rao_kupper"}


def test_the_gate_asks_about_differing_answers_on_both_sides_in_turns():
    judges = [Obliging("new"), Obliging("old")]
    said = gate_figures(held_out(50, same=(3, 4)), judges, **MODEL, seed=1, labels=40)
    assert said is not None
    assert [len(judge.seen) for judge in judges] == [20, 20]
    shown = [pair for judge in judges for pair in judge.seen]
    assert len({pair.id for pair in shown}) == 40
    assert not any("same" in pair.left for pair in shown)
    assert 8 < sum("new" in pair.left for pair in shown) < 32  # sides are tossed
    # One of two always prefers the policy, the other never.
    assert (said.human, said.comparisons) == (0.5, 40)
    # P(win) + P(tie)/2 at d = 1, θ = ½: (σ(½) + σ(3/2))/2 = (.62246 + .81757)/2.
    assert said.predicted == pytest.approx(0.720017, abs=1e-5)
    # Outcomes 0 and 1 in equal number differ from .72 with a standard deviation of .5:
    # z = .22 / (.5 · √(40/39)/√40) = .22 · √39 / .5.
    assert said.z == pytest.approx(0.220017 * 39**0.5 / 0.5, abs=1e-3)
    assert said.alarm
    assert said.decision == "go on"


def test_the_gate_asks_no_more_than_there_is():
    said = gate_figures(held_out(30), [Obliging("new")], **MODEL, seed=1)
    assert said is not None
    assert (said.human, said.comparisons, said.decision) == (1.0, 30, "better")
    single = gate_figures(held_out(1), [Obliging("new")], **MODEL, seed=1)
    assert single is not None
    assert single.error is None  # infinite, for which JSON has no word
    nothing = held_out(2, same=(0, 1))
    assert gate_figures(nothing, [Obliging("new")], **MODEL, seed=1) is None


def test_gold_pairs_and_re_asks_are_judged_beyond_the_labels(db, tmp_path):
    file = tmp_path / "gold.jsonl"
    rows = [
        {
            "prompt": f"Question g{n}",
            "response_a": "kind 9.0",
            "response_b": "kind 1.0",
            "answer": "a",
        }
        for n in range(6)
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    import_gold(db, file)
    set_check_plan(db, CheckPlan(gold_share=0.2, reask_share=0.4, reask_after=3))
    drive(db, bad=0.0)
    assert db.read("SELECT count(*) AS n FROM current_judgments")[0]["n"] == 40
    found = in_all(check_results(db))
    assert found.gold.answered >= 4
    assert found.reask.answered >= 4
    assert found.gold.share == found.reask.share == 1.0
