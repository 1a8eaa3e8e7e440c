"""The demo's corpus: what is shipped, what is trained on, and that the two stay apart."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from random import Random

import pytest

from pipeline.demo import corpus
from pipeline.demo.corpus.phrasings import carriers, noisy_question, telling_words, words_of
from pipeline.demo.corpus.styles import all_responses, fill, styles
from pipeline.demo.corpus.topic import uncapitalized

SPLITS = ("trained", "held-out", "audit")

EGGS = {
    "name": "eggs",
    "category": "cooking",
    "ask": ("How long do eggs boil?",),
    "situations": ("My breakfast egg is raw.",),
    "unseen": ("Eggs, how long?", "When is an egg done?"),
    "answer": "Boil eggs for eight minutes.",
    "curt": "Eight minutes for eggs.",
    "detail": "Cold water stops the cooking.",
    "tip": "Old eggs peel well.",
    "wrong": "Eggs need an hour.",
    "keywords": ("egg",),
}


@pytest.fixture(scope="module")
def rows():
    return list(corpus.examples(5_000))


def test_it_is_as_large_as_promised():
    shipped = corpus.shipped_prompts()
    roles = Counter(p.role for p in shipped)
    assert len(corpus.topics()) >= 150
    assert len(shipped) >= 1000
    assert roles["train"] >= 500
    assert roles["held-out"] >= 150
    assert roles["audit"] >= 100
    assert all(len(topic.trained) >= 9 and len(topic.unseen) == 2 for topic in corpus.topics())


def test_prompts_are_the_shipped_ones_as_chats():
    role, messages, category = next(corpus.prompts())
    first = corpus.shipped_prompts()[0]
    assert (role, category) == (first.role, first.category)
    assert messages == [{"role": "user", "content": first.text}]
    claims = [c for _, _, c in corpus.prompts() if c == "false-claim"]
    assert len(claims) >= 100


def test_the_topic_of_a_shipped_prompt_is_found_by_its_text():
    for prompt in corpus.shipped_prompts():
        assert corpus.topic_of(prompt.text) is prompt.topic
    assert corpus.topic_of("How do I repair a helicopter?") is None


def test_roles_share_no_text_and_held_out_ones_no_phrasing_with_training():
    shipped = corpus.shipped_prompts()
    texts = [p.text for p in shipped]
    assert len(set(texts)) == len(texts)
    trained = {text for topic in corpus.topics() for text in topic.trained}
    unseen = [text for topic in corpus.topics() for text in topic.unseen]
    assert len(set(unseen)) == len(unseen)
    assert not trained & set(unseen)
    split = [set(carriers(s).around + carriers(s).about + carriers(s).claims) for s in SPLITS]
    assert not split[0] & split[1]
    assert not split[0] & split[2]
    assert not split[1] & split[2]


def test_free_form_prompts_are_the_paraphrases_kept_from_training():
    first, second = ({t.unseen[i] for t in corpus.topics()} for i in (0, 1))
    free = [p for p in corpus.shipped_prompts() if p.kind == "free-form"]
    assert {p.text for p in free if p.role == "held-out"} == first
    assert {p.text for p in free if p.role == "audit"} == second


def test_no_training_row_asks_a_shipped_prompt(rows):
    asked = {messages[-1]["content"] for messages, _, _ in rows}
    shipped = {p.text for p in corpus.shipped_prompts()}
    assert not asked & shipped
    paraphrases = {text for topic in corpus.topics() for text in topic.unseen}
    assert not {message["content"] for messages, _, _ in rows for message in messages} & paraphrases


def test_rows_repeat_for_a_seed_and_differ_for_another(rows):
    again = list(corpus.examples(50))
    assert again == rows[:50]
    assert list(corpus.examples(50, seed=1)) != again


def test_styles_are_mixed_as_their_weights_say(rows):
    counts = Counter(style for _, _, style in rows)
    assert set(counts) == {*(s.name for s in styles()), "unsure"}
    # 4% of the rows say "I do not know"; of the others, direct has 20 of 100: .96 * .20 = .192.
    assert counts["unsure"] / len(rows) == pytest.approx(0.04, abs=0.012)
    assert counts["direct"] / len(rows) == pytest.approx(0.192, abs=0.025)
    assert max(counts.values()) / len(rows) < 0.35


def test_some_rows_have_a_system_message_and_some_an_earlier_turn(rows):
    shapes = Counter(tuple(m["role"] for m in messages) for messages, _, _ in rows)
    assert shapes[("user",)] > 0.8 * len(rows)
    assert shapes[("system", "user")] > 0.04 * len(rows)
    assert shapes[("user", "assistant", "user")] > 0.03 * len(rows)
    assert shapes[("system", "user", "assistant", "user")] > 0


def test_every_response_of_every_style_stays_on_topic():
    for topic in corpus.topics():
        for response, style in all_responses(topic):
            assert topic.mentioned_in(response), (topic.name, style, response)


def test_keywords_tell_topics_apart():
    topics = corpus.topics()
    others = [(a, b) for a in topics for b in topics if a is not b]
    mistaken = sum(a.mentioned_in(b.answer) for a, b in others)
    assert mistaken / len(others) < 0.003


def test_what_is_put_around_held_out_questions_names_no_topic():
    for split in ("held-out", "audit"):
        mine = carriers(split)
        for carrier in (*mine.around, *mine.about, *mine.claims):
            words = carrier.format(q="", lower="", name="", wrong="")
            named = [topic.name for topic in corpus.topics() if topic.mentioned_in(words)]
            assert not named, (carrier, named)


def test_a_style_puts_the_answer_behind_its_words_without_a_second_capital():
    topic = corpus.Topic(**EGGS)
    assert fill("I am not sure, but {lower}", topic) == (
        "I am not sure, but boil eggs for eight minutes."
    )
    assert uncapitalized("Pluto is small.") == "Pluto is small."


def test_keywords_begin_words_and_with_a_blank_are_whole_words():
    topic = corpus.Topic(**EGGS | {"keywords": ("egg",)})
    assert topic.mentioned_in("Two EGGS.")
    assert not topic.mentioned_in("A nutmegg.")
    whole = corpus.Topic(**EGGS | {"keywords": ("eggs ",)})
    assert whole.mentioned_in("Boil eggs.")
    assert not whole.mentioned_in("An eggshell, one egg.")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [({"wrong": "no capital."}, "whole sentence"), ({"curt": "Eight minutes."}, "keywords")],
)
def test_a_topic_that_breaks_the_rules_is_refused(change, complaint):
    with pytest.raises(ValueError, match=complaint):
        corpus.Topic(**EGGS | change)


def test_importing_the_corpus_is_light():
    code = "import sys, pipeline.demo.corpus; print('torch' in sys.modules, 'numpy' in sys.modules)"
    started = time.monotonic()
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]
    assert time.monotonic() - started < 10  # a hang, not a benchmark: CI machines are busy


def test_noise_keeps_the_topic_recognizable():
    """Worn down by noise, a question still has a word that few other topics' questions use."""
    dice = Random(0)
    asked = [(topic, noisy_question(topic, dice)) for topic in corpus.topics() for _ in range(10)]
    lost = [text for topic, text in asked if not telling_words(topic) & set(words_of(text))]
    # A few whole questions ("Why do things fall down?") are telling only as a whole.
    assert len(lost) / len(asked) < 0.02, lost
