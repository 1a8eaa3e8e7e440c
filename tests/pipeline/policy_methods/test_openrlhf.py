"""The exchange with OpenRLHF: files, command, Ray job and the policy that comes back.

The training is a stand-in (tests/helpers/openrlhf_stand_in.py): OpenRLHF's own needs GPUs.  Tests
against OpenRLHF's code are in test_openrlhf_package.py.
"""

from __future__ import annotations

import importlib.util
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.config.openrlhf import DERIVED, DIRECT, OWN, RESERVED
from pipeline.config.sections import Config, WorkerConfig
from pipeline.models.loading import load_causal_lm
from pipeline.models.text import ChatTokenizer
from pipeline.policy_methods.inputs import job_reward, read_prompts
from pipeline.policy_methods.openrlhf import exchange as files
from pipeline.policy_methods.openrlhf import follow, stage
from pipeline.policy_methods.openrlhf.follow import TrainingFailed, error_line
from pipeline.policy_methods.openrlhf.metrics import translated
from pipeline.policy_methods.openrlhf.takeover import load_checked
from pipeline.runs import cancellation
from pipeline.runs.cancellation import Cancelled
from pipeline.runs.launchers.launcher import LaunchError
from pipeline.runs.launchers.remote import JobState
from pipeline.runs.rundir import Job, Report, RunDirectory
from pipeline.worker.worker import stage_module
from tests.helpers.clusters import ROOT, RayNodes
from tests.helpers.stage_inputs import (
    give,
    make_job,
    make_prompts,
    save_random_reward,
    tiny_models_and_reward,
)
from tests.helpers.tiny import save_tiny, tiny_model, tiny_tokenizer
from tests.helpers.worker_runs import until

STAND_IN = ROOT / "tests" / "helpers" / "openrlhf_stand_in.py"
SETTINGS = {
    "optimize__method": "openrlhf",
    "optimize__openrlhf_gpus": 4,
    "ppo__updates": 3,
    "ppo__rollouts": 4,
    "ppo__max_new_tokens": 8,
}


class Processes:
    """A cluster whose jobs are processes of this machine."""

    name = "Ray"

    def __init__(self) -> None:
        self.jobs: dict[str, subprocess.Popen[str]] = {}
        self.commands: list[Sequence[str]] = []
        self.stopped: list[str] = []
        self.silent = False
        self.logs: dict[str, Path] = {}

    def check(self) -> None: ...

    def find(self, name: str) -> str | None:
        return name if name in self.jobs else None

    def submit(self, name: str, command: Sequence[str], *, log: Path, nodes: int) -> str:  # noqa: ARG002
        assert name not in self.jobs
        self.commands.append(command)
        self.logs[name] = log.with_name(f"{name}.txt")
        with self.logs[name].open("w") as output:
            self.jobs[name] = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, text=True
            )
        return name

    def look(self, id: str) -> JobState:
        if self.silent:
            raise LaunchError("Ray does not answer at http://ray:8265.")
        status = self.jobs[id].poll()
        if status is None:
            return JobState("running")
        return JobState("failed", f"exit status {status}") if status else JobState("succeeded")

    def stop(self, id: str) -> None:
        self.stopped.append(id)
        self.jobs[id].kill()

    def output(self, id: str) -> str:
        return self.logs[id].read_text()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "POLL", 0.05)
    monkeypatch.setattr(follow, "ASK_EVERY", 0.1)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    made = Processes()
    monkeypatch.setattr(stage, "RayCluster", lambda *_, **__: made)
    yield made
    for process in made.jobs.values():
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("models")
    made = tiny_models_and_reward(root)
    save_random_reward(made["reference"], root / "second", seed=3)
    return made | {"policy": made["reference"], "reward_2": str(root / "second")}


def prepared(
    models: dict[str, str], path: Path, *options: str, **settings: Any
) -> tuple[Job, RunDirectory]:
    """A run in a workspace; its Python is one that starts the stand-in."""
    python = path / "python"
    python.write_text(
        f'#!/bin/sh\nOMP_NUM_THREADS=1 PYTHONPATH={ROOT} exec {sys.executable} {STAND_IN} "$@"\n'
    )
    python.chmod(0o755)
    chosen = SETTINGS | {
        "optimize__openrlhf_python": str(python),
        "optimize__openrlhf_options": json.dumps(list(options)),
    }
    job = make_job("policy", models, **(chosen | settings))
    directory = RunDirectory.create(path / "runs" / "run-1", job)
    give(directory, "prompts.parquet", make_prompts(6))
    return job, directory


def ran(job: Job, directory: RunDirectory) -> Any:
    with Report(directory, attempt=job.attempt) as report:
        return stage_module(job).run(job, report, directory)


def events(directory: RunDirectory, kind: str) -> list[dict[str, Any]]:
    return [event for event in lines_of(directory.events) if event["kind"] == kind]


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def written(job: Job, directory: RunDirectory) -> tuple[files.Exchange, list[Any]]:
    chat = ChatTokenizer.load(job.model("policy"))
    exchange = files.Exchange(directory, job.config.worker)
    prompts, texts, _ = files.exact_prompts(job, directory, chat)
    files.write_files(job, exchange, prompts, texts)
    return exchange, prompts


def reward_func(exchange: files.Exchange) -> Callable[..., dict[str, Any]]:
    """The function in the file, loaded as OpenRLHF's SingleTurnAgentExecutor does."""
    spec = importlib.util.spec_from_file_location("reward_func", str(exchange.reward))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.reward_func


def test_every_setting_of_ppo_is_converted_or_must_have_its_default() -> None:
    known = {*DIRECT, *DERIVED, *OWN}
    assert known < {field.name for field in Config().ppo.__dataclass_fields__.values()}
    assert len(known) == len(DIRECT) + len(DERIVED) + len(OWN)
    with pytest.raises(ValueError, match="no counterpart of") as refused:
        Config().override({
            "optimize.method": "openrlhf", "ppo.target_kl": 0.1, "ppo.lora_rank": 8,
            "optimize.snapshots": 2,
        })  # fmt: skip
    assert str(refused.value) == (
        "optimize.method=openrlhf has no counterpart of ppo.target_kl=0.1 (default 0.0), "
        "ppo.lora_rank=8 (default 0), optimize.snapshots=2 (default 0); set them to their defaults"
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"ppo.loss_mean": "constant"}, "no counterpart of ppo.loss_mean="),
        ({"ppo.precision": "fp32"}, "no counterpart of ppo.precision="),
        ({"ppo.start_from": "previous"}, "no counterpart of ppo.start_from="),
        ({"ppo.kl_control": "adaptive"}, "no counterpart of ppo.kl_control="),
        ({"optimize.openrlhf_tensor_parallel": 3}, "must divide optimize.openrlhf_gpus=8"),
        ({"ppo.minibatch": 4, "ppo.rollouts": 8}, "must be a multiple of the 8 GPUs"),
        ({"optimize.openrlhf_options": '["x"]'}, "an option begins with --"),
        (
            {"optimize.openrlhf_options": '["--ckpt.output=/x"]'},
            "Kitestring sets --ckpt.output_dir",
        ),
    ],
)
def test_what_openrlhf_cannot_follow_is_refused_in_one_sentence(
    changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        Config().override({"optimize.method": "openrlhf"} | changes)


def test_the_command_names_the_files_and_the_settings(models, tmp_path) -> None:
    job, directory = prepared(
        models, tmp_path, "--ds.packing_samples",
        ppo__clip_high=0.28, ppo__dual_clip=3.0, ppo__value_warmup=2, ppo__lr=2e-6,
        ppo__samples_per_prompt=2, optimize__openrlhf_tensor_parallel=2,
    )  # fmt: skip
    exchange, _ = written(job, directory)
    asked = files.command(job, exchange, name="job-1", longest=40)
    assert asked[1:3] == ["-m", "openrlhf.cli.train_ppo_ray"]
    values = {
        option: asked[i + 1] for i, option in enumerate(asked[:-1]) if option.startswith("--")
    }
    assert {name: values[name] for name in values if name in RESERVED} == {
        "--actor.model_name_or_path": models["reference"],
        "--critic.model_name_or_path": models["reference"],
        "--reward.remote_url": str(directory.path / "openrlhf" / "reward.py"),
        "--reward.clip_range": "-1000000000",
        "--data.prompt_dataset": str(directory.path / "openrlhf" / "prompts.jsonl"),
        "--data.input_key": "input",
        "--data.label_key": "label",
        "--train.num_episodes": "1",
        "--ckpt.output_dir": str(directory.checkpoint / "policy"),
        "--ckpt.path": str(directory.path / "checkpoint"),
        "--algo.advantage.estimator": "gae",
        "--logger.tensorboard_dir": str(directory.path / "openrlhf" / "tensorboard"),
        "--logger.wandb.run_name": "job-1",
    }
    assert values["--actor.adam.lr"] == "2e-06"
    assert float(values["--critic.adam.lr"]) == pytest.approx(2e-5)
    assert values["--critic.freezing_steps"] == "1"
    assert values["--rollout.batch_size"] == "2"
    assert values["--vllm.num_engines"] == "2"
    assert values["--data.max_len"] == "40"
    assert values["--train.seed"] == "7"
    clips = asked.index("--actor.eps_clip_low_high")
    assert asked[clips + 1 : clips + 3] == ["0.2", "0.28"]
    assert asked[-1] == "--ds.packing_samples"


def test_nodes_that_see_the_workspace_elsewhere_get_their_own_paths(models, tmp_path) -> None:
    job, directory = prepared(models, tmp_path, worker__root="/mnt/shared/workspace")
    exchange, _ = written(job, directory)
    asked = files.command(job, exchange, name="job-1", longest=40)
    folder = "/mnt/shared/workspace/runs/run-1/openrlhf"
    assert asked[asked.index("--reward.remote_url") + 1] == f"{folder}/reward.py"
    assert "RunReward('/mnt/shared/workspace/runs/run-1')" in exchange.reward.read_text()
    on_a_node = WorkerConfig(launcher="ray", root="/mnt/shared/workspace")
    assert files.Exchange(directory, on_a_node).there(directory.path) == str(directory.path)


def test_a_path_that_openrlhf_would_split_is_refused(models, tmp_path) -> None:
    (tmp_path / "a,b").mkdir()
    job, directory = prepared(models, tmp_path / "a,b")
    with pytest.raises(ValueError, match="it splits paths at commas and @"):
        files.Exchange(directory, job.config.worker)


def test_each_update_has_its_prompts_and_they_are_our_tokens(models, tmp_path) -> None:
    job, directory = prepared(models, tmp_path, ppo__updates=5)
    exchange, prompts = written(job, directory)
    rows = lines_of(exchange.prompts)
    assert len(rows) == 5 * 4
    assert len({row["label"] for row in rows[:6]}) == 6  # a whole pass before the next
    chat = ChatTokenizer.load(models["policy"])
    ids = {prompt.id: prompt.ids for prompt in prompts}
    for row in rows:
        assert (
            chat.tokenizer(row["input"], add_special_tokens=False)["input_ids"] == ids[row["label"]]
        )


def test_prompts_that_become_other_tokens_are_left_out_with_a_warning(models, tmp_path) -> None:
    job, directory = prepared(models, tmp_path)
    rows = make_prompts(3)
    rows[1]["messages"] = json.dumps([{"role": "user", "content": "Write <|end|> twice"}])
    give(directory, "prompts.parquet", rows)
    chat = ChatTokenizer.load(models["policy"])
    prompts, _, notes = files.exact_prompts(job, directory, chat)
    assert [prompt.id for prompt in prompts] == [rows[0]["id"], rows[2]["id"]]
    assert notes["other_tokens"].startswith("1 of 3 prompts are other tokens when OpenRLHF")
    give(directory, "prompts.parquet", rows[1:2])
    with pytest.raises(ValueError, match="no prompt is left for OpenRLHF: 1 of 1 prompts"):
        files.exact_prompts(job, directory, chat)


def test_a_model_whose_turns_end_where_vllm_would_go_on_is_refused() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = "<|pad|>"
    with pytest.raises(ValueError, match=r"would not stop at <\|end\|>, which ends a response"):
        files.require_stops(ChatTokenizer(tokenizer))
    files.require_stops(ChatTokenizer(tokenizer, stops=[1]))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {
            "shaping__weights": {"length": -0.1, "repetition": -1.0},
            "shaping__ensemble": "lower_bound",
            "shaping__floor": -0.2,
        },
        {"ppo__score_clip": 0.1, "ppo__missing_eos_penalty": 2.0},
    ],
)
def test_the_reward_file_gives_the_rewards_of_the_engine(models, tmp_path, settings) -> None:
    job, directory = prepared(models, tmp_path, **settings)
    exchange, prompts = written(job, directory)
    called = reward_func(exchange)
    chat = ChatTokenizer.load(models["policy"])
    texts = [f"answer {i} zz zz zz" for i in range(6)]
    reward, weights = job_reward(job, prompts, device=torch.device("cpu"))
    named = reward(list(range(6)), texts)
    for i, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        rendered = files.rendering(chat, prompt.ids)
        score = sum(weights[name] * values[i] for name, values in named.items())
        for ending, penalty in (("<|end|>", 0.0), ("", job.config.ppo.missing_eos_penalty)):
            clip = job.config.ppo.score_clip or 1e9
            found = called([rendered + text + ending], [rendered], [prompt.id])
            assert found["rewards"].shape == (1,)
            expected = min(max(score, -clip), clip) - penalty
            assert found["rewards"].item() == pytest.approx(expected, abs=1e-5)
            assert found["extra_logs"]["reward/mean"].item() == pytest.approx(score, abs=1e-5)
            assert found["extra_logs"]["reward/score"].item() == pytest.approx(
                named["score"][i], abs=1e-5
            )


def test_the_reward_file_may_be_called_in_threads_and_refuses_another_prompt(
    models, tmp_path
) -> None:
    job, directory = prepared(models, tmp_path)
    exchange, prompts = written(job, directory)
    called, chat = reward_func(exchange), ChatTokenizer.load(models["policy"])
    rendered = [files.rendering(chat, prompt.ids) for prompt in prompts]
    found: dict[int, float] = {}

    def call(i: int) -> None:
        query = f"{rendered[i]}text {i}<|end|>"
        found[i] = called([query], [rendered[i]], [prompts[i].id])["rewards"].item()

    threads = [threading.Thread(target=call, args=[i]) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    in_turn = dict(found)
    for i in range(6):
        call(i)
    assert found == pytest.approx(in_turn)
    with pytest.raises(ValueError, match="does not begin with prompt"):
        called(["another text"], ["another"], [prompts[0].id])


def test_a_run_takes_the_policy_over_and_reports_our_metrics(models, tmp_path, cluster) -> None:
    job, directory = prepared(models, tmp_path)
    summary = ran(job, directory)
    assert (summary.method, summary.updates) == ("openrlhf", 3)
    reported = events(directory, "metrics")
    assert [event["step"] for event in reported] == [1, 2, 3]
    values = reported[1]["values"]
    assert values["openrlhf/kl_per_token"] == pytest.approx(0.02)
    assert values["completion/eos_rate"] == pytest.approx(0.75)
    assert values["kl/coefficient"] == job.config.ppo.kl_weight
    assert "policy/approx_kl" not in values  # another estimator than the engine's
    prompts, _ = read_prompts(directory, ChatTokenizer.load(models["policy"]), job.config.ppo, None)
    rows = lines_of(directory.path / "openrlhf" / "prompts.jsonl")
    numbers = {prompt.id: i for i, prompt in enumerate(prompts)}
    asked = [numbers[row["label"]] for row in rows[4:8]]
    reward, weights = job_reward(job, prompts, device=torch.device("cpu"))
    named = reward(asked, ["z2"] * 4)
    mean = sum(weights[name] * sum(scores) / 4 for name, scores in named.items())
    assert values["reward/mean"] == pytest.approx(mean, abs=1e-4)
    start = load_causal_lm(models["policy"]).get_input_embeddings().weight
    trained = load_causal_lm(str(directory.model)).get_input_embeddings().weight
    assert (trained - start).mean().item() == pytest.approx(1, abs=0.01)
    assert ChatTokenizer.load(str(directory.model)).tokenizer.chat_template
    assert "Global step 3" in directory.log_tail()
    last = events(directory, "progress")[-1]
    assert (last["done"], last["total"]) == (3, 3)
    assert last["message"].startswith("update 3 of 3: reward ")
    (name,) = cluster.jobs
    assert name.startswith("openrlhf-run-1-attempt-1-")


def test_a_job_that_fails_says_why_and_a_resume_continues_its_checkpoint(
    models, tmp_path, cluster
) -> None:
    job, directory = prepared(models, tmp_path, "--stand_in=dies after a checkpoint")
    with pytest.raises(
        TrainingFailed, match=r"^OpenRLHF failed: ray.exceptions.ActorDiedError: The"
    ):
        ran(job, directory)
    assert directory.has_checkpoint()
    settings = job.config.override({"optimize.openrlhf_options": "[]"})
    again = Job(**(vars(job) | {"attempt": 2, "resume": True, "config": settings}))
    directory.write_job(again)
    assert ran(again, directory).updates == 3
    assert len(cluster.jobs) == 2
    first, second = cluster.commands
    assert "--ckpt.load_enable" not in first
    assert "--ckpt.load_enable" in second
    assert [event["step"] for event in events(directory, "metrics")] == [1, 2, 3]


@pytest.mark.usefixtures("cluster")
def test_a_crash_names_the_last_error_of_the_log(models, tmp_path) -> None:
    job, directory = prepared(models, tmp_path, "--stand_in=crashes")
    with pytest.raises(
        TrainingFailed, match=r"^OpenRLHF failed: RuntimeError: CUDA out of memory in"
    ):
        ran(job, directory)
    assert "starting" in directory.log_tail()


def test_cancel_stops_the_job_and_resume_finds_one_that_still_runs(
    models, tmp_path, cluster, monkeypatch
) -> None:
    job, directory = prepared(models, tmp_path, "--stand_in=waits")
    monkeypatch.setattr(cancellation, "_requested", False)

    def worker_dies(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(follow.TrainingJob, "follow", worker_dies)
        with pytest.raises(KeyboardInterrupt):
            ran(job, directory)
    assert directory.has_checkpoint()  # so that the run can be resumed
    again = Job(**(vars(job) | {"attempt": 2, "resume": True}))
    timer = threading.Timer(1.0, lambda: setattr(cancellation, "_requested", True))
    timer.start()
    with pytest.raises(Cancelled):
        ran(again, directory)
    assert list(cluster.jobs) == cluster.stopped
    assert len(cluster.jobs) == 1
    monkeypatch.setattr(cancellation, "_requested", False)


def test_a_cluster_that_stays_silent_ends_the_stage_but_not_the_job(
    models, tmp_path, cluster, monkeypatch
) -> None:
    job, directory = prepared(models, tmp_path, "--stand_in=waits", worker__lost_after=30.0)
    cluster.silent = True
    began = time.monotonic()
    monkeypatch.setattr(follow, "monotonic", lambda: 100 * (time.monotonic() - began))
    with pytest.raises(TrainingFailed, match="The job may still run; resume finds it"):
        ran(job, directory)
    assert cluster.stopped == []


def test_without_a_cluster_the_stage_says_so(models, tmp_path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        job, directory = prepared(models, tmp_path, worker__ray_address=address)
        with pytest.raises(
            LaunchError, match=r"Ray does not answer .*, or choose another optimize"
        ):
            ran(job, directory)


def test_another_reference_is_refused(models, tmp_path, cluster) -> None:
    job, directory = prepared(models | {"policy": models["previous"]}, tmp_path)
    with pytest.raises(ValueError, match=r"another reference; set ppo.start_from=sft$"):
        ran(job, directory)
    assert cluster.jobs == {}


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("a\nb\n\n", "b"),
        ("", ""),
        ("\x1b[36m(A pid=3)\x1b[0m ValueError: x\nlater line\n", "ValueError: x"),
        (
            "(A pid=1) I [SingleTurnExecutor] Failed to fetch reward from remote RM: no such file\n"
            "ValueError: reward_model_group is required\n",
            "the reward function: no such file",
        ),
    ],
)
def test_the_line_that_says_why(output: str, reason: str) -> None:
    assert error_line(output) == reason


def test_a_figure_that_is_not_finite_is_left_out() -> None:
    values = {"kl": float("nan"), "policy_loss": 0.5, "reward/score": float("inf"), "act": 1.0}
    assert translated(values, kl_weight=0.1) == {"policy/loss": 0.5, "kl/coefficient": 0.1}


def saved(path: Path, model: Any, tokenizer: Any) -> Path:
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_a_policy_that_cannot_be_used_is_refused(tmp_path) -> None:
    chat = ChatTokenizer(tiny_tokenizer())
    good = save_tiny(tmp_path / "good")
    assert load_checked(good, chat, "models/sft-1").dtype == torch.bfloat16
    with pytest.raises(ValueError, match="OpenRLHF saved no policy in"):
        load_checked(tmp_path / "none", chat, "models/sft-1")
    other = tiny_tokenizer()
    other.add_tokens(["<|new|>"])
    with pytest.raises(ValueError, match=r"another vocabulary than the one .*, sft-1$"):
        load_checked(saved(tmp_path / "other", tiny_model(), other), chat, "models/sft-1")
    broken = tiny_model()
    with torch.no_grad():
        broken.model.layers[1].mlp.up_proj.weight[0, 0] = torch.nan
    with pytest.raises(
        ValueError, match=r"not finite, in model.layers.1.mlp.up_proj.weight; lower"
    ):
        load_checked(saved(tmp_path / "nan", broken, tiny_tokenizer()), chat, "models/sft-1")
    fewer = tiny_model()
    state = {name: w for name, w in fewer.state_dict().items() if name != "lm_head.weight"}
    fewer.save_pretrained(tmp_path / "fewer", state_dict=state)
    tiny_tokenizer().save_pretrained(tmp_path / "fewer")
    with pytest.raises(ValueError, match=r"lacks 1 weights, such as lm_head.weight"):
        load_checked(tmp_path / "fewer", chat, "models/sft-1")


@pytest.fixture(scope="module")
def ray() -> Iterator[RayNodes]:
    pytest.importorskip("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nodes = RayNodes(port)
    yield nodes
    nodes.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ray_runs_the_job_once_and_stops_it(models, tmp_path, ray) -> None:
    where = {"worker__ray_address": ray.address}
    (tmp_path / "first").mkdir()
    job, directory = prepared(models, tmp_path / "first", **where)
    assert ran(job, directory).updates == 3
    assert directory.model.is_dir()
    assert "Global step 3" in directory.log_tail()
    with pytest.raises(LaunchError, match="already exists"):
        submitted_again(job, directory)
    (tmp_path / "second").mkdir()
    job, directory = prepared(models, tmp_path / "second", "--stand_in=crashes", **where)
    with pytest.raises(
        TrainingFailed, match=r"^OpenRLHF failed: RuntimeError: CUDA out of memory in"
    ):
        ran(job, directory)
    (tmp_path / "third").mkdir()
    job, directory = prepared(models, tmp_path / "third", "--stand_in=waits", **where)
    cluster = stage.RayCluster(job.config.worker)
    worker = started(directory)
    record = directory.checkpoint / "ray_job.json"
    until(record.exists)
    name = json.loads(record.read_text())["id"]
    until(lambda: cluster.find(name) is not None and cluster.look(name).phase == "running")
    worker.kill()
    worker.wait()
    directory.write_job(Job(**(vars(job) | {"attempt": 2, "resume": True})))
    worker = started(directory)
    until(lambda: f"follows the job {name}" in directory.log_tail())
    assert cluster.look(name).phase == "running"
    worker.terminate()
    assert worker.wait(timeout=60) == 128 + signal.SIGTERM
    assert directory.error() == "cancelled"
    until(lambda: cluster.look(name).phase == "failed")
    assert "stopped" in cluster.look(name).detail


def started(directory: RunDirectory) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "pipeline.worker", directory.path], cwd=ROOT)


def submitted_again(job: Job, directory: RunDirectory) -> None:
    cluster = stage.RayCluster(job.config.worker)
    name = json.loads((directory.checkpoint / "ray_job.json").read_text())["id"]
    cluster.submit(name, ["true"], log=directory.log, nodes=1)
