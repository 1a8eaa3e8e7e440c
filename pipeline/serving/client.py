"""The web process's side of the generation service.  Does not import torch.

`Generation` starts the service when a reply is asked for, restarts it after a crash, stops it when
it is idle or when a stage needs the device, and limits the replies of each person.  A reply is
cancelled when its iterator is closed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from pipeline.config.sections import SERVING_KEY, Config
from pipeline.models.best_of_n import manifest_of, no_weights
from pipeline.serving.process import (
    ServiceProcess,
    own_command,
    vllm_command,
    write_models,
)
from storage.generation_records import (
    CurrentModels,
    GenerationBusy,
    GenerationRefused,
    LiveSettings,
    MeasuredToken,
    MeasureRequest,
    ReplyEnd,
    ReplyMeasures,
    ReplyRequest,
)
from storage.records import Message

START_SECONDS = 600.0
"""Seconds that a service may take to load: a large model on a slow disk takes minutes."""
TOKEN_SECONDS = 120.0
"""Seconds without a token after which a reply has failed; it may wait in the queue first."""
_POLL = 0.05  # seconds between two questions whether the service is ready
_LOG = logging.getLogger(__name__)

STOPPED = "The generation service stopped. Send the message again."
NOT_STARTED = "The generation service did not start. Tell the researcher: its log says why."
MODEL_MISSING = (
    "A model for the replies is missing. Tell the researcher: the server's log names it."
)
CROWDED = "Many people are waiting for replies. Try again in a minute."
NOT_BY_VLLM = (
    "vLLM cannot serve a best-of-N policy. Tell the researcher: set serving.engine=transformers."
)
NO_MEASURES = "Rewards and token probabilities need serving.engine=transformers."
OWN_REPLIES = "Wait until your other replies have ended."


class Generation:
    """The generation service of one workspace.  Methods may be called from any thread.

    `paths` gives the directory or hub id of each model, `current` the models that people try, and
    `running` the name of the stage that uses the device now, or None.
    """

    def __init__(
        self,
        config: Config,
        log: Path,
        *,
        paths: Callable[[], Mapping[str, str]],
        current: Callable[[], CurrentModels],
        running: Callable[[], str | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._log = log
        self._paths = paths
        self._current = current
        self._running = running
        self._clock = clock
        self._lock = threading.Lock()
        self._services: dict[str, ServiceProcess] = {}
        self._replies: Counter[str] = Counter()
        self._preparing: dict[str, asyncio.Future[None]] = {}
        self._used = clock()

    @property
    def processes(self) -> list[int]:
        """The ids of the running processes."""
        with self._lock:
            return [each.pid for each in self._services.values() if each.alive and each.pid]

    def current_models(self) -> CurrentModels:
        """The models that people try now."""
        return self._current()

    def refusal(self) -> str | None:
        """Why no reply can be generated now, in one sentence; None if it can."""
        serving = self._config.serving
        if serving.engine == "url" or serving.beside_training:
            return None
        stage = self._running()
        return stage and f"The {stage} uses the device. Replies are possible when it has ended."

    @property
    def at_once(self) -> int:
        """How many replies one person can ask for at the same time."""
        return self._config.serving.per_person

    @property
    def live(self) -> LiveSettings:
        """How replies of live conversations are sampled: as the pairs of the queue."""
        config, sampling = self._config.live, self._config.sampling
        first, second = sampling.temperatures
        return LiveSettings(
            replies=config.replies,
            turns=config.turns,
            max_tokens=sampling.max_new_tokens,
            temperatures=(first, second),
            top_p=sampling.top_p,
        )

    async def prepare(self, *models: str) -> None:
        """Start the service and load these models, so that the first reply is not delayed.

        People who ask at the same time wait for one preparation.
        """
        key = " ".join(models)
        if key not in self._preparing:
            task = self._preparing[key] = asyncio.ensure_future(self._load(models))
            task.add_done_callback(lambda _: self._preparing.pop(key))
        await asyncio.shield(self._preparing[key])

    async def _load(self, models: tuple[str, ...]) -> None:
        for model in models:
            hello = ReplyRequest(model=model, messages=(Message("user", "Hello"),), max_tokens=1)
            async with aclosing(self.stream(hello, person=f"prepare {model}")) as pieces:
                async for _ in pieces:
                    pass

    async def stream(self, request: ReplyRequest, *, person: str) -> AsyncGenerator[str | ReplyEnd]:
        """The pieces of a reply's text, then its end.

        Raises `GenerationRefused`, or `GenerationBusy` if too many replies are generated;
        ValueError for a conversation that is too long.
        """
        with self._counted(person):
            service = await self._ready(request.model)
            try:
                own = self._config.serving.engine == "transformers"
                asked = request if own else replace(request, token_ids=False)
                async with self._client(service) as client:
                    async for piece in _read(client, asked):
                        yield piece
            except httpx.TransportError as error:
                _LOG.warning("The generation service failed: %r", error)
                raise GenerationRefused(self.refusal() or STOPPED) from error

    async def measure(self, request: MeasureRequest, *, person: str) -> ReplyMeasures:
        """The rewards and tokens of a finished reply; only with our own service.

        It counts as a reply of `person`; raises as `stream` does.
        """
        if self._config.serving.engine != "transformers":
            raise GenerationRefused(NO_MEASURES)
        body = {
            "model": request.model,
            "messages": [{"role": m.role, "content": m.content} for m in request.messages],
            "token_ids": request.ids,
            "temperature": request.temperature,
            "reference": request.reference,
            "reward": request.reward,
        }
        with self._counted(person):
            service = await self._ready(request.model)
            try:
                async with self._client(service) as client:
                    reply = await client.post("measure", json=body)
            except httpx.TransportError as error:
                raise GenerationRefused(self.refusal() or STOPPED) from error
        _raise_refusal(reply.status_code, reply.content)
        found = reply.json()
        tokens = tuple(MeasuredToken(**each) for each in found.pop("tokens"))
        return ReplyMeasures(**found, tokens=tokens)

    def tick(self) -> None:
        """Stop the service if it is idle or a stage needs the device; call it every second."""
        idle = self._clock() - self._used > 60 * self._config.serving.idle_minutes
        with self._lock:
            unused = idle and not self._replies.total()
        if self._services and (unused or self.refusal()):
            self.shut_down()

    def shut_down(self) -> None:
        """Stop the service; replies that are being generated fail."""
        with self._lock:
            services, self._services = self._services, {}
        for each in services.values():
            each.stop()

    @contextmanager
    def _counted(self, person: str) -> Iterator[None]:
        """Count a reply of `person` while it is generated; raises `GenerationBusy`."""
        serving = self._config.serving
        with self._lock:
            if self._replies.total() >= serving.queue:
                raise GenerationBusy(CROWDED)
            if self._replies[person] >= serving.per_person:
                raise GenerationBusy(OWN_REPLIES)
            self._replies[person] += 1
        try:
            yield
        finally:
            with self._lock:
                self._replies[person] -= 1
                self._replies += Counter()  # drops people without replies
                self._used = self._clock()

    async def _ready(self, model: str) -> ServiceProcess | None:
        """The service that serves a model, once it answers; None for `serving.url`."""
        if refusal := self.refusal():
            raise GenerationRefused(refusal)
        if self._config.serving.engine == "url":
            return None
        service = await asyncio.to_thread(self._started, model)
        give_up = self._clock() + START_SECONDS
        while not await self._answers(service):
            if refusal := self.refusal():
                raise GenerationRefused(refusal)
            if service.answered and not service.alive:  # it was just killed: its end is seen late
                service = await asyncio.to_thread(self._started, model)
            elif not service.alive or self._clock() > give_up:
                _LOG.error("The generation service did not start; see %s", self._log)
                raise GenerationRefused(NOT_STARTED)
            await asyncio.sleep(_POLL)
        service.answered = True
        return service

    async def _answers(self, service: ServiceProcess) -> bool:
        """Whether the service has loaded and answers."""
        try:
            async with self._client(service) as client:
                return service.alive and (await client.get("models")).is_success
        except httpx.TransportError:
            return False

    def _started(self, model: str) -> ServiceProcess:
        """The process that serves a model, started if needed."""
        paths = self._paths()
        if model not in paths:
            _LOG.error("This workspace has no model %s", model)
            raise GenerationRefused(MODEL_MISSING)  # annotators may read it: it names no model
        engine, serving = self._config.serving.engine, self._config.serving
        if engine == "vllm" and (manifest := manifest_of(paths[model])):
            # It would serve the weights, which are the reference's.
            _LOG.error("%s; set serving.engine=transformers", no_weights(model, manifest))
            raise GenerationRefused(NOT_BY_VLLM)
        key = model if engine == "vllm" else ""
        with self._lock:
            self._used = self._clock()
            service = self._services.get(key)
            if service is None or not service.alive:
                if service is not None:
                    _LOG.warning("The generation service ended unexpectedly; it starts again")
                    service.stop()
                service = self._services[key] = ServiceProcess(self._log_of(key))
                if engine == "transformers":
                    write_models(service, self._config, paths)
                    service.start(own_command(service))
                else:
                    service.start(vllm_command(service, serving, model=model, path=paths[model]))
            elif engine == "transformers":  # a stage may have made another model
                write_models(service, self._config, paths)
        return service

    def _log_of(self, key: str) -> Path:
        return self._log.with_stem(f"{self._log.stem}-{key}") if key else self._log

    def _client(self, service: ServiceProcess | None) -> httpx.AsyncClient:
        timeout = httpx.Timeout(TOKEN_SECONDS, connect=5.0)
        if service is None:
            key = os.environ.get(SERVING_KEY)
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            return httpx.AsyncClient(
                base_url=self._config.serving.url, headers=headers, timeout=timeout, verify=_tls()
            )
        transport = httpx.AsyncHTTPTransport(uds=str(service.socket), verify=False)
        return httpx.AsyncClient(
            base_url="http://service/v1", transport=transport, timeout=timeout, trust_env=False
        )


@cache
def _tls() -> ssl.SSLContext:
    """Reading the certificates takes 20 ms."""
    return ssl.create_default_context()


async def _read(client: httpx.AsyncClient, request: ReplyRequest) -> AsyncGenerator[str | ReplyEnd]:
    """Ask for a reply and read its server-sent events."""
    body = {
        "model": request.model,
        "messages": [{"role": m.role, "content": m.content} for m in request.messages],
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "seed": request.seed,
        "stream": True,
        "stream_options": {"include_usage": True},
    } | ({"return_token_ids": True} if request.token_ids else {})
    reason, tokens, ids = None, None, ()
    async with client.stream("POST", "chat/completions", json=body) as reply:
        if not reply.is_success:
            _raise_refusal(reply.status_code, await reply.aread())
        async for line in reply.aiter_lines():
            data = line.removeprefix("data:").strip()
            if line.startswith("data:") and data != "[DONE]":
                event = json.loads(data)
                if "error" in event:
                    _raise_refusal(500, data.encode())
                for choice in event.get("choices", ()):
                    if text := choice.get("delta", {}).get("content"):
                        yield text
                    reason = choice.get("finish_reason") or reason
                if usage := event.get("usage"):
                    tokens = usage.get("completion_tokens")
                ids = tuple(event.get("token_ids", ids))
    if reason not in ("stop", "length"):
        raise GenerationRefused(STOPPED)
    yield ReplyEnd(finish_reason=reason, tokens=tokens, ids=ids)


def _raise_refusal(status: int, content: bytes) -> None:
    """Raise the error of a reply that is not a success."""
    if status < 400:
        return
    sentence = _message(content)
    _LOG.warning("The generation service answered %s: %s", status, sentence)
    if status == 429:
        raise GenerationBusy(CROWDED)
    if status in (400, 422):
        raise ValueError(sentence)
    raise GenerationRefused(
        "The generation service cannot use this model. Tell the researcher: its log says why."
    )


def _message(content: bytes) -> str:
    """The message of an error in OpenAI's form, or the beginning of the answer."""
    try:
        error: Any = json.loads(content)["error"]
        return error["message"] if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError):
        return content[:200].decode("utf-8", "replace")
