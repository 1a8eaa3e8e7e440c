"""Small parts of the reward model and its reports, each with a figure worked by hand."""

from __future__ import annotations

import html
import math
from typing import Any, cast

import pytest
import torch

from labeler.research import policies_view
from pipeline.reward import stage
from pipeline.reward.annotators import FittedAnnotators, Judged, annotator_weights
from pipeline.reward.config import RewardConfig
from pipeline.reward.forecast import THE_MODEL, Seen
from pipeline.reward.learning_curve import points
from pipeline.reward.likelihood import FIRST, SECOND, Likelihood, TieValues
from pipeline.reward.reliability import notes_on_annotators, outcome_chances, reliability
from pipeline.reward.scoring import RewardModel
from tests.judged_pairs import pair

F64 = torch.float64


def one_annotator(bias: float) -> FittedAnnotators:
    """Of slope 1 and this side bias."""
    none = torch.zeros(1, dtype=F64)
    return FittedAnnotators(
        delta=none, bias=torch.tensor([bias], dtype=F64), delta_sd=none, bias_sd=none
    )


def test_what_a_judgment_weighs_where_people_tie():
    # θ = log 2, b = log 2: I(b) = .0625/.5 + .0256/.2 + .0081/.3 = .28; without a bias 8/27.
    found = annotator_weights(
        one_annotator(math.log(2)), Likelihood(), TieValues(theta=math.log(2))
    )
    assert found.tolist() == pytest.approx([0.28 * 27 / 8])


def test_the_side_that_somebody_likes_is_in_what_he_will_say():
    judged = Judged(
        d=torch.zeros(2, dtype=F64), side=torch.tensor([1.0, -1.0], dtype=F64),
        annotator=torch.tensor([0, 0]), outcomes=torch.tensor([0, 0]),
        strength=torch.tensor([0, 0]), level=torch.zeros(2, dtype=F64),
    )  # fmt: skip
    found = outcome_chances(
        judged, one_annotator(math.log(3)), Likelihood(), TieValues(theta=1e-12)
    )
    assert found[:, 0].tolist() == pytest.approx([0.75, 0.25])


def test_nobody_is_said_to_read_the_buttons_the_other_way_for_noise():
    row = {"annotator": "a", "slope": -0.2, "slope_sd": 0.2, "weight": 0.04, "measured": 9}
    [note] = notes_on_annotators([row])
    assert "read the other way" not in note["message"]


class Scored:
    """A reward model that says the same difference of every pair."""

    def __init__(self, difference: float) -> None:
        self._difference = difference

    def both_sides(self, pairs: Any) -> tuple[list[float], list[float]]:
        return [self._difference] * len(pairs), [0.0] * len(pairs)


def reported(pairs: Any, difference: float) -> dict[str, Any]:
    model = cast("RewardModel", Scored(difference))
    counts = {"a": len(pairs) // 2, "b": len(pairs) // 2}
    return reliability(
        [(pairs, model)], ["a", "b"], counts, likelihood=Likelihood(), ties=TieValues(theta=0.4)
    )


def test_how_careful_people_look_does_not_hang_on_the_scale_of_rewards():
    pairs = [
        pair(FIRST if n % 4 else SECOND, annotator="ab"[n % 2], first=f"f{n // 2}")
        for n in range(80)
    ]
    small, large = (reported(pairs, d)["annotators"][0]["slope"] for d in (1.0, 4.0))
    assert small == pytest.approx(large, rel=0.05)


def test_pairs_that_a_reward_model_chose_are_no_part_of_the_expected_agreement():
    pairs = [pair(FIRST, annotator=who, first="f", arm="bald") for who in "ab"]
    assert reported(pairs, 1.0)["expected_preference_agreement"] is None


def test_training_stops_early_only_where_it_is_asked_to():
    apart = [pair(FIRST)] * 20
    for asked in (True, False):
        config = RewardConfig(early_stopping=asked, stopping_judgments=20)
        assert stage._may_stop(config, apart) is asked


def test_a_learning_curve_clusters_by_prompt():
    def point(prompts: str) -> dict[str, Any]:
        rows = [
            (n, prompt, order, share, float(n < 4))
            for n, prompt in enumerate(prompts)
            for order, share in ((0, 0.5), (THE_MODEL, 1.0))
        ]
        return points(Seen.of(rows), {0.5: 50.0, 1.0: 100.0})[0]

    pairs, single = point("ppqqrrss"), point("abcdefgh")
    assert pairs["prompts"] == 4
    assert pairs["high"] - pairs["low"] > 1.2 * (single["high"] - single["low"])


def gate_report() -> dict[str, Any]:
    """A policy that was promoted by evidence and by a ruling; another one is on trial."""
    standing = {
        "policy": "a", "verdict": "promoted", "by_evidence": "promoted", "words": [],
        "ruling": {"ruling": "promote"},
        "sequential": {"path": [(1, 0.0), (2, 0.5), (3, 2.0)], "limit": 3.0},
    }  # fmt: skip
    rank = {"policy": "a", "judgments": 60, "win_rate": 0.7, "low": 0.6, "high": 0.8}
    return {
        "policies": [standing], "leaderboard": [rank],
        "iteration": {"number": 2, "policy": "b", "wanted": 9, "judged": 1},
    }  # fmt: skip


def test_the_page_draws_the_whole_curve_and_tells_what_evidence_and_ruling_agree_on():
    report = gate_report()
    drawn = html.unescape(str(policies_view.curve(report, "a")))
    assert '"x":[1.0,2.0,3.0],"y":[0.0,0.5,2.0]' in drawn
    told = str(policies_view.standing(report, "a"))
    assert "judgments against SFT:" not in told  # those are about the other one
    assert "clearly better than SFT" in told
    assert 'ks-good">promoted' in str(policies_view.board(report))
