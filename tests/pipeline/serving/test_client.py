"""The web process's side: start, limits, cancellation, crashes, training, idleness.

The service is the real process with the demo's model, except where a test says otherwise.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from pipeline.config.sections import SERVING_KEY, Config
from pipeline.models.hub import base_model_path
from pipeline.serving.client import NOT_STARTED, STOPPED, Generation
from pipeline.serving.process import ServiceProcess
from storage.generation_records import (
    CurrentModels,
    GenerationBusy,
    GenerationRefused,
    MeasureRequest,
    ReplyEnd,
    ReplyMeasures,
    ReplyRequest,
)
from storage.records import Message

DEMO = base_model_path("demo")
PATHS = {"sft-1": DEMO, "policy-1": DEMO}
ROOT = Path(__file__).parents[3]
LONG = ReplyRequest(
    model="sft-1", messages=(Message("user", "How do I boil an egg?"),), max_tokens=400,
    temperature=50.0, seed=1,
)  # fmt: skip
"""At this temperature the end-of-text is one token of 3,072: the reply goes on."""
SHORT = ReplyRequest(model="sft-1", messages=LONG.messages, max_tokens=12, seed=1)


def made(log: Path, **given: Any) -> Generation:
    settings = {"worker.threads": "1", "worker.device": "cpu"} | given.pop("settings", {})
    known: dict[str, Any] = {
        "paths": lambda: PATHS,
        "current": CurrentModels,
        "running": lambda: None,
    }
    return Generation(Config().override(settings), log, **(known | given))


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generation]:
    """A service that several tests share; starting it takes seconds."""
    generation = made(tmp_path_factory.mktemp("serving") / "generation.log")
    yield generation
    generation.shut_down()


async def read(generation: Generation, request: ReplyRequest, person: str = "ada") -> list[Any]:
    return [piece async for piece in generation.stream(request, person=person)]


async def until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "the condition did not come true"
        await asyncio.sleep(0.02)


def decoding(generation: Generation) -> int:
    """How many replies the service decodes."""
    (service,) = generation._services.values()
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(service.socket))) as client:
        return client.get("http://service/health").json()["replies"]


def test_a_reply_arrives_in_pieces_and_ends(warm: Generation) -> None:
    *texts, end = asyncio.run(read(warm, SHORT))
    assert len(texts) > 3
    assert all(isinstance(text, str) for text in texts)
    assert end == ReplyEnd(finish_reason=end.finish_reason, tokens=end.tokens)
    assert 0 < end.tokens <= 12
    assert asyncio.run(read(warm, SHORT)) == [*texts, end]  # the same seed


def test_a_finished_reply_is_measured(warm: Generation) -> None:
    """The reply of the model itself: its own log-probabilities, and no KL to a copy of it."""

    async def measured() -> tuple[Any, ReplyMeasures]:
        *_, end = await read(warm, replace(SHORT, token_ids=True))
        asked = MeasureRequest(
            model="policy-1", messages=SHORT.messages, ids=end.ids, reference="sft-1"
        )
        return end, await warm.measure(asked, person="ada")

    end, found = asyncio.run(measured())
    assert len(found.tokens) == len(end.ids) == end.tokens
    assert {token.kl for token in found.tokens} == {0.0}
    assert all(token.logprob == token.reference_logprob < 0 for token in found.tokens)
    assert (found.reward, found.audit) == (None, None)
    assert not asyncio.run(read(warm, SHORT))[-1].ids  # only if asked


def test_measuring_counts_as_a_reply_and_stops_while_a_stage_runs(
    warm: Generation, tmp_path: Path
) -> None:
    asked = MeasureRequest(model="sft-1", messages=SHORT.messages, ids=(5, 6))

    async def crowd() -> None:
        small = made(tmp_path / "log", settings={"serving.per_person": "1"})
        small._services = warm._services  # the same process
        async with aclosing(small.stream(LONG, person="ada")) as one:
            await anext(one)
            with pytest.raises(GenerationBusy, match="your other replies"):
                await small.measure(asked, person="ada")
            assert await small.measure(asked, person="ben") == ReplyMeasures()

    asyncio.run(crowd())
    trained = made(tmp_path / "log", running=lambda: "PPO stage")
    with pytest.raises(GenerationRefused, match="PPO stage uses the device"):
        asyncio.run(trained.measure(asked, person="ada"))
    foreign = made(tmp_path / "log", settings={"serving.engine": "vllm"})
    with pytest.raises(GenerationRefused, match=r"serving\.engine=transformers"):
        asyncio.run(foreign.measure(asked, person="ada"))


def test_only_the_owner_can_reach_the_socket(warm: Generation) -> None:
    asyncio.run(read(warm, SHORT))
    (service,) = warm._services.values()
    assert stat.S_IMODE(service.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(service.socket.stat().st_mode) == 0o600
    (pid,) = warm.processes
    assert not psutil.Process(pid).net_connections("inet")  # it listens nowhere else


def test_a_reader_who_leaves_stops_the_decoding(warm: Generation) -> None:
    async def leave() -> None:
        async with aclosing(warm.stream(LONG, person="ada")) as pieces:
            await anext(pieces)
            assert decoding(warm) == 1
        await until(lambda: decoding(warm) == 0, seconds=2)

    asyncio.run(leave())


def test_each_person_and_the_queue_have_a_limit(warm: Generation, tmp_path: Path) -> None:
    async def crowd() -> None:
        small = made(tmp_path / "log", settings={"serving.queue": "3", "serving.per_person": "2"})
        small._services = warm._services  # the same process
        async with (
            aclosing(small.stream(LONG, person="ada")) as one,
            aclosing(small.stream(LONG, person="ada")) as two,
        ):
            await asyncio.gather(anext(one), anext(two))
            with pytest.raises(GenerationBusy, match="your other replies"):
                await read(small, SHORT, "ada")
            async with aclosing(small.stream(LONG, person="ben")) as three:
                await anext(three)
                with pytest.raises(GenerationBusy, match="Many people"):
                    await read(small, SHORT, "cleo")
            assert await read(small, SHORT, "cleo")
        assert await read(small, SHORT, "ada")

    asyncio.run(crowd())


def test_a_long_conversation_and_an_unknown_model_are_refused(warm: Generation) -> None:
    long = ReplyRequest(model="sft-1", messages=LONG.messages, max_tokens=600)
    with pytest.raises(ValueError, match="too long for sft-1"):
        asyncio.run(read(warm, long))
    unknown = ReplyRequest(model="policy-7", messages=LONG.messages, max_tokens=6)
    with pytest.raises(GenerationRefused, match="A model for the replies is missing"):
        asyncio.run(read(warm, unknown))


def test_a_killed_service_ends_its_replies_and_starts_again(tmp_path: Path) -> None:
    async def killed() -> None:
        generation = made(tmp_path / "log")
        try:
            async with aclosing(generation.stream(LONG, person="ada")) as pieces:
                await anext(pieces)
                (before,) = generation.processes
                os.kill(before, signal.SIGKILL)
                with pytest.raises(GenerationRefused, match=STOPPED):
                    async for _ in pieces:
                        pass
            assert await read(generation, SHORT)
            assert generation.processes != [before]
        finally:
            generation.shut_down()

    asyncio.run(killed())


def test_a_service_that_dies_before_a_reply_begins_starts_again(
    tmp_path: Path, monkeypatch
) -> None:
    async def killed() -> None:
        generation = made(tmp_path / "log")
        answers = generation._answers
        try:
            await read(generation, SHORT)
            (before,) = generation.processes

            async def dying(service: ServiceProcess) -> bool:
                if service.pid == before:
                    os.kill(before, signal.SIGKILL)
                return await answers(service)

            monkeypatch.setattr(generation, "_answers", dying)
            assert await read(generation, SHORT)
            assert generation.processes not in ([], [before])
        finally:
            generation.shut_down()

    asyncio.run(killed())


def test_a_stage_stops_the_service_and_refuses_replies(tmp_path: Path) -> None:
    stage: list[str] = []

    async def trained() -> None:
        generation = made(tmp_path / "log", running=lambda: stage[0] if stage else None)
        try:
            async with aclosing(generation.stream(LONG, person="ada")) as pieces:
                await anext(pieces)
                (pid,) = generation.processes
                stage.append("PPO stage")
                await asyncio.to_thread(generation.tick)
                with pytest.raises(GenerationRefused, match="The PPO stage uses the device"):
                    async for _ in pieces:
                        pass
            assert not psutil.pid_exists(pid)
            with pytest.raises(GenerationRefused, match="The PPO stage uses the device"):
                await read(generation, SHORT)
            assert generation.processes == []
        finally:
            generation.shut_down()

    asyncio.run(trained())


def test_beside_training_the_service_continues(tmp_path: Path) -> None:
    settings = {"serving.beside_training": "true"}
    generation = made(tmp_path / "log", running=lambda: "PPO", settings=settings)
    assert generation.refusal() is None
    assert made(tmp_path / "log", running=lambda: "PPO stage").refusal()


def test_an_idle_service_stops(tmp_path: Path) -> None:
    clock = [0.0]
    generation = made(
        tmp_path / "log", clock=lambda: clock[0], settings={"serving.idle_minutes": "2"}
    )

    async def idle() -> None:
        async with aclosing(generation.stream(LONG, person="ada")) as pieces:
            await anext(pieces)
            clock[0] += 500.0
            generation.tick()  # a reply is being generated
            assert generation.processes
        clock[0] += 119.0
        generation.tick()
        assert generation.processes
        clock[0] += 2.0
        generation.tick()
        assert generation.processes == []

    try:
        asyncio.run(idle())
    finally:
        generation.shut_down()


def test_a_service_that_does_not_start_is_a_refusal(tmp_path: Path) -> None:
    log = tmp_path / "log"
    generation = made(log, settings={"serving.device": "no-such-device"})
    with pytest.raises(GenerationRefused, match=NOT_STARTED):
        asyncio.run(read(generation, SHORT))
    assert "no-such-device" in log.read_text()
    generation.shut_down()


_ORPHAN = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.pipeline.serving.test_client import SHORT, made, read
generation = made(Path({log!r}))
asyncio.run(read(generation, SHORT))
print(*generation.processes, flush=True)
sys.stdin.read()
"""


def test_no_service_survives_a_killed_web_process(tmp_path: Path) -> None:
    code = _ORPHAN.format(root=str(ROOT), log=str(tmp_path / "log"))
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    assert parent.stdin
    assert parent.stdout
    with parent:
        service = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        parent.wait()
        service.wait(timeout=30)  # psutil raises TimeoutExpired if it still runs


_STAND_IN = """#!{python}
# Takes vLLM's arguments and serves with our own service: vLLM needs a GPU.
import os, sys
sys.path.insert(0, {root!r})
kind, path, *options = sys.argv[1:]
given = dict(zip(options[::2], options[1::2], strict=True))
assert kind == "serve", sys.argv
assert set(given) == {{"--uds", "--served-model-name", "--gpu-memory-utilization", "--max-num-seqs"}}
import uvicorn
from pipeline.config.sections import Config
from pipeline.serving.engine import Engine
from pipeline.serving.models import Models
from pipeline.serving.service import service
models = Models(Config(), lambda: {{given["--served-model-name"]: path}})
uvicorn.run(service(models, Engine(active=2, waiting=2)), uds=given["--uds"])
"""


def test_vllm_gets_a_process_for_each_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "vllm"
    command.write_text(_STAND_IN.format(python=sys.executable, root=str(ROOT)))
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    generation = made(tmp_path / "generation.log", settings={"serving.engine": "vllm"})
    try:
        for model in ("sft-1", "policy-1"):
            request = ReplyRequest(model=model, messages=SHORT.messages, max_tokens=6, seed=1)
            assert isinstance(asyncio.run(read(generation, request))[-1], ReplyEnd)
        tethers = [psutil.Process(pid) for pid in generation.processes]
        servers = [child for tether in tethers for child in tether.children()]
        assert len(servers) == 2
    finally:
        generation.shut_down()
    _, left = psutil.wait_procs(servers, timeout=30)
    assert left == []  # killing the tether alone would leave the GPU's memory taken


_SERVER = """
import sys
sys.path.insert(0, {root!r})
import uvicorn
from pipeline.config.sections import Config
from pipeline.serving.engine import Engine
from pipeline.serving.models import Models
from pipeline.serving.service import service
app = service(Models(Config(), lambda: {{"sft-1": {demo!r}}}), Engine(active=2, waiting=2))

async def keyed(scope, receive, send):
    if scope["type"] == "http" and dict(scope["headers"]).get(b"authorization") != b"Bearer s3cret":
        await send({{"type": "http.response.start", "status": 401, "headers": []}})
        await send({{"type": "http.response.body", "body": b"no key"}})
        return
    await app(scope, receive, send)

uvicorn.run(keyed, port={port}, log_level="error")
"""


def test_another_server_is_used_by_its_address_and_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = _SERVER.format(root=str(ROOT), demo=DEMO, port=port)
    server = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    settings = {"serving.engine": "url", "serving.url": f"http://127.0.0.1:{port}/v1"}
    generation = made(tmp_path / "log", settings=settings, running=lambda: "PPO stage")
    try:

        def listens() -> bool:
            with suppress(httpx.TransportError):
                httpx.get(f"http://127.0.0.1:{port}/health")
                return True
            return False

        asyncio.run(until(listens))
        with pytest.raises(GenerationRefused, match="Tell the researcher"):
            asyncio.run(read(generation, SHORT))
        monkeypatch.setenv(SERVING_KEY, "s3cret")
        # A stage of the studio does not disturb a server elsewhere.
        assert isinstance(asyncio.run(read(generation, SHORT))[-1], ReplyEnd)
        assert generation.processes == []
    finally:
        server.terminate()
        server.wait()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"serving.engine": "url"}, "set both or neither"),
        ({"serving.url": "http://a/v1"}, "set both or neither"),
        ({"serving.engine": "url", "serving.url": "file:///etc"}, "must begin with http"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Config().override(settings)
