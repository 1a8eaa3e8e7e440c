"""The comparison of methods: figures by hand, and all five on a tiny model with real workers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from commands.main import app
from pipeline.models.text import read_messages
from pipeline.reward.scoring import RewardModel
from pipeline.runs.rundir import RunDirectory
from pipeline.statistics.winrate import win_rate
from pipeline.studies import compare
from pipeline.studies.compare import Answer, CurvePoint, MethodCurve, best_of, best_of_n_kl, point
from tests.helpers.stage_inputs import (
    give,
    make_job,
    make_judgments,
    make_prompts,
    save_random_reward,
    tiny_models_and_reward,
)

EVEN = win_rate([0.5], ["p"])


def answer(prompt: str, *, gold: float = 0.0, reward: float = 0.0, kl: float = 0.0) -> Answer:
    return Answer(prompt=prompt, text=f"{gold} {reward}", gold=gold, reward=reward, kl=kl, length=4)


def curve(*places: tuple[float, float]) -> MethodCurve:
    points = [
        CurvePoint(
            label=str(i),
            kl=kl,
            gold=gold,
            reward=10 * gold,
            gold_error=0.1,
            reward_error=None,
            length=1,
            win_rate=EVEN,
            sampling_seconds=1,
        )
        for i, (kl, gold) in enumerate(places)
    ]
    return MethodCurve(method="ppo", points=points, training_seconds=1)


def test_a_curve_is_read_off_where_it_first_comes_by():
    found = curve((0, 0), (1, 2), (3, 3), (2, 5))
    assert found.at(0) == (0, 0)
    assert found.at(0.25) == (0.5, 5)  # a quarter of the way from (0, 0) to (1, 2)
    assert found.at(1) == (2, 20)
    assert found.at(2) == (2.5, 25)  # on the way out, not (2, 5) on the way back
    assert found.at(3.1) is None
    assert curve((0, 1)).at(1) is None


def test_the_best_of_n_is_what_the_reward_model_likes_best():
    answers = [
        answer("p", gold=gold, reward=reward)
        for gold, reward in [(1, 0.1), (2, 0.3), (3, 0.2), (4, 0.0)]
    ] + [answer("q", gold=9, reward=reward) for reward in (1, 2, 3, 4)]
    assert [a.gold for a in best_of(answers, 2) if a.prompt == "p"] == [2, 3]
    assert [a.gold for a in best_of(answers, 4) if a.prompt == "p"] == [2]
    assert [a.reward for a in best_of(answers, 2) if a.prompt == "q"] == [2, 4]
    assert len(best_of(answers, 1)) == 8


def test_the_divergence_of_best_of_n_is_bounded():
    # log 1 − 0, log 2 − 1/2, log 16 − 15/16
    assert [round(best_of_n_kl(n), 4) for n in (1, 2, 16)] == [0, 0.1931, 1.8351]
    # Stiennon et al. draw best-of-n from n equally likely answers that all differ: n times as
    # likely for the best.  For 4 answers of a uniform policy the exact KL stays below.
    size, n = 4, 3
    best = [((rank + 1) ** n - rank**n) / size**n for rank in range(size)]
    assert sum(p * math.log(p * size) for p in best) < best_of_n_kl(n)


def test_a_point_is_the_mean_of_its_answers_and_wins_by_gold():
    answers = [answer("p", gold=2, reward=1, kl=3), answer("q", gold=0, reward=3, kl=5)]
    rivals = {"p": 1.5, "q": 0.0}  # by reward it would be a loss and a win
    found = point("last", answers, rivals, seconds=7.0)
    assert (found.gold, found.reward, found.kl, found.length) == (1, 2, 4, 4)
    assert found.win_rate == win_rate([1.0, 0.5], ["p", "q"])
    # Golds 2 and 0 of two prompts: 2 · (1 + 1) / 4 = 1; rewards 1 and 3 the same.
    assert (found.gold_error, found.reward_error) == (1, 1)
    assert point("last", answers[:1], rivals, seconds=7.0).gold_error is None
    assert point("N = 2", answers, rivals, seconds=7.0, kl=0.5).kl == 0.5


def test_methods_are_named_once_each():
    assert compare.chosen_methods("ppo, dpo,ppo") == ["ppo", "dpo"]
    assert compare.chosen_methods("grpo,reinforce++") == ["grpo", "reinforce++"]
    with pytest.raises(ValueError, match="--methods names 'kto'; there are sft, best_of_n, ppo"):
        compare.chosen_methods("ppo,kto")


def vowels(prompt: str, response: str) -> float:
    assert prompt
    return float(sum(letter in "aeiou" for letter in response))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an iteration leaves behind: a reward stage, a PPO run and an evaluation."""
    root = tmp_path_factory.mktemp("workspace")
    models = tiny_models_and_reward(root / "models")
    models["policy"] = models["reference"]
    chosen = {
        "optimize__dpo_lr": 1e-2,
        "ppo__lr": 1e-2,
    }
    for stage in ("reward", "policy", "evaluate"):
        job = make_job(stage, models, **chosen)
        directory = RunDirectory.create(root / "runs" / stage, job)
        if stage == "reward":
            give(directory, "judgments.parquet", make_judgments(30))
        else:
            give(directory, "prompts.parquet", make_prompts(8 if stage == "policy" else 5))
    return root


def run(*arguments: Any) -> Any:
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow  # eight workers, one after another
def test_all_methods_are_trained_measured_drawn_and_not_done_twice(workspace):
    where = (
        "compare",
        "--workspace",
        workspace,
        "--gold",
        "tests.pipeline.studies.test_compare:vowels",
    )
    found = json.loads(run(*where, "--snapshots", 1, "--kl", "0.5", "--json"))
    by_name = {row["method"]: row for row in found["methods"]}
    assert [*by_name] == ["sft", "best_of_n", "ppo", "dpo", "rloo"]

    sft = by_name["sft"]
    assert (sft["kl"], sft["training_seconds"], sft["gold_at_kl"]) == (0, 0, None)
    assert sft["win_rate"]["win_rate"] == 0.5  # it ties with itself
    best = by_name["best_of_n"]
    assert [p["label"] for p in best["points"]] == ["N = 1", "N = 2", "N = 4", "N = 8", "N = 16"]
    rewards = [p["reward"] for p in best["points"]]
    assert rewards == sorted(rewards)
    assert best["kl"] == pytest.approx(math.log(16) - 15 / 16)
    assert best["gold_at_kl"] is not None
    for method in ("ppo", "dpo", "rloo"):
        labels = [p["label"] for p in by_name[method]["points"]]
        assert len(labels) == 3
        assert (labels[0], labels[2]) == ("SFT", "last")
        assert by_name[method]["points"][0]["gold"] == sft["gold"]
        assert by_name[method]["kl"] > 0
        assert by_name[method]["training_seconds"] > 0

    # The same answers, by hand: gold is the vowels, wins are more of them than SFT has.
    folder = workspace / "compare" / "methods"
    ours, theirs = (
        pd.read_parquet(folder / part / "measure" / "outputs" / f"{name}.parquet")
        for part, name in (("ppo", "last"), ("sft", "answers"))
    )
    assert list(ours["prompt"]) == list(theirs["prompt"])
    counts = [[sum(c in "aeiou" for c in text) for text in f["text"]] for f in (ours, theirs)]
    assert by_name["ppo"]["gold"] == pytest.approx(sum(counts[0]) / 5)
    assert by_name["ppo"]["length"] == pytest.approx(ours["length"].mean())
    wins = [(a > b) + (a == b) / 2 for a, b in zip(*counts, strict=True)]
    assert by_name["ppo"]["win_rate"]["win_rate"] == pytest.approx(sum(wins) / 5)

    assert json.loads((folder / "compare.json").read_text()) == {
        key: value for key, value in found.items() if key != "plot"
    }
    assert Path(found["plot"]).read_text().count("<svg") == 1
    assert RunDirectory(folder / "dpo" / "train").job().config.optimize.method == "dpo"

    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/*/result.json")}
    assert len(before) == 8
    table = run(*where, "--snapshots", 1, "--methods", "ppo,sft").splitlines()
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*/*/result.json")} == before
    assert [line.split()[0] for line in table[1:3]] == ["sft", "ppo"]
    assert table[1].endswith("–")
    far = run(*where, "--snapshots", 1, "--methods", "ppo", "--kl", 99).splitlines()
    assert far[2].endswith("never reached")
    with pytest.raises(ValueError, match=r"or models \(snapshots: 1 → 2\); give this one"):
        run(*where, "--snapshots", 2, "--methods", "ppo")


@pytest.mark.slow  # three workers
def test_grpo_stands_beside_ppo_even_if_that_has_a_critic_of_its_own(workspace):
    where = ("compare", "--workspace", workspace, "--name", "critic-free", "--methods", "grpo")
    chosen = ("--set", "ppo.critic=separate", "--set", "ppo.value_warmup=1")
    gold = ("--gold", "tests.pipeline.studies.test_compare:vowels", "--snapshots", 0, "--json")
    found = json.loads(run(*where, *chosen, *gold))
    assert [row["method"] for row in found["methods"]] == ["sft", "grpo"]
    trained = RunDirectory(workspace / "compare" / "critic-free" / "grpo" / "train")
    assert trained.result()["method"] == "grpo"
    assert trained.job().config.ppo.critic == "shared"
    assert found["methods"][1]["kl"] > 0


@pytest.mark.slow
def test_answers_are_measured_by_all_reward_models_that_the_policy_was_trained_against(
    workspace, tmp_path
):
    models = dict(RunDirectory(workspace / "runs" / "policy").job().models)
    models["reward_2"] = str(tmp_path / "reward_2")
    save_random_reward(models["reference"], tmp_path / "reward_2", seed=1)
    for stage in ("policy", "evaluate"):
        job = make_job(stage, models, shaping__ensemble="lower_bound", shaping__ensemble_lambda=0.5)
        directory = RunDirectory.create(tmp_path / "runs" / stage, job)
        give(directory, "prompts.parquet", make_prompts(2))
    run(
        "compare",
        "--workspace",
        tmp_path,
        "--methods",
        "sft",
        "--gold",
        "tests.pipeline.studies.test_compare:vowels",
    )

    path = tmp_path / "compare" / "methods" / "sft" / "measure" / "outputs" / "answers.parquet"
    answers = pd.read_parquet(path)
    asked = [read_messages(text) for text in answers["messages"]]
    one, other = (
        RewardModel.load(models[key])(asked, list(answers["text"]))
        for key in ("reward", "reward_2")
    )
    # Of two, the sd is half their distance: their mean, less half of that.
    paid = [(a + b) / 2 - abs(a - b) / 4 for a, b in zip(one, other, strict=True)]
    assert list(answers["reward"]) == pytest.approx(paid, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "value"),
    [("ppo.start_from", "previous"), ("shaping.extra_reward_models", '["reward-0"]')],
)
def test_settings_that_choose_a_runs_models_are_refused(workspace, name, value):
    for command in (("compare",), ("sweep", "--kl-weight", "0.1")):
        with pytest.raises(ValueError, match=f"{name} selects the models of a run"):
            run(*command, "--workspace", workspace, "--name", "no", "--set", f"{name}={value}")
    assert not list(workspace.glob("*/no"))


def test_another_seed_is_refused_for_the_runs_own_would_count(workspace):
    for command in (("compare",), ("sweep", "--kl-weight", "0.1")):
        with pytest.raises(ValueError, match=r"ppo\.seed=… changes the seed of PPO"):
            run(*command, "--workspace", workspace, "--name", "no", "--set", "seed=3")


def test_what_is_missing_is_said(workspace, tmp_path):
    with pytest.raises(ValueError, match="no PPO run to repeat"):
        run("compare", "--workspace", tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "policy").symlink_to(workspace / "runs" / "policy")
    with pytest.raises(ValueError, match="has no evaluation, so no held-out prompts"):
        run("compare", "--workspace", tmp_path)
    (tmp_path / "runs" / "evaluate").symlink_to(workspace / "runs" / "evaluate")
    with pytest.raises(ValueError, match="the judgments of iteration 2 are not in"):
        run("compare", "--workspace", tmp_path, "--methods", "dpo")
