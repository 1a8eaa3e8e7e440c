"""Gold pairs and the annotator model: a prior by hand, its use, and nothing else that changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize

from pipeline.reward.annotators import BIAS_SD, SLOPE_SD, AnnotatorEffects
from pipeline.reward.gold import GoldJudgment, gold_prior, read_gold
from pipeline.reward.likelihood import FIRST, SECOND, TIE, UNSTATED, Likelihood, TieValues
from pipeline.reward.quality.reliability import reliability
from tests.helpers.judged_pairs import pair as judged_pair
from tests.pipeline.reward.test_annotators import Known

RAO_KUPPER = Likelihood(tie_model="rao_kupper", both_bad="tie")
VALUES = TieValues(theta=0.35)


def answers(who: str, outcomes: list[int]) -> list[GoldJudgment]:
    """Answers to pairs whose first response is better, alternately on the left and on the right."""
    return [
        GoldJudgment(
            annotator=who, sign=1, outcome=outcome, strength=UNSTATED, side=1 if n % 2 else -1
        )
        for n, outcome in enumerate(outcomes)
    ]


GOLD = [
    *answers("careful", [FIRST] * 9 + [TIE]),
    *answers("guesses", [FIRST, SECOND, SECOND, FIRST, TIE, SECOND, FIRST, SECOND, TIE, FIRST]),
    *answers("inverted", [SECOND] * 8 + [FIRST, TIE]),
]
IDS = ["careful", "guesses", "inverted", "unchecked"]


def test_the_prior_is_the_posterior_given_the_gold_pairs() -> None:
    found = gold_prior(GOLD, IDS, likelihood=RAO_KUPPER, ties=VALUES)
    assert found

    def log_p(z: np.ndarray, outcomes: np.ndarray) -> float:
        win, loss = (1 / (1 + np.exp(0.35 - v)) for v in (z, -z))
        return float(np.log(np.choose(outcomes, [win, loss, 1 - win - loss])).sum())

    outcomes = np.array([each.outcome for each in GOLD])
    scales = np.logspace(-1.3, 0.7, 201)
    m = scales[np.argmax([log_p(np.full(30, scale), outcomes) for scale in scales])]
    side = np.array([each.side for each in GOLD], dtype=float)
    for n in range(3):
        rows = slice(10 * n, 10 * n + 10)

        def cost(x: np.ndarray, rows: slice = rows) -> float:
            z = (1 + x[0]) * m + x[1] * side[rows]
            prior = (x[0] / SLOPE_SD) ** 2 / 2 + (x[1] / BIAS_SD) ** 2 / 2
            return prior - log_p(z, outcomes[rows])

        best = minimize(cost, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-8})
        assert [found.delta[n].item(), found.bias[n].item()] == pytest.approx(best.x, abs=1e-4)
    assert (found.delta[3].item(), found.delta_sd[3].item()) == (0, pytest.approx(SLOPE_SD))
    assert found.delta[0] > found.delta[1] > found.delta[2]


def test_the_penalty_is_that_prior() -> None:
    prior = gold_prior(GOLD, IDS, likelihood=RAO_KUPPER, ties=VALUES)
    assert prior
    effects = AnnotatorEffects(IDS, prior)
    assert effects.penalty().item() == pytest.approx(0)  # starts at the most likely values
    with torch.no_grad():
        effects.delta[1] += 2 * prior.delta_sd[1].float()
        effects.bias[0] += prior.bias_sd[0].float()
    assert effects.penalty().item() == pytest.approx(2.5)  # ½ (2² + 1²)
    assert set(effects.state_dict()) == {"delta", "bias"}  # as in checkpoints without gold


def test_without_gold_there_is_no_prior() -> None:
    assert gold_prior([], IDS, likelihood=RAO_KUPPER, ties=VALUES) is None
    assert gold_prior(answers("stranger", [FIRST]), IDS, likelihood=RAO_KUPPER, ties=VALUES) is None
    drop = Likelihood(tie_model="drop", both_bad="tie")
    assert gold_prior(answers("careful", [TIE]), IDS, likelihood=drop, ties=VALUES) is None


def test_reliability_uses_gold_for_slopes_only() -> None:
    pairs = [
        judged_pair(FIRST if n % 3 else SECOND, annotator=who, first=f"f{n}")
        for n in range(9)
        for who in ("careful", "guesses")
    ]
    ids = ["careful", "guesses"]

    def fit(gold: list[GoldJudgment]) -> Any:
        return reliability(
            [(pairs, Known())], ids, {"careful": 9, "guesses": 9},  # type: ignore[list-item]
            likelihood=RAO_KUPPER, ties=VALUES, gold=gold,
        )  # fmt: skip

    before, after = fit([]), fit(GOLD)
    alike = [each.slope for each in before.annotators]
    assert alike[0] == pytest.approx(alike[1])  # they judged the pairs alike
    careful, guesses = (each.slope for each in after.annotators)
    assert careful - guesses > 0.3
    assert [each.measured for each in after.annotators] == [9, 9]
    assert after.observed_agreement == before.observed_agreement
    assert after.overlapping_items == before.overlapping_items


def test_reading(tmp_path: Path) -> None:
    assert read_gold(tmp_path) == []  # a run of an earlier version
    rows = {
        "annotator": ["a", "b"], "answer": ["first", "second"], "outcome": ["second", "tie"],
        "strength": [2, None], "shown_swapped": [True, False],
    }  # fmt: skip
    pd.DataFrame(rows).to_parquet(tmp_path / "gold.parquet")
    assert read_gold(tmp_path) == [
        GoldJudgment(annotator="a", sign=1, outcome=SECOND, strength=2, side=-1),
        GoldJudgment(annotator="b", sign=-1, outcome=TIE, strength=UNSTATED, side=1),
    ]
