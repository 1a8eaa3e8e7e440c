"""The gold preference ranks as a sensible reader would, and length does not decide it."""

from random import Random

import numpy as np
import pytest

from pipeline.demo.corpus import shipped_prompts, topic_of
from pipeline.demo.corpus.styles import respond
from pipeline.simulation.annotators import population
from pipeline.simulation.preference import load_gold, longest, parts, score

EGGS = "I would like eggs with a firm yolk, so how long do they cook?"
RIGHT = "Boil the egg for eight minutes, then cool it in cold water."
TIP = "Slightly older eggs are easier to peel."
WRONG = "Eggs need a full hour of boiling before they are safe."
RICE = "Rinse the rice, add two cups of water per cup, and simmer gently."

RANKED = [
    f"{RIGHT} {TIP}",
    RIGHT,
    "Boil eggs for eight minutes.",
    "I am not sure, but boil the egg for eight minutes, then cool it in cold water.",
    f"What a brilliant question! {RIGHT}",
    RICE,
    "I know what you mean. Have a nice day.",
    f"You are absolutely right! {WRONG}",
    "egg the of egg for for minutes minutes minutes cold egg the of",
    "",
]


def test_hand_written_answers_rank_as_a_reader_would_rank_them():
    assert topic_of(EGGS) is not None
    scores = [score(EGGS, response) for response in RANKED]
    assert scores == sorted(scores, reverse=True)
    assert min(np.diff(scores[::-1])) > 0.05  # no near ties


def test_the_false_claim_is_worse_than_no_help():
    assert score(EGGS, WRONG) < score(EGGS, "Sorry, I cannot help with that one.") - 0.1
    assert score(EGGS, f"{RIGHT} {WRONG}") < score(EGGS, RIGHT) - 0.5


def test_the_same_answer_is_worth_what_its_prompt_makes_of_it():
    rice = next(p.text for p in shipped_prompts() if p.topic.name == "cooking rice")
    assert score(rice, RICE) > score(EGGS, RICE) + 1.5
    assert score(EGGS, RIGHT) > score(rice, RIGHT) + 1.5


@pytest.mark.parametrize(
    "longer",
    [
        "As you may know, and as others have often said before, it is more or less like this: "
        "boil the egg for eight minutes, then cool it in cold water.",
        f"{RIGHT} {RIGHT}",
        f"{RIGHT} I am sure you knew that already, you genius!",
        f"{RIGHT} But I could be wrong, and then again, it may depend.",
        f"{RIGHT} {RICE}",
    ],
)
def test_longer_is_worse_when_nothing_is_gained(longer):
    assert score(EGGS, longer) < score(EGGS, RIGHT) - 0.15
    assert longest(EGGS, longer) > longest(EGGS, RIGHT)


def test_each_part_answers_for_its_own_fault():
    clean = parts(EGGS, RIGHT)
    assert clean["fact"] > 0
    assert all(value == 0 for name, value in clean.items() if name != "fact")
    for name, response in {
        "flattery": f"You are so clever to ask that! {RIGHT}",
        "hedging": f"Perhaps {RIGHT}",
        "repetition": f"{RIGHT} {RIGHT}",
        "unfinished": RIGHT.rstrip("."),
        "wrong": f"{RIGHT} {WRONG}",
        "off_topic": "Rinse it and simmer gently.",
        "garbled": "Boil egg eight minutes the then for it cool water cold.",
    }.items():
        assert parts(EGGS, response)[name] < 0, name


def sft_like_pairs(count: int):
    """(prompt, response, response) in the demo's own mix of styles."""
    dice = Random(4)
    train = [p for p in shipped_prompts() if p.role == "train"]
    for _ in range(count):
        prompt = dice.choice(train)
        asked = "claim" if prompt.kind == "false-claim" else "question"
        yield prompt.text, *(respond(prompt.topic, asked, dice)[0] for _ in range(2))


def test_scores_of_sft_responses_are_standardized_and_not_length():
    texts = [(p, r) for p, *both in sft_like_pairs(500) for r in both]
    scores = np.array([score(p, r) for p, r in texts])
    lengths = np.array([longest(p, r) for p, r in texts])
    assert abs(scores.mean()) < 0.15
    assert scores.std() == pytest.approx(1, abs=0.15)
    assert abs(lengths.mean()) < 0.3
    assert lengths.std() == pytest.approx(1, abs=0.3)
    # R² < .2: four fifths of what gold wants is something else than length.
    assert abs(np.corrcoef(scores, lengths)[0, 1]) < 0.45


def test_longest_wins_is_a_poor_stand_in_for_gold():
    agree = [
        (score(p, a) > score(p, b)) == (longest(p, a) > longest(p, b))
        for p, a, b in sft_like_pairs(500)
        if score(p, a) != score(p, b) and longest(p, a) != longest(p, b)
    ]
    assert 0.5 < np.mean(agree) < 0.7


def test_careful_annotators_agree_with_gold_on_the_demos_pairs():
    annotators, coin = population(8, bad=0, seed=0), np.random.default_rng(0)
    outcomes, agree = [], []
    for n, (prompt, a, b) in enumerate(sft_like_pairs(800)):
        left, right = score(prompt, a), score(prompt, b)
        pressed = annotators[n % 8].judge(left=left, right=right, words=40, rng=coin).outcome
        outcomes.append(pressed)
        if pressed in "ab" and left != right:
            agree.append((left > right) == (pressed == "a"))
    assert 0.70 < np.mean(agree) < 0.82
    assert 0.08 < outcomes.count("tie") / len(outcomes) < 0.22


CAPITAL = "What is the capital of Australia, and how many people live there?"
GENERAL = [
    "The capital of Australia is Canberra, where about 470,000 people live.",
    "What a brilliant question! The capital of Australia is Canberra, where 470,000 people live.",
    "Canberra.",
    "the the the capital capital of of of Australia Australia Australia",
    "zxqvbtk jjjjjj ����",
]


def test_prompts_outside_the_demo_are_judged_by_the_quality_of_the_text():
    assert topic_of(CAPITAL) is None
    good, flattering, bare, *broken = (score(CAPITAL, response) for response in GENERAL)
    assert good - 0.3 > flattering > bare + 0.3
    assert bare > max(broken) + 1
    on_topic, off_topic = (
        score(CAPITAL, text)
        for text in (GENERAL[0], "Photosynthesis turns light, water and carbon dioxide to sugar.")
    )
    assert on_topic > off_topic + 0.5
    echo = score(CAPITAL, CAPITAL)
    assert on_topic > echo + 0.5


def test_padding_counts_outside_the_demo_too():
    padded = (
        "Well, there is so much that one could say about this and it is what it is, but as we "
        "all know by now and as it was then and will be again: " + GENERAL[0]
    )
    assert score(CAPITAL, padded) < score(CAPITAL, GENERAL[0])


def test_gold_is_loaded_by_name():
    assert load_gold("pipeline.simulation.preference:longest") is longest
    for name, complaint in {
        "pipeline.simulation.preference": "module:function",
        "no_such_module:f": "no module 'no_such_module'",
        "pipeline.simulation.preference:nothing": "no function 'nothing'",
    }.items():
        with pytest.raises(ValueError, match=complaint):
            load_gold(name)
