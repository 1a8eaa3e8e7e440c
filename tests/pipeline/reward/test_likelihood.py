"""The likelihoods against numbers worked by hand, at their limits, and against finite differences."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from pipeline.reward.likelihood import (
    BOTH_BAD,
    FIRST,
    OUTCOME_CODES,
    SECOND,
    TIE,
    Likelihood,
    TieValues,
    log_probabilities,
    preference_logit,
)
from pipeline.reward.likelihood_parameters import Ties

LOG_3 = math.log(3)
F64 = torch.float64
MODELS = ("rao_kupper", "davidson", "ordinal", "drop", "half")
WITH_TIES = ("rao_kupper", "davidson", "ordinal")
VALUES = TieValues(theta=0.5, gap_clearly=0.8, gap_much=1.1, kappa=-0.4, scale=1.7)


def likely(model: Likelihood, d: float, outcome: int, **given: Any) -> float:
    """The probability of one outcome at d."""
    values = given.pop("ties", VALUES)
    tensors = {name: torch.tensor([value], dtype=F64) for name, value in given.items()}
    found = model.log_likelihood(
        torch.tensor([d], dtype=F64), torch.tensor([outcome]), ties=values, **tensors
    )
    return math.exp(found.item())


def categories(model: Likelihood) -> list[dict[str, int]]:
    """Everything that may be said under a model, each once."""
    strengths = (1, 2, 3) if model.tie_model == "ordinal" else (0,)
    said = [{"outcome": side, "strength": s} for side in (FIRST, SECOND) for s in strengths]
    if model.tie_model in WITH_TIES:
        said.append({"outcome": TIE, "strength": 0})
        if model.both_bad == "absolute":
            said.append({"outcome": BOTH_BAD, "strength": 0})
    return said


def table(model: Likelihood, d: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
    """(N, C) log-probabilities of every category."""
    return torch.stack(
        [
            model.log_likelihood(
                d,
                torch.full(d.shape, each["outcome"]),
                ties=VALUES,
                strength=torch.full(d.shape, each["strength"]),
                level=level,
            )
            for each in categories(model)
        ],
        dim=-1,
    )


# --- values by hand ---------------------------------------------------------------------------


def test_rao_kupper_by_hand():
    # d = log 3, θ = log 2: P(first) = σ(log 3/2) = 1.5/2.5 = .6,
    # P(second) = σ(−log 6) = 1/7, P(tie) = σ(log 6) − σ(log 3/2) = 6/7 − 3/5 = 9/35.
    d = torch.tensor([LOG_3], dtype=F64)
    expected = torch.tensor([[0.6, 1 / 7, 9 / 35]], dtype=F64)
    assert_close(log_probabilities(d, math.log(2)).exp(), expected)
    model, values = Likelihood(tie_model="rao_kupper", both_bad="tie"), TieValues(theta=math.log(2))
    for outcome, p in zip((FIRST, SECOND, TIE), expected[0].tolist(), strict=True):
        assert likely(model, LOG_3, outcome, ties=values) == pytest.approx(p, rel=1e-14)


def test_davidson_by_hand():
    # d = log 4, ν = 1: weights e^(d/2) = 2, e^(−d/2) = ½ and 1, of 3½ in all.
    model, values = Likelihood(tie_model="davidson", both_bad="tie"), TieValues(theta=1.0)
    for outcome, p in ((FIRST, 4 / 7), (SECOND, 1 / 7), (TIE, 2 / 7)):
        assert likely(model, math.log(4), outcome, ties=values) == pytest.approx(p, rel=1e-14)
    found = log_probabilities(torch.tensor([math.log(4)], dtype=F64), 1.0, "davidson").exp()
    assert_close(found, torch.tensor([[4 / 7, 1 / 7, 2 / 7]], dtype=F64))


def test_ordinal_by_hand():
    # θ = log 2, θ2 = log 4, θ3 = log 12, d = log 4: σ(d − θ) = 2/3, σ(d − θ2) = 1/2,
    # σ(d − θ3) = (1/3)/(4/3) = 1/4; for the second σ(−d − θ) = 1/9, σ(−d − θ2) = 1/17.
    model = Likelihood(tie_model="ordinal", both_bad="tie")
    values = TieValues(theta=math.log(2), gap_clearly=math.log(2), gap_much=math.log(3))
    d = math.log(4)
    expected = {(FIRST, 1): 1 / 6, (FIRST, 2): 1 / 4, (FIRST, 3): 1 / 4, (FIRST, 0): 2 / 3}
    expected |= {(SECOND, 1): 1 / 9 - 1 / 17, (SECOND, 0): 1 / 9, (TIE, 0): 8 / 9 - 2 / 3}
    for (outcome, strength), p in expected.items():
        found = likely(model, d, outcome, strength=strength, ties=values)
        assert found == pytest.approx(p, rel=1e-13)


def test_half_and_drop_by_hand():
    # d = log 3: first costs −log ¾, second −log ¼, a tie under `half` their mean, −½ log 3/16.
    d = torch.full((3,), LOG_3, dtype=F64)
    outcomes = torch.tensor([FIRST, SECOND, TIE])
    half = Likelihood(tie_model="half", both_bad="tie").loss(d, outcomes, ties=VALUES)
    expected = [-math.log(0.75), -math.log(0.25), -0.5 * math.log(3 / 16)]
    assert_close(half, torch.tensor(expected, dtype=F64))
    drop = Likelihood(tie_model="drop", both_bad="tie").loss(d[:2], outcomes[:2], ties=VALUES)
    assert_close(drop, half[:2])


def test_drop_refuses_a_tie_rather_than_ignore_it():
    with pytest.raises(ValueError, match="leave ties out"):
        Likelihood(tie_model="drop", both_bad="tie").loss(
            torch.zeros(1), torch.tensor([BOTH_BAD]), ties=VALUES
        )


@pytest.mark.parametrize("tie_model", [*WITH_TIES, "half"])
def test_both_bad_splits_a_tie_by_the_level(tie_model: Any):
    # κ = log 3 and c = 2 at level 0: P(bad | tie) = σ(2 log 3) = 9/10.
    values = VALUES._replace(kappa=LOG_3, scale=2.0)
    split, plain = (
        Likelihood(tie_model=tie_model, both_bad=both_bad) for both_bad in ("absolute", "tie")
    )
    tie = likely(plain, 0.3, TIE, ties=values)
    assert likely(plain, 0.3, BOTH_BAD, ties=values) == tie
    for outcome, share in ((BOTH_BAD, 0.9), (TIE, 0.1)):
        found = likely(split, 0.3, outcome, level=0.0, ties=values)
        assert found == pytest.approx(share * tie, rel=1e-13)
    wins = [likely(m, 0.3, FIRST, level=0.0, ties=values) for m in (split, plain)]
    assert wins[0] == wins[1]
    with pytest.raises(ValueError, match="needs the level"):
        likely(split, 0.3, TIE, ties=values)


def test_both_bad_is_a_code_of_its_own():
    assert OUTCOME_CODES == {"first": FIRST, "second": SECOND, "tie": TIE, "both_bad": BOTH_BAD}
    assert len(set(OUTCOME_CODES.values())) == 4


def test_label_smoothing_takes_some_judgments_for_their_mirror_image():
    # θ → 0 and d = log 3: .9 · −log ¾ + .1 · −log ¼; a tie is its own mirror image.
    model = Likelihood(tie_model="rao_kupper", both_bad="tie", label_smoothing=0.1)
    d, outcomes = torch.full((3,), LOG_3, dtype=F64), torch.tensor([FIRST, SECOND, TIE])
    values = TieValues(theta=1e-12)
    found = model.loss(d, outcomes, ties=values)
    first, second = -math.log(0.75), -math.log(0.25)
    assert found[0].item() == pytest.approx(0.9 * first + 0.1 * second)
    assert found[1].item() == pytest.approx(0.9 * second + 0.1 * first)
    assert (
        found[2]
        == -Likelihood(tie_model="rao_kupper", both_bad="tie").log_likelihood(
            d, outcomes, ties=values
        )[2]
    )


@pytest.mark.parametrize(("strength", "share"), [(0, 0), (1, 1 / 3), (2, 2 / 3), (3, 1)])
def test_a_margin_is_asked_of_the_winner_whichever_it_is(strength: int, share: float):
    asked, plain = (
        Likelihood(tie_model="half", margin=1.5, both_bad="tie"),
        Likelihood(tie_model="half", both_bad="tie"),
    )
    for outcome, sign in ((FIRST, 1), (SECOND, -1)):
        found = likely(asked, sign * 2.0, outcome, strength=strength)
        assert found == pytest.approx(likely(plain, 2.0 - 1.5 * share, FIRST), rel=1e-13)


def test_odds_of_a_decisive_judgment_are_not_those_of_plain_bradley_terry():
    # From the probabilities above: .6 / (1/7) = 4.2, where σ(d) would give odds of 3.
    d = torch.tensor([LOG_3], dtype=F64)
    assert_close(preference_logit(d, math.log(2)), torch.tensor([math.log(4.2)], dtype=F64))


@pytest.mark.parametrize("tie_model", MODELS)
def test_the_odds_are_those_of_the_probabilities(tie_model: Any):
    d = torch.linspace(-3, 3, 13, dtype=F64)
    found = log_probabilities(d, 0.7, tie_model)
    assert_close(preference_logit(d, 0.7, tie_model), found[:, FIRST] - found[:, SECOND])


def test_theta_near_zero_is_bradley_terry():
    d = torch.tensor([LOG_3], dtype=F64)
    for tie_model in WITH_TIES:
        found = log_probabilities(d, 1e-9, tie_model).exp()
        assert_close(found[0, :2], torch.tensor([0.75, 0.25], dtype=F64))


# --- sums, limits and gradients ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("tie_model", "both_bad"),
    [(m, "tie") for m in MODELS] + [(m, "absolute") for m in WITH_TIES],
)
def test_probabilities_sum_to_one(tie_model: Any, both_bad: Any):
    d = torch.linspace(-80, 80, 641, dtype=F64)
    total = table(
        Likelihood(tie_model=tie_model, both_bad=both_bad),
        d,
        torch.linspace(40, -40, 641, dtype=F64),
    )
    # The distance from 1 is a rounding or two of numbers near 1, 2.2e-16 each.
    assert (total.exp().sum(-1) - 1).abs().max() <= 4.5e-16
    assert (log_probabilities(d, 0.5, tie_model).exp().sum(-1) - 1).abs().max() <= 4.5e-16


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "model",
    [Likelihood(tie_model=m, both_bad=b) for m in WITH_TIES for b in ("tie", "absolute")]
    + [Likelihood(tie_model="drop", both_bad="tie"), Likelihood(tie_model="half", both_bad="tie")],
    ids=str,
)
def test_values_and_gradients_are_finite_at_eighty(dtype: torch.dtype, model: Likelihood):
    for each in categories(model):
        d, level = (torch.tensor([-80.0, 80.0], dtype=dtype, requires_grad=True) for _ in "dl")
        values = [torch.tensor(v, dtype=dtype, requires_grad=True) for v in VALUES]
        loss = model.loss(
            d, torch.full((2,), each["outcome"]), ties=TieValues(*values),
            strength=torch.full((2,), each["strength"]), level=level,
        )  # fmt: skip
        assert torch.isfinite(loss).all()
        loss.sum().backward()
        for leaf in (d, level, *values):
            assert leaf.grad is None or torch.isfinite(leaf.grad).all()
        # Who is 80 behind and wins all the same still pulls with his whole weight.
        assert d.grad is not None
        if each["outcome"] == FIRST and each["strength"] == 0:
            assert d.grad[0].item() == pytest.approx(-1)


def test_a_tie_at_eighty_by_hand():
    # log σ(θ − d) ≈ θ − d, and log(1 − e^−2θ) = log(1 − e^−1) at θ = ½.
    expected = 0.5 - 80 + math.log(1 - math.exp(-1))
    d = torch.tensor([80.0], dtype=F64)
    assert log_probabilities(d, 0.5)[0, TIE].item() == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_plain_difference_of_sigmoids_fails_there(dtype: torch.dtype):
    d = torch.tensor([80.0], dtype=dtype)
    naive = (torch.sigmoid(d + 0.5) - torch.sigmoid(d - 0.5)).log()
    assert naive.item() == -math.inf
    assert log_probabilities(d, 0.5)[0, TIE].item() == pytest.approx(-79.96, abs=0.5)


@pytest.mark.parametrize(
    "model",
    [
        Likelihood(tie_model=m, both_bad=b, label_smoothing=0.1)
        for m, b in itertools.product(WITH_TIES, ("tie", "absolute"))
    ]
    + [
        Likelihood(tie_model="half", margin=0.7, both_bad="tie"),
        Likelihood(tie_model="half", both_bad="absolute"),
    ],
    ids=str,
)
def test_gradients_match_finite_differences(model: Likelihood):
    torch.manual_seed(0)
    outcomes = torch.tensor([FIRST, SECOND, TIE, BOTH_BAD] * 4)
    strength = torch.tensor([0, 1, 0, 0, 1, 2, 0, 0, 2, 3, 0, 0, 3, 0, 0, 0])
    d, level = (torch.randn(16, dtype=F64, requires_grad=True) for _ in "dl")
    values = torch.tensor(VALUES, dtype=F64, requires_grad=True)

    def loss(d: torch.Tensor, level: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return model.loss(
            d, outcomes, ties=TieValues(*values), strength=strength, level=level
        ).sum()

    assert torch.autograd.gradcheck(loss, (d, level, values))


# --- the learned numbers ----------------------------------------------------------------------


def started(outcomes: list[int], strengths: list[int] | None = None, **settings: Any) -> Ties:
    ties = Ties()
    stated = strengths or [0] * len(outcomes)
    asked: dict[str, Any] = {"tie_model": "rao_kupper", "both_bad": "tie"} | settings
    ties.start(Likelihood(**asked), torch.tensor(outcomes), torch.tensor(stated))
    return ties


@pytest.mark.parametrize("tie_model", WITH_TIES)
def test_equal_responses_tie_as_often_as_the_data_at_first(tie_model: Any):
    ties = started([FIRST, SECOND, FIRST, TIE], tie_model=tie_model)
    found = log_probabilities(torch.zeros(1), ties.values().theta, tie_model).exp()
    assert_close(found, torch.tensor([[0.375, 0.375, 0.25]]))
    if tie_model == "rao_kupper":
        # tanh(θ/2) = ¼ → θ = log((1 + ¼)/(1 − ¼)) = log 5/3.
        assert ties().item() == pytest.approx(math.log(5 / 3), rel=1e-6)


def test_strengths_are_as_common_as_in_the_data_at_first():
    # Ten decisive judgments: five slight, three clear, two much; the tie has no part in it.
    strengths = [1] * 5 + [2] * 3 + [3] * 2
    ties = started([FIRST, SECOND] * 5 + [TIE], [*strengths, 0], tie_model="ordinal")
    model, values = Likelihood(tie_model="ordinal", both_bad="tie"), ties.values()
    win = likely(model, 0.0, FIRST, strength=0, ties=values)
    shares = [likely(model, 0.0, FIRST, strength=s, ties=values) / win for s in (1, 2, 3)]
    assert shares == pytest.approx([0.5, 0.3, 0.2], abs=1e-5)


def test_the_level_of_both_bad_starts_at_its_share_of_ties():
    ties = started([FIRST, TIE, TIE, TIE, BOTH_BAD], both_bad="absolute")
    model, values = Likelihood(tie_model="rao_kupper", both_bad="absolute"), ties.values()
    bad, tie = (likely(model, 0.0, o, level=0.0, ties=values) for o in (BOTH_BAD, TIE))
    assert bad / (bad + tie) == pytest.approx(0.25, abs=1e-5)


def test_numbers_stay_sane_without_ties_or_with_nothing_else():
    assert 0 < started([FIRST])().item() < 0.05
    assert started([TIE])().item() == pytest.approx(2 * math.atanh(0.9), rel=1e-5)


def test_only_what_the_likelihood_has_is_learned():
    learned = {}
    for tie_model in MODELS:
        ties = Ties()
        ties.learn(Likelihood(tie_model=tie_model, both_bad="tie"))
        learned[tie_model] = [name for name, p in ties.named_parameters() if p.requires_grad]
    assert learned == {
        "rao_kupper": ["raw"], "davidson": ["raw"], "ordinal": ["raw", "gaps"],
        "drop": [], "half": [],
    }  # fmt: skip
    ties.learn(Likelihood(tie_model="rao_kupper", both_bad="absolute"))
    assert ties.level.requires_grad
    assert ties.sharpness.requires_grad
