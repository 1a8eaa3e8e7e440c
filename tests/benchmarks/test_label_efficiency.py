"""The labels that an arm needs, on curves worked by hand, and what is stored for them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import label_efficiency, whole_loop
from benchmarks.label_efficiency import (
    ARMS,
    Curve,
    Needed,
    cell_name,
    cells,
    definition,
    missed,
    needed,
    needed_table,
    plot,
    require_same_arms,
)
from benchmarks.seeds import labels_needed
from pipeline.simulation.trials import Estimate
from pipeline.simulation.worlds import WORLDS


def curve(arm: str, labels: list[int], *rows: list[float], seeds: tuple[int, ...] = ()) -> Curve:
    """A curve with a row of gains per seed, of the seeds 0, 1, … unless they are named."""
    return Curve(
        arm=arm,
        seeds=seeds or tuple(range(len(rows))),
        labels=np.array(labels),
        gains=np.array(rows),
    )


def reached(ours: Curve, theirs: Curve, goal: int) -> Needed:
    found = needed(ours, theirs, goal)
    assert found
    return found


def test_labels_are_interpolated_on_their_logarithm():
    plain = curve("naive", [100, 400], [0.2, 0.4], [0.2, 0.4])
    full = curve("full", [100, 400], [0.3, 0.5], [0.3, 0.5])
    # .4 is halfway from .3 to .5, so at the geometric mean of 100 and 400.
    found = reached(full, plain, 400)
    assert (found.labels, found.ratio) == pytest.approx((200, 0.5))
    assert (found.low, found.high) == pytest.approx((0.5, 0.5))
    assert reached(plain, plain, 400).ratio == pytest.approx(1)
    # It has more than .2 from the start: at most the fewest labels that were run.
    assert reached(full, plain, 100).ratio == pytest.approx(1)


def test_a_lucky_point_does_not_count_as_reached():
    # Means .5, .3, .6: a rising curve has .4, .4, .6, and .5 halfway from 400 to 1600.
    lucky = curve("full", [100, 400, 1600], [0.5, 0.3, 0.6])
    plain = curve("naive", [100, 400, 1600], [0.1, 0.2, 0.5])
    assert reached(lucky, plain, 1600).labels == pytest.approx(800)


def test_a_baseline_that_falls_reaches_its_own_gain_where_it_first_had_it():
    # Means .2, .5, .3 rise as .2, .4, .4: the gain with 1600 labels is there with 400.
    plain = curve("naive", [100, 400, 1600], [0.2, 0.5, 0.3])
    assert reached(plain, plain, 400).ratio == pytest.approx(1)
    assert reached(plain, plain, 1600).ratio == pytest.approx(0.25)
    # From .3 to .5 over a factor of 4, .4 is halfway.
    full = curve("full", [100, 400, 1600], [0.3, 0.5, 0.6])
    assert reached(full, plain, 1600).labels == pytest.approx(200)


def test_a_curve_that_stays_below_needs_labels_without_end():
    plain = curve("naive", [100, 400], [0.2, 0.4], [0.2, 0.4])
    full = curve("full", [100, 400], [0.3, 0.5], [0.1, 0.2])
    # The mean ends at .35.  Of four equally likely draws of two seeds, only twice the first reaches
    # .4, with 200 labels: more than 2.5% and less than 97.5% of the draws.
    found = reached(full, plain, 400)
    assert math.isinf(found.ratio)
    assert found.low == pytest.approx(0.5)
    assert math.isinf(found.high)
    assert "| full | 2 | naive with 400 | never | never [0.50, never] |" in needed_table([found])


def test_only_common_seeds_are_compared():
    plain = curve("naive", [100, 400], [0.2, 0.4], [0.0, 0.9], seeds=(3, 4))
    full = curve("full", [100, 400], [0.3, 0.5], [0.0, 0.0], seeds=(3, 9))
    found = reached(full, plain, 400)
    assert (found.seeds, found.labels) == (1, pytest.approx(200))
    assert needed(full, curve("naive", [100], [0.2]), 100) is None
    assert needed(full, plain, 800) is None


def test_labels_needed_of_a_curve():
    labels = np.array([10.0, 20.0, 40.0])
    rising = np.array([0.1, 0.3, 0.7])
    assert labels_needed(labels, rising, 0.05) == 10
    assert labels_needed(labels, rising, 0.4) == pytest.approx(25)  # a quarter from 20 to 40
    assert math.isinf(labels_needed(labels, rising, 0.8))


def stored(seed: int, gains: dict[tuple[str, int], float]) -> dict[str, Any]:
    arms = {
        cell_name(arm, labels): {
            "iterations": [{"gold": {"sft": 0.1, "policy": 0.1 + gain}}],
            "arm": definition(ARMS[arm]),
        }
        for (arm, labels), gain in gains.items()
    }
    return {"seed": seed, "arms": arms}


def test_a_curve_has_the_seeds_with_all_of_its_runs():
    held = [
        stored(0, {("naive", 50): 0.2, ("naive", 100): 0.3, ("full", 50): 0.9}),
        stored(1, {("naive", 50): 0.4}),
        stored(2, {("naive", 100): 0.5, ("naive", 50): -0.1}),
    ]
    found = Curve.of(held, "naive", [100, 50])
    assert found.seeds == (0, 2)
    np.testing.assert_allclose(found.gains, [[0.2, 0.3], [-0.1, 0.5]])
    full = Curve.of(held, "full", [50, 100])  # it was never run with 100
    assert (full.seeds, full.labels.tolist()) == ((0,), [50])
    np.testing.assert_allclose(full.gains, [[0.9]])
    assert Curve.of(held, "random", [50, 100]).seeds == ()


def test_every_arm_gets_the_same_labels():
    made = cells(WORLDS["exam"], ["naive", "full", "ceiling"], [800, 50])
    assert [cell.name for cell in made] == [
        "ceiling",
        *("naive, 50 labels", "full, 50 labels", "naive, 800 labels", "full, 800 labels"),
    ]
    assert "world_golds:exam" in made[0].settings["shaping.weights"]
    sizes: list[tuple[int, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            label_efficiency,
            "run",
            lambda arm, _seed, _set, size, _world: sizes.append(arm.plan(*size)) or {},
        )
        for cell in made[1:]:
            label_efficiency.run_cell(cell, 0, WORLDS["exam"], {})
    assert sizes == [(1, 50), (2, 25), (1, 800), (2, 400)]
    with pytest.raises(ValueError, match="full cannot divide 25 labels among 2 iterations"):
        cells(WORLDS["exam"], ["full"], [25])


def test_runs_of_an_arm_that_has_changed_are_refused():
    held = [stored(4, {("naive", 50): 0.2})]
    wanted = cells(WORLDS["workshop"], ["naive"], [50])
    require_same_arms(held, wanted)
    held[0]["arms"]["naive, 50 labels"]["arm"]["iterations"] = 2
    with pytest.raises(ValueError, match="seed 4 has the run 'naive, 50 labels' of another def"):
        require_same_arms(held, wanted)


@pytest.mark.parametrize(("world", "labels"), [("workshop", [100, 400]), ("exam", [400])])
def test_the_stored_runs_are_of_todays_arms(world: str, labels: list[int]):
    paths = sorted((label_efficiency.RESULTS / world).glob("seed-*.json"))
    held = [json.loads(path.read_text()) for path in paths]
    wanted = cells(WORLDS[world], [*ARMS, "ceiling"], labels)
    assert {cell.name for cell in wanted} & {name for each in held for name in each["arms"]}
    require_same_arms(held, wanted)


def test_the_full_arms_selection_does_not_follow_the_default():
    # The runs of both benchmarks were made when `hybrid` was the default.
    assert ARMS["full"].settings == whole_loop.ARMS["full"].settings
    assert ARMS["full"].settings == {"sampling.selection": "hybrid"}


def test_the_target_needs_enough_seeds_and_both_figures():
    def full(ratio: float, high: float, seeds: int = 16) -> Needed:
        return Needed(
            arm="full", goal=400, labels=ratio * 400, ratio=ratio, low=0.1, high=high, seeds=seeds
        )

    assert missed([full(0.4, 0.59)]) == []
    assert missed([full(0.9, math.inf, seeds=15)]) == []
    assert len(missed([full(0.41, 0.5), full(0.3, 0.6)])) == 2


def test_the_plot_shows_every_arm_and_the_ceiling(tmp_path: Path):
    curves = [
        curve("naive", [50, 100], [0.1, 0.2], [0.2, 0.2]),
        curve("full", [50, 100], [0.3, 0.4]),  # one seed: no interval
    ]
    top = Estimate(mean=0.9, low=0.8, high=1.0, n=2)
    drawn = plot(curves, top, WORLDS["workshop"], tmp_path / "new" / "curves.svg").read_text()
    assert drawn.count("<svg") == 1
    for said in ("World workshop", "naive (plain", "chosen pairs", "ceiling: PPO on the gold"):
        assert f"<!-- {said}" in drawn


def test_a_report_of_nothing_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    options = ["x", "--report", "--folder", str(tmp_path), "--seeds", "0", "--labels", "50"]
    monkeypatch.setattr("sys.argv", options)
    with pytest.raises(SystemExit, match="no seed has all of 50 labels"):
        label_efficiency.main()
    (tmp_path / "seed-0.json").write_text(json.dumps({"conditions": {"world": "exam"}, "arms": {}}))
    with pytest.raises(SystemExit, match="was made with world=exam"):
        label_efficiency.main()
