"""Pairs sampled by a server and by vLLM (`sampling.backend`).

The server is the project's own generation service, and a real `vllm serve` where one is installed.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import uvicorn

from pipeline.config.sections import SERVING_KEY, Config
from pipeline.models.best_of_n import Manifest
from pipeline.models.hub import ModelUnavailable, base_model_path
from pipeline.models.text import ChatTokenizer
from pipeline.runs.rundir import Job, Report, RunDirectory
from pipeline.sampling import server
from pipeline.sampling.backends import pair_sampler
from pipeline.sampling.server import ServerSampler, ServerUnavailable
from pipeline.serving.engine import Engine
from pipeline.serving.models import Models
from pipeline.serving.service import service
from pipeline.stages.sample import run
from tests.helpers.stage_inputs import NAMES, give, make_job, make_prompts, rows_of, tiny_models

CPU = torch.device("cpu")
ARMS = {"random": 3, "previous": 2, "reference": 2}
ASKED = [f"Say {i}" for i in range(6)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return tiny_models(tmp_path_factory.mktemp("models"))


def sampled(job: Job, path: Path) -> list[dict[str, Any]]:
    """The completions of a sampling stage."""
    directory = RunDirectory.create(path, job)
    names = [arm for arm, count in ARMS.items() for _ in range(count)]
    rows = zip(make_prompts(len(names)), names, strict=True)
    give(directory, "prompts.parquet", [row | {"arm": arm, "pairs": 1} for row, arm in rows])
    with Report(directory) as report:
        summary = run(job, report, directory)
    assert summary.arms == ARMS
    return rows_of(directory.outputs / "completions.parquet")


class Service:
    """The project's own service on a TCP port, which notes what it was asked."""

    def __init__(self, paths: dict[str, str], *, active: int, waiting: int, key: str) -> None:
        self.asked: Counter[int] = Counter()
        """Statuses of its answers."""
        self.models: Counter[str] = Counter()
        app = service(Models(Config(), lambda: paths), Engine(active=active, waiting=waiting))

        async def keyed(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            given = dict(scope["headers"]).get(b"authorization", b"").decode()
            if key and given != f"Bearer {key}":
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body", "body": b"no key"})
                return

            async def read() -> Any:
                message = await receive()
                if body := message.get("body"):  # a small one arrives in one piece
                    self.models[json.loads(body)["model"]] += 1
                return message

            async def noted(message: Any) -> None:
                if message["type"] == "http.response.start":
                    self.asked[message["status"]] += 1
                await send(message)

            await app(scope, read, noted)

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self._server = uvicorn.Server(
            uvicorn.Config(keyed, port=self.port, log_level="error", lifespan="off")
        )
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self) -> Service:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()


def serving(
    models: dict[str, str], *, active: int = 16, waiting: int = 16, key: str = ""
) -> Service:
    return Service(
        {NAMES[role]: path for role, path in models.items()},
        active=active, waiting=waiting, key=key,
    )  # fmt: skip


def test_a_server_samples_the_pairs_of_every_arm(models: dict[str, str], tmp_path: Path):
    with serving(models) as at:
        settings = {"sampling__backend": "url", "sampling__url": at.url}
        job = make_job("sampling", models, **settings, sampling__temperatures=[1.0, 0.7])
        first, again = (sampled(job, tmp_path / name) for name in ("a", "b"))
    assert at.asked == {200: 2 * len(first)}
    assert at.models == {"policy-1": 2 * 10, "sft-0": 2 * 2, "sft-1": 2 * 2}
    assert first == again  # each request has a seed of its own, from the job's
    met = Counter((row["policy"], row["temperature"]) for row in first)
    assert met == {("policy-1", 1.0): 7, ("policy-1", 0.7): 3, ("sft-0", 1.0): 2, ("sft-1", 1.0): 2}
    assert len({row["text"] for row in first}) == len(first)
    # Six tokens of the service, of a byte each; those that are not UTF-8 are three bytes here.
    assert all(1 <= row["tokens"] <= 18 for row in first)
    assert {row["finish_reason"] for row in first} <= {"stop", "length"}


def test_the_text_is_the_servers_and_the_order_that_of_the_prompts(models: dict[str, str]):
    chat = ChatTokenizer.load(models["policy"])
    options = {"temperature": 1.0, "max_new_tokens": 5, "seed": 3}
    seen: list[int] = []
    with serving(models) as at:
        sampler = ServerSampler(at.url + "/", "policy-1", chat)
        together = sampler.sample(ASKED, batch=4, on_batch=lambda b: seen.append(len(b)), **options)
        alone = sampler.sample(ASKED, batch=1, **options)
        greedy = sampler.sample(ASKED[::-1], temperature=0.0, max_new_tokens=5, seed=9)
        other = ServerSampler(at.url, "sft-1", chat).sample(ASKED, **options)
    assert seen == [4, 2]
    assert together == alone
    assert [r.prompt_ids for r in together] == [chat.prompt(text) for text in ASKED]
    with pair_sampler(make_job("sampling", models), "policy", CPU) as own:
        here = own.sample(ASKED[::-1], temperature=0.0, max_new_tokens=5, seed=1)
    assert [r.text for r in greedy] == [r.text for r in here]
    assert [r.text for r in other] != [r.text for r in together]


def test_a_busy_server_is_asked_again(models: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "WAITS", (0.2,) * 50)
    with serving(models, active=1, waiting=0) as at:
        sampler = ServerSampler(at.url, "policy-1", ChatTokenizer.load(models["policy"]))
        found = sampler.sample(ASKED, temperature=1.0, max_new_tokens=5, seed=3, batch=6)
    assert len(found) == 6
    assert at.asked[200] == 6
    assert at.asked[429] > 0


def test_a_server_that_stays_busy_is_given_up(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(server, "WAITS", ())
    with serving(models, active=1, waiting=0) as at:
        sampler = ServerSampler(at.url, "policy-1", ChatTokenizer.load(models["policy"]))
        with pytest.raises(ServerUnavailable, match="refuses policy-1: 429 the queue of replies"):
            sampler.sample(ASKED, temperature=1.0, max_new_tokens=60, seed=3, batch=6)


def test_every_fault_of_a_server_is_one_sentence(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(SERVING_KEY, "other")
    chat = ChatTokenizer.load(models["policy"])
    options = {"temperature": 1.0, "max_new_tokens": 5, "seed": 3}

    def refusal(url: str, model: str = "policy-1") -> str:
        with pytest.raises(ServerUnavailable) as refused:
            ServerSampler(url, model, chat).sample(ASKED, **options)
        assert "\n" not in str(refused.value)
        assert str(refused.value).endswith("or set sampling.backend=own")
        return str(refused.value)

    with serving(models, key="s3cret") as at:
        assert f"{SERVING_KEY} has its key" in refusal(at.url)
        monkeypatch.setenv(SERVING_KEY, "s3cret")
        assert "refuses policy-7: 404" in refusal(at.url, "policy-7")
        assert len(ServerSampler(at.url, "policy-1", chat).sample(ASKED, **options)) == 6
    assert f"sampling.url={at.url} does not answer" in refusal(at.url)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sampling.backend": "url"}, "sampling.backend=url needs sampling.url, the address"),
        ({"sampling.backend": "url", "sampling.url": "ftp://a"}, "must begin with http"),
        ({"sampling.backend": "tgi"}, "must be one of own, vllm, url"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, str], sentence: str):
    with pytest.raises(ValueError, match=sentence):
        Config().override(settings)


def test_without_vllm_one_sentence_says_so(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    job = make_job("sampling", models, sampling__backend="vllm")
    with pytest.raises(
        ValueError, match=r"vLLM cannot be imported .* or set sampling\.backend=own"
    ):
        sampled(job, tmp_path / "run")


def test_vllm_does_not_sample_the_reference_in_place_of_a_best_of_n_policy(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    manifest = Manifest(n=4, reference="sft-1", reward_model="reward-1")
    monkeypatch.setattr("pipeline.sampling.vllm.manifest_of", lambda _: manifest)
    job = make_job("sampling", models, sampling__backend="vllm")
    with (
        pytest.raises(
            ModelUnavailable, match=r"the best of 4 samples .* set sampling\.backend=own"
        ),
        pair_sampler(job, "policy", CPU),
    ):
        pass


# --- The real vLLM ----------------------------------------------------------------------------------

DEMO = dict.fromkeys(("policy", "reference", "previous"), base_model_path("demo"))


@pytest.fixture
def real_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vllm")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


def assert_greedy_texts_are_our_own(sampler: Any, asked: list[str]) -> None:
    """The model, its chat template and its end tokens are those of the studio's loop."""
    options = {"temperature": 0.0, "max_new_tokens": 40, "seed": 1}
    theirs = sampler.sample(asked, **options)
    with pair_sampler(make_job("sampling", DEMO), "policy", CPU) as own:
        ours = own.sample(asked, **options)
    assert [r.text for r in theirs] == [r.text for r in ours]
    assert [r.finish_reason for r in theirs] == [r.finish_reason for r in ours]
    assert [len(r.ids) for r in theirs] == [len(r.ids) for r in ours]


QUESTIONS = ["How do I boil an egg?", "How do I unblock a sink?", "Should I save money?"]


@pytest.mark.slow
@pytest.mark.usefixtures("real_vllm")
def test_vllm_samples_the_pairs(tmp_path: Path):
    job = make_job("sampling", DEMO, sampling__backend="vllm", sampling__max_new_tokens=40)
    found = sampled(job, tmp_path / "run")
    assert len({row["text"] for row in found}) > len(found) / 2
    assert {row["finish_reason"] for row in found} <= {"stop", "length"}
    with pair_sampler(job, "policy", CPU) as sampler:
        assert_greedy_texts_are_our_own(sampler, QUESTIONS)
        options = {"temperature": 1.0, "max_new_tokens": 40}
        texts = [sampler.sample(QUESTIONS, seed=seed, **options) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


@contextmanager
def vllm_server(names: list[str], log: Path) -> Iterator[str]:
    """vLLM's server with the demo's model under these names; yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # What `vllm serve` runs; that command itself fails in vllm-cpu, which is not named vllm.
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        DEMO["policy"],
    ]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    environment = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    with log.open("wb") as out:
        child = subprocess.Popen(
            [*command, "--served-model-name", *names], stdout=out, stderr=out, env=environment
        )
    try:
        for _ in range(250):
            with suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{port}/health").is_success:
                    break
            assert child.poll() is None, log.read_text()[-3000:]
            time.sleep(1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        child.terminate()
        child.wait(timeout=60)


@pytest.mark.slow
@pytest.mark.usefixtures("real_vllm")
@pytest.mark.timeout(600)
def test_vllm_serve_samples_the_pairs(tmp_path: Path):
    names = [NAMES[role] for role in DEMO]
    with vllm_server(names, tmp_path / "log") as url:
        settings = {"sampling__backend": "url", "sampling__url": url}
        job = make_job("sampling", DEMO, **settings, sampling__max_new_tokens=40)
        found = sampled(job, tmp_path / "run")
        with pair_sampler(job, "policy", CPU) as sampler:
            assert_greedy_texts_are_our_own(sampler, QUESTIONS)
        with pytest.raises(ServerUnavailable, match="refuses policy-9: 404"):
            ServerSampler(url, "policy-9", ChatTokenizer.load(DEMO["policy"])).sample(
                QUESTIONS, temperature=1.0, max_new_tokens=5, seed=1
            )
    assert len({row["text"] for row in found}) > len(found) / 2
