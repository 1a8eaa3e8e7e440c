"""Best-of-N: what it chooses, what it costs in KL, and where it acts as a policy or refuses to."""

from __future__ import annotations

import json
import math
import queue
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pipeline.config import metric_definitions
from pipeline.config.sections import Config
from pipeline.models.best_of_n import Manifest, best_of_n_kl, expected_best, manifest_of
from pipeline.models.generate import Sampler
from pipeline.models.hub import ModelUnavailable
from pipeline.models.loading import load_causal_lm
from pipeline.policy_methods import best_of_n
from pipeline.reward.scoring import RewardModel
from pipeline.runs.rundir import Job, Report, RunDirectory
from pipeline.sampling.best_of_n import BestOfN, load_sampler
from pipeline.serving.best_of_n import BestReply
from pipeline.serving.client import NOT_BY_VLLM, Generation
from pipeline.serving.engine import Engine, Piece
from pipeline.serving.measures import measured
from pipeline.serving.models import Models
from pipeline.stages import evaluate
from pipeline.worker.worker import stage_module
from storage.generation_records import (
    CurrentModels,
    GenerationRefused,
    MeasureRequest,
    ReplyEnd,
    ReplyRequest,
)
from storage.records import Message
from tests.helpers.stage_inputs import give, make_job, make_prompts, rows_of, tiny_models_and_reward

N = 6
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return tiny_models_and_reward(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def made(
    models: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, RunDirectory]:
    """The stage's summary and its run."""
    job = make_job("policy", models, optimize__method="best-of-n", optimize__best_of=N)
    directory = RunDirectory.create(tmp_path_factory.mktemp("runs") / "best", job)
    give(directory, "prompts.parquet", make_prompts(8))
    with Report(directory) as report:
        return stage_module(job).run(job, report, directory), directory


@pytest.fixture(scope="module")
def policy(made: Any) -> BestOfN:
    found = load_sampler(str(made[1].model), device=CPU, dtype=torch.float32)
    assert isinstance(found, BestOfN)
    return found


def test_the_expected_best_is_the_mean_over_all_subsets() -> None:
    # Of 1, 2 and 4, the pairs (1, 2), (1, 4) and (2, 4) have the maxima 2, 4 and 4.
    rewards = [4.0, 1.0, 2.0]
    assert [expected_best(rewards, n) for n in (1, 2, 3)] == pytest.approx([7 / 3, 10 / 3, 4])
    more = [0.3, -1.2, 5.0, 0.3, 2.2]
    for n in range(1, 6):
        by_hand = [max(subset) for subset in combinations(more, n)]
        assert expected_best(more, n) == pytest.approx(sum(by_hand) / len(by_hand))


def test_the_stage_writes_the_reference_with_a_manifest(made: Any, models: dict[str, str]) -> None:
    summary, directory = made
    assert manifest_of(directory.model) == Manifest(n=N, reference="sft-1", reward_model="reward-1")
    ours, theirs = (
        load_file(Path(path) / "model.safetensors")
        for path in (directory.model, models["reference"])
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert f"Best of {N} samples of sft-1" in (directory.model / "README.md").read_text()
    assert (summary.method, summary.n, summary.prompts) == ("best-of-n", N, 8)
    assert summary.kl_bound == pytest.approx(math.log(6) - 5 / 6)
    assert summary.reward > summary.reference_reward
    assert len(rows_of(directory.outputs / "samples.parquet")) == 4


def test_every_metric_is_defined_and_the_reward_rises_with_n(made: Any) -> None:
    summary, directory = made
    lines = map(json.loads, directory.events.read_text().splitlines())
    told = {event["step"]: event["values"] for event in lines if event["kind"] == "metrics"}
    assert list(told) == [1, 2, 4, 6]
    assert {
        name for values in told.values() for name in values
    } <= metric_definitions.METRICS.keys()
    rewards = [values["best_of_n/reward"] for values in told.values()]
    assert rewards == sorted(rewards)
    assert rewards[0] == pytest.approx(summary.reference_reward)
    assert rewards[-1] == pytest.approx(summary.reward)
    assert told[1]["best_of_n/kl_bound"] == 0


def test_the_answer_has_the_highest_reward_by_an_independent_scoring(
    policy: BestOfN, models: dict[str, str]
) -> None:
    talk = ["Say 1", "Say two"]
    sampling: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 6, "seed": 3, "batch": 64}
    chosen = policy.sample(talk, **sampling)
    reference = Sampler.load(models["reference"], device=CPU, dtype=torch.float32)
    asked = [text for text in talk for _ in range(N)]
    drawn = reference.sample(asked, **sampling)
    reward = RewardModel.load(models["reward"])
    for place, answer in enumerate(chosen):
        texts = [each.text for each in drawn[place * N : (place + 1) * N]]
        scores = [reward([talk[place]], [text])[0] for text in texts]
        assert len(set(texts)) > 1
        assert answer.text == texts[scores.index(max(scores))]


def test_the_served_reply_is_the_sampled_one(policy: BestOfN) -> None:
    asked = ReplyRequest(
        model="policy-1", messages=(Message("user", "Hé"),), max_tokens=8, top_p=0.9, seed=5,
        token_ids=True,
    )  # fmt: skip
    found: queue.Queue[Piece] = queue.Queue()
    prompt = policy.chat.prompt(asked.messages)
    Engine(active=1, waiting=0).start(BestReply(policy, prompt, asked, found.put))
    pieces = [found.get(timeout=60)]
    while isinstance(pieces[-1], str):
        pieces.append(found.get(timeout=60))
    (drawn,) = policy.sample(["Hé"], temperature=1.0, top_p=0.9, max_new_tokens=8, seed=5)
    *texts, end = pieces
    assert "".join(map(str, texts)) == drawn.text
    assert end == ReplyEnd(
        finish_reason=drawn.finish_reason, tokens=len(drawn.ids), ids=tuple(drawn.ids)
    )


def test_the_evaluation_reports_the_bound_and_not_a_kl(
    made: Any, models: dict[str, str], tmp_path: Path
) -> None:
    job = make_job("evaluate", models | {"policy": str(made[1].model)})
    directory = RunDirectory.create(tmp_path / "evaluate", job)
    give(directory, "prompts.parquet", make_prompts(5))
    with Report(directory) as report:
        found = evaluate.run(job, report, directory)
    assert (found.policy.kl, found.policy.kl_is_bound) == (pytest.approx(best_of_n_kl(N)), True)
    assert found.previous is not None
    assert not found.previous.kl_is_bound
    assert found.policy.reward is not None
    assert found.reference.reward is not None
    assert found.policy.reward > found.reference.reward


def test_who_needs_weights_is_refused_in_one_sentence(made: Any, policy: BestOfN) -> None:
    path = str(made[1].model)
    sentence = "is the best of 6 samples of sft-1 by reward-1: it has no weights"
    with pytest.raises(ModelUnavailable, match=sentence):
        load_causal_lm(path)
    with pytest.raises(ValueError, match=r"evaluate\.beams=1"):
        policy.search(["Hi"], beams=2, max_new_tokens=4)
    job = make_job("policy", {"policy": path, "reference": path})
    held = Models(job.config, lambda: {"policy-1": path, "sft-1": path})
    asked = MeasureRequest(
        model="policy-1", messages=(Message("user", "Hi"),), ids=(5, 6), reference="sft-1"
    )
    found = measured(held, asked)
    assert found.tokens == ()
    assert "no token probabilities" in found.no_tokens


def test_vllm_does_not_serve_the_reference_in_its_place(made: Any, tmp_path: Path) -> None:
    generation = Generation(
        Config().override({"serving.engine": "vllm"}), tmp_path / "log",
        paths=lambda: {"policy-1": str(made[1].model)}, current=CurrentModels, running=lambda: None,
    )  # fmt: skip
    with pytest.raises(GenerationRefused, match=NOT_BY_VLLM[:20]):
        generation._started("policy-1")
    assert generation.processes == []


def test_shaping_that_is_not_used_is_said(models: dict[str, str], tmp_path: Path) -> None:
    job = make_job(
        "policy", models, optimize__method="best-of-n", optimize__best_of=2,
        shaping__weights={"length": -0.01},
    )  # fmt: skip
    directory = RunDirectory.create(tmp_path / "run", job)
    with Report(directory) as report:
        best_of_n._notes(job, report, None)
    assert "shaping.weights" in directory.events.read_text()
    assert isinstance(job, Job)
