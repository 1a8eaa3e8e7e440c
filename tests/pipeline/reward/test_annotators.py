"""The annotator model: signs by hand, the optimum against a general optimizer, outliers, reports."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from pipeline.reward.annotators import (
    BIAS_SD,
    SLOPE_SD,
    AnnotatorEffects,
    AnnotatorJudgments,
    FittedAnnotators,
    annotator_weights,
    effective,
    fit_annotators,
)
from pipeline.reward.likelihood import BOTH_BAD, FIRST, SECOND, TIE, Likelihood, TieValues
from pipeline.reward.likelihood_parameters import Ties
from pipeline.reward.quality.reliability import (
    agreement_with_model,
    annotator_estimates,
    calibrated,
    expected_agreement,
    losses_to_annotators,
    notes_on_annotators,
    outcome_chances,
    reliability,
)
from pipeline.reward.scoring import RewardModel
from pipeline.runs.rundir import Report, RunDirectory
from pipeline.stages.reward import run
from storage.analysis.annotator_fit import AnnotatorEstimate
from tests.helpers.judged_pairs import pair as judged_pair
from tests.helpers.stage_inputs import give, make_job, make_judgments, make_prompts, tiny_models

F64 = torch.float64
RAO_KUPPER = Likelihood(tie_model="rao_kupper", both_bad="tie")
VALUES = TieValues(theta=0.4)


def judgments(
    slopes: list[float], biases: list[float], *, each: int, seed: int = 0
) -> AnnotatorJudgments:
    """Simulated judgments by Rao and Kupper's model on known differences of rewards."""
    coin = np.random.default_rng(seed)
    count = each * len(slopes)
    annotator = np.repeat(np.arange(len(slopes)), each)
    d = coin.normal(0, 1.5, count)
    side = coin.choice([-1.0, 1.0], count)
    # On the screen: how much better the left one is to this annotator, and his leaning.
    left = np.array(slopes)[annotator] * d * side + np.array(biases)[annotator]
    p_left, p_right = (1 / (1 + np.exp(VALUES.theta - z)) for z in (left, -left))
    toss = coin.random(count)
    chose_left, chose_right = toss < p_left, (toss >= p_left) & (toss < p_left + p_right)
    first = np.where(side > 0, chose_left, chose_right)
    second = np.where(side > 0, chose_right, chose_left)
    outcomes = np.where(first, FIRST, np.where(second, SECOND, TIE))
    return AnnotatorJudgments(
        d=torch.tensor(d), side=torch.tensor(side), annotator=torch.tensor(annotator),
        outcomes=torch.tensor(outcomes), strength=torch.zeros(count, dtype=torch.long),
        level=torch.zeros(count, dtype=F64),
    )  # fmt: skip


def fit(judged: AnnotatorJudgments, count: int, **settings: Any) -> FittedAnnotators:
    asked: dict[str, Any] = {"tie_model": "rao_kupper", "both_bad": "tie"} | settings
    return fit_annotators(judged, count, likelihood=Likelihood(**asked), ties=VALUES)


def test_a_leaning_to_the_left_helps_whichever_response_stands_there():
    one = torch.ones(1)
    # d = 1, slope ½, b = .3: z of the first response is ½ + .3 on the left, ½ − .3 on the right.
    assert effective(one, one / 2, 0.3 * one, one).item() == pytest.approx(0.8)
    assert effective(one, one / 2, 0.3 * one, -one).item() == pytest.approx(0.2)


def test_somebody_without_judgments_keeps_the_prior():
    empty = AnnotatorJudgments(**{
        name: torch.zeros(0, dtype=F64 if name in ("d", "side", "level") else torch.long)
        for name in ("d", "side", "annotator", "outcomes", "strength", "level")
    })  # fmt: skip
    found = fit(empty, 2)
    assert found.delta.tolist() == found.bias.tolist() == [0, 0]
    assert found.delta_sd.tolist() == pytest.approx([SLOPE_SD] * 2)
    assert found.bias_sd.tolist() == pytest.approx([BIAS_SD] * 2)


def test_the_optimum_and_its_curvature_are_those_of_a_general_optimizer():
    judged = judgments([1.4, -1.0, 0.2], [0.1, 0.0, 0.9], each=150)
    found = fit(judged, 3)
    d, side, outcomes = (t.numpy() for t in (judged.d, judged.side, judged.outcomes))

    def cost(x: np.ndarray, rows: np.ndarray) -> float:
        z = (1 + x[0]) * d[rows] + x[1] * side[rows]
        win, loss = (1 / (1 + np.exp(VALUES.theta - v)) for v in (z, -z))
        p = np.choose(outcomes[rows], [win, loss, 1 - win - loss])
        return -np.log(p).sum() + (x[0] / SLOPE_SD) ** 2 / 2 + (x[1] / BIAS_SD) ** 2 / 2

    for n in range(3):
        rows = judged.annotator.numpy() == n
        best = minimize(cost, np.zeros(2), args=(rows,), method="Nelder-Mead",
                        options={"xatol": 1e-8, "fatol": 1e-10})  # fmt: skip
        assert [found.delta[n].item(), found.bias[n].item()] == pytest.approx(best.x, abs=1e-5)
        h, at = 1e-4, best.x
        curved = np.array([
            [
                (cost(at + h * (e + f), rows) - cost(at + h * (e - f), rows)
                 - cost(at - h * (e - f), rows) + cost(at - h * (e + f), rows)) / (4 * h * h)
                for f in np.eye(2)
            ]
            for e in np.eye(2)
        ])  # fmt: skip
        sd = np.sqrt(np.diag(np.linalg.inv(curved)))
        assert [found.delta_sd[n].item(), found.bias_sd[n].item()] == pytest.approx(sd, rel=1e-3)


def test_the_penalty_is_the_prior():
    effects = AnnotatorEffects(["a", "b"])
    with torch.no_grad():
        effects.delta.copy_(torch.tensor([0.35, 0.0]))
        effects.bias.copy_(torch.tensor([0.3, 0.6]))
    # ½ (1 + 1 + 4)
    assert effects.penalty().item() == pytest.approx(3.0)
    slope, bias = effects(torch.tensor([1, 0, 1]))
    assert slope.tolist() == pytest.approx([1, 1.35, 1])
    assert bias.tolist() == pytest.approx([0.6, 0.3, 0.6])


def test_outliers_get_the_right_sign_and_ranking():
    # Careful, careful, noisy, spam, inverted, and one who presses left whatever he sees.
    judged = judgments([1.2, 0.9, 0.3, 0.0, -1.0, 0.1], [0, 0.2, 0, 0, 0, 2.0], each=200)
    found = fit(judged, 6)
    slopes, biases = (1 + found.delta).tolist(), found.bias.tolist()
    assert slopes[4] + 2 * found.delta_sd[4].item() < 0
    assert slopes[0] > slopes[2] > slopes[4]
    assert slopes[1] > slopes[3] > slopes[4]
    assert max(range(6), key=lambda n: biases[n]) == 5
    weights = annotator_weights(found, RAO_KUPPER, VALUES).tolist()
    assert min(weights[0], weights[1], weights[4]) > 0.4
    assert max(weights[2], weights[3], weights[5]) < 0.25


@pytest.mark.parametrize("tie_model", ["davidson", "ordinal", "drop", "half"])
def test_every_tie_model_can_be_fitted(tie_model: str):
    judged = judgments([1.2, -1.0], [0.0, 0.0], each=150)
    if tie_model == "drop":
        keep = judged.outcomes != TIE
        judged = AnnotatorJudgments(**{name: value[keep] for name, value in vars(judged).items()})
    found = fit(judged, 2, tie_model=tie_model)
    assert found.delta[0] > -0.3
    assert found.delta[1] < -1.3


def test_differences_are_brought_to_the_scale_of_an_average_annotator():
    judged = judgments([1.0, 1.0, 1.0], [0.0, 0.0, 0.0], each=400)
    sure = AnnotatorJudgments(**(vars(judged) | {"d": 2.5 * judged.d}))
    scale = calibrated(sure, RAO_KUPPER, VALUES).d / sure.d
    assert scale.tolist() == pytest.approx([1 / 2.5] * len(scale), rel=0.15)


def test_weights_by_hand():
    # θ → 0: I(z) = σ(z)σ(−z); slope ½ at b = 0 weighs ¼, slope 1 at b = log 3 weighs (3/16)/(1/4).
    fitted = FittedAnnotators(
        delta=torch.tensor([-0.5, 0.0, -2.0, -1.0], dtype=F64),
        bias=torch.tensor([0.0, math.log(3), 0.0, 0.0], dtype=F64),
        delta_sd=torch.zeros(4), bias_sd=torch.zeros(4),
    )  # fmt: skip
    found = annotator_weights(fitted, Likelihood(tie_model="half", both_bad="tie"), VALUES).tolist()
    assert found == pytest.approx([0.25, 0.75, 1.0, 0.0])


def test_what_a_judgment_weighs_where_people_tie():
    # θ = log 2, b = log 2: I(b) = .0625/.5 + .0256/.2 + .0081/.3 = .28; without a bias 8/27.
    found = annotator_weights(leaning(math.log(2)), RAO_KUPPER, TieValues(theta=math.log(2)))
    assert found.tolist() == pytest.approx([0.28 * 27 / 8])


def leaning(bias: float) -> FittedAnnotators:
    """One annotator of slope 1 and this side bias."""
    none = torch.zeros(1, dtype=F64)
    return FittedAnnotators(
        delta=none, bias=torch.tensor([bias], dtype=F64), delta_sd=none, bias_sd=none
    )


def test_the_side_that_somebody_likes_is_in_what_he_will_say():
    judged = AnnotatorJudgments(
        d=torch.zeros(2, dtype=F64), side=torch.tensor([1.0, -1.0], dtype=F64),
        annotator=torch.tensor([0, 0]), outcomes=torch.tensor([0, 0]),
        strength=torch.tensor([0, 0]), level=torch.zeros(2, dtype=F64),
    )  # fmt: skip
    found = outcome_chances(judged, leaning(math.log(3)), RAO_KUPPER, TieValues(theta=1e-12))
    assert found[:, 0].tolist() == pytest.approx([0.75, 0.25])


def test_expected_and_observed_agreement_by_hand():
    # Item x: two who differ in side only, z = log 3 both, at θ → 0: ¾² + ¼² = 5/8.  Item y: three
    # at d = 0, all ½: each pair ½.  Items count by their judgments: (2 · 5/8 + 3 · 1/2) / 5.
    judged = AnnotatorJudgments(
        d=torch.tensor([math.log(3)] * 2 + [0.0] * 3 + [5.0], dtype=F64),
        side=torch.tensor([1.0, -1.0, 1.0, 1.0, 1.0, 1.0], dtype=F64),
        annotator=torch.tensor([0, 1, 0, 1, 2, 0]),
        outcomes=torch.tensor([FIRST, FIRST, TIE, BOTH_BAD, SECOND, FIRST]),
        strength=torch.zeros(6, dtype=torch.long), level=torch.zeros(6, dtype=F64),
    )  # fmt: skip
    zeros = torch.zeros(3, dtype=F64)
    fitted = FittedAnnotators(delta=zeros, bias=zeros, delta_sd=zeros, bias_sd=zeros)
    items = ["x", "x", "y", "y", "y", "z"]
    no_ties = VALUES._replace(theta=1e-12)
    chances = outcome_chances(judged, fitted, RAO_KUPPER, no_ties)
    found = expected_agreement(judged.outcomes, chances, items)
    assert found is not None
    assert found.items == 2
    assert found.expected == pytest.approx((2 * 5 / 8 + 3 * 1 / 2) / 5)
    # x agrees; of y's three pairs one does (tie and both bad): (2 · 1 + 3 · 1/3) / 5.
    assert found.observed == pytest.approx(3 / 5)
    # Said: first 2, tie 2, second 1: two of five are alike by chance with (2 + 2 + 0)/20 = .2.
    assert found.observed_alpha == pytest.approx(1 - 0.4 / 0.8)
    # Expected: first 2 · ¾ + 3 · ½ = 3, second 2; Σp² = 2 · 5/8 + 3 · ½ = 2.75, so by chance
    # (9 + 4 − 2.75)/20 = .5125; .55 agree.
    assert found.expected_alpha == pytest.approx(1 - 0.45 / 0.4875)
    assert expected_agreement(judged.outcomes, chances, list("abcdef")) is None


class Known:
    """A reward model that says the same difference of every pair."""

    def __init__(self, difference: float = 1.0) -> None:
        self._difference = difference

    def both_sides(self, pairs: Any) -> tuple[list[float], list[float]]:
        return [self._difference] * len(pairs), [0.0] * len(pairs)


def test_nothing_to_measure_on_leaves_everybody_at_the_prior():
    pairs = [judged_pair(TIE, annotator=name) for name in "ab"]
    drop = Likelihood(tie_model="drop", both_bad="tie")
    found = reliability(
        [(pairs, Known())], ["a", "b"], {"a": 1, "b": 1}, likelihood=drop, ties=VALUES
    )  # type: ignore[list-item]
    for row in found.annotators:
        assert (row.slope, row.side_bias, row.measured) == (1.0, 0.0, 0)
    assert found.expected_agreement is None


def test_agreementagreement_with_model_by_hand():
    # The first has the higher reward in every pair; b never prefers, and c once of three times.
    said = {"a": [FIRST, FIRST, SECOND, TIE], "b": [TIE, TIE], "c": [SECOND, SECOND, FIRST]}
    pairs = [
        judged_pair(outcome, annotator=name, first=f"{name}{n}")
        for name, outcomes in said.items()
        for n, outcome in enumerate(outcomes)
    ]
    found = reliability(
        [(pairs, Known())], ["a", "b", "c"], {"a": 4, "b": 2, "c": 3},  # type: ignore[list-item]
        likelihood=RAO_KUPPER, ties=VALUES,
    ).annotators  # fmt: skip
    assert [row.decided for row in found] == [3, 0, 3]
    assert [row.with_model for row in found] == [
        pytest.approx(2 / 3),
        None,
        pytest.approx(1 / 3),
    ]
    follows, _, contrary = (row.with_model_expected for row in found)
    assert contrary < follows < 1


def test_how_careful_people_look_does_not_hang_on_the_scale_of_rewards():
    pairs = [
        judged_pair(FIRST if n % 4 else SECOND, annotator="ab"[n % 2], first=f"f{n // 2}")
        for n in range(80)
    ]
    small, large = (
        reliability(
            [(pairs, Known(difference))], ["a", "b"], {"a": 40, "b": 40},  # type: ignore[list-item]
            likelihood=RAO_KUPPER, ties=VALUES,
        ).annotators[0].slope
        for difference in (1.0, 4.0)
    )  # fmt: skip
    assert small == pytest.approx(large, rel=0.05)


def test_pairs_that_a_reward_model_chose_are_no_part_of_the_expected_agreement():
    expected = []
    for arm in ("random", "bald"):
        pairs = [judged_pair(FIRST, annotator=who, first="f", arm=arm) for who in "ab"]
        found = reliability(
            [(pairs, Known())], ["a", "b"], {"a": 1, "b": 1},  # type: ignore[list-item]
            likelihood=RAO_KUPPER, ties=VALUES,
        )  # fmt: skip
        expected.append(found.expected_preference_agreement)
    assert [each is None for each in expected] == [False, True]


def test_a_model_without_a_probability_for_ties_expects_no_agreement():
    pairs = [judged_pair(TIE, annotator=name, first="f") for name in "ab"]
    expected = [
        reliability(
            [(pairs, Known())], ["a", "b"], {"a": 1, "b": 1},  # type: ignore[list-item]
            likelihood=Likelihood(tie_model=tie_model, both_bad="tie"), ties=VALUES,
        ).expected_agreement
        for tie_model in ("half", "rao_kupper")
    ]  # fmt: skip
    assert [each is None for each in expected] == [True, False]


def test_a_margin_that_training_wanted_makes_nobody_agree_more():
    pairs = [
        judged_pair(outcome, annotator=name, first=f"f{n}")
        for n in range(60)
        for name, outcome in (("a", FIRST if n % 3 else SECOND), ("b", FIRST if n % 2 else TIE))
    ]
    expected = [
        reliability(
            [(pairs, Known())], ["a", "b"], {"a": 60, "b": 60},  # type: ignore[list-item]
            likelihood=replace(RAO_KUPPER, margin=margin), ties=VALUES,
        ).expected_agreement
        for margin in (0.0, 2.0)
    ]  # fmt: skip
    assert expected[0] == expected[1]


def test_losses_outside_training_are_by_what_is_known_of_each_annotator():
    """Both judgments are as the reward says, so the best scale is the largest, 10^.7.

    The reversed one leans to the left by .5, where the second response stood: z = s − .5.
    """
    known = AnnotatorEffects(["reversed"])
    torch.nn.init.constant_(known.delta, -2.0)
    torch.nn.init.constant_(known.bias, 0.5)
    network = SimpleNamespace(
        annotators=known, likelihood=Likelihood(tie_model="half", both_bad="tie"), ties=Ties()
    )
    pairs = [judged_pair(FIRST, annotator=who, side=-1) for who in ("reversed", "unknown")]
    found = losses_to_annotators(pairs, [0.0, 1.0], [1.0, 0.0], network)
    s = 10**0.7
    expected = [math.log1p(math.exp(0.5 - s)), math.log1p(math.exp(-s))]
    assert found.tolist() == pytest.approx(expected, rel=1e-5)


def test_nobody_is_said_to_read_the_buttons_the_other_way_for_noise():
    row = AnnotatorEstimate(annotator="a", slope=-0.2, slope_sd=0.2, weight=0.04, measured=9)
    [note] = notes_on_annotators([row])
    assert "sign is reversed" not in note.message


def test_rows_and_warnings():
    judged = judgments([1.0, -1.0, 0.0], [0, 0, 0], each=200)
    found = fit(judged, 3)
    ids, chances = ["ann", "bob", "cy"], outcome_chances(judged, found, RAO_KUPPER, VALUES)
    rows = annotator_estimates(
        ids, dict.fromkeys(ids, 201), judged, found,
        weights=annotator_weights(found, RAO_KUPPER, VALUES),
        follows=agreement_with_model(ids, judged, chances),
    )  # fmt: skip
    assert [row.judgments for row in rows] == [201] * 3
    assert [row.annotator for row in rows] == ["ann", "bob", "cy"]
    assert [row.measured for row in rows] == [200] * 3
    assert rows[0].slope == pytest.approx(1 + found.delta[0].item())
    notes = notes_on_annotators(rows)
    assert [note.payload["annotator"] for note in notes] == ["bob", "cy"]
    assert "contradicts the others" in notes[0].message
    assert "% of an average one" in notes[1].message


# --- in the stage -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return tiny_models(tmp_path_factory.mktemp("models"))


MIRRORED = {"first": "second", "second": "first", "tie": "tie", "both_bad": "both_bad"}


def several(count: int) -> list[dict[str, Any]]:
    """Four people who like z, one who presses the wrong button, and one who presses left."""
    rows = make_judgments(count)
    for n, row in enumerate(rows):
        row |= {"annotator": f"a-{n // 2 % 6}", "shown_swapped": n % 2 == 1}
        if row["annotator"] == "a-4":
            row["outcome"] = MIRRORED[row["outcome"]]
        if row["annotator"] == "a-5":
            row["outcome"] = "second" if row["shown_swapped"] else "first"
    return rows


def test_the_stage_learns_annotators_and_saves_rewards_alone(
    models: dict[str, str], tmp_path: Path
):
    job = make_job(
        "reward",
        models,
        reward__epochs=3,
        reward__held_out_share=0.25,
        reward__stopping_judgments=20,
    )
    directory = RunDirectory.create(tmp_path, job)
    give(directory, "judgments.parquet", several(320))
    give(directory, "prompts.parquet", make_prompts(6))
    with Report(directory) as events:
        summary = run(job, events, directory)
    rows = summary.annotators.by_annotator
    assert sorted(rows) == ["a-0", "a-1", "a-2", "a-3", "a-4", "a-5"]
    assert sum(row.judgments for row in rows.values()) == 320
    # Each judgment is measured by the model that did not learn from it.
    assert [row.measured for row in rows.values()] == [r.judgments for r in rows.values()]
    assert min(rows[f"a-{n}"].slope for n in range(4)) > 0.5
    assert rows["a-4"].slope + 2 * rows["a-4"].slope_sd < 0
    assert rows["a-5"].side_bias - 2 * rows["a-5"].side_bias_sd > 0.3
    assert rows["a-5"].weight < 0.3 < rows["a-4"].weight
    assert summary.annotators.expected_agreement is None  # nobody judged what another one did
    told = [json.loads(line) for line in directory.events.read_text().splitlines()]
    warned = {e["payload"]["annotator"] for e in told if e.get("name") == "annotator"}
    assert {"a-4", "a-5"} <= warned

    model = RewardModel.load(directory.model)
    assert not any("annotators" in name for name, _ in model.network.named_parameters())
    good, bad = model(["Say 1"] * 2, ["zzbzzzcz", "abcdefgh"])
    assert good > bad + 1  # although a third of the judges said otherwise or nothing


@pytest.mark.parametrize("how", ["off", "alone"])
def test_annotators_are_learned_where_there_are_several_and_it_is_asked(
    models: dict[str, str], tmp_path: Path, how: str
):
    job = make_job("reward", models, reward__center=False, reward__annotators=how == "alone")
    directory = RunDirectory.create(tmp_path, job)
    give(directory, "judgments.parquet", several(48) if how == "off" else make_judgments(48))
    with Report(directory) as events:
        summary = run(job, events, directory)
    assert summary.annotators is None
