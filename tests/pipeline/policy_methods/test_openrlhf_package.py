"""What we write for OpenRLHF, read by OpenRLHF's own code; checked with 0.11.2.

They run where the package is found: `pip download --no-deps openrlhf`, unpack it, and put a folder with
its package ``openrlhf`` alone in PYTHONPATH.  Its dependencies (CUDA, DeepSpeed, vLLM) are not needed: the modules that
import them are replaced by empty ones, and what is tested does not use them.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline.models.text import ChatTokenizer
from pipeline.policy_methods.inputs import job_reward
from pipeline.policy_methods.openrlhf import exchange as files
from pipeline.runs.rundir import Job, RunDirectory
from tests.helpers.stage_inputs import give, make_job, make_prompts, tiny_models_and_reward

found = importlib.util.find_spec("openrlhf")
pytestmark = pytest.mark.skipif(found is None, reason="OpenRLHF is not in the path")
PACKAGE = Path((found.submodule_search_locations or [""])[0]) if found else Path()

PARSE = """
import json, runpy, sys
from types import ModuleType, SimpleNamespace

def plain(value):
    return {k: plain(v) for k, v in vars(value).items()} if isinstance(value, SimpleNamespace) else value

def caught(args):
    print(json.dumps(plain(args)))
    raise SystemExit(0)

def module(name, path=None, **contents):
    made = sys.modules[name] = ModuleType(name)
    made.__dict__.update(contents, __path__=[path] if path else [])

package = sys.argv[1]
module("ray", is_initialized=lambda: True)
module("ray.util")
module("ray.util.placement_group", placement_group=None)
module("openrlhf.trainer")
module("openrlhf.trainer.ray", create_vllm_engines=None)
names = ("RayActorGroup", "ReferenceModelActor", "RewardModelActor")
module("openrlhf.trainer.ray.launcher", **dict.fromkeys(names))
module("openrlhf.trainer.ray.ppo_actor", PolicyModelActor=None)
module("openrlhf.trainer.ray.ppo_critic", CriticModelActor=None)
module("openrlhf.utils", package + "/utils", get_strategy=caught)
sys.argv = ["train_ppo_ray", *sys.argv[2:]]
runpy.run_path(package + "/cli/train_ppo_ray.py", run_name="__main__")
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    made = tiny_models_and_reward(tmp_path_factory.mktemp("models"))
    return made | {"policy": made["reference"]}


def written(
    models: dict[str, str], path: Path, **settings: Any
) -> tuple[Job, files.Exchange, list[Any]]:
    chosen = {
        "optimize__method": "openrlhf", "optimize__openrlhf_gpus": 4, "ppo__max_new_tokens": 24,
        "ppo__updates": 5,
    }  # fmt: skip
    job = make_job("policy", models, **(chosen | settings))
    directory = RunDirectory.create(path / "runs" / "run-1", job)
    give(directory, "prompts.parquet", make_prompts(6))
    exchange = files.Exchange(directory, job.config.worker)
    prompts, texts, _ = files.exact_prompts(job, directory, ChatTokenizer.load(job.model("policy")))
    files.write_files(job, exchange, prompts, texts)
    return job, exchange, prompts


def module_of(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of OpenRLHF without the `__init__` of its folder, which imports DeepSpeed."""
    folder = name.rpartition("/")[0]
    for package, place in (("openrlhf", PACKAGE), (f"openrlhf.{folder}", PACKAGE / folder)):
        empty: Any = ModuleType(package)
        empty.__path__ = [str(place)]
        monkeypatch.setitem(sys.modules, package, empty)
    for each in [m for m in sys.modules if m.startswith(f"openrlhf.{folder}.")]:
        monkeypatch.delitem(sys.modules, each)
    return importlib.import_module(f"openrlhf.{name.replace('/', '.')}")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {
            "ppo__clip_high": 0.28, "ppo__dual_clip": 3.0, "ppo__entropy_weight": 0.01,
            "ppo__loss_mean": "token", "ppo__value_warmup": 2, "ppo__value_clip": 0.0,
            "ppo__gradient_checkpointing": True, "ppo__schedule": "constant",
            "ppo__samples_per_prompt": 2, "optimize__openrlhf_tensor_parallel": 2,
            "optimize__openrlhf_options": '["--ds.packing_samples"]',
        },
    ],
)  # fmt: skip
def test_openrlhfs_parser_accepts_the_command(models, tmp_path, settings: dict[str, Any]) -> None:
    job, exchange, _ = written(models, tmp_path, **settings)
    command = files.command(job, exchange, name="job-1", longest=90)
    done = subprocess.run(
        [sys.executable, "-c", PARSE, str(PACKAGE), *command[3:]], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    args, ppo = json.loads(done.stdout.splitlines()[-1]), job.config.ppo
    assert args["actor"]["adam"]["lr"] == ppo.lr
    assert args["critic"]["adam"]["lr"] == pytest.approx(10 * ppo.lr)
    assert args["actor"]["lr_scheduler"] == ppo.schedule
    assert args["actor"]["eps_clip_low_high"] == [ppo.clip, ppo.clip_high or ppo.clip]
    assert args["actor"]["dual_clip"] == (ppo.dual_clip or None)
    assert args["actor"]["entropy_coef"] == (ppo.entropy_weight or None)
    assert args["actor"]["gradient_checkpointing_enable"] == ppo.gradient_checkpointing
    assert args["critic"]["value_clip"] == (ppo.value_clip or 1e9)
    assert args["critic"]["freezing_steps"] == ppo.value_warmup - 1
    assert args["algo"]["kl"]["init_coef"] == ppo.kl_weight
    assert args["algo"]["advantage"]["lambd"] == ppo.lam
    assert args["rollout"]["batch_size"] * args["rollout"]["n_samples_per_prompt"] == ppo.rollouts
    assert args["rollout"]["max_new_tokens"] == ppo.max_new_tokens
    assert args["train"]["batch_size"] == ppo.minibatch
    assert args["train"]["seed"] == 7
    assert args["reward"]["clip_range"] == [-1e9, 1e9]
    assert args["reward"]["remote_url"] == [str(exchange.reward)]
    assert args["critic"]["model_name_or_path"] == models["reference"]
    assert args["vllm"]["num_engines"] == 4 // job.config.optimize.openrlhf_tensor_parallel
    assert args["vllm"]["enable_sleep"]


def test_openrlhfs_data_set_reads_the_prompts(models, tmp_path, monkeypatch) -> None:
    job, exchange, prompts = written(models, tmp_path)
    strategy = SimpleNamespace(
        args=SimpleNamespace(
            data=SimpleNamespace(input_key="input", label_key="label", apply_chat_template=False),
            use_ms=False,
        ),
        print=lambda *_: None,
        is_rank_0=lambda: False,
    )
    blend = module_of("datasets/utils", monkeypatch).blending_datasets
    reader = module_of("datasets/prompts_dataset", monkeypatch)
    data = blend(exchange.there(exchange.prompts), None, strategy, 7, max_count=10**8)
    tokenizer = ChatTokenizer.load(models["policy"]).tokenizer
    read = reader.PromptDataset(data, tokenizer, strategy)
    assert len(read) == job.config.ppo.updates * job.config.ppo.rollouts
    ids = {prompt.id: prompt.ids for prompt in prompts}
    for i in range(len(read)):
        _, text, label, images = read[i]
        assert tokenizer(text=text, add_special_tokens=False)["input_ids"] == ids[label]
        assert images is None


class Engine:
    """vLLM, as far as OpenRLHF's executor uses it: one response, as token ids."""

    def __init__(self, ids: list[int], finish_reason: str) -> None:
        self._output = SimpleNamespace(token_ids=ids, finish_reason=finish_reason, logprobs=None)

    async def generate(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(outputs=[self._output])


@pytest.mark.parametrize("finish_reason", ["stop", "length"])
def test_openrlhfs_executor_gets_the_rewards_of_the_engine(
    models, tmp_path, monkeypatch, finish_reason: str
) -> None:
    job, exchange, prompts = written(models, tmp_path, shaping__weights={"length": -0.1})
    executor = module_of("utils/agent", monkeypatch).SingleTurnAgentExecutor([str(exchange.reward)])
    chat = ChatTokenizer.load(models["policy"])
    reward, weights = job_reward(job, prompts, device=torch.device("cpu"))
    for i, prompt in enumerate(prompts):
        text = f"réponse {i} <b>"
        ids = chat.plain(text) + [chat.end_id] * (finish_reason == "stop")
        output = asyncio.run(
            executor.execute(
                files.rendering(chat, prompt.ids), prompt.id,
                SimpleNamespace(max_tokens=24, logprobs=None), 90, chat.tokenizer,
                Engine(ids, finish_reason),
            )
        )  # fmt: skip
        assert output["observation_tokens"] == prompt.ids + ids
        assert output["truncated"] == (finish_reason == "length")
        named = reward([i], [text])
        expected = sum(weights[name] * values[0] for name, values in named.items())
        expected -= job.config.ppo.missing_eos_penalty * output["truncated"]
        # As OpenRLHF's samples generator stores it.
        assert torch.tensor([output["reward"]]).item() == pytest.approx(expected, abs=1e-4)
        assert set(output["extra_logs"]) == {"reward/mean", "reward/score", "reward/length"}
