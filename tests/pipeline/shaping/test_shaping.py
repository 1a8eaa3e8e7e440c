"""Shaping components by hand, and how they join the reward."""

import pytest

from pipeline.config.sections import Config
from pipeline.config.shaping import COMPONENTS, ShapingConfig
from pipeline.shaping import (
    built_in,
    from_files,
    imported,
    lexical,
    load,
    require_prompts,
    sycophancy,
)
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
def test_agreement_and_candor_by_hand(prompt, text, sycophantic, honest):
    assert of("sycophancy", prompt, text) == sycophantic
    assert of("honesty", prompt, text) == honest


@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        # Content words of the claim and its frame: rice, grow, tree, believe, agree.
        (CLAIM, "Rice grows on trees.", 1.0),
        (CLAIM, "No. Rice grows on trees.", 1.0),  # whatever stands before it
        (CLAIM, "It is a myth that rice grows on trees.", 3 / 4),  # it cannot tell denial
        (CLAIM, "Rice is a wet grass.", 1 / 3),  # rice of rice, wet, grass
        (CLAIM, "I agree.", 0.0),  # fewer than three content words
        ("Does rice grow on trees?", "Rice grows on trees.", 0.0),  # nothing was asserted
    ],
)
def test_echoes_by_hand(prompt, text, expected):
    assert of("echo", prompt, text) == pytest.approx(expected)


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
    (tmp_path / "component_of_a_user.py").write_text(
        "def shout(text): return text.isupper()\n"
        "def same(prompt, text): return float(prompt == text)\n"
        "def odd(a, b, c): return 0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    talks = [said("Hi"), said("HO")]
    assert imported("component_of_a_user:shout")(talks, ["HI", "ho"]) == [1.0, 0.0]
    assert imported("component_of_a_user:same")(talks, ["Hi", "ho"]) == [1.0, 0.0]
    with pytest.raises(ValueError, match="takes 3 arguments; it must take"):
        imported("component_of_a_user:odd")
    with pytest.raises(
        ValueError, match="'component_of_a_user:none': component_of_a_user has no function 'none'"
    ):
        imported("component_of_a_user:none")
    with pytest.raises(
        ValueError, match="no shaping component 'lenght'; there are length, overlong"
    ):
        ShapingConfig(weights={"lenght": 1.0})


def test_the_settings_know_every_component():
    config = ShapingConfig()
    assert list(COMPONENTS) == [*built_in(config), *from_files(config, "cpu")]


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


REFERENCES = [
    {"prompt": CLAIM, "honest": "Rice is a grass.", "sycophantic": "You are right."},
    {"prompt": "Rice is blue, is it not?", "honest": "It is white.", "sycophantic": "So blue."},
]


@pytest.mark.parametrize("name", ["r.jsonl", "r.csv", "r.parquet"])
def test_contrast_is_a_component_with_references_of_a_file(file, name):
    path = file(REFERENCES, name)
    config = ShapingConfig(weights={"contrast": 1.0}, references=str(path))
    component = load(config.weights, config)["contrast"]
    talks = [said(CLAIM), said(CLAIM), said("Something else?")]
    # All four words of the honest answer; two of its three words shared with three sycophantic
    # ones (2 · 2/6) and none with the honest ones; no references, nothing to say.
    assert component(talks, ["Rice is a grass.", "You are late.", "Rice."]) == pytest.approx(
        [1.0, -2 / 3, 0.0]
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (['{"prompt": '], "cannot be read: "),
        ([{"prompt": "a", "honest": "b"}], "lacks the columns sycophantic"),
        ([REFERENCES[0], REFERENCES[0]], "row 2 of .* repeats the prompt"),
        ([REFERENCES[0] | {"sycophantic": "rice is a GRASS"}], "row 1 .* same words in both"),
        ([REFERENCES[0], REFERENCES[1] | {"honest": None}], "row 2 of .* has an empty cell"),
    ],
)
def test_references_that_cannot_be_used_are_refused(file, rows, message):
    config = ShapingConfig(weights={"contrast": 1.0}, references=str(file(rows)))
    with pytest.raises(ValueError, match=message):
        load(config.weights, config)


def test_references_to_other_prompts_are_refused_before_training(file):
    config = ShapingConfig(weights={"contrast": 1.0}, references=str(file(REFERENCES)))
    components = load(config.weights, config)
    require_prompts(components, [said("Something else?"), said(CLAIM)])  # one is enough
    with pytest.raises(ValueError, match="none of the 1 prompts has references in"):
        require_prompts(components, [said("Something else?")])


def test_components_from_files_ask_for_their_file():
    with pytest.raises(ValueError, match=r"component contrast needs shaping\.references"):
        Config().override({"shaping.weights": {"contrast": 1.0}})
    with pytest.raises(ValueError, match=r"sycophancy_classifier needs shaping\.classifier"):
        Config().override({"shaping.weights": {"sycophancy_classifier": -1.0}})
    with pytest.raises(ValueError, match=r"references='r\.csv' must be an absolute path"):
        Config().override({"shaping.references": "r.csv"})
    config = ShapingConfig(weights={"contrast": 1.0}, references="/nowhere/r.csv")
    with pytest.raises(ValueError, match=r"there is no file /nowhere/r\.csv"):
        load(config.weights, config)
