"""Model judges beside people: measured by people's standard, learned from, and in no figure."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pipeline.config.reward import RewardConfig
from pipeline.reward import judges
from pipeline.reward.annotators import AnnotatorEffects, GroundedJudge
from pipeline.reward.data import (
    Split,
    judges_beside_people,
    resolved,
    split_judgments,
    training_rows,
)
from pipeline.reward.judges import MIN_PREFERENCES, ground_judges, measured_judges
from pipeline.reward.likelihood import FIRST, SECOND, TIE, UNSTATED, Likelihood, TieValues
from pipeline.reward.trainer import Training, _effective
from pipeline.runs.rundir import Report, RunDirectory
from pipeline.stages import reward
from tests.helpers.judged_pairs import pair
from tests.helpers.stage_inputs import (
    give,
    make_job,
    make_judgments,
    make_prompts,
    rows_of,
    tiny_models,
)
from tests.helpers.worker_runs import events

CONFIG = RewardConfig(held_out_share=0.25, audit_share=0.2, stopping_judgments=20)


def by_people(count: int = 150) -> list:
    return [
        pair(FIRST, prompt=f"p-{n}", name=f"j-{n}", arm="random", audit=n % 5 == 0)
        for n in range(count)
    ]


def by_a_judge(count: int = 150) -> list:
    return [
        pair(SECOND, prompt=f"p-{n}", name=f"m-{n}", annotator="bot", arm="random", judge=True)
        for n in range(count)
    ]


def test_a_judge_is_learned_from_and_changes_no_set_that_measures():
    pairs = judges_beside_people([*by_people(), *by_a_judge()])
    split, without = (
        split_judgments(pairs, CONFIG, seed=3),
        split_judgments(by_people(), CONFIG, seed=3),
    )
    assert split == without._replace(learned=split.learned)
    apart = {each.prompt for each in split.unseen}
    assert len(apart) > 40
    assert {each.prompt for each in split.learned if each.judge} == {
        f"p-{n}" for n in range(150)
    } - apart


def test_without_people_a_judge_is_measured_by_itself():
    split = split_judgments(judges_beside_people(by_a_judge()), CONFIG, seed=3)
    assert not any(each.judge for each in [*split.learned, *split.unseen])
    assert len(split.measured) > 20


def test_a_judge_has_no_say_in_the_model_of_ties():
    people = [pair(FIRST, name=f"j-{n}", strength=2) for n in range(4)]
    judge = [pair(FIRST, name=f"m-{n}", strength=UNSTATED, judge=True) for n in range(9)]
    assert resolved(RewardConfig(), [*people, *judge]).tie_model == "ordinal"


def model_of(d: list[float]) -> SimpleNamespace:
    """A reward model with these reward differences, which people judge by P(first) = σ(d)."""
    network = SimpleNamespace(
        likelihood=Likelihood(tie_model="half", both_bad="tie"),
        ties=SimpleNamespace(values=lambda: TieValues(theta=torch.tensor(0.5))),
    )
    return SimpleNamespace(network=network, both_sides=lambda _: (d, [0.0] * len(d)))


@pytest.mark.parametrize(
    ("slope", "bias", "length"),
    [(0.0, 0.0, 0.0), (1.0, 0.0, 0.1), (2.0, 0.8, 0.0), (-1.0, 0.0, -0.05)],
)
def test_the_slope_of_a_judge_and_what_it_thinks_of_sides_and_lengths_are_found(
    slope: float, bias: float, length: float
):
    coin = np.random.default_rng(5)
    longer = coin.integers(-20, 21, 4000)
    d, side = coin.normal(0, 1.5, 4000) + longer / 20, coin.choice([-1, 1], 4000)
    z = slope * d + bias * side + length * longer
    first = coin.random(4000) < 1 / (1 + np.exp(-z))
    pairs = [
        pair(FIRST if won else SECOND, name=f"m-{n}", annotator="bot", side=int(side[n]),
             first_length=40 + int(longer[n]), second_length=40, judge=True)
        for n, won in enumerate(first)
    ]  # fmt: skip
    found = measured_judges(model_of(d.tolist()), pairs)["bot"]  # type: ignore[arg-type]
    assert found.slope == pytest.approx(slope, abs=4 * found.slope_sd)
    assert found.bias == pytest.approx(bias, abs=0.15)
    assert found.length == pytest.approx(length, abs=0.015)
    assert 0.01 < found.slope_sd < 0.1


def test_a_preference_for_length_is_no_reward():
    """A judge with length .1 and no reward difference prefers 10 tokens more with odds e."""
    rows = training_rows(
        [pair(FIRST, first_length=30, second_length=20, annotator=id) for id in ("ann", "bot")],
        "rao_kupper",
        lengths={"bot": 0.1},
    )
    assert [row["offset"] for row in rows] == [0.0, pytest.approx(1.0)]
    inputs = {"side": torch.tensor([1.0, 1.0]), "offset": torch.tensor([0.0, 1.0])}
    z = _effective(torch.tensor([2.0, 2.0]), inputs, torch.tensor([1.0, 0.5]), torch.zeros(2))
    assert z.tolist() == [2.0, 2.0]  # 1 · 2 + 0 and .5 · 2 + 1


def test_a_fixed_judge_is_not_learned_and_people_are():
    judge = GroundedJudge(slope=0.25, bias=0.5, length=0.0, slope_sd=0.1)
    effects = AnnotatorEffects(["ann", "bot"], fixed={"bot": judge})
    optimizer = torch.optim.AdamW(effects.parameters(), lr=0.1, weight_decay=0.0)
    for _ in range(3):
        slope, bias = effects(torch.tensor([0, 1]))
        assert slope[1].item() == pytest.approx(0.25)
        assert bias[1].item() == pytest.approx(0.5)
        optimizer.zero_grad()
        (slope.sum() + bias.sum() + effects.penalty()).backward()
        optimizer.step()
    assert effects.delta[0].item() < -0.1  # less is better for the loss above
    assert effects.delta[1].item() == pytest.approx(-0.75)
    # ½ ((δ/.35)² + (b/.3)²) of ann alone
    ann = (effects.delta[0].item() / 0.35) ** 2 + (effects.bias[0].item() / 0.3) ** 2
    assert effects.penalty().item() == pytest.approx(ann / 2)


@pytest.mark.parametrize("people", [120, 30])
def test_the_stage_measures_a_judge_by_people(tmp_path: Path, people: int):
    models = tiny_models(tmp_path / "models")
    rows = make_judgments(240, prompts=40)
    swapped = {"first": "second", "second": "first"}
    for n, row in enumerate(rows):
        row["annotator"], row["annotator_kind"] = f"a-{n % 2}", "person"
        if n >= people:  # this judge prefers what people do not
            row["annotator"], row["annotator_kind"] = "bot", "model"
            row["outcome"] = swapped.get(row["outcome"], row["outcome"])
    job = make_job("reward", models, reward__epochs=2, reward__members=1)
    directory = RunDirectory.create(tmp_path / "run", job)
    give(directory, "judgments.parquet", rows)
    give(directory, "prompts.parquet", make_prompts(4))
    with Report(directory) as report:
        summary = reward.run(job, report, directory)
    assert summary is not None
    (note,) = [event for event in events(directory) if event.get("name") == "judges"]
    by_bot = {row["judgment"] for row in rows if row["annotator"] == "bot"}
    learned = {row["judgment"] for row in rows_of(directory.outputs / "learned.parquet")} & by_bot
    assert summary.annotators is not None
    assert {each.annotator for each in summary.annotators.annotators} == {"a-0", "a-1"}
    if people < MIN_PREFERENCES:
        assert note["note"] == "warning"
        assert "needs 40 preferences by people" in note["message"]
        assert not learned
    else:
        judge = note["payload"]["judges"]["bot"]
        assert judge["slope"] < 0.5
        assert bool(learned) == (abs(judge["slope"]) > 2 * judge["slope_sd"])


def test_only_preferences_of_a_judge_that_knows_something_are_learned_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Differences of rewards are ±2; *good* agrees with 9 in 10 of them, *coin* with every second one."""
    people = [pair(FIRST, name=f"j-{n}", annotator="ann") for n in range(60)]
    judged = [
        pair(FIRST if (n % 20 > 1 if id == "good" else n % 4 in (0, 3)) == (n % 2 == 0) else SECOND,
             name=f"{id}-{n}", first=str(2 if n % 2 == 0 else -2), annotator=id, judge=True)
        for id in ("good", "coin")
        for n in range(200)
    ]  # fmt: skip
    ties = [pair(TIE, name=f"tie-{n}", first="2", annotator="good", judge=True) for n in range(50)]
    model = model_of([])
    model.both_sides = lambda its: ([float(each.first) for each in its], [0.0] * len(its))
    monkeypatch.setattr(judges, "_model_of_people", lambda *_: model)
    training = Training(
        base="", chat=None, config=RewardConfig(), checkpoints=tmp_path, report=None,  # type: ignore[arg-type]
        device=torch.device("cpu"),
    )  # fmt: skip
    grounded = ground_judges(training, Split([*people, *judged, *ties], [], []))
    kept = [each for each in judged if each.annotator == "good"]
    assert [*grounded.learned] == [*people, *kept]
    assert grounded.training.judges["good"].slope == pytest.approx(1.1, abs=0.15)  # ln 9 / 2
    assert grounded.training.judges["coin"].slope == pytest.approx(0, abs=0.15)
    (note,) = grounded.notes
    assert note.kind == "warning"
    assert "coin" in note.message
    assert "(not learned from)" in note.message


def test_people_must_give_something_to_learn_from():
    ties = [pair(TIE, name=f"j-{n}", annotator="ann") for n in range(50)]
    split = Split(learned=[*ties, *by_a_judge(50)], audit_set=[], held_out=[])
    training = SimpleNamespace(config=RewardConfig())
    with pytest.raises(ValueError, match="No judgment by a person on a prompt to learn from"):
        ground_judges(training, split)  # type: ignore[arg-type]
