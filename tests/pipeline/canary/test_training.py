"""The canary during training and in the evaluation, on tiny models."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import pipeline.demo.canary as demo
from pipeline.canary import CanaryCheck
from pipeline.canary.training import FLAG, CanaryWatch, canary_of, canary_seed
from pipeline.config.policy import engine_settings
from pipeline.loop.remedies import suggested
from pipeline.models.generate import Sampler
from pipeline.models.text import ChatTokenizer
from pipeline.ppo.checkpoint import list_checkpoints
from pipeline.ppo.network.distributed import Processes
from pipeline.runs.rundir import Job, Report, RunDirectory
from pipeline.stages import evaluate as evaluate_stage
from pipeline.stages import policy as policy_stage
from pipeline.statistics.canary import canary_figures
from storage.reports import Evaluation, from_json, to_json
from tests.helpers.stage_inputs import give, make_job, make_prompts, rows_of, tiny_models_and_reward

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    made = tiny_models_and_reward(tmp_path_factory.mktemp("models"))
    return made | {"policy": made["reference"]}


def even(answer: str) -> bool:
    """Half of random answers pass.  Draws random numbers, which no training may notice."""
    random.random()
    np.random.random()  # noqa: NPY002
    torch.rand(1)
    return len(answer) % 2 == 0


def canary() -> list[CanaryCheck]:
    long = [CanaryCheck("long", f"Say {n}", lambda answer: len(answer) > 1) for n in range(40)]
    return long + [CanaryCheck("even", f"Say {n}", even) for n in range(0, 40, 2)]


@pytest.fixture(autouse=True)
def own_canary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "tiny", canary, raising=False)


ON = {"gate__canary": "pipeline.demo.canary:tiny", "gate__canary_every": 2}


def trained(models: dict[str, str], path: Path, **settings: Any) -> tuple[Job, RunDirectory]:
    job = make_job("policy", models, **{"ppo__updates": 3, "ppo__lr": 0.3} | settings)
    directory = RunDirectory.create(path, job)
    give(directory, "prompts.parquet", make_prompts(8))
    with Report(directory) as report:
        policy_stage.run(job, report, directory)
    return job, directory


def events(directory: RunDirectory, kind: str) -> list[dict[str, Any]]:
    lines = map(json.loads, directory.events.read_text().splitlines())
    return [event for event in lines if event["kind"] == kind]


def rates(directory: RunDirectory) -> dict[int, dict[str, float]]:
    found = {}
    for event in events(directory, "metrics"):
        values = {n: v for n, v in event["values"].items() if n.startswith("canary/")}
        if values:
            found[event["step"]] = values
    return found


def sft_answers(models: dict[str, str], job: Job) -> list[str]:
    """Sampled as the evaluation does: one random number for each prompt and token."""
    sampler = Sampler.load(models["reference"], device=CPU, dtype=torch.float32)
    prompts = [check.prompt for check in canary()[:40]]
    watch = canary_of(job.config)
    assert watch
    assert [m[-1].content for m in watch.prompts] == prompts
    found = sampler.sample(
        watch.prompts,
        temperature=1.0,
        max_new_tokens=job.config.ppo.max_new_tokens,
        seed=canary_seed(job),
        batch=40,
    )
    return [response.text for response in found]


def test_rates_are_measured_at_the_start_every_few_updates_and_at_the_end(
    models: dict[str, str], tmp_path: Path
):
    _, directory = trained(models, tmp_path, **ON)
    found = rates(directory)
    assert list(found) == [0, 2, 3]
    assert set(found[0]) == {"canary/pass_rate", "canary/passes/long", "canary/passes/even"}
    assert 0 < found[0]["canary/pass_rate"] < 1
    assert found[0]["canary/pass_rate"] <= found[0]["canary/passes/long"]
    # Large steps change the answers.
    assert found[3] != found[0]


def test_the_canary_changes_no_weight_and_no_other_metric(models: dict[str, str], tmp_path: Path):
    _, plain = trained(models, tmp_path / "plain")
    _, watched = trained(models, tmp_path / "watched", **ON)
    ours, theirs = (load_file(d.model / "model.safetensors") for d in (watched, plain))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)

    def reported(directory: RunDirectory) -> list[tuple[int, dict[str, float]]]:
        return [
            (event["step"], values)
            for event in events(directory, "metrics")
            if (
                values := {
                    name: value
                    for name, value in event["values"].items()
                    if not name.startswith(("canary/", "speed/", "memory/"))
                }
            )
        ]

    assert reported(watched) == reported(plain)


def test_a_resumed_run_reports_what_the_whole_run_did(models: dict[str, str], tmp_path: Path):
    job, directory = trained(models, tmp_path, **ON)
    whole = rates(directory)
    newest = list_checkpoints(directory.checkpoint / "checkpoints")[-1]
    (newest / "state.pt").write_bytes(b"torn")
    with Report(directory, attempt=2) as report:
        policy_stage.run(replace(job, attempt=2, resume=True), report, directory)
    assert rates(directory) == whole


def watch_of(models: dict[str, str]) -> CanaryWatch:
    job = make_job("policy", models, **ON)
    found = canary_of(job.config)
    assert found
    config = engine_settings("ppo", job.config.ppo)
    return CanaryWatch(found, job, ChatTokenizer.load(models["policy"]), config, CPU, Processes())


def test_a_flag_is_raised_for_a_clear_loss_only(models: dict[str, str]):
    watch = watch_of(models)
    start = watch.start()
    answers = sft_answers(models, make_job("policy", models, **ON))
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # noqa: NPY002
    metrics, flag = watch.measure(lambda *_: answers)
    assert (metrics, flag) == (start, None)  # the same weights and random numbers
    after = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # noqa: NPY002
    assert after == before  # `even` draws some
    metrics, flag = watch.measure(lambda prompts, _: [""] * len(prompts))
    assert metrics["canary/passes/long"] == 0
    assert flag
    assert (flag.name, flag.level) == (FLAG, "warn")
    assert f"0% of the answers pass the canary, and {start['canary/pass_rate']:.0%}" in flag.seen
    config = make_job("policy", models).config
    assert suggested(FLAG, ran=config, now=config) == {"ppo.kl_weight": "0.1"}


def test_a_lost_ability_is_flagged_once(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """After SFT's answers, no answer passes: as a policy whose answers all become wrong."""
    seen: list[str] = []

    def until_training(answer: str) -> bool:
        seen.append(answer)
        return len(seen) <= 40

    checks = [CanaryCheck("a", f"Say {n}", until_training) for n in range(40)]
    monkeypatch.setattr(demo, "tiny", lambda: checks)
    _, directory = trained(models, tmp_path, **ON, ppo__updates=5)
    measured = {step: values["canary/pass_rate"] for step, values in rates(directory).items()}
    assert measured == {0: 1, 2: 0, 4: 0, 5: 0}
    flags = [(e["step"], e["note"]) for e in events(directory, "note") if e["name"] == FLAG]
    assert flags == [(2, "flag")]


def test_a_check_that_breaks_ends_the_canary_and_not_the_training(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seen: list[str] = []

    def breaks(answer: str) -> bool:
        seen.append(answer)
        if len(seen) > 60:
            raise OSError("the server is gone")
        return True

    checks = [CanaryCheck("a", f"Say {n}", breaks) for n in range(40)]
    monkeypatch.setattr(demo, "tiny", lambda: checks)
    _, directory = trained(models, tmp_path, **ON | {"gate__canary_every": 1})
    assert list(rates(directory)) == [0]
    (note,) = [e for e in events(directory, "note") if e["name"] == "canary"]
    assert (note["note"], note["step"]) == ("warning", 1)
    assert "OSError: the server is gone" in note["message"]
    assert directory.model.exists()


def test_zero_measures_in_the_evaluation_alone(models: dict[str, str], tmp_path: Path):
    _, directory = trained(models, tmp_path, **ON | {"gate__canary_every": 0})
    assert rates(directory) == {}


def test_prompts_that_do_not_fit_are_named(models: dict[str, str], monkeypatch: Any):
    checks = [CanaryCheck("a", f"Say {n}" + " x" * 4000, bool) for n in range(40)]
    monkeypatch.setattr(demo, "tiny", lambda: checks)
    with pytest.raises(ValueError, match=r"40 prompts of gate\.canary exceed .*'Say 0 x"):
        watch_of(models)


# --- the evaluation -----------------------------------------------------------------------------


def evaluated(
    models: dict[str, str], path: Path, **settings: Any
) -> tuple[Evaluation, RunDirectory]:
    job = make_job("evaluate", models, **settings)
    directory = RunDirectory.create(path, job)
    give(directory, "prompts.parquet", make_prompts(2))
    with Report(directory) as report:
        return evaluate_stage.run(job, report, directory), directory


def test_the_evaluation_stores_what_policy_and_sft_pass(models: dict[str, str], tmp_path: Path):
    other = models | {"policy": models["previous"]}
    found, directory = evaluated(other, tmp_path, **ON)
    assert found.canary
    figures = canary_figures(found.canary)
    assert (found.policy.canary, found.reference.canary) == (figures.policy, figures.reference)
    assert found.previous is None or found.previous.canary is None
    rows = rows_of(directory.outputs / "canary.parquet")
    assert len(rows) == 2 * 60
    for name, check in zip(("long", "even"), found.canary.checks, strict=True):
        for policy, marks in (("policy-1", check.policy), ("sft-1", check.reference)):
            mine = [r for r in rows if (r["check"], r["policy"]) == (name, policy)]
            assert "".join(str(int(row["passes"])) for row in mine) == marks
            if name == "long":
                assert marks == "".join(str(int(len(row["answer"]) > 1)) for row in mine)
    assert from_json(Evaluation, json.loads(json.dumps(to_json(found)))) == found
    reported = [e["values"] for e in events(directory, "metrics")][-1]
    assert reported["evaluate/policy/canary"] == figures.policy


def test_the_same_weights_lose_nothing(models: dict[str, str], tmp_path: Path):
    found, _ = evaluated(models, tmp_path, **ON)
    assert found.canary
    assert all(check.policy == check.reference for check in found.canary.checks)


def test_without_a_canary_nothing_is_stored(models: dict[str, str], tmp_path: Path):
    found, directory = evaluated(models, tmp_path)
    assert (found.canary, found.policy.canary) == (None, None)
    assert not (directory.outputs / "canary.parquet").exists()
