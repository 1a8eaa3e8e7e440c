"""A sweep over β: what it compares, and one of two real workers."""

import json
import math
from dataclasses import asdict

import pytest

from commands.studies import betas, format_sweep
from pipeline.config.sections import Config
from pipeline.runs.repeat import nats, newest_ppo_run
from pipeline.runs.rundir import RunDirectory
from pipeline.studies.sweep import WeightCurve, summary, sweep, write_report
from tests.helpers.stage_inputs import give, make_job, make_prompts, tiny_models_and_reward


def curve(kl_weight: float, rewards: list[float], kls: list[float]) -> WeightCurve:
    std = [0.5] * len(rewards)
    return WeightCurve(
        kl_weight=kl_weight, reward=rewards, kl=kls, std=std, responses=5, samples=[]
    )


FREE = curve(0.0, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 2, 4, 6, 8, 10, 12, 14, 16, 18])
HELD = curve(0.1, [0, 1, 2, 3, 4, 5, 5, 5, 5, 5], [0, 1, 2, 3, 4, 4, 4, 4, 4, 4])
STUCK = curve(9.0, [0.01] * 10, [0.0] * 10)


def test_curves_by_hand():
    # Windows of five: rewards 0…4, 1…5, … have means 2, 3, 4, 5, 6, 7; KL twice that.
    assert FREE.smoothed()[0] == (4, 2)
    assert FREE.smoothed()[-1] == (14, 7)
    assert FREE.gain == 10  # (7 − 2) / .5
    # Each update's mean has variance .25 / 5 = .05, five of them √(5 · .05) / 5 = .1.
    assert FREE.error(0) == pytest.approx(0.1)
    assert FREE.best_within(6) == 1
    assert FREE.blocks(4) == [
        (pytest.approx(7), pytest.approx(3.5), pytest.approx(math.sqrt(0.2) / 4)),  # updates 3–6
        (pytest.approx(15), pytest.approx(7.5), pytest.approx(math.sqrt(0.2) / 4)),
    ]
    assert FREE.best_within(3) is None
    assert HELD.smoothed()[HELD.best_within(6) or 0] == (4, 5)
    assert (FREE.unmoved, STUCK.unmoved) == (False, True)


def test_the_best_is_the_one_that_buys_most_with_the_budget():
    assert summary([FREE, HELD, STUCK], 6).best == 0.1
    assert summary([FREE, HELD, STUCK], 20).best == 0.0
    assert summary([FREE], 3).best is None
    # 5 at β = .1, 3 at β = 0; each with an error of .1.
    lead = summary([FREE, HELD, STUCK], 6).lead
    assert lead is not None
    assert (lead.over, lead.by, lead.error) == (0.0, 2, pytest.approx(math.sqrt(0.02)))


def test_a_policy_that_did_not_move_wins_nothing(tmp_path):
    lucky = curve(9.0, [7.0] * 10, [0.0] * 10)  # by chance or by its start
    assert summary([HELD, lucky], 6).best == 0.1
    found = summary([lucky, STUCK], 6)
    assert (found.best, found.lead) == (None, None)
    assert "no winner: with every β the policy stayed at the reference" in format_sweep(
        found, tmp_path
    )
    assert "no winner: no policy that moved stayed within 3" in format_sweep(
        summary([FREE], 3), tmp_path
    )


def test_a_lead_that_noise_can_explain_is_called_so(tmp_path):
    near = curve(0.2, [*HELD.reward[:-1], 4.9], HELD.kl)
    said = format_sweep(summary([HELD, near], 6), tmp_path)
    # 5 and 4.98: .02 with an error of √.02, times 1.96.
    assert "β = 0.1 is 0.020 ± 0.277 above β = 0.2: within noise" in said
    assert "noise can" not in format_sweep(summary([HELD, FREE], 6), tmp_path)


def test_weights_are_read_once_each():
    assert betas("0,0.02, 0.2,0") == [0, 0.02, 0.2]
    with pytest.raises(ValueError, match="--kl-weight 1;2 must be numbers"):
        betas("1;2")


@pytest.mark.parametrize(("last", "said"), [("nan", "nan"), ("-1", "-1"), ("1e99", r"1e\+99")])
def test_all_weights_are_looked_at_before_any_is_trained(last: str, said: str):
    with pytest.raises(ValueError, match=f"0.2,{last.replace('+', '.')}: {said} is not between 0"):
        betas(f"0.2,{last}")


def test_settings_that_no_weight_goes_with_stop_the_sweep_before_it_starts(tmp_path):
    """An adaptive β must lie between its limits, and the second does not."""
    models = dict.fromkeys(("policy", "reference", "reward"), "-")
    job = make_job("policy", models, ppo__kl_control="adaptive")
    give(RunDirectory.create(tmp_path / "runs" / "run-1", job), "prompts.parquet", make_prompts(1))
    with pytest.raises(ValueError, match=r"ppo\.kl_weight=50.0 must lie between"):
        sweep(tmp_path, [0.2, 50], name="s", overrides={}, progress=print)
    assert not (tmp_path / "sweeps").exists()


@pytest.mark.parametrize("value", [math.nan, math.inf, 0, -1])
def test_a_budget_is_a_number_of_nats(value: float):
    with pytest.raises(ValueError, match=r"--kl-budget .* must be a number of nats above 0"):
        nats("--kl-budget", value)
    assert nats("--kl-budget", 2) == 2


def test_a_workspace_without_ppo_has_nothing_to_repeat(tmp_path):
    with pytest.raises(ValueError, match="no PPO run to repeat; train once"):
        newest_ppo_run(tmp_path)


def test_a_sweep_runs_resumes_and_draws(tmp_path):
    models = tiny_models_and_reward(tmp_path / "models")
    watched = {"gate__canary": "pipeline.demo.canary:checks", "gate__canary_every": 5}
    job = make_job("policy", models, ppo__updates=6, optimize__method="rloo", **watched)
    give(RunDirectory.create(tmp_path / "runs" / "run-1", job), "prompts.parquet", make_prompts(8))
    lines: list[str] = []

    def go(weights: list[float]) -> list[WeightCurve]:
        lines.clear()
        return sweep(
            tmp_path, weights, name="s", overrides={"ppo.lr": "1e-3"}, progress=lines.append
        )

    first = go([0.0])
    both = go([0.0, 5.0])
    assert both[0] == first[0]
    assert lines[0] == "β = 0 (1 of 2): done before"
    assert [len(c.reward) for c in both] == [6, 6]
    assert both[0].kl != both[1].kl
    assert all(c.samples for c in both)
    ran = RunDirectory(tmp_path / "sweeps" / "s" / "kl_weight=5").job()
    assert ran.config.ppo.kl_weight == 5
    assert ran.config.ppo.lr == 1e-3
    assert ran.config.optimize.method == "ppo"  # whatever the loop's last run was
    assert ran.config.override(
        {"ppo.kl_weight": 0.05, "ppo.lr": job.config.ppo.lr, "optimize.method": "rloo"}
    ) == Config.from_dict(job.config.override({"ppo.kl_weight": 0.05}).to_dict())

    found = summary(both, 5)
    plot = write_report(tmp_path / "sweeps" / "s", both, found)
    assert plot.read_text().count("<svg") == 1
    assert json.loads((plot.parent / "sweep.json").read_text()) == asdict(found)
    assert [row.reward_error for row in found.runs] == [c.error(1) for c in both]
    other = {"ppo.lr": "1e-4", "worker.nice": "7"}
    with pytest.raises(
        ValueError, match=r"models \(ppo.lr: 0.001 → 0.0001\); give this one another"
    ):
        sweep(tmp_path, [0.0], name="s", overrides=other, progress=lines.append)
    # How the machine is used makes no other study.
    machine = {"ppo.lr": "1e-3", "worker.nice": "7"}
    again = sweep(tmp_path, [0.0], name="s", overrides=machine, progress=lines.append)
    assert again == [both[0]]
