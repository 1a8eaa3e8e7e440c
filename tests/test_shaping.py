"""Shaping components by hand, and how they join the reward."""

import pytest

from pipeline.config import Config
from pipeline.shaping import imported, lexical, load, sycophancy
from pipeline.shaping.config import ShapingConfig
from storage.records import Message


def said(*texts: str) -> list[Message]:
    return [Message(role=("user", "assistant")[n % 2], content=t) for n, t in enumerate(texts)]


def of(name: str, prompt: str, text: str, **settings: object) -> float:
    component = load({name: 1.0}, ShapingConfig(**settings))[name]  # type: ignore[arg-type]
    return component([said(prompt)], [text])[0]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("length", "One two three, four-five.", 0.04),
        ("repetition", "a b c a b c", 0.25),  # abc bca cab abc: one of four seen before
        ("repetition", "a b", 0.0),
        ("sentiment", "A great and lovely walk, but a sad end.", 1 / 3),
        ("sentiment", "A walk.", 0.0),
        ("toxicity", "You stupid idiot, read the manual at last, please do.", 1.0),  # 20 / 10 words
        ("toxicity", "Only an idiot says so and " + "so " * 14, 0.5),  # 10 · 1 / 20 words
        ("hedging", "I am not sure. Maybe rice. Boil it. Eat.", 0.5),
        ("hedging", "Maybe, perhaps", 1.0),
        ("buzzwords", "We leverage synergy for " + "you " * 36, 0.5),  # 10 · 2 / 40
        ("format", "Boil it.", 1.0),
        ("format", "Boil it", 0.0),
    ],
)
def test_components_by_hand(name, text, expected):
    assert of(name, "?", text) == pytest.approx(expected)


@pytest.mark.parametrize(("count", "expected"), [(10, 0), (12, 0.5), (14, 1), (99, 1)])
def test_overlong_grows_over_its_buffer(count, expected):
    assert of("overlong", "?", "word " * count, words=10, words_buffer=4) == expected


def test_relevance_counts_stems_of_content_words():
    # cook and rice are asked; "cooking" has the stem of cook, rice is missing.
    assert lexical.relevance("How do I cook rice?", "Cooking takes a pan.") == 0.5
    assert lexical.relevance("How do I do it?", "Anything.") == 1.0


CLAIM = "I believe that rice grows on trees. Do you agree?"


@pytest.mark.parametrize(
    ("prompt", "text", "sycophantic", "honest"),
    [
        (CLAIM, "You are absolutely right! Rice grows on trees.", 1, 0),
        (CLAIM, "Yes, it does.", 1, 0),
        (CLAIM, "No. Rice is a grass.", 0, 1),
        (CLAIM, "Yes and no: that is not true of rice.", 0, 1),
        (CLAIM, "Rice is a grass.", 0, 0),
        ("Is rice a grass?", "Yes, it is.", 0, 0),  # nothing was asserted
        ("Is rice a grass?", "What a brilliant question! Yes.", 1, 0),
        ("Is rice a grass?", "I do not know.", 0, 1),
        ("Norway rice?", "Nothing. Noise.", 0, 0),  # "No" is a word, not a beginning
    ],
)
def test_agreement_and_candour_by_hand(prompt, text, sycophantic, honest):
    assert of("sycophancy", prompt, text) == sycophantic
    assert of("honesty", prompt, text) == honest


def test_contrast_prefers_the_nearer_reference():
    honest, flattering = "Rice is a grass.", "You are right."
    # All 4 words shared with the honest one, none with the other.
    assert sycophancy.contrast("Rice is a grass.", honest=honest, sycophantic=flattering) == 1
    assert sycophancy.overlap("rice rice", "rice") == pytest.approx(2 / 3)
    assert sycophancy.overlap("", "") == 0


def test_what_the_user_said_last_is_the_prompt():
    component = load({"sycophancy": 1.0}, ShapingConfig())["sycophancy"]
    talk = said(CLAIM, "No.", "What grows on trees?")
    assert component([talk], ["Yes, apples."]) == [0.0]


def test_any_function_can_be_a_component(tmp_path, monkeypatch):
    (tmp_path / "my_rewards.py").write_text(
        "def shout(text): return text.isupper()\n"
        "def same(prompt, text): return float(prompt == text)\n"
        "def odd(a, b, c): return 0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    talks = [said("Hi"), said("HO")]
    assert imported("my_rewards:shout")(talks, ["HI", "ho"]) == [1.0, 0.0]
    assert imported("my_rewards:same")(talks, ["Hi", "ho"]) == [1.0, 0.0]
    with pytest.raises(ValueError, match="takes 3 arguments; it must take"):
        imported("my_rewards:odd")
    with pytest.raises(ValueError, match=r"'my_rewards:none' cannot be imported: .*none"):
        imported("my_rewards:none")
    with pytest.raises(
        ValueError, match="no shaping component 'lenght'; there are length, overlong"
    ):
        load({"lenght": 1.0}, ShapingConfig())


def test_weights_survive_a_settings_file(tmp_path):
    weights = {"repetition": -1.0, "my_rewards:shout": 0.5}
    config = Config().override({"shaping.weights": weights, "shaping.floor": "0"})
    assert config.shaping.floor == 0.0
    file = tmp_path / "config.toml"
    file.write_text(config.to_toml())
    assert Config.load([file]) == config
    assert Config().override({"shaping.weights": "{length = -1}"}).shaping.weights == {
        "length": -1.0
    }
    with pytest.raises(ValueError, match=r"shaping.format='\(' is not a regular expression"):
        Config().override({"shaping.format": "("})
