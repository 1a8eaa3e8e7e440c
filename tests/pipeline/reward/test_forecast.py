"""What further labels would add, by hand and against known trends."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pipeline.reward.report.forecast import FULL_MODEL, MeasuredJudgments, Trend, forecast, trend
from pipeline.reward.report.learning_curve import (
    BLOCKS,
    COLUMNS,
    ORDERS,
    file_of,
    learning_curve,
    lines,
    points,
)
from pipeline.statistics.winrate import win_rate
from storage.reports import Curve, CurvePoint

LABELS = {0.25: 100.0, 0.5: 200.0, 1.0: 400.0}
"""A doubling apart."""


def rows(judgments: dict[str, tuple[str, list[tuple[int, float, float]]]]) -> MeasuredJudgments:
    """From judgment → (prompt, [(order, share, right)])."""
    return MeasuredJudgments.of(
        (id, prompt, order, share, right)
        for id, (prompt, seen) in judgments.items()
        for order, share, right in seen
    )


def are_near_duplicates(right: tuple[float, float, float], orders: tuple[int, ...] = (0, 2)) -> Any:
    """The same in every order."""
    shares = zip(LABELS, right, strict=True)
    return [(order, share, each) for share, each in shares for order in orders]


def test_the_slope_and_its_interval_by_hand():
    table = rows(
        {
            "a": ("p", are_near_duplicates((0, 1, 1))),
            "b": ("q", are_near_duplicates((0, 0, 1))),
            "c": ("r", are_near_duplicates((1, 1, 0))),
        }
    )
    # x = −1, 0, 1 and Σ xx = 2 for each; Σ xy = 1, 1 and −1: slope 1/6.  What is left of a prompt is
    # Σ xy − 2/6: 2/3, 2/3, −4/3, squares 24/9; variance 3/2 · (24/9) / 6² = 1/9.  Orders agree.
    found = trend(table, LABELS)
    assert found
    assert found.slope == pytest.approx(1 / 6)
    reach = 4.302653 / 3  # Student's t at 2 degrees of freedom
    assert (found.low, found.high) == pytest.approx((1 / 6 - reach, 1 / 6 + reach), abs=1e-6)
    assert (found.judgments, found.prompts, found.orders) == (3, 3, 2)


def test_judgments_of_one_prompt_are_one_draw():
    same = {"a": ("p", are_near_duplicates((0, 1, 1))), "b": ("p", are_near_duplicates((0, 1, 1)))}
    other = {"c": ("r", are_near_duplicates((1, 1, 0))), "d": ("r", are_near_duplicates((1, 1, 0)))}
    found = trend(rows(same | other), LABELS)
    # Slope 0; Σ xy of the prompts 2 and −2; variance 2/1 · 8 / 8², t at 1 degree of freedom.
    assert found
    assert found.slope == pytest.approx(0)
    assert found.high == pytest.approx(12.706205 * 0.5, abs=1e-5)
    assert found.prompts == 2


def test_orders_that_differ_widen_the_interval():
    rising = [(0, share, right) for share, right in zip(LABELS, (0, 0.5, 1), strict=True)]
    level = [(2, share, 0.5) for share in LABELS]
    table = rows({id: (id, rising + level) for id in "abc"})
    # Together ¼ a doubling, without either order 0 and ½: jackknife ½ (¼² + ¼²) = 1/16; prompts
    # agree, so t has one degree of freedom.
    found = trend(table, LABELS)
    assert found
    assert found.slope == pytest.approx(0.25)
    assert found.high - found.slope == pytest.approx(12.706205 / 4, abs=1e-5)


def test_prompts_and_orders_that_differ_share_their_degrees_of_freedom():
    def line(slope: float, order: int) -> list[tuple[int, float, float]]:
        return [
            (order, share, 0.5 + slope * x) for share, x in zip(LABELS, (-1, 0, 1), strict=True)
        ]

    steep, flat = line(1 / 2, 0) + line(1 / 4, 2), line(1 / 4, 0) + line(0, 2)
    found = trend(rows({"a": ("p", steep), "b": ("q", flat), "c": ("r", flat)}), LABELS)
    # Means over the orders 3/8, 1/8, 1/8: slope 5/24.  Σ xy − 2 · 5/24 is 1/3, −1/6, −1/6: by prompt
    # 3/2 · (1/6) / 6² = 1/144.  Without either order 1/12 and 1/3: jackknife ½ · 2 · (1/8)² = 1/64.
    # Together 13/576, with (4 + 9)² / (4²/2 + 9²/1) = 169/89 degrees of freedom, t = 4.529866.
    assert found
    assert found.slope == pytest.approx(5 / 24)
    assert found.high - found.slope == pytest.approx(4.529866 * math.sqrt(13) / 24, abs=1e-5)


def test_a_judgment_is_compared_with_itself_alone():
    easy = [(order, share, 1.0) for share in (0.25, 0.5) for order in (0, 2)]
    hard = [(order, share, 0.0) for share in (0.5, 1.0) for order in (0, 2)]
    table = {"e": ("p", easy), "h": ("q", hard), "a": ("r", are_near_duplicates((0, 1, 1)))}
    # Pooled, the hard ones at the end would pull it down.  Σ xx = ½ + ½ + 2, Σ xy = 1.
    found = trend(rows(table), LABELS)
    assert found
    assert found.slope == pytest.approx(1 / 3)
    # One that was seen at a single share says nothing.
    one = {"one": ("s", [(0, 0.25, 1.0), (2, 0.25, 0.0)])}
    assert trend(rows(table | one), LABELS) == found


def test_the_model_itself_counts_and_is_no_order():
    two = (0.25, 0.5)
    seen = {
        id: (id, [(o, s, r) for s, r in zip(two, right, strict=True) for o in (0, 2)])
        for id, right in {"a": (0, 1), "b": (1, 1), "c": (1, 0)}.items()
    }
    without = trend(rows(seen), LABELS)
    for id in seen:
        seen[id][1].append((FULL_MODEL, 1.0, 1.0))
    found = trend(rows(seen), LABELS)
    assert without
    assert found
    assert (without.slope, without.orders) == (0, 2)
    # Each has Σ xy = 1·(last − first): 1, 0 and 0 of 2 each.
    assert (found.slope, found.orders) == (pytest.approx(1 / 6), 2)


@pytest.mark.parametrize(
    "judgments",
    [
        {
            "a": ("p", are_near_duplicates((0, 1, 1), (0,))),
            "b": ("q", are_near_duplicates((1, 1, 0), (0,))),
        },  # one order
        {
            "a": ("p", are_near_duplicates((0, 1, 1))),
            "b": ("p", are_near_duplicates((1, 1, 0))),
        },  # one prompt
        {
            "a": ("p", are_near_duplicates((1, 1, 1))),
            "b": ("q", are_near_duplicates((0, 0, 0))),
        },  # nothing changes
    ],
)
def test_too_little_gives_no_trend(judgments: Any):
    assert trend(rows(judgments), LABELS) is None


def trend_of(slope: float, low: float, high: float) -> Trend:
    return Trend(slope=slope, low=low, high=high, judgments=9, prompts=9, orders=4)


@pytest.mark.parametrize(
    ("found", "labels", "says"),
    [
        (trend_of(0.04, 0.02, 0.06), 100, "next 100 labels would add +4.0 points of accuracy (+2.0 to +6.0)"),
        (trend_of(0.002, -0.01, 0.009), 100, "would add less than a point of accuracy (−1.0 to +0.9)"),
        (trend_of(0.002, -0.0004, 0.009), 100, "would add less than a point of accuracy (0.0 to +0.9)"),
        (trend_of(0.01, -0.04, 0.06), 100, "it is uncertain whether the next 100 labels would help: +1.0 points of accuracy (−4.0 to +6.0)"),
        (trend_of(0.04, 0.02, 0.06), 99, "100 more labels would more than double the 99 labels"),
        (None, 500, "has only one order so far, or its models are right about the same"),
    ],
)  # fmt: skip
def test_the_forecast_says_what_is_known(found: Trend | None, labels: int, says: str):
    assert says in forecast(found, labels).says


def test_the_gain_is_the_slope_times_the_doublings():
    found = forecast(trend_of(0.03, 0.01, 0.05), 300)
    doublings = math.log(4 / 3) / math.log(2)  # from 300 labels to 400
    assert [found.gain, found.low, found.high] == pytest.approx(
        [0.03 * doublings, 0.01 * doublings, 0.05 * doublings]
    )
    assert forecast(trend_of(0.03, 0.01, 0.05), 99).gain is None


def test_points_are_of_the_same_judgments_with_their_means_over_orders():
    judgments = {
        "a": ("p", [(0, 0.25, 1.0), (2, 0.25, 0.0), (0, 0.5, 1.0), (FULL_MODEL, 1.0, 1.0)]),
        "b": ("q", [(0, 0.25, 0.0), (2, 0.25, 0.0), (0, 0.5, 1.0), (FULL_MODEL, 1.0, 0.0)]),
        "learned from": ("r", [(0, 0.25, 1.0), (0, 0.5, 1.0)]),
    }
    found = points(rows(judgments), LABELS)
    assert [(p.share, p.labels, p.accuracy) for p in found] == [
        (0.25, 100, 0.25), (0.5, 200, 1.0), (1.0, 400, 0.5),
    ]  # fmt: skip
    assert {(p.judgments, p.prompts) for p in found} == {(2, 2)}
    alone = win_rate([1.0, 0.0], ["p", "q"])
    assert (found[-1].low, found[-1].high) == (alone.low, alone.high)
    assert points(rows({"x": ("r", [(0, 0.25, 1.0), (0, 0.5, 1.0)])}), LABELS) == ()


def test_the_interval_of_a_point_takes_a_prompts_judgments_together():
    def point(prompts: str) -> CurvePoint:
        seen = [(0, 0.25, 1.0), (FULL_MODEL, 1.0, 1.0)]
        lost = [(order, share, 0.0) for order, share, _ in seen]
        table = {str(n): (p, lost if n < 4 else seen) for n, p in enumerate(prompts)}
        return points(rows(table), {0.25: 100.0, 1.0: 400.0})[0]

    pairs, single = point("ppqqrrss"), point("abcdefgh")
    assert (pairs.prompts, single.prompts) == (4, 8)
    assert pairs.high - pairs.low > 1.2 * (single.high - single.low)


def test_the_line_runs_through_the_points_and_the_band_opens_where_it_ends():
    shown = [
        CurvePoint(share=n / 400, labels=n, accuracy=a, low=0, high=1, judgments=9, prompts=9)
        for n, a in ((100.0, 0.6), (200.0, 0.66), (400.0, 0.66))
    ]
    found = lines(shown, forecast(trend_of(0.04, 0.01, 0.06), 400))
    assert found
    heights = dict(found.trend)
    assert heights[100] == pytest.approx(0.64 - 0.04)  # the mean point is (200, .64)
    assert heights[400] == pytest.approx(0.64 + 0.04)
    ahead = math.log2(500 / 400)
    assert found.trend[-1] == pytest.approx([500, 0.68 + 0.04 * ahead])
    assert found.band[0] == pytest.approx([400, 0.68, 0.68])
    assert found.band[-1] == pytest.approx([500, 0.68 + 0.01 * ahead, 0.68 + 0.06 * ahead])
    assert lines(shown, forecast(None, 400)) is None
    assert lines([], forecast(trend_of(0.04, 0.01, 0.06), 400)) is None


def write(outputs: Path, order: int, blocks: int, right: list[float]) -> None:
    outputs.mkdir(exist_ok=True)
    table = [
        {"judgment": str(n), "prompt": str(n), "order": order, "share": blocks / BLOCKS,
         "labels": 80.0 * blocks, "right": each}
        for n, each in enumerate(right)
    ]  # fmt: skip
    pd.DataFrame(table, columns=list(COLUMNS)).to_parquet(file_of(outputs, order, blocks))


def test_only_complete_orders_are_shown(tmp_path: Path):
    assert learning_curve(tmp_path) == Curve()
    write(tmp_path, FULL_MODEL, BLOCKS, [1, 1, 0])
    for blocks, right in ((1, [0, 1, 0]), (2, [1, 1, 0]), (3, [1, 0, 0])):
        assert learning_curve(tmp_path) == Curve()
        write(tmp_path, ORDERS[0], blocks, right)
    found = learning_curve(tmp_path)
    assert [p.labels for p in found.points] == [80, 160, 240, 320]
    assert found.orders == 1
    assert found.forecast
    assert found.forecast.gain is None
    for blocks in (1, 2):
        write(tmp_path, ORDERS[1], blocks, [0, 0, 0])
    assert learning_curve(tmp_path) == found
    write(tmp_path, ORDERS[1], 3, [1, 1, 1])
    both = learning_curve(tmp_path)
    assert both.orders == 2
    assert both.forecast
    assert both.forecast.gain is not None
    assert both.points[0].accuracy == pytest.approx(1 / 6)


def simulated(seed: int, *, slope: float, luck: float) -> MeasuredJudgments:
    """A curve whose accuracy rises by `slope` a doubling; `luck` is the models' own sd."""
    coin = np.random.default_rng(seed)
    prompts, each = 40, 3
    prompt = np.repeat(np.arange(prompts), each)
    level = 0.65 + coin.normal(0, 0.1, prompts)[prompt]
    own = coin.random(prompt.size)
    held_out, block = prompt < 6, prompt % BLOCKS
    found = []
    for order in (*ORDERS, FULL_MODEL):
        for blocks in range(1, BLOCKS) if order != FULL_MODEL else (BLOCKS,):
            learned = np.isin(block, [(order + k) % BLOCKS for k in range(blocks)])
            seen = held_out | ~learned if order != FULL_MODEL else held_out
            chance = level + slope * math.log2(blocks / BLOCKS) + coin.normal(0, luck)
            # Models mostly err on the same judgments.
            drawn = np.where(coin.random(prompt.size) < 0.7, own, coin.random(prompt.size))
            found += [
                (n, prompt[n], order, blocks / BLOCKS, float(drawn[n] < chance[n]))
                for n in np.flatnonzero(seen)
            ]
    return MeasuredJudgments.of(found)


def test_the_interval_holds_the_true_slope():
    labels = {n / BLOCKS: 100.0 * n for n in range(1, BLOCKS + 1)}
    held, widths = 0, []
    for seed in range(60):
        found = trend(simulated(seed, slope=0.03, luck=0.04), labels)
        assert found
        held += found.low <= 0.03 <= found.high
        widths.append(found.high - found.low)
    # Of 60 at 95%, fewer than 52 happen once in a thousand cases.
    assert held >= 52
    assert np.median(widths) < 0.35  # and not because it holds everything
