"""Arms over seeds: what is run again, what is paired, and what is said of it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from commands import simulate
from commands.main import app
from commands.simulate import chosen_arms
from pipeline.simulation import trials
from pipeline.simulation.trials import FULL, NAIVE, Estimate, run_all, summary


def report(gain: float, *, kl: float = 1.0) -> dict:
    gold = {"sft": -0.5, "policy": gain - 0.5, "win_rate": 0.5 + gain / 10}
    return {"iterations": [{"gold": {}, "kl": 9.0}, {"gold": gold, "kl": kl}]}


CONDITIONS = {"labels": 10, "settings": {"ppo.lr": "1e-4"}}


def run_recorded(
    folder: Path, asked: list, *, seeds=(0, 1), conditions=CONDITIONS, arms=(FULL, NAIVE)
):
    def run(arm, seed):
        asked.append((arm.name, seed))
        return report({"full": 1.0, "naive": 0.25}[arm.name] * (seed + 1))

    return run_all(run, arms, seeds, folder, conditions=conditions, progress=lambda _: None)


def test_what_was_run_is_not_run_again(tmp_path):
    asked: list = []
    first = run_recorded(tmp_path, asked, arms=(FULL,))
    again = run_recorded(tmp_path, asked)
    assert asked == [("full", 0), ("full", 1), ("naive", 0), ("naive", 1)]
    assert [list(held["arms"]) for held in first] == [["full"], ["full"]]
    assert [list(held["arms"]) for held in again] == [["full", "naive"]] * 2
    assert json.loads((tmp_path / "seed-1.json").read_text()) == again[1]


def test_an_arm_that_another_process_added_meanwhile_is_kept(tmp_path):
    def run(_arm, _seed):
        run_recorded(tmp_path, [], seeds=[0], arms=(NAIVE,))
        return report(1.0)

    (held,) = run_all(run, [FULL], [0], tmp_path, conditions=CONDITIONS, progress=lambda _: None)
    assert [*held["arms"]] == ["naive", "full"]
    assert json.loads((tmp_path / "seed-0.json").read_text()) == held


def test_a_run_that_breaks_off_leaves_what_was_done(tmp_path):
    def run(arm, _seed):
        if arm is NAIVE:
            raise RuntimeError("the disk is full")
        return report(1.0)

    with pytest.raises(RuntimeError, match="disk"):
        run_all(run, [FULL, NAIVE], [0], tmp_path, conditions={}, progress=lambda _: None)
    assert list(json.loads((tmp_path / "seed-0.json").read_text())["arms"]) == ["full"]


def test_runs_under_other_conditions_are_not_mixed(tmp_path):
    run_recorded(tmp_path, [])
    with pytest.raises(ValueError, match=r"seed-0\.json was made with labels=10; name another"):
        run_recorded(tmp_path, [], conditions=CONDITIONS | {"labels": 20})
    with pytest.raises(ValueError, match="made with bad=None"):
        run_recorded(tmp_path, [], conditions=CONDITIONS | {"bad": 0.3})
    (tmp_path / "seed-0.json").write_text('{"seed": 0')
    with pytest.raises(ValueError, match=r"seed-0\.json is not a results file of simulations"):
        run_recorded(tmp_path, [])


def test_differences_are_paired_over_the_seeds_that_both_have(tmp_path):
    run_recorded(tmp_path, [], seeds=(0, 1, 2))
    run_recorded(tmp_path, [], seeds=(3,), arms=(FULL,))
    held = run_recorded(tmp_path, [], seeds=(0, 1, 2, 3), arms=())
    found = summary(held)
    # Gains 1, 2, 3, 4 against .25, .5, .75: differences .75, 1.5, 2.25.
    assert found.arms["full"]["gold gain"].mean == pytest.approx(2.5)
    assert found.arms["full"]["gold gain"].n == 4
    difference = found.differences["full − naive"]["gold gain"]
    assert (difference.mean, difference.n) == (pytest.approx(1.5), 3)
    # t(2) at .975 is 4.302653 (tables), s/√3 = .75/1.7320508.
    assert difference.high == pytest.approx(1.5 + 4.302653 * 0.75 / 3**0.5, abs=1e-5)
    assert difference.low == pytest.approx(1.5 - 4.302653 * 0.75 / 3**0.5, abs=1e-5)
    said = trials.format_trials(found)
    assert "| full − naive | 1.50 [−0.36, 3.36] |" in said
    assert "| full | 2.50 " in said


def test_the_order_of_arms_is_the_one_asked_for_and_not_that_of_their_runs(tmp_path):
    run_recorded(tmp_path, [], arms=(NAIVE,))
    held = run_recorded(tmp_path, [], arms=(FULL,))
    assert list(held[0]["arms"]) == ["naive", "full"]
    # Gains 1 and 2 against .25 and .5.
    found = summary(held)
    assert list(found.arms) == ["full", "naive"]
    assert found.differences["full − naive"]["gold gain"].mean == pytest.approx(1.125)
    turned = summary(held, ["naive", "full"])
    assert list(turned.arms) == ["naive", "full"]
    assert turned.differences["naive − full"]["gold gain"].mean == pytest.approx(-1.125)
    held[0]["arms"]["ceiling"] = held[0]["arms"].pop("naive")
    assert list(summary(held[:1]).arms) == ["full", "ceiling"]


def test_one_seed_has_no_interval():
    only = Estimate.of([0.25])
    assert (only.mean, only.low, only.high, str(only)) == (0.25, None, None, "0.25")
    assert Estimate.of([-0.25]).text(1) == "−0.2"


def test_an_estimate_is_written_with_the_digits_and_signs_asked_for():
    # Mean 2, sd 1, t(2) at .975 is 4.302653: 2 ± 4.302653/1.7320508 = 2 ± 2.484138.
    found = Estimate.of([1.0, 2.0, 3.0])
    assert str(found) == "2.00 [−0.48, 4.48]"
    assert found.text(3, signed=True) == "+2.000 [−0.484, +4.484]"


def test_the_naive_arm_gets_all_labels_at_once():
    assert FULL.plan(3, 100) == (3, 100)
    assert NAIVE.plan(3, 100) == (1, 300)


def test_arms_are_named_and_unknown_ones_refused():
    assert [arm.name for arm in chosen_arms([])] == ["full"]
    assert [arm.name for arm in chosen_arms(["naive", "full", "naive"])] == ["naive", "full"]
    with pytest.raises(ValueError, match="no arm 'fancy'; there are full, naive"):
        chosen_arms(["fancy"])


def test_many_runs_do_not_go_into_a_workspace(tmp_path, monkeypatch):

    def never(*_):
        raise AssertionError("a server was started")

    monkeypatch.setattr(simulate, "server_for", never)
    (tmp_path / "config.toml").write_text("")
    ended = CliRunner().invoke(app, ["simulate", "--seeds", "2", "--workspace", str(tmp_path)])
    assert isinstance(ended.exception, ValueError)
    assert "every run needs its own" in str(ended.exception)


@pytest.mark.parametrize(
    ("said", "asked", "unasked"),
    [
        ([], [], ["labeling.labels=400", "seed=0"]),
        (["--seed", "0"], ["seed=0"], ["labeling.labels=400"]),
        (
            ["--labels", "400", "--set", "ppo.lr=1", "--seed", "2"],
            ["labeling.labels=400", "seed=2", "ppo.lr=1"],
            [],
        ),
    ],
)
def test_what_was_asked_for_is_told_from_what_was_not(tmp_path, said, asked, unasked, monkeypatch):
    given = []

    def server_for(*arguments):
        given.append(arguments)
        raise ValueError("no server in this test")

    monkeypatch.setattr(simulate, "server_for", server_for)
    CliRunner().invoke(app, ["simulate", "--workspace", str(tmp_path), *said])
    assert given == [(tmp_path, [], asked, unasked)]


@pytest.mark.parametrize(
    ("arms", "difference"),
    [
        (["--arm", "naive"], "full − naive"),
        (["--arm", "full", "--arm", "naive"], "full − naive"),
        (["--arm", "naive", "--arm", "full"], "naive − full"),
    ],
)
def test_two_arms_that_are_named_say_their_order(tmp_path, arms, difference, monkeypatch):
    conditions = {
        "iterations": 1, "labels": 400, "annotators": 8, "bad": 0.25, "gold": None,
        "shuffle_labels": False, "tiny": False, "settings": {},
    }  # fmt: skip
    run_recorded(tmp_path, [], conditions=conditions, arms=(NAIVE, FULL))
    monkeypatch.setattr(simulate, "server_for", None)  # nothing is run again
    command = ["simulate", "--workspace", str(tmp_path), "--seeds", "2", *arms, "--json"]
    ended = CliRunner().invoke(app, command, catch_exceptions=False)
    assert list(json.loads(ended.stdout)["differences"]) == [difference]
