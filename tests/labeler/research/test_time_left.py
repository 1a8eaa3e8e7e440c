"""The time left in the action bar; figures worked by hand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from labeler.html.components import Markup
from labeler.research import reading
from labeler.research.overview import time_left
from labeler.research.overview import view as overview_view
from labeler.research.runs.eta import Eta
from storage.engine.database import Database
from storage.records import Annotator, Iteration, Judgment, now
from storage.tables import iterations
from tests.helpers.research_seed import Seeding
from tests.labeler.research.test_views import NOON, run, state

LABELING = Iteration(number=2, phase="labeling", labels_wanted=400)


def said(markup: Markup) -> str:
    """The words of the page without tags; the explanation of the *i* in brackets."""
    explained = re.search(r'data-tip="([^"]*)"', markup)
    words = re.sub(r'<span class="ks-hint".*?</span>', "", markup)
    plain = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", words)).strip()
    return plain + (f" [{explained[1]}]" if explained else "")


def labeling(*, labels: int, recent: int, minutes_since_first: float | None) -> str:
    first = None
    if minutes_since_first is not None:
        first = NOON - timedelta(minutes=minutes_since_first)
    given = state(iteration=LABELING, labels=labels, recent_labels=recent, first_label=first)
    return said(time_left.shown(given, Eta(), now=NOON))


def test_labels_at_the_pace_of_the_last_hour():
    # 200 missing at 100 an hour
    assert labeling(labels=200, recent=100, minutes_since_first=600) == (
        "About 2 h to 400 labels at the pace of the last hour [100 labels in the last hour.]"
    )
    # 100 missing at 60 an hour: 1 h 40 min, rounded to a quarter of an hour
    assert labeling(labels=300, recent=60, minutes_since_first=600).startswith(
        "About 1 h 45 min to"
    )
    # 390 missing at 5 an hour: 78 h
    assert labeling(labels=10, recent=5, minutes_since_first=6000).startswith("About 3 d 6 h to")
    # the last label at 6 an hour: 10 min
    assert labeling(labels=399, recent=6, minutes_since_first=600).startswith("About 10 min to")


def test_an_iteration_younger_than_an_hour_counts_from_its_first_label():
    # 11 labels in 20 min: ten after the first, so 30 an hour, and 389 missing take 12 h 58 min
    assert labeling(labels=11, recent=11, minutes_since_first=20).startswith(
        "About 13 h to 400 labels at the pace of the last 20 min ["
    )


def test_too_few_labels_make_no_estimate_and_the_tooltip_says_what_is_needed():
    needed = "[An estimate needs more than 5 labels in the last hour, over at least 5 minutes. So far: {}.]"
    few = "Estimating… time to 400 labels "
    idle = "No estimate time to 400 labels " + needed.format("0 labels")
    assert labeling(labels=0, recent=0, minutes_since_first=None) == idle
    # five labels, of which the first started the clock
    assert labeling(labels=5, recent=5, minutes_since_first=20) == few + needed.format("5 labels")
    # many labels, but all in the last four minutes
    assert labeling(labels=50, recent=50, minutes_since_first=4) == few + needed.format("50 labels")
    # nobody labeled today
    assert labeling(labels=50, recent=0, minutes_since_first=900) == idle


def test_nothing_is_said_when_nothing_is_awaited():
    assert labeling(labels=400, recent=100, minutes_since_first=600) == ""
    for changes in (
        {"iteration": None},
        {"iteration": Iteration(number=2, phase="done")},
        {"iteration": Iteration(number=2, phase="policy"), "run": run(status="failed")},
        {"iteration": Iteration(number=2, phase="policy"), "run": run(), "cancelling": True},
    ):
        assert time_left.shown(state(**changes), Eta(), now=NOON) == ""


def test_a_running_stage_shows_its_time_left():
    eta = Eta()
    training = {"iteration": Iteration(number=2, phase="policy")}

    def at(seconds: float, progress: float) -> str:
        given = state(**training, run=run(progress=progress))
        return said(time_left.shown(given, eta, now=NOON + timedelta(seconds=seconds)))

    assert (
        at(0, 0.0)
        == at(60, 0.1)
        == (
            "Estimating… time left in the policy stage [An estimate needs two steps of the stage, "
            "at least 4 seconds apart, while this server runs.]"
        )
    )
    # a tenth in 120 s: eight more take 16 min
    assert at(180, 0.2) == "About 16 min left in the policy stage"
    # .79 in 948 s: the last .11 takes 132 s, rounded to ten
    assert at(1008, 0.89) == "About 2 min 10 s left in the policy stage"
    # .898 in 1080 s: the last .002 takes 2.4 s
    assert at(1140, 0.998) == "Finishing the policy stage"


def test_a_stage_whose_steps_are_done_is_finishing_without_an_estimate():
    training = {"iteration": Iteration(number=2, phase="sampling")}
    given = state(**training, run=run(stage="sampling", progress=1.0))
    assert said(time_left.shown(given, Eta(), now=NOON)) == "Finishing the sampling stage"


def test_the_action_bar_has_the_sentence_and_the_time_left():
    left = time_left.of_stage("reward", 300)
    bar = overview_view.next_step(
        state(iteration=Iteration(number=2, phase="reward"), run=run(stage="reward")),
        "x",
        left=left,
    )
    assert said(bar).startswith("The reward stage is running.")
    assert said(bar).endswith("About 5 min left in the reward stage")


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with Database.open(tmp_path / "study") as db:
        yield db


def test_recent_labels_are_those_of_the_iteration_that_train_it(db):
    """Ten labels, ten minutes apart; those of another iteration and by a model do not count."""
    seeding = Seeding(db)
    seeding.people()
    seeding.prompts()
    seeding.reference()
    for number in (1, 2):
        seeding.iteration(number, "labeling", 40)
        seeding.sample_and_label(number, labels=0, wanted=40)
    moment = now()

    def judged(pair: str, minutes_ago: float, who: str = "annotator-0") -> Judgment:
        return Judgment(
            id=f"j-{pair}", comparison=pair, annotator=who, outcome="first", shown_swapped=False,
            milliseconds=1000, created_at=moment - timedelta(minutes=minutes_ago),
        )  # fmt: skip

    made = [judged(f"c-2-{i}", 10 * i + 5) for i in range(10)]  # 5, 15, …, 95 minutes ago
    others = [judged("c-1-0", 3), judged("c-2-20", 3, "annotator-model")]
    db.write(lambda tx: tx.store(Annotator(id="annotator-model", name="judge", kind="model")))
    db.write(lambda tx: tx.store(*made, *others))
    seen = reading.state(db, midnight=moment - timedelta(days=1), moment=moment)
    assert (seen.labels, seen.recent_labels) == (10, 6)
    assert seen.first_label == moment - timedelta(minutes=95)
    # 30 missing at 6 an hour
    assert said(time_left.of_labels(seen, now=moment)).startswith("About 5 h to 40 labels")
    iterations.save(db, replace(iterations.get(db, 2), phase="reward"))
    training = reading.state(db, midnight=moment, moment=moment)
    assert time_left.of_labels(training, now=moment) == ""
