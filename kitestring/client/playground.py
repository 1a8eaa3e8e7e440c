"""The playground: ask several models the same, and send two replies to the annotators."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kitestring.client.connection import Connection, StudioError, route
from kitestring.client.records import Answers, Models, Reply, SentPair
from kitestring.client.rows import Rows, parsed

PLAYGROUND = "/research/api/playground"
Event = Mapping[str, Any]


class Playground:
    """``studio.playground``: replies of the workspace's models."""

    def __init__(self, at: Connection) -> None:
        self._at = at

    @route("GET", PLAYGROUND)
    def models(self) -> Models:
        """The models that can be asked, and whether they can reply now."""
        return parsed(Models, self._at.get(PLAYGROUND))

    @route("POST", f"{PLAYGROUND}/prepare")
    def prepare(self, models: Sequence[str]) -> None:
        """Load models, so that the first reply comes at once."""
        self._at.post(f"{PLAYGROUND}/prepare", {"models": [*models]}, again=True)

    @route("POST", f"{PLAYGROUND}/replies")
    def stream(
        self,
        prompt: str | Sequence[Mapping[str, str]],
        models: Sequence[str] = (),
        *,
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_tokens: int = 256,
        seed: int | None = None,
    ) -> Iterator[Event]:
        """The events of the replies as they arrive (docs/http.md); closing it cancels the replies.

        `prompt` is a message or a conversation.  Without `models`, those of the page are asked.
        """
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [*prompt]
        body = {
            "messages": messages, "models": [*models] or [*self.models().chosen], "top_p": top_p,
            "temperature": temperature, "max_tokens": max_tokens, "seed": seed,
        }  # fmt: skip
        with self._at.stream("POST", f"{PLAYGROUND}/replies", json=body) as answer:
            for line in answer.iter_lines():
                yield json.loads(line)

    def ask(
        self,
        prompt: str | Sequence[Mapping[str, str]],
        models: Sequence[str] = (),
        *,
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_tokens: int = 256,
        seed: int | None = None,
    ) -> Answers:
        """The finished replies, each with its rewards and KL, or with its error."""
        events = self.stream(
            prompt, models, temperature=temperature, top_p=top_p, max_tokens=max_tokens, seed=seed
        )
        begun: Event | None = None
        found: dict[str, dict[str, Any]] = {}
        for event in events:
            if event["event"] == "asked":
                begun = event
            else:
                _add(found.setdefault(event["model"], _empty(event["model"])), event)
        if begun is None:
            raise StudioError("The studio ended the answer before the first reply. Ask again.")
        return Answers(seed=begun["seed"], replies=Rows.of(Reply, found.values()))

    @route("POST", f"{PLAYGROUND}/pairs")
    def send(self, first: Reply, second: Reply) -> SentPair:
        """Send two replies to the annotators as a pair of the arm `probe`."""
        body = {"replies": [first.id, second.id]}
        return parsed(SentPair, self._at.post(f"{PLAYGROUND}/pairs", body))


def _empty(model: str) -> dict[str, Any]:
    missing = ("id", "finish_reason", "tokens", "reward", "audit", "kl")
    return {"model": model, "text": "", "error": ""} | dict.fromkeys(missing)


def _add(reply: dict[str, Any], event: Event) -> None:
    """Add what an event says to the reply of its model."""
    match event["event"]:
        case "text":
            reply["text"] += event["text"]
        case "measures":
            kls = [token["kl"] for token in event["tokens"]]
            reply |= {"reward": event["reward"], "audit": event["audit"]}
            reply["kl"] = sum(kls) if kls else None
        case "end" | "error":
            reply |= {name: event[name] for name in event.keys() & reply.keys()}
