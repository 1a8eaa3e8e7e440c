"""`ServerSampler`: a policy that an OpenAI-compatible server samples from, such as `vllm serve`."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from pipeline.config.sections import SERVING_KEY
from pipeline.models.generate import Response
from pipeline.models.text import ChatTokenizer, Messages
from storage.records import as_messages

ANSWER_SECONDS = 600.0
"""Seconds that a server may take for one answer; it may wait in the server's queue first."""
WAITS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before each new attempt when the server is too busy."""
_BUSY = (429, 503)


class ServerUnavailable(ValueError):
    """The server does not answer, or refuses; one sentence."""


class ServerSampler:
    """Samples from one model of a server, which renders the prompts with its own chat template."""

    def __init__(self, url: str, model: str, chat: ChatTokenizer) -> None:
        self._url = url.rstrip("/")
        self._model = model
        self._chat = chat

    def sample(
        self,
        conversations: Sequence[Messages],
        *,
        temperature: float,
        max_new_tokens: int,
        seed: int,
        top_p: float = 1.0,
        batch: int = 32,
        on_batch: Callable[[list[Response]], Any] = lambda _: None,
    ) -> list[Response]:
        """One answer to each conversation, in the same order; `batch` requests at a time.

        Each request has a seed of its own, which a server may ignore.  `Response.ids` are those of
        our tokenizer, because few servers return theirs.
        """
        coin = random.Random(seed)
        bodies = [
            {
                "model": self._model,
                "messages": [{"role": m.role, "content": m.content} for m in as_messages(messages)],
                "max_tokens": max_new_tokens,
                "temperature": temperature,
                "top_p": top_p,
                "seed": coin.getrandbits(31),  # some servers take 32 bits with a sign
            }
            for messages in conversations
        ]
        found: list[Response] = []
        key = os.environ.get(SERVING_KEY)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = httpx.Timeout(ANSWER_SECONDS, connect=10.0)
        limits = httpx.Limits(max_connections=batch)
        with (
            httpx.Client(headers=headers, timeout=timeout, limits=limits) as client,
            ThreadPoolExecutor(batch) as pool,
        ):
            asked = list(zip(conversations, bodies, strict=True))
            for start in range(0, len(asked), batch):
                some = asked[start : start + batch]
                answered = list(pool.map(lambda each: self._answer(client, *each), some))
                found += answered
                on_batch(answered)
        return found

    def _answer(self, client: httpx.Client, messages: Messages, body: dict[str, Any]) -> Response:
        reply = self._post(client, body)
        try:
            choice = reply.json()["choices"][0]
            text, reason = choice["message"]["content"] or "", choice["finish_reason"]
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise self._unavailable(f"answers {reply.text[:200]!r}") from error
        if reason not in ("stop", "length"):
            raise self._unavailable(f"ended an answer with finish_reason={reason!r}")
        ids = self._chat.completion(text)
        return Response(
            prompt_ids=self._chat.prompt(messages),
            ids=ids if reason == "stop" else ids[:-1],
            text=text,
            finish_reason=reason,
        )

    def _post(self, client: httpx.Client, body: dict[str, Any]) -> httpx.Response:
        """The server's answer, asked for again while the server is busy."""
        reply = self._ask(client, body)
        for wait in WAITS:
            if reply.status_code not in _BUSY:
                break
            time.sleep(wait)
            reply = self._ask(client, body)
        if reply.is_success:
            return reply
        said = f"refuses {self._model}: {reply.status_code} {_message(reply)}"
        hint = f" ({SERVING_KEY} has its key)" if reply.status_code in (401, 403) else ""
        raise self._unavailable(said + hint)

    def _ask(self, client: httpx.Client, body: dict[str, Any]) -> httpx.Response:
        try:
            return client.post(f"{self._url}/chat/completions", json=body)
        except httpx.TransportError as error:
            raise self._unavailable(f"does not answer ({error or repr(error)})") from error

    def _unavailable(self, what: str) -> ServerUnavailable:
        return ServerUnavailable(
            f"the server of sampling.url={self._url} {what}; it must serve {self._model}: check it and "
            "retry, or set sampling.backend=own"
        )


def _message(reply: httpx.Response) -> str:
    """The message of an error in OpenAI's form, or the beginning of the answer."""
    try:
        error: Any = json.loads(reply.content)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return reply.text[:200]
