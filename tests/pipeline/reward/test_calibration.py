"""The scale of rewards: fitted to what was not learned from, and what it leaves as it was."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.models.text import ChatTokenizer
from pipeline.reward.data import JudgedPair
from pipeline.reward.likelihood import (
    BOTH_BAD,
    FIRST,
    SECOND,
    TIE,
    UNSTATED,
    Likelihood,
    TieValues,
)
from pipeline.reward.network import from_language_model
from pipeline.reward.quality.calibration import calibrate, fitted_factors
from pipeline.reward.scoring import RewardModel
from storage.records import digest
from tests.helpers.stage_inputs import tiny_models

CPU = torch.device("cpu")
PLAIN = Likelihood(tie_model="drop", both_bad="tie")
FREE = {"prior_sd": 10.0}
"""The judgments decide."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return tiny_models(tmp_path_factory.mktemp("models"))


def pair(outcome: int, *, prompt: str = "p", ids: tuple[int, int] = (5, 6), who: str = "a") -> Any:
    return JudgedPair(
        judgment="j", prompt=prompt, first="f", second="s", first_ids=[ids[0]],
        second_ids=[ids[1]], first_length=1, second_length=1, outcome=outcome,
        strength=UNSTATED, annotator=who, side=1,
    )  # fmt: skip


def scale_of(
    outcomes: list[int], d: float, *, likelihood: Likelihood = PLAIN, **prior: float
) -> float:
    pairs = [pair(outcome, who=f"a{n % 3}") for n, outcome in enumerate(outcomes)]
    firsts, seconds = [d] * len(pairs), [0.0] * len(pairs)
    found = fitted_factors(
        pairs, firsts, seconds, likelihood=likelihood, ties=TieValues(theta=0.5), **prior
    )
    return found.rewards


def test_the_scale_is_that_at_which_the_share_won_is_the_one_stated():
    # d = 2, and 731 of 1,000 go to the first: σ(2s) = .731, so 2s = ln(.731/.269) = 1.
    said = [FIRST] * 731 + [SECOND] * 269
    assert scale_of(said, 2.0, **FREE) == pytest.approx(0.5, rel=0.025)
    # And where the model was too timid: σ(s/2) = .731, so s = 2.
    assert scale_of(said, 0.5, **FREE) == pytest.approx(2.0, rel=0.025)
    # Ties say it too: at θ = ½ and s·d = 1 they are σ(1.5) − σ(.5) = .195, wins σ(.5) = .622.
    rao_kupper = Likelihood(tie_model="rao_kupper", both_bad="absolute", label_smoothing=0.1)
    outcomes = [FIRST] * 622 + [TIE] * 150 + [BOTH_BAD] * 45 + [SECOND] * 183
    assert scale_of(outcomes, 4.0, likelihood=rao_kupper, **FREE) == pytest.approx(0.25, rel=0.025)


@pytest.mark.parametrize(
    ("tie_model", "shares"),
    [
        # d = 1, θ = ½: σ(½) = .622, σ(−1.5) = .182, and ties the rest.
        ("rao_kupper", (622, 196, 182)),
        # d = 1, ν = ½: e^½ : ½ : e^−½ = 1.649 : .5 : .607, of 2.755.
        ("davidson", (598, 182, 220)),
    ],
)
def test_ties_are_promised_as_often_as_people_tie(tie_model: Any, shares: tuple[int, int, int]):
    # Overconfident in both: d is 4 and θ 1.5 where people behave as at 1 and ½.
    won, tied, lost = shares
    pairs = [pair(outcome) for outcome in [FIRST] * won + [TIE] * tied + [SECOND] * lost]
    found = fitted_factors(
        pairs, [4.0] * 1000, [0.0] * 1000,
        likelihood=Likelihood(tie_model=tie_model, both_bad="tie"), ties=TieValues(theta=1.5), **FREE,
    )  # fmt: skip
    assert found.rewards == pytest.approx(1 / 4, rel=0.04)
    assert found.thresholds == pytest.approx(1 / 3, rel=0.04)


def test_thresholds_of_strength_follow_those_of_ties():
    # At d = 0 with θ = ½ and gaps of 1: ties tanh(¼) = .245, of each side slightly σ(−½) − σ(−1.5)
    # = .195, clearly σ(−1.5) − σ(−2.5) = .106, much σ(−2.5) = .076.
    said = [(TIE, UNSTATED)] * 245
    for strength, count in ((1, 195), (2, 106), (3, 76)):
        said += [(FIRST, strength)] * count + [(SECOND, strength)] * count
    pairs = [replace(pair(outcome), strength=strength) for outcome, strength in said]
    nothing = [0.0] * len(pairs)
    found = fitted_factors(
        pairs, nothing, nothing, likelihood=Likelihood(tie_model="ordinal", both_bad="tie"),
        ties=TieValues(theta=1.0, gap_clearly=2.0, gap_much=2.0), **FREE,
    )  # fmt: skip
    assert found.rewards == pytest.approx(1.0)
    assert found.thresholds == pytest.approx(0.5, rel=0.03)


def test_a_few_judgments_change_little():
    assert scale_of([], 2.0) == 1.0
    assert scale_of([TIE] * 5, 2.0) == 1.0  # under drop, ties say nothing
    # One judgment against d = 2: the posterior's maximum solves ln s / sd² = −2s·σ(2s).  At s = .907
    # and the default of ¼ the two sides are −1.56 and −1.56; at .49 and 1 they are −.713 and −.713.
    assert scale_of([SECOND], 2.0) == pytest.approx(0.907, rel=0.012)
    assert scale_of([SECOND], 2.0, prior_sd=1.0) == pytest.approx(0.49, rel=0.025)


def scored(models: dict[str, str], tie_model: Any = "drop") -> tuple[RewardModel, list[int]]:
    """A model of two heads with rewards far apart, and token ids in the order of their rewards."""
    chat = ChatTokenizer.load(models["reference"])
    network = from_language_model(models["reference"], chat, heads=2)
    torch.manual_seed(0)
    torch.nn.init.normal_(network.heads.weight)
    torch.nn.init.normal_(network.score.weight)
    network.likelihood = Likelihood(tie_model=tie_model, both_bad="tie")
    model = RewardModel(network, chat, CPU)
    tokens = list(range(5, 60))
    rewards = model.score([[token] for token in tokens])
    return model, [token for _, token in sorted(zip(rewards, tokens, strict=True))]


def prompts(half: int, count: int) -> list[str]:
    named = (f"p{n}" for n in range(1000))
    return [name for name in named if int(digest("calibration", name), 16) % 2 == half][:count]


def test_rewards_are_rescaled_and_probabilities_of_both_bad_stay(models: dict[str, str]):
    model, order = scored(models)
    texts = [[token] for token in order]
    before, members = model.score(texts), model.rewards(texts)
    place = max(n for n, reward in enumerate(before) if reward < before[-1] - 1.3)
    d, low, high = before[-1] - before[place], order[place], order[-1]

    def bad(d: float) -> float:
        level = torch.tensor([d])
        found = Likelihood(tie_model="rao_kupper", both_bad="absolute").log_likelihood(
            torch.zeros(1), torch.tensor([BOTH_BAD]), ties=model.network.ties.values(), level=level
        )
        return found.item()

    with torch.no_grad():
        model.network.ties.level.fill_(0.7)
    split = bad(0.3)
    judged = [
        pair(FIRST if n % 4 else SECOND, prompt=f"p{n // 4}", ids=(high, low)) for n in range(4000)
    ]
    found, _ = calibrate(model, judged)
    # Three of four go to the first, whose lead is d: σ(s·d) = ¾, s·d = ln 3.
    assert found.scale == pytest.approx(math.log(3) / d, rel=0.025)
    assert model.score(texts) == pytest.approx(
        [found.scale * r for r in before], rel=1e-4, abs=1e-6
    )
    for ours, theirs in zip(model.rewards(texts), members, strict=True):
        assert ours == pytest.approx([found.scale * r for r in theirs], rel=1e-4, abs=1e-6)
    assert bad(0.3 * found.scale) == pytest.approx(split, abs=1e-5)
    assert found.ece < 0.02


def test_no_judgment_is_measured_at_a_scale_that_was_fitted_to_it(models: dict[str, str]):
    model, order = scored(models)
    ids = (order[-1], order[0])
    first, second = model.both_sides([pair(FIRST, ids=ids)])
    d = first[0] - second[0]
    assert d > 2
    right = [pair(FIRST, prompt=p, ids=ids) for p in prompts(0, 40)]
    wrong = [pair(SECOND, prompt=p, ids=ids) for p in prompts(1, 40)]
    found, _ = calibrate(model, right + wrong)
    # The right half is read at the smallest factor, as the wrong half asks, and the wrong half at
    # one above 1: −log σ(−d) > d there.  All at one factor would give log 2 or so.
    assert found.log_loss > d / 2
    assert found.scale < 0.2
    # Judgments set apart are fitted to and not measured: they outvote the wrong half.
    model, _ = scored(models)
    apart = [pair(FIRST, prompt=p, ids=ids) for p in prompts(1, 400)]
    found, _ = calibrate(model, right, apart)
    assert found.log_loss < 0.1
    assert found.scale > 0.9


def test_without_it_rewards_stay_as_training_made_them(models: dict[str, str]):
    model, order = scored(models)
    texts = [[token] for token in order]
    before = model.score(texts)
    judged = [pair(SECOND, prompt=f"p{n}", ids=(order[-1], order[0])) for n in range(40)]
    found, _ = calibrate(model, judged, scale=False)
    assert (found.scale, model.score(texts)) == (1.0, before)
    # −log σ(−d) at d ≫ 0 is d.
    assert found.log_loss == pytest.approx(max(before) - min(before), rel=0.05)


def test_the_saved_model_has_the_scale(models: dict[str, str], tmp_path: Path):
    model, order = scored(models, tie_model="rao_kupper")
    near = (order[20], order[19])
    judged = [pair(SECOND if n % 2 else FIRST, prompt=f"p{n}", ids=near) for n in range(60)]
    theta = model.network.ties().item()
    found, _ = calibrate(model, judged)
    # Nobody tied: ties become rarer.
    assert found.threshold_scale < 0.9
    assert model.network.ties().item() == pytest.approx(found.threshold_scale * theta, rel=1e-5)
    model.network.save_pretrained(tmp_path)
    model.chat.tokenizer.save_pretrained(tmp_path)
    texts = [[token] for token in order]
    assert RewardModel.load(tmp_path).score(texts) == pytest.approx(model.score(texts), abs=1e-5)
