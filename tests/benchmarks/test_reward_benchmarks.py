"""What the benchmarks of reward models count and compare, by hand."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import calibration
from benchmarks.demo_world import (
    ANSWERS,
    SAMPLED,
    Label,
    People,
    Pool,
    World,
    judged_pair,
    reward_settings,
)
from benchmarks.pandalm_compare import ARMS, PARTS, Votes, majorities, split_votes
from benchmarks.pandalm_compare import run_arm as run_votes
from benchmarks.reward_models import judges
from benchmarks.reward_models.measures import Fresh, auc, log_loss
from benchmarks.reward_models.one_run import judgments, run_arm
from benchmarks.reward_models.parts import PARTS as REWARD_PARTS
from benchmarks.reward_models.parts import SHARP
from benchmarks.reward_models.report import wanted_annotators, wanted_ties
from benchmarks.reward_models.shift import densities, effective_number, shares
from benchmarks.seeds import run_seeds
from pipeline.demo import MODEL_DIR
from pipeline.demo.corpus import prompts
from pipeline.models.text import ChatTokenizer
from pipeline.reward.likelihood import FIRST, SECOND, TIE, UNSTATED
from pipeline.simulation.annotators import population
from pipeline.simulation.trials import TrialArm


@pytest.fixture(scope="module")
def chat() -> ChatTokenizer:
    return ChatTokenizer.load(str(MODEL_DIR))


@pytest.fixture(scope="module")
def world() -> World:
    """Three prompts to ask about of six, and two measured of four; no two answers are alike."""
    messages = [m for role, m, _ in prompts() if role == "train"][:10]
    words = ["amber", "birch", "cedar", "dune", "ember", "fjord", "grove", "heath"]
    texts = [f"{words[k]} " * 3 + f"{p}." for p in range(10) for k in range(SAMPLED)]
    pool = Pool(digest="", messages=messages, texts=texts, train=6)
    return World.draw(3, pool, asked=3, measured=2)


def test_a_world_has_the_prompts_that_were_asked_for_and_all_others_are_never_measured(world):
    assert (world.held_out, len(world.texts)) == (3, 5 * ANSWERS)
    prompts = [row // SAMPLED for row in world.rows]
    assert all(len(set(prompts[start : start + ANSWERS])) == 1 for start in range(0, 20, ANSWERS))
    assert set(prompts[:12]) < set(range(6))
    assert set(prompts[12:]) < set(range(6, 10))
    assert len(set(world.rows)) == 20


def test_random_pairs_go_round_the_prompts_and_none_comes_twice(world, chat):
    # All answers differ, so three prompts of four answers have 3 · 6 = 18 pairs.
    pairs = world.random_pairs(18, chat)
    assert len(set(pairs)) == 18
    for start in range(0, 18, 3):
        assert {a // ANSWERS for a, _ in pairs[start : start + 3]} == {0, 1, 2}
    assert world.random_pairs(5, chat) == pairs[:5]
    with pytest.raises(ValueError, match="there are only 18 pairs to label, not 19"):
        world.random_pairs(19, chat)


def test_nearly_equal_answers_are_not_asked_about(world, chat):
    alike = replace(world, texts=["The same answer."] * len(world.texts))
    with pytest.raises(ValueError, match="there are only 0 pairs"):
        alike.random_pairs(1, chat)


def test_accuracy_counts_held_out_pairs_that_differ_in_gold(world):
    # Held-out answers, four per prompt.  Gold 0 1 2 2: five pairs differ, of which rewards 0 2 1 5
    # order (0,1) (0,2) (0,3) (1,3) rightly and (1,2) wrongly; rewards of 1 all round get half.
    gold = np.array([9.0] * 12 + [0, 1, 2, 2] + [0, 1, 2, 2])
    one = replace(world, gold=gold)
    assert one.accuracy(np.array([0, 2, 1, 5, 1, 1, 1, 1.0])) == pytest.approx((4 + 2.5) / 10)


def test_a_label_says_who_preferred_what_how_much_and_on_which_side(world, chat):
    strong = replace(world, gold=np.arange(20) * 100.0)
    annotators = population(3, bad=0.0, seed=1)
    labels = [People(strong, annotators).label(a, b) for a, b in world.random_pairs(18, chat)]
    # The gold rises by 100 an answer and first < second, so the second is always much better.
    assert {(label.outcome, label.strength) for label in labels} == {(SECOND, 3)}
    assert {label.side for label in labels} == {1, -1}
    assert {label.annotator for label in labels} == {"sim-01", "sim-02", "sim-03"}
    again = [People(strong, annotators).label(label.first, label.second) for label in labels]
    assert again == labels
    other = [People(strong, annotators, stream=2).label(b.first, b.second) for b in labels]
    assert [b.annotator for b in other] != [b.annotator for b in labels]


def test_a_judged_pair_holds_what_the_label_says(world, chat):
    label = Label(first=4, second=6, outcome=FIRST, strength=2, annotator="sim-07", side=-1)
    pair = judged_pair(world, label, 5, chat)
    assert (pair.judgment, pair.prompt, pair.first, pair.second) == ("5", "1", "4", "6")
    assert (pair.outcome, pair.strength, pair.annotator, pair.side) == (FIRST, 2, "sim-07", -1)
    assert pair.first_ids == chat.chat(world.conversations[4], world.texts[4]).ids
    assert pair.second_ids == chat.chat(world.conversations[6], world.texts[6]).ids


def test_strangers_judge_each_held_out_pair_twice_and_only_preferences_count(world, chat):
    strong = replace(world, gold=np.arange(20) * 100.0)
    fresh = Fresh.judged(strong, chat)
    # Two prompts of six pairs, by place among the eight held-out answers.
    counts = Counter(zip(fresh.first.tolist(), fresh.second.tolist(), strict=True))
    pairs = [(a, b) for s in (0, 4) for a in range(s, s + 4) for b in range(a + 1, s + 4)]
    assert counts == dict.fromkeys(pairs, 2)
    assert fresh.won.sum() == 0  # the second is always better
    bad = replace(world, gold=np.full(20, -9.0))  # everything is both bad
    assert len(Fresh.judged(bad, chat).won) == 0


def test_arms_of_a_seed_get_the_same_judgments_unless_annotators_differ(world, chat):
    part = REWARD_PARTS["annotators"]
    people = {
        name: population(part.annotators, bad=arm.bad, seed=world.seed)
        for name, arm in part.arms.items()
    }
    said = {name: judgments(arm, world, people[name], 12, chat) for name, arm in part.arms.items()}
    oracle = said.pop("oracle-30")
    bad = {each.name for each in people["oracle-30"] if each.profile != "careful"}
    assert oracle == [each for each in said["joint-30"] if each.annotator not in bad]
    assert said["pooled-30"] == said["joint-30"]
    assert said["pooled-0"] == said["joint-0"]
    assert said["pooled-0"] != said["pooled-30"]
    assert sum(a.profile != "careful" for a in people["joint-30"]) == 6  # 30% of 20
    assert all(a.profile == "careful" for a in people["joint-0"])


def test_people_label_what_a_judge_is_not_sure_of(world, chat):
    sharp = REWARD_PARTS["judges"].arms["sharp"]
    arms = {"sharp": sharp, "routed": replace(sharp, routed=True)}
    people = population(8, bad=0.25, seed=world.seed)
    asked = world.random_pairs(12, chat)
    told = {pair: judges.judged(SHARP, world, *pair).outcome for pair in asked}
    unsure = [pair for pair in asked if told[pair] == TIE]
    assert 3 < len(unsure) < 12

    def pairs_of(arm: str, *, judge: bool) -> list[tuple[int, int]]:
        found = judgments(arms[arm], world, people, 12, chat)
        assert all(each.judge == (each.annotator == judges.NAME) for each in found)
        return [(int(each.first), int(each.second)) for each in found if each.judge == judge]

    assert pairs_of("sharp", judge=False) == asked[:3]
    assert pairs_of("sharp", judge=True) == asked[3:]
    assert pairs_of("routed", judge=False) == unsure[:3]
    assert sorted(pairs_of("routed", judge=True)) == sorted({*asked} - {*unsure[:3]})


def test_the_density_of_the_best_of_four_by_hand(world):
    """P(rank k) = (k⁴ − (k − 1)⁴) / 256, four times of which is the density: 1, 15, 65, 175 of 64."""
    rewards = [3.0, 1.0, 2.0, 4.0] * (len(world.texts) // 4)
    found = densities(SimpleNamespace(model=lambda *_: rewards), world)
    assert found[:4].tolist() == [65 / 64, 1 / 64, 15 / 64, 175 / 64]
    assert found.mean() == pytest.approx(1)
    # Pairs (0, 1) and (0, 3) weigh 65 · 1 and 65 · 175, so shares 1/176 and 175/176.
    assert shares([(0, 1), (0, 3)], found).tolist() == pytest.approx([1 / 176, 175 / 176])
    assert effective_number([(0, 1), (0, 3)], found) == pytest.approx(176**2 / (1 + 175**2))


def test_auc_by_hand():
    profiles = dict.fromkeys("abc", "careful") | {"x": "noisy", "y": "inverted"}
    # Of six pairs a wins both, b ties with x and beats y, c loses to x and ties with y: 4 of 6.
    merits = {"a": 1.0, "b": 0.5, "c": -1.0, "x": 0.5, "y": -1.0}
    assert auc(merits, profiles) == pytest.approx(4 / 6)


def test_log_loss_by_hand():
    # −(ln .8 + ln .4) / 2
    found = log_loss(np.array([0.8, 0.6]), np.array([1.0, 0.0]))
    assert found == pytest.approx(-(math.log(0.8) + math.log(0.4)) / 2)


def test_a_report_runs_nothing_and_files_of_other_conditions_end_it_at_once(tmp_path, capsys):
    def run(arm, seed):
        return {"accuracy": seed / 10, "arm": arm.name}

    arms = [TrialArm(name="drop")]
    given = {"conditions": {"labels": (1, 2)}}
    run_seeds(run, arms, [1, 2], tmp_path, only_report=False, **given)
    assert "drop, seed 2" in capsys.readouterr().err
    more = [*arms, TrialArm(name="half")]
    found = run_seeds(run, more, [1, 2, 3], tmp_path, only_report=True, **given)
    assert {held["seed"]: held["arms"] for held in found} == {
        1: {"drop": {"accuracy": 0.1, "arm": "drop"}},
        2: {"drop": {"accuracy": 0.2, "arm": "drop"}},
    }
    with pytest.raises(SystemExit, match=r"seed-2\.json was made with labels=\[1, 2\]"):
        run_seeds(run, arms, [3, 2], tmp_path, conditions={"labels": (1, 3)}, only_report=False)
    assert not (tmp_path / "seed-3.json").exists()


def seeds(**arms):
    """Ten seeds of arms, each figure a pair: its mean, and what alternates about it."""
    return {
        seed: {
            arm.replace("_", "-") if arm[-1].isdigit() else arm: {
                name: mean + (spread if seed % 2 else -spread)
                for name, (mean, spread) in figures.items()
            }
            for arm, figures in arms.items()
        }
        for seed in range(10)
    }


def test_ties_are_worth_it_where_one_model_gains_in_both_figures():
    drop = {"log_loss": (0.6, 0.0), "ece": (0.1, 0.0)}
    better = {"log_loss": (0.59, 0.001), "ece": (0.09, 0.001)}
    half = {"log_loss": (0.59, 0.001), "ece": (0.099, 0.01)}  # the interval of ECE holds 0
    assert not list(wanted_ties(seeds(drop=drop, rao_kupper=half, ordinal=better)))
    assert not list(wanted_ties(seeds(drop=drop, rao_kupper=better, ordinal=drop)))
    assert len(list(wanted_ties(seeds(drop=drop, rao_kupper=half, ordinal=drop)))) == 1
    few = {seed: arms for seed, arms in seeds(drop=drop, ordinal=drop).items() if seed < 9}
    assert not list(wanted_ties(few))


@pytest.mark.parametrize(
    ("joint", "told", "none_bad", "missed"),
    [
        ((0.81, 0.001), 0.97, (0.85, 0.0), 0),
        ((0.806, 0.001), 0.97, (0.85, 0.0), 1),  # a gain of .006 is too little
        ((0.81, 0.02), 0.97, (0.85, 0.0), 1),  # and one of .01 ± .02 not sure
        ((0.81, 0.001), 0.94, (0.85, 0.0), 1),
        ((0.81, 0.001), 0.97, (0.84, 0.001), 1),  # surely lost
        ((0.81, 0.001), 0.97, (0.84, 0.02), 0),
    ],
)
def test_learning_annotators_is_worth_it(joint, told, none_bad, missed):
    found = seeds(
        pooled_30={"accuracy": (0.8, 0.0)},
        joint_30={"accuracy": joint, "auc": (told, 0.0)},
        pooled_0={"accuracy": (0.85, 0.0)},
        joint_0={"accuracy": none_bad},
    )
    assert len(list(wanted_annotators(found))) == missed


def rows(*outcomes: str, item: int = 1, prompt: str = "Why?"):
    """Three votes on one pair, as `benchmarks/pandalm.py` makes them."""
    for number, outcome in enumerate(outcomes, start=1):
        yield {
            "prompt": prompt, "response_a": "Yes.", "response_b": "No, not now.", "item": item,
            "annotator": f"annotator{number}", "outcome": outcome,
        }  # fmt: skip


def test_votes_keep_who_said_what_and_longer_pairs_are_counted(chat):
    said = [*rows("a", "b", "tie"), *rows("a", "a", "a", item=2, prompt="Why? " * 40)]
    tokens = [len(chat.chat(p, "No, not now.").ids) for p in ("Why?", "Why? " * 40)]
    found = Votes.of_rows(iter(said), chat, context=512, limit=tokens[0])
    assert [(v.annotator, v.outcome) for v in found.votes] == [
        ("annotator1", FIRST), ("annotator2", SECOND), ("annotator3", TIE)
    ]  # fmt: skip
    assert (found.beyond_context, found.beyond_limit) == (0, 1)
    assert all(v.strength == UNSTATED for v in found.votes)
    small = Votes.of_rows(iter(said), chat, context=tokens[1] - 1, limit=tokens[1])
    assert (len(small.votes), small.beyond_context, small.beyond_limit) == (3, 1, 0)


@pytest.mark.parametrize(
    ("said", "verdict"),
    [("a a b", FIRST), ("b tie b", SECOND), ("tie a tie", TIE), ("a b tie", TIE)],
)
def test_the_majority_stands_for_all_three_votes(chat, said, verdict):
    votes = Votes.of_rows(rows(*said.split()), chat, context=512, limit=512).votes
    found = majorities([*votes, *votes_of_another_pair(chat)])
    assert [v.outcome for v in found] == [verdict] * 3 + [SECOND] * 3
    assert [v.judgment for v in found[:3]] == [v.judgment for v in votes]


def votes_of_another_pair(chat):
    return Votes.of_rows(rows("b", "b", "b", item=2), chat, context=512, limit=512).votes


def test_every_prompt_is_held_out_once_in_ten_seeds_and_the_next_ten_part_anew(chat):
    votes = [
        vote
        for n in range(25)
        for vote in Votes.of_rows(
            rows("a", "a", "b", item=n, prompt=f"Why {n // 2}?"), chat, context=512, limit=512
        ).votes
    ]
    folds = [split_votes(votes, seed) for seed in range(2 * PARTS)]
    for learned, held_out in folds:
        assert not {v.prompt for v in learned} & {v.prompt for v in held_out}
        assert len(learned) + len(held_out) == len(votes)
    for start in (0, PARTS):
        times = Counter(v.judgment for _, part in folds[start : start + PARTS] for v in part)
        assert set(times.values()) == {1}
        assert len(times) == len(votes)
    assert [p for _, p in folds[:PARTS]] != [p for _, p in folds[PARTS:]]


@pytest.mark.parametrize("chosen", ["epochs", "epoch=2", "epochs=0"])
def test_a_setting_that_is_none_is_refused(chosen):
    with pytest.raises(ValueError, match=r"NAME=VALUE|no setting|reward.epochs"):
        reward_settings([chosen])
    assert reward_settings(["epochs=3", "tie_model=half"]).epochs == 3.0


EVERY_ARM = [
    (name, arm)
    for name in ("ties", "annotators", "times", "anchors")
    for arm in REWARD_PARTS[name].arms
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "arm"), EVERY_ARM)
def test_every_arm_trains_and_is_measured(name, arm, chat):
    messages = [m for role, m, _ in prompts() if role == "train"][:50]
    words = ["amber", "birch", "cedar", "dune", "ember", "fjord", "grove", "heath"]
    texts = [f"{words[k]} " * (k + 1) + "." for _ in range(50) for k in range(SAMPLED)]
    pool = Pool(digest="", messages=messages, texts=texts, train=40)
    drawn = World.draw(0, pool, asked=40)
    # The more words, the better: by so much that careful annotators never err.
    gold = np.array([10.0 * len(text.split()) for text in drawn.texts])
    world = replace(drawn, gold=gold)
    part = replace(REWARD_PARTS[name], annotators=4)  # of whom 30% are one, who is careless
    config = reward_settings(["stopping_judgments=20"])
    found = run_arm(part, part.arms[arm], world, Fresh.judged(world, chat), config, 150, chat)
    assert found["accuracy"] > 0.8
    assert found["log_loss"] < 0.6
    assert found["learned"] < 130  # some are held out, some say when to stop
    if arm == "joint-30":
        assert found["auc"] == found["auc_of_slopes"] == 1.0
        assert len(found["people"]) == 4


@pytest.mark.exhaustive
def test_votes_are_learned_in_every_arm(chat):
    said = [
        row
        for n in range(40)
        for row in rows("a", "a", "a" if n % 4 else "b", item=n, prompt=f"Why {n}?")
    ]
    votes = Votes.of_rows(iter(said), chat, context=512, limit=512).votes
    for arm in ARMS:
        found = run_votes(arm, votes, 0, reward_settings(["epochs=3"]), chat)
        # Four of 40 prompts are held out; the majority is always for the same text.
        assert found["held_out"] == 12, arm.name
        assert found["majority_accuracy"] == 1.0, arm.name
        if arm.name == "naive":  # without ties they have no probability
            assert "majority_log_loss" not in found
        else:
            assert found["majority_log_loss"] < 0.7, arm.name
        assert (found["slopes"] is None) == (arm.name != "joint")


def test_the_table_of_priors_by_hand():
    """Errors .3 and −.4: root of the mean square .35; log-losses in excess .01 and .03: .02."""
    held = [
        {
            "arms": {
                "200-0%": {
                    "unseen": unseen, "truth": truth,
                    "by_width": {"none": {"scale": 1.0, "error": error, "excess": excess}},
                }
            }
        }
        for unseen, truth, error, excess in ((30, 0.5, 0.3, 0.01), (32, 2.0, -0.4, 0.03))
    ]  # fmt: skip
    *_, row = calibration.table(held, calibration.cases([200])).splitlines()
    assert row == "| 200-0% | 2 | 31 | 1.00 | 0.35, 0.0200 |"


def test_fresh_judgments_are_many_and_of_held_out_prompts(world: World):
    world = replace(
        world, gold=np.zeros_like(world.gold)
    )  # nothing is bad, so that opinions differ
    fresh = calibration._fresh(world, population(4, bad=0.0, seed=0))
    assert len(fresh) == calibration.FRESH
    assert min(min(each.first, each.second) for each in fresh) >= world.held_out_answers().start
    assert {each.first // ANSWERS == each.second // ANSWERS for each in fresh} == {True}
    # A pair that comes again is judged anew.
    said = [
        each.outcome
        for each in fresh
        if (each.first, each.second) == (fresh[0].first, fresh[0].second)
    ]
    assert len(set(said)) > 1
