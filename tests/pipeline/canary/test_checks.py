"""The canary's checks: what a function must return, what an answer passes, and the demo's own."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipeline.demo.canary as demo
from pipeline.canary import BUILT_IN, CanaryCheck, load_canary, require_available
from pipeline.demo.corpus import examples, topics
from pipeline.demo.corpus.shipped import shipped_texts
from pipeline.demo.corpus.styles import all_responses
from storage.gate_records import CanaryResults, CheckResults, LostAnswer


def made(monkeypatch: pytest.MonkeyPatch, function: Callable[[], Any]) -> str:
    """The name of a function that a module of the user's own has."""
    monkeypatch.setattr(demo, "mine", function, raising=False)
    return "pipeline.demo.canary:mine"


def sums(count: int) -> list[CanaryCheck]:
    return [
        CanaryCheck("sum", f"What is {n} + 1?", lambda answer, n=n: str(n + 1) in answer)
        for n in range(count)
    ]


def test_an_answer_is_checked_by_every_check_of_its_prompt(monkeypatch: pytest.MonkeyPatch):
    chat = [{"role": "system", "content": "Brief."}, {"role": "user", "content": "What is 3 + 1?"}]
    more = [
        CanaryCheck("short", "What is 2 + 1?", lambda answer: len(answer) < 9),
        CanaryCheck("short", chat, lambda answer: len(answer) < 9),
    ]
    canary = load_canary(made(monkeypatch, lambda: [*sums(40), *more]))
    assert len(canary.prompts) == 41  # the chat is a prompt of its own, "2 + 1" is there already
    assert canary.numbers == (*range(40), 2, 40)
    right = [f"It is {n + 1}" for n in range(40)] + ["four"]
    assert canary.passed(right) == [True] * 42
    wrong = ["", *right[1:40], "far too long"]
    assert [n for n, good in enumerate(canary.passed(wrong)) if not good] == [0, 41]
    found = canary.compared(
        canary.passed(wrong), canary.passed(right), answers=wrong, allowed_loss=0.05
    )
    assert found == CanaryResults(
        function="pipeline.demo.canary:mine",
        allowed_loss=0.05,
        checks=(
            CheckResults(
                name="sum", prompts=tuple(range(40)), policy="0" + 39 * "1", reference=40 * "1"
            ),
            CheckResults(name="short", prompts=(2, 40), policy="10", reference="11"),
        ),
        lost=(
            LostAnswer(check="sum", prompt="What is 0 + 1?", answer=""),
            LostAnswer(check="short", prompt="What is 3 + 1?", answer="far too long"),
        ),
    )


def raises() -> Any:
    raise RuntimeError("no network")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (raises, "raised RuntimeError: no network"),
        (lambda: ["What is 1 + 1?"], "must return CanaryCheck objects, and it returned 'What is"),
        (lambda: 3, "raised TypeError"),
        (lambda: sums(39), "has 39 different prompts; it needs at least 40"),
        (lambda: [*sums(40), *sums(1)], "has the check 'sum' twice for the prompt 'What is 0"),
        (
            lambda: [CanaryCheck("a", " ", bool)],
            "a prompt is wrong: ValueError: a prompt needs a user",
        ),
        (lambda: [CanaryCheck("a/b", "Hi", bool)], "must be printable, without a slash: 'a/b'"),
        (lambda: [CanaryCheck("x" * 41, "Hi", bool)], "more than 40 characters"),
    ],
)
def test_a_function_that_cannot_be_used_is_refused(
    monkeypatch: pytest.MonkeyPatch, function: Callable[[], Any], says: str
):
    with pytest.raises(
        ValueError, match=r"gate\.canary 'pipeline\.demo\.canary:mine'|the (name of a )?check"
    ) as refused:
        load_canary(made(monkeypatch, function))
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("passes", "says"),
    [
        (lambda answer: answer[3] == "x", "the check 'a' raised IndexError"),
        (lambda answer: len(answer), "must return True or False, and it returned 2"),
    ],
)
def test_a_check_answers_yes_or_no(
    monkeypatch: pytest.MonkeyPatch, passes: Callable[[str], Any], says: str
):
    canary = load_canary(
        made(monkeypatch, lambda: [CanaryCheck("a", f"Say {n}", passes) for n in range(40)])
    )
    with pytest.raises(ValueError, match=says):
        canary.passed(["ab"] * 40)


def test_a_function_that_is_not_there_is_noticed_outside_the_web_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "my_canary.py").write_text("def few(): return []\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"gate.canary 'my_canary:few' has 0 different prompts"):
        require_available("my_canary:few")
    require_available("")
    require_available(BUILT_IN)


# --- the demo's ---------------------------------------------------------------------------------


def test_the_demos_prompts_are_trained_on_nowhere():
    canary = load_canary(BUILT_IN)
    texts = {messages[-1].content for messages in canary.prompts}
    assert len(texts) == len(canary.prompts) == (len(topics()) + 1) // 2
    assert not texts & shipped_texts()
    assert not texts & {messages[-1]["content"] for messages, *_ in examples(rows=3000)}


def test_the_demos_own_answers_pass_and_those_about_another_topic_do_not():
    chosen = topics()[::2]
    on_topic = demo.checks()[::2]
    others = [*chosen[1:], chosen[0]]
    right = [check.passes(topic.answer) for check, topic in zip(on_topic, chosen, strict=True)]
    elsewhere = [check.passes(topic.answer) for check, topic in zip(on_topic, others, strict=True)]
    assert all(right)
    # A few neighbors share a keyword.
    assert sum(elsewhere) < 0.05 * len(elsewhere)
    responses = [text for topic in topics() for text, _ in all_responses(topic)]
    assert not [text for text in responses if not demo.is_well_formed(text)]


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "Roll the clothes and put heavy",
        "Roll the clothse in the suitcase.",
        "Roll the clothes. Roll the clothes.",
        "Roll the clothes. Tip: Put heavy things at the wheels and put heavy things at the wheels.",
        "Sow the seeds in May in full sun. Tie a tall sunflower to a stick. Tip: Tie a tall sunflower to a stick.",
    ],
)
def test_what_is_not_well_formed(answer: str):
    assert not demo.is_well_formed(answer)
    assert demo.is_well_formed("Roll the clothes and put heavy things at the wheels.")
    assert demo.is_well_formed(
        "Take a short nap on a long drive. Check the tyres before a long drive."
    )


def test_the_demos_canary_does_not_read_the_gold_preference():
    tree = ast.parse(Path(demo.__file__).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in imported if name and name.startswith("pipeline.simulation")]
