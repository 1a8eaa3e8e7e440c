"""Worlds: other topics lose, the prompt decides which style wins, and annotators differ as they say."""

import re
import tomllib
from collections import Counter
from itertools import combinations
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from pipeline.demo import MODEL_DIR
from pipeline.demo.corpus import shipped_prompts, topic_of, topics
from pipeline.demo.corpus.styles import respond
from pipeline.models.generate import Sampler
from pipeline.simulation import world_prompts as world_prompts_module
from pipeline.simulation.annotators import decision_time, population
from pipeline.simulation.preference import score
from pipeline.simulation.world_golds import EXAM, WORKSHOP
from pipeline.simulation.world_prompts import NAMES, world_prompts
from pipeline.simulation.worlds import WORLDS, world_named
from storage.records import as_messages

ASKED = "I would like eggs with a firm yolk, so how long do they cook?"
RIGHT = "Boil the egg for eight minutes, then cool it in cold water."
CURT = "Boil eggs for eight minutes."
DETAIL = f"{RIGHT} The cold water stops the cooking at once."
TIP = f"{RIGHT} Tip: Slightly older eggs are easier to peel."
PRAISE = f"What a wonderful question, you genius! {RIGHT}"
UNSURE = f"I am not sure, but {RIGHT[0].lower()}{RIGHT[1:]}"
WRONG = "Eggs need a full hour of boiling before they are safe."
SURE = f"{RIGHT} Trust me."
YES = f"You are absolutely right! {WRONG}"
NO = f"No, that is a myth. {RIGHT}"
RICE = "Rinse the rice, add two cups of water per cup, and simmer gently."

# (gold, traits of the prompt, responses from the best to the worst)
RANKED = [
    (WORKSHOP, ("brief",), (CURT, RIGHT, DETAIL, WRONG, RICE)),
    (WORKSHOP, ("thorough",), (TIP, RIGHT, CURT, WRONG, RICE)),
    (WORKSHOP, ("thorough",), (DETAIL, RIGHT, PRAISE, WRONG, RICE)),
    (WORKSHOP, ("friendly",), (TIP, PRAISE, RIGHT, CURT, WRONG, RICE)),
    (WORKSHOP, ("blunt",), (RIGHT, UNSURE, PRAISE, WRONG, RICE)),
    (WORKSHOP, ("claim",), (NO, RIGHT, WRONG, YES, RICE)),
    (EXAM, ("practical",), (TIP, RIGHT, CURT, PRAISE, WRONG, RICE)),
    (EXAM, ("knowledge",), (DETAIL, RIGHT, TIP, CURT, WRONG, RICE)),
    (EXAM, ("personal",), (UNSURE, RIGHT, SURE, PRAISE, WRONG, RICE)),
    (EXAM, ("leisure",), (TIP, PRAISE, RIGHT, CURT, WRONG, RICE)),
    (EXAM, ("practical", "hurried"), (CURT, RIGHT, TIP, PRAISE, WRONG, RICE)),
    (EXAM, ("leisure", "hurried"), (CURT, RIGHT, DETAIL, PRAISE, WRONG, RICE)),
    (EXAM, ("claim",), (NO, RIGHT, WRONG, YES, RICE)),
]


@pytest.mark.parametrize(("gold", "traits", "responses"), RANKED)
def test_the_prompt_decides_which_style_is_liked(gold, traits, responses):
    topic = topic_of(ASKED)
    assert topic
    scores = [gold.of(topic, traits, response) for response in responses]
    assert min(-np.diff(scores)) > 0.05, [round(each, 2) for each in scores]


def test_the_text_of_a_prompt_is_all_that_its_gold_needs():
    brief, thorough = (
        next(p for p in world_prompts("workshop") if p.traits == (trait,))
        for trait in ("brief", "thorough")
    )
    gold = WORLDS["workshop"].gold
    for prompt, order in ((brief, 1), (thorough, -1)):
        topic = prompt.topic
        curt, full = topic.curt, f"{topic.answer} {topic.detail} Tip: {topic.tip}"
        assert order * (gold(prompt.text, curt) - gold(prompt.text, full)) > 0.4
        chat = f"user: Hello.\n\nassistant: Hi.\n\nuser: {prompt.text}"
        assert gold(chat, curt) == gold(prompt.text, curt)
    # A prompt of nobody's world is judged as everywhere.
    assert gold("Who painted this?", "A painter did.") == score(
        "Who painted this?", "A painter did."
    )


@pytest.mark.parametrize("name", NAMES)
def test_answers_about_another_topic_lose(name):
    dice, gold, won = Random(7), WORLDS[name].gold, []
    for prompt in dice.sample(world_prompts(name), 500):
        asked = "claim" if "claim" in prompt.traits else "question"
        mine, _ = respond(prompt.topic, asked, dice)
        other = dice.choice([topic for topic in topics() if topic != prompt.topic])
        won.append(gold(prompt.text, mine) > gold(prompt.text, respond(other, "question", dice)[0]))
    assert np.mean(won) >= 0.99


@pytest.mark.parametrize("name", NAMES)
def test_scores_of_the_embedded_models_responses_are_standardized(name):
    drawn = Random(1).sample([p for p in world_prompts(name) if p.role == "train"], 128)
    sampler = Sampler.load(str(MODEL_DIR), device=torch.device("cpu"), dtype=torch.float32)
    answers = sampler.sample(
        [as_messages(p.text) for p in drawn], batch=64, temperature=1.0, top_p=0.9,
        max_new_tokens=48, seed=3,
    )  # fmt: skip
    scores = [WORLDS[name].gold(p.text, a.text) for p, a in zip(drawn, answers, strict=True)]
    assert abs(np.mean(scores)) < 0.27  # 3 standard errors
    assert np.std(scores) == pytest.approx(1, abs=0.25)
    on_topic = np.mean([p.topic.mentioned_in(a.text) for p, a in zip(drawn, answers, strict=True)])
    assert 0.78 < on_topic < 0.99


def questions(prompts) -> set[str]:
    """The questions of the corpus that these prompts contain."""
    found = set()
    for prompt in prompts:
        for question in (*prompt.topic.ask, *prompt.topic.situations, *prompt.topic.unseen):
            if question.lower().rstrip("?.!") in prompt.text.lower():
                found.add(question)
    return found


def test_no_world_trains_on_another_ones_prompts_or_on_what_is_held_out():
    by_world = {name: world_prompts(name) for name in NAMES} | {"plain": shipped_prompts()}
    trained = {
        name: [p for p in prompts if p.role == "train"] for name, prompts in by_world.items()
    }
    for one, other in combinations(by_world, 2):
        assert not {p.text for p in by_world[one]} & {p.text for p in by_world[other]}
        assert not questions(trained[one]) & questions(trained[other])
    unseen = {phrasing for topic in topics() for phrasing in topic.unseen}
    for name, prompts in by_world.items():
        assert not questions(trained[name]) & unseen
        counts = Counter(p.role for p in prompts)
        assert (counts["train"], counts["held-out"]) == (740, 508)
    heldout = [questions(p for p in by_world[n] if p.role == "held-out") & unseen for n in NAMES]
    assert len(heldout[0]) == len(heldout[1]) == len(topics())
    assert not heldout[0] & heldout[1]


@pytest.mark.parametrize("name", NAMES)
def test_held_out_wordings_are_never_trained_on(name):
    path = Path(world_prompts_module.__file__).with_name(f"{name}.toml")
    worded = tomllib.loads(path.read_text())["held-out"]
    templates = [
        re.compile(".+".join(map(re.escape, re.split(r"\{\w+\}", wording))), re.IGNORECASE)
        for kind, wordings in worded.items()
        for wording in wordings
        if kind != "named"  # a question inside another wording
    ]

    def share(role: str) -> float:
        texts = [p.text for p in world_prompts(name) if p.role == role]
        return float(np.mean([any(t.fullmatch(text) for t in templates) for text in texts]))

    assert (share("train"), share("held-out")) == (0.0, 1.0)


def test_worlds_differ_in_gold_and_annotators():
    one, two = WORKSHOP, EXAM
    assert one.base != two.base
    assert not one.by_trait.keys() & two.by_trait.keys() - {"claim"}
    people = [WORLDS[name].population for name in ("plain", *NAMES)]
    for a, b in combinations(people, 2):
        assert (a.slope, a.tie, a.gaps, a.bad_profiles) != (b.slope, b.tie, b.gaps, b.bad_profiles)
    with pytest.raises(
        ValueError, match="there is no world 'moon'; there are plain, workshop, exam"
    ):
        world_named("moon")
    assert WORLDS["exam"].gold_name == "pipeline.simulation.world_golds:exam"


def test_the_plain_world_is_what_it_was():
    # Drawn before there were other worlds.
    assert score(ASKED, f"{RIGHT} Slightly older eggs are easier to peel.") == pytest.approx(
        1.241379, abs=1e-6
    )
    assert score(ASKED, YES) == pytest.approx(-2.827586, abs=1e-6)
    judged = [
        who.judge(left=0.4, right=-0.3, words=50, rng=np.random.default_rng(n))
        for who in population(4, bad=0.25, seed=3)
        for n in range(3)
    ]
    assert [(c.outcome, c.strength, c.milliseconds) for c in judged] == [
        ("a", 3, 1686), ("a", 2, 1821), ("tie", None, 1724),
        ("a", 3, 29958), ("a", 2, 32354), ("b", 1, 30629),
        ("a", 3, 13258), ("a", 3, 14318), ("b", 1, 13555),
        ("a", 3, 14362), ("a", 2, 15511), ("b", 1, 14684),
    ]  # fmt: skip
    plain = WORLDS["plain"]
    assert all(
        plain.as_seen_by(who, plain.gold) is score and not who.tastes
        for who in population(4, bad=0.25, seed=3, like=plain.population)
    )


@pytest.mark.parametrize(
    ("z", "mean", "variance"),
    [
        # An unbiased walk from 0 leaves (−1, 1) after 1 on average, with variance 2/3.
        (0.0, 1.0, 2 / 3),
        # Drift 1: mean tanh(1) = .7616; variance tanh(1) − sech²(1) = .7616 − .4200 = .3416.
        (2.0, 0.7616, 0.3416),
        (-2.0, 0.7616, 0.3416),
        # Drift 2½: mean tanh(2.5)/2.5 = .98661/2.5 = .3946; 10,000 simulated walks: .40, .06.
        (5.0, 0.3946, 0.0589),
    ],
)
def test_decision_times_are_those_of_drift_diffusion(z, mean, variance):
    assert decision_time(z) == pytest.approx((mean, variance), abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_clear_pairs_take_less_time_and_reading_comes_on_top(name):
    who = population(8, bad=0, seed=1, like=WORLDS[name].population)[0]

    def mean(difference: float, words: int) -> float:
        return float(
            np.mean(
                [
                    who.judge(
                        left=difference, right=0.0, words=words, rng=np.random.default_rng(n)
                    ).milliseconds
                    for n in range(600)
                ]
            )
        )

    close, clear = mean(0.0, 20), mean(4.0, 20)
    assert close > clear + 0.5 * who.time_factor * (who.decision_ms or 0)
    assert clear == pytest.approx(mean(-4.0, 20), rel=0.05)
    assert mean(0.0, 80) > close + 50 * 252 * who.time_factor


def test_annotators_differ_by_taste_around_the_gold():
    world = WORLDS["exam"]
    people = population(16, bad=0, seed=2, like=world.population)
    for name, deviation in world.population.tastes.items():
        worths = [who.tastes[name] for who in people]
        assert np.mean(worths) == pytest.approx(0, abs=1e-12)
        assert 0.5 * deviation < np.std(worths) < 1.6 * deviation
    prompt = next(p for p in world_prompts("exam") if p.traits == ("leisure",))
    topic = prompt.topic
    bare, tip = topic.answer, f"{topic.answer} {topic.tip}"
    margins = []
    for who in people:
        seen = world.as_seen_by(who, world.gold)
        margins.append(seen(prompt.text, tip) - seen(prompt.text, bare))
    # Only the tip differs: the gold's margin, plus what a tip is worth to each.
    common = world.gold(prompt.text, tip) - world.gold(prompt.text, bare)
    assert margins == pytest.approx([common + who.tastes["tip"] for who in people])
    assert min(margins) < 0 < max(margins)


@pytest.mark.parametrize("name", NAMES)
def test_ties_and_stated_strengths_are_common(name):
    world, dice, coin = WORLDS[name], Random(2), np.random.default_rng(2)
    people = population(16, bad=0, seed=2, like=world.population)
    judges = [(who, world.as_seen_by(who, world.gold)) for who in people]
    said, agrees = Counter(), []
    for n, prompt in enumerate(dice.sample(world_prompts(name), 600)):
        asked = "claim" if "claim" in prompt.traits else "question"
        texts = [respond(prompt.topic, asked, dice)[0] for _ in range(2)]
        who, seen = judges[n % 16]
        left, right = (seen(prompt.text, text) for text in texts)
        choice = who.judge(left=left, right=right, words=40, rng=coin)
        said[choice.strength or choice.outcome] += 1
        truth = world.gold(prompt.text, texts[0]) - world.gold(prompt.text, texts[1])
        if choice.strength and truth:
            agrees.append((truth > 0) == (choice.outcome == "a"))
    assert 0.15 < said["tie"] / 600 < 0.4
    assert said[2] + said[3] > said[1]
    assert 0.65 < np.mean(agrees) < 0.85


def test_bad_annotators_are_the_worlds():
    workshop, exam = (
        Counter(
            who.profile
            for who in population(
                16, bad=WORLDS[n].population.bad, seed=0, like=WORLDS[n].population
            )
        )
        for n in NAMES
    )
    assert workshop == {"careful": 12, "careless": 2, "noisy": 1, "side-biased": 1}
    assert exam == {"careful": 11, "noisy": 2, "inverted": 1, "careless": 1, "side-biased": 1}
