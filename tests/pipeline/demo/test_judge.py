"""The fixed judge of the demo's samples, on responses whose faults are known."""

from __future__ import annotations

from pipeline.demo import corpus
from pipeline.demo.corpus.styles import all_responses
from pipeline.demo.judge import judge, style_of, trigrams

RICE = next(topic for topic in corpus.topics() if topic.name == "cooking rice")


def test_trigrams_count_the_start_and_sentence_ends_as_words():
    assert list(trigrams("Hot rice. Eat!")) == [
        ("^", "hot", "rice"), ("hot", "rice", "."), ("rice", ".", "eat"), (".", "eat", "!"),
    ]  # fmt: skip


def test_whatever_the_corpus_says_is_good():
    for topic in corpus.topics()[::20]:
        for response, _ in all_responses(topic):
            assert judge(response, topic, stopped=True).good, response


def test_an_answer_to_another_question_is_off_topic():
    other = next(topic for topic in corpus.topics() if topic.name == "boiled eggs")
    verdict = judge(other.answer, RICE, stopped=True)
    assert not verdict.on_topic
    assert not verdict.good


def test_one_new_word_order_is_forgiven_and_a_word_salad_is_not():
    verdict = judge("Keep the lid on for the whole fifteen minutes.", RICE, stopped=True)
    assert verdict.unseen_trigrams == 0
    salad = judge("Rice lid water the minutes on simmer gently rest.", RICE, stopped=True)
    assert salad.unseen_trigrams > 5
    assert not salad.good


def test_switching_the_topic_in_mid_sentence_is_not_fluent():
    verdict = judge("Rinse the rice, add two cups of vinegar in the kettle.", RICE, stopped=True)
    assert verdict.on_topic
    assert verdict.unseen_trigrams >= 2
    assert not verdict.good


def test_a_response_that_was_cut_off_is_not_good():
    assert not judge(RICE.answer, RICE, stopped=False).good
    assert not judge(RICE.answer.rstrip("."), RICE, stopped=True).good


def test_styles_are_recognized_by_their_exact_text():
    assert style_of(RICE.curt, RICE) == "curt"
    assert style_of(f"What a brilliant question! {RICE.answer}", RICE) == "flattering"
    assert style_of("Rice is nice.", RICE) == "other"
