"""Acquisition functions by hand and by brute force, and what choosing keeps to."""

from __future__ import annotations

import math
from itertools import combinations
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch

from pipeline.config.sections import SamplingConfig
from pipeline.reward.likelihood import TieModel
from pipeline.sampling.acquisition import (
    ACQUISITIONS,
    MAX_FEATURES,
    Candidates,
    bald,
    choose,
    entropy,
    fisher_information,
    narrow,
    outcome_probabilities,
    pairs_within,
    uncertainty,
)
from storage.records import Arm

LN2, LN3 = math.log(2), math.log(3)


def test_every_acquisition_is_a_setting_and_an_arm():
    choices = get_args(get_type_hints(SamplingConfig)["selection"])
    assert {*choices} == {*ACQUISITIONS, "hybrid"}
    assert {*ACQUISITIONS} <= {*get_args(Arm)}


def table(*members: list[list[float]]) -> torch.Tensor:
    return torch.tensor(members, dtype=torch.float64)


def pool(pairs: int, *, members: int = 3, prompts: int | None = None, seed: int = 0) -> Candidates:
    generator = torch.Generator().manual_seed(seed)
    differences = torch.randn(members, pairs, generator=generator, dtype=torch.float64)
    return Candidates(
        probabilities=outcome_probabilities(differences, 0.4),
        prompts=[i % (prompts or pairs) for i in range(pairs)],
        features=torch.randn(pairs, 5, generator=generator),
    )


def test_members_that_are_sure_of_opposites_are_worth_a_bit_and_those_that_agree_nothing():
    opposed = table([[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]])
    assert bald(opposed).tolist() == pytest.approx([LN2])
    # Three sure members with three answers: as much as three outcomes can tell.
    assert bald(table([[1.0, 0, 0]], [[0, 1.0, 0]], [[0, 0, 1.0]])).tolist() == pytest.approx([LN3])
    agreed = table([[0.5, 0.5, 0.0]], [[0.5, 0.5, 0.0]])
    assert bald(agreed).tolist() == [0.0]
    # Uncertainty cannot tell the two apart.
    assert uncertainty(opposed).tolist() == uncertainty(agreed).tolist() == pytest.approx([LN2])


def test_bald_by_hand():
    # p̄ = (.5, .25, .25): H = 1.5 bits.  H(p_1) = H(.5, .5) = 1 bit, H(p_2) = H(.5, .5) = 1 bit.
    found = bald(table([[0.5, 0.5, 0.0]], [[0.5, 0.0, 0.5]]))
    assert found.tolist() == pytest.approx([0.5 * LN2])


def test_bald_is_the_mutual_information_of_answer_and_member():
    candidates = pool(40, members=4)
    p = candidates.probabilities.numpy()
    for pair, found in enumerate(bald(torch.from_numpy(p)).tolist()):
        joint = p[:, pair] / len(p)  # member and answer
        product = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
        assert found == pytest.approx((joint * np.log(joint / product)).sum(), abs=1e-12)


def test_probabilities_are_those_of_the_tie_model():
    sigmoid = lambda x: 1 / (1 + math.exp(-x))  # noqa: E731
    found = outcome_probabilities(torch.tensor([[0.0, 2.0], [-1.0, 7.0]]), 0.5)
    for member, differences in enumerate(((0.0, 2.0), (-1.0, 7.0))):
        for pair, d in enumerate(differences):
            first, second = sigmoid(d - 0.5), sigmoid(-d - 0.5)
            expected = [first, second, 1 - first - second]
            assert found[member, pair].tolist() == pytest.approx(expected)


def test_entropy_of_certainty_is_zero_and_finite_without_ties():
    assert entropy(table([[1.0, 0.0, 0.0]])).item() == 0.0
    # θ = 0 is Bradley-Terry: no probability is left for ties.
    even = outcome_probabilities(torch.zeros(1, 1), 0.0)
    assert entropy(even).item() == pytest.approx(LN2)


@pytest.mark.parametrize("d", [-3.0, -0.4, 0.0, 1.7])
@pytest.mark.parametrize("theta", [0.0, 0.3, 1.5])
@pytest.mark.parametrize("tie_model", ["rao_kupper", "davidson"])
def test_fisher_information_is_the_expected_curvature(d: float, theta: float, tie_model: TieModel):
    at = torch.tensor(d, dtype=torch.float64)

    def probabilities(x: torch.Tensor) -> torch.Tensor:
        return outcome_probabilities(x.reshape(1, 1), theta, tie_model)[0, 0]

    step = 1e-4
    p = probabilities(at)
    expected = 0.0
    for outcome in range(3):
        if p[outcome] > 0:
            logs = [probabilities(at + k * step)[outcome].log() for k in (-1, 0, 1)]
            expected -= (p[outcome] * (logs[0] - 2 * logs[1] + logs[2]) / step**2).item()
    assert fisher_information(p, tie_model).item() == pytest.approx(expected, abs=1e-6)


def test_four_texts_make_six_pairs_of_their_own_prompt():
    first, second = pairs_within(["a", "b", "a", "a", "b", "a"])
    assert set(zip(first, second, strict=True)) == {
        (0, 2), (0, 3), (0, 5), (2, 3), (2, 5), (3, 5), (1, 4)
    }  # fmt: skip


def test_bald_and_uncertainty_choose_the_best_pair_of_each_prompt():
    candidates = pool(60, prompts=12)
    p = candidates.probabilities
    for name, scores in (("bald", bald(p)), ("uncertainty", uncertainty(p))):
        best = [max(range(n, 60, 12), key=lambda i: scores[i]) for n in range(12)]
        expected = sorted(best, key=lambda i: -scores[i])
        assert choose(name, candidates, 5, seed=0) == expected[:5]
        assert choose(name, candidates, 99, seed=0) == expected


@pytest.mark.parametrize("name", list(ACQUISITIONS))
def test_no_prompt_is_asked_twice_and_the_seed_decides(name: str):
    candidates = pool(60, prompts=20)
    chosen = choose(name, candidates, 15, seed=1)
    assert len({candidates.prompts[i] for i in chosen}) == len(chosen) == 15
    assert choose(name, candidates, 15, seed=1) == chosen


def test_random_takes_each_pair_equally_often():
    candidates = pool(6, prompts=2)
    counts = np.zeros(6)
    for seed in range(600):
        counts[choose("random", candidates, 1, seed=seed)] += 1
    # 100 expected of each, standard deviation 9.
    assert counts.min() > 60
    assert counts.max() < 140


def test_ties_are_broken_by_the_seed():
    same = Candidates(probabilities=torch.full((2, 30, 3), 1 / 3), prompts=range(30))
    orders = [choose("bald", same, 10, seed=seed) for seed in range(3)]
    assert orders[0] == choose("bald", same, 10, seed=0)
    assert len({tuple(order) for order in orders}) == 3
    assert orders[0] != sorted(orders[0])


def test_information_is_by_each_members_own_tie_model():
    # Davidson: scores ½, −½ and 0 in thirds vary by 2/3 · 1/4 = 1/6; Rao and Kupper: 2 · 1/3 · (2/3)² = 8/27.
    thirds = torch.full((2, 1, 3), 1 / 3)
    known = Candidates(probabilities=thirds, prompts=["p"], tie_models=("davidson", "rao_kupper"))
    assert known.information.tolist() == pytest.approx([(1 / 6 + 8 / 27) / 2])
    plain = Candidates(probabilities=thirds, prompts=["p"])
    assert plain.information.tolist() == pytest.approx([8 / 27])


def test_a_pair_that_may_not_be_asked_leaves_its_prompt_to_the_next():
    candidates = pool(12, prompts=4)
    free = choose("bald", candidates, 4, seed=0)
    kept = choose("bald", candidates, 4, seed=0, may=lambda pair: pair != free[0])
    assert free[0] not in kept
    assert {candidates.prompts[i] for i in kept} == set(range(4))
    assert choose("bald", candidates, 4, seed=0, may=lambda _: False) == []


def log_det(candidates: Candidates, chosen: tuple[int, ...]) -> float:
    """log det of the design's information, prior included, without any update formula."""
    assert candidates.features is not None
    weights = fisher_information(candidates.probabilities).mean(0).numpy()
    x = candidates.features.double().numpy() * np.sqrt(weights)[:, None]
    prior = (x**2).sum(1).mean() / x.shape[1]
    taken = x[list(chosen)]
    return np.linalg.slogdet(prior * np.eye(x.shape[1]) + taken.T @ taken)[1]


def test_d_optimal_takes_at_every_step_what_raises_the_determinant_most():
    candidates = pool(40)
    chosen = choose("d_optimal", candidates, 12, seed=0)
    for step in range(12):
        taken = tuple(chosen[:step])
        gains = {i: log_det(candidates, (*taken, i)) for i in range(40) if i not in taken}
        assert chosen[step] == max(gains, key=lambda i: gains[i])


def test_d_optimal_comes_close_to_the_best_design_there_is():
    candidates = pool(12)
    best = max(log_det(candidates, chosen) for chosen in combinations(range(12), 4))
    greedy = log_det(candidates, tuple(choose("d_optimal", candidates, 4, seed=0)))
    nothing = log_det(candidates, ())
    # Greedy keeps 1 − 1/e of the gain of any monotone submodular function (Nemhauser et al. 1978).
    assert greedy - nothing >= (1 - 1 / math.e) * (best - nothing)


def test_narrow_keeps_lengths_on_average():
    wide = torch.randn(200, 4 * MAX_FEATURES, generator=torch.Generator().manual_seed(0))
    slim = narrow(wide, seed=1)
    assert slim.shape == (200, MAX_FEATURES)
    ratio = (slim.square().sum(1) / wide.square().sum(1)).mean().item()
    assert ratio == pytest.approx(1, abs=0.03)
    assert narrow(slim, seed=1) is slim


def test_bad_input_is_named():
    one = pool(5, members=1)
    with pytest.raises(ValueError, match="bald needs at least 2 members"):
        choose("bald", one, 1, seed=0)
    assert len(choose("uncertainty", one, 1, seed=0)) == 1
    with pytest.raises(ValueError, match="acquisition 'best' must be one of bald, uncertainty"):
        choose("best", one, 1, seed=0)
    broken = outcome_probabilities(torch.tensor([[math.nan]]), 0.5)
    with pytest.raises(ValueError, match="a reward that is not finite"):
        Candidates(probabilities=broken, prompts=["p"])
    with pytest.raises(ValueError, match="2 pairs need three probabilities each"):
        Candidates(probabilities=torch.ones(4, 1, 3), prompts=["p", "q"])
    bare = Candidates(probabilities=torch.full((2, 1, 3), 1 / 3), prompts=["p"])
    with pytest.raises(ValueError, match="d_optimal chooses by features"):
        choose("d_optimal", bare, 1, seed=0)
