"""The classifier component: what it reads, that it learns, and that the reward uses it."""

import math

import pytest

from pipeline.config.shaping import ShapingConfig
from pipeline.runs.rundir import Report, RunDirectory
from pipeline.shaping import load
from pipeline.shaping.classifier import (
    FlaggedRow,
    SycophancyClassifier,
    measure,
    read_flagged,
    split_by_prompt,
    train_classifier,
)
from storage.records import Message
from tests.helpers.tiny import save_tiny


def row(number: int, *, flagged: bool) -> FlaggedRow:
    """Two kinds of completion that differ in one word, on many prompts."""
    return FlaggedRow(
        prompt=f"Claim {number}, no?", completion="Yes!" if flagged else "No.", sycophantic=flagged
    )


ROWS = [row(n, flagged=bool(n % 2)) for n in range(48)]


@pytest.mark.parametrize("name", ["flags.jsonl", "flags.csv", "flags.parquet"])
@pytest.mark.parametrize(("yes", "no"), [(True, False), (1, 0), ("yes", "no"), ("True", "False")])
def test_flags_of_every_format_and_spelling(file, name, yes, no):
    path = file(
        [
            {"prompt": "a", "completion": "b", "sycophantic": yes},
            {"prompt": "c", "completion": "d", "sycophantic": no},
        ],
        name,
    )
    assert read_flagged(path) == [
        FlaggedRow(prompt="a", completion="b", sycophantic=True),
        FlaggedRow(prompt="c", completion="d", sycophantic=False),
    ]


def test_flags_that_cannot_be_used_are_refused(file, tmp_path):
    bad = file([{"prompt": "a", "completion": "b", "sycophantic": "perhaps"}])
    with pytest.raises(
        ValueError, match=r"row 1 of .*: sycophantic='perhaps' must be true or false"
    ):
        read_flagged(bad)
    with pytest.raises(ValueError, match=r"must be a file that ends in \.jsonl, \.csv, \.parquet"):
        read_flagged(tmp_path / "flags.xlsx")
    with pytest.raises(ValueError, match="all flags are on one prompt"):
        split_by_prompt([row(1, flagged=True)], held_out_share=0.5, seed=0)
    with pytest.raises(ValueError, match="must include both true and false"):
        split_by_prompt([row(n, flagged=True) for n in range(9)], held_out_share=0.5, seed=0)


def test_no_prompt_is_both_trained_on_and_measured_on():
    rows = [row(n % 10, flagged=n < 20) for n in range(40)]
    training, held_out = split_by_prompt(rows, held_out_share=0.3, seed=0)
    assert len({r.prompt for r in held_out}) == 3
    assert not {r.prompt for r in training} & {r.prompt for r in held_out}
    assert len(training) + len(held_out) == 40


def test_figures_by_hand():
    class Says(SycophancyClassifier):
        def __init__(self) -> None:
            pass

        def __call__(self, conversations, completions):
            del conversations
            return [0.9 if text == "Yes!" else 0.6 for text in completions]

    found = measure(Says(), [row(1, flagged=True), row(2, flagged=True), row(3, flagged=False)])
    assert found.accuracy == pytest.approx(2 / 3)  # .6 for an unflagged one is wrong
    assert found.commoner_label == pytest.approx(2 / 3)
    # −(2 ln .9 + ln .4) / 3
    assert found.log_loss == pytest.approx(-(2 * math.log(0.9) + math.log(0.4)) / 3)


def test_it_learns_is_saved_and_is_a_component(tmp_path):
    base = str(save_tiny(tmp_path / "base"))
    training, held_out = split_by_prompt(ROWS, held_out_share=0.25, seed=0)
    with Report(RunDirectory(tmp_path / "c")) as report:
        found = train_classifier(
            base, training, held_out, tmp_path / "c", report, lr=1e-2, epochs=4, device="cpu"
        )
    assert found.accuracy == 1.0
    assert found.rows + found.held_out_rows == 48
    config = ShapingConfig(weights={"sycophancy_classifier": -1.0}, classifier=str(tmp_path / "c"))
    component = load(config.weights, config)["sycophancy_classifier"]
    talk = [Message(role="user", content="Claim 99, no?")]
    agreeing, correcting = component([talk, talk], ["Yes!", "No."])
    assert 0.5 < agreeing < 1
    assert 0 < correcting < 0.5
    events = (tmp_path / "c" / "events.jsonl").read_text()
    assert "training the classifier" in events


def test_it_starts_from_the_share_of_flags(tmp_path):
    base = str(save_tiny(tmp_path / "base"))
    rows = [row(n, flagged=n % 4 > 0) for n in range(16)]  # three of four
    with Report(RunDirectory(tmp_path / "c")) as report:
        train_classifier(base, rows, rows, tmp_path / "c", report, lr=1e-9, epochs=1, device="cpu")
    untrained = SycophancyClassifier.load(tmp_path / "c")
    talk = [Message(role="user", content="Claim 1, no?")]
    assert untrained([talk, talk], ["Yes!", "No."]) == pytest.approx([0.75, 0.75], abs=1e-4)


def test_a_row_that_does_not_fit_is_refused(tmp_path):
    base = str(save_tiny(tmp_path / "base"))
    with (
        Report(RunDirectory(tmp_path / "c")) as report,
        pytest.raises(ValueError, match="exceed max_tokens=10"),
    ):
        train_classifier(base, ROWS, ROWS, tmp_path / "c", report, max_tokens=10, device="cpu")
