"""The playground, independent of HTTP: replies of several policies, their measures, and probes.

It uses the generation service that live conversations use, with the same limits.  Finished replies
are kept in memory, so that a pair that is sent to annotators has exactly what a model wrote.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any

from labeler.ports import Generation
from storage.engine.database import Database
from storage.errors import Conflict, NotFound
from storage.generation_records import (
    GenerationRefused,
    MeasureRequest,
    ReplyEnd,
    ReplyMeasures,
    ReplyRequest,
)
from storage.labeling import probes
from storage.labeling.live import MAX_MESSAGE_LENGTH, SampledReply
from storage.labeling.probes import Probe
from storage.records import Message, ModelVersion, Prompt, new_id
from storage.tables import models

MAX_MODELS = 4
"""Models that reply to one prompt."""
MAX_TURNS = 64
"""Messages of a conversation."""
MAX_TOKENS = 4_096
"""Tokens of a reply."""
MAX_TEMPERATURE = 5.0
KEPT = 500
"""Finished replies that can be sent to annotators; older ones are forgotten."""
NO_SERVICE = "This server has no generation service."
NO_MODEL = "There is no model yet. The first one is made before sampling."
NO_REWARD = "No reward model yet."
ENDED_EARLY = "The reply ended early. Ask again."
FORGOTTEN = "The reply {id} is no longer known. Ask again, and then send the pair."
MIXED = "The two replies answer different conversations."
Event = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A model that can be asked; `method` is how it was trained, "" for SFT."""

    id: str
    role: str
    iteration: int | None
    method: str


@dataclass(frozen=True, kw_only=True)
class PlaygroundState:
    """What the page needs.  `reason` says why no replies can be generated now.

    `chosen` are the models that are asked by default: SFT, the previous policy and the newest one.
    `reward` scores the replies, and `reference` is what the tokens are compared with.
    """

    models: tuple[Choice, ...]
    chosen: tuple[str, ...]
    reward: str | None
    reference: str | None
    reason: str | None
    max_models: int = MAX_MODELS
    max_tokens: int = MAX_TOKENS


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A conversation that ends with the user's turn, and how its replies are sampled.

    Without a `seed`, another one is drawn each time.  ValueError for one that cannot be asked.
    """

    messages: tuple[Message, ...]
    models: tuple[str, ...]
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 256
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.models) <= MAX_MODELS or len(set(self.models)) < len(self.models):
            raise ValueError(f"Choose 1 to {MAX_MODELS} different models.")
        if len(self.messages) > MAX_TURNS:
            raise ValueError(f"A conversation has at most {MAX_TURNS} messages.")
        for message in self.messages:
            _require_text(message.content)
        Prompt.make(
            self.messages, role="probe"
        )  # it ends with a turn of the user that is not blank
        _require("max_tokens", self.max_tokens, 1, MAX_TOKENS)
        _require("temperature", self.temperature, 0, MAX_TEMPERATURE)
        _require("top_p", self.top_p, 0.01, 1)
        _require("seed", self.seed or 0, 0, 2**63 - 1)


@dataclass(frozen=True, kw_only=True)
class _Finished:
    messages: tuple[Message, ...]
    reply: SampledReply


@dataclass(frozen=True, kw_only=True)
class Collected:
    """Finished replies: each with its model, id, text, finish_reason, tokens, reward, audit, kl (nats)
    and no_tokens, or with its error."""

    seed: int
    reward: str | None
    replies: list[dict[str, Any]]


_NO_REPLY: Event = {
    "id": None, "text": "", "error": "", "finish_reason": None, "tokens": None,
    "reward": None, "audit": None, "kl": None, "no_tokens": "",
}  # fmt: skip


class Playground:
    """The playground of a workspace; without `generation`, it refuses.  For all researchers."""

    def __init__(self, db: Database, generation: Generation | None) -> None:
        self._db = db
        self._generation = generation
        self._finished: OrderedDict[str, _Finished] = OrderedDict()

    def state(self) -> PlaygroundState:
        """The models that can be asked, and whether they can reply now."""
        known = self._models()
        policies = [model.id for model in known if model.role == "policy"]
        reference = _reference(known)
        reward = models.newest(self._db, "reward")
        return PlaygroundState(
            models=tuple(_choice(model) for model in known),
            chosen=tuple(dict.fromkeys([*([reference] if reference else []), *policies[-2:]])),
            reward=reward.id if reward else None,
            reference=reference,
            reason=self._refusal(known),
        )

    async def prepare(self, chosen: Sequence[str]) -> None:
        """Load these models, so that the first reply comes at once."""
        generation = await asyncio.to_thread(self._required, chosen)
        await generation.prepare(*chosen)

    def check(self, ask: Ask) -> None:
        """GenerationRefused if no model can reply now, NotFound for an unknown model."""
        self._required(ask.models)

    async def replies(self, ask: Ask, *, person: str) -> AsyncGenerator[Event]:
        """The replies side by side, as events; closing it cancels those that are not finished.

        Of each model: ``text`` pieces, ``end`` with the id of the finished reply, and ``measures``;
        or ``error``, after which the other models go on.  The first event has the seed.
        """
        generation = await asyncio.to_thread(self._required, ask.models)
        state = await asyncio.to_thread(self.state)
        seed = secrets.randbits(31) if ask.seed is None else ask.seed
        yield {"event": "asked", "seed": seed, "reward": state.reward, "reference": state.reference}
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        places = asyncio.Semaphore(max(1, generation.at_once))

        async def answer(model: str) -> None:
            async with places:
                try:
                    await self._answer(generation, ask, model, seed, state, person, events)
                except (GenerationRefused, ValueError) as error:
                    events.put_nowait({"event": "error", "model": model, "error": str(error)})

        task = asyncio.ensure_future(asyncio.gather(*map(answer, ask.models)))
        task.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            await task
        finally:
            task.cancel()

    async def _answer(
        self,
        generation: Generation,
        ask: Ask,
        model: str,
        seed: int,
        state: PlaygroundState,
        person: str,
        events: asyncio.Queue[Event | None],
    ) -> None:
        request = ReplyRequest(
            model=model,
            messages=ask.messages,
            max_tokens=ask.max_tokens,
            temperature=ask.temperature,
            top_p=ask.top_p,
            seed=seed,
            token_ids=True,
        )
        text, end = "", None
        async with aclosing(generation.stream(request, person=person)) as pieces:
            async for piece in pieces:
                if isinstance(piece, ReplyEnd):
                    end = piece
                else:
                    text += piece
                    events.put_nowait({"event": "text", "model": model, "text": piece})
        if end is None:
            raise GenerationRefused(ENDED_EARLY)
        id = self._keep(ask, SampledReply(
            policy=model, text=text, end=end, temperature=ask.temperature, top_p=ask.top_p, seed=seed,
        ))  # fmt: skip
        about = {"finish_reason": end.finish_reason, "tokens": end.tokens}
        events.put_nowait({"event": "end", "model": model, "id": id} | about)
        measures = await self._measured(generation, request, end, state, person)
        events.put_nowait({"event": "measures", "model": model} | asdict(measures))

    async def _measured(
        self,
        generation: Generation,
        request: ReplyRequest,
        end: ReplyEnd,
        state: PlaygroundState,
        person: str,
    ) -> ReplyMeasures:
        """The measures of a reply, or why there are none: a failure does not take the reply away."""
        try:
            return await generation.measure(
                MeasureRequest(
                    model=request.model,
                    messages=request.messages,
                    ids=end.ids,
                    temperature=request.temperature,
                    reference=state.reference,
                    reward=state.reward,
                ),
                person=person,
            )
        except (GenerationRefused, ValueError) as error:
            return ReplyMeasures(no_tokens=str(error))

    async def collected(self, ask: Ask, *, person: str) -> Collected:
        """All replies at once, for the command line."""
        found = {model: dict(_NO_REPLY) | {"model": model} for model in ask.models}
        about: Event = {}
        async with aclosing(self.replies(ask, person=person)) as events:
            async for event in events:
                if event["event"] == "asked":
                    about = event
                    continue
                reply, kind = found[event["model"]], event.pop("event")
                if kind == "text":
                    reply["text"] += event["text"]
                elif kind == "measures":
                    tokens: tuple[dict[str, Any], ...] = event.pop("tokens")
                    kl = sum(float(token["kl"]) for token in tokens) if tokens else None
                    reply |= event | {"kl": kl}
                else:
                    reply |= event
        return Collected(seed=about["seed"], reward=about["reward"], replies=[*found.values()])

    def send(self, replies: Sequence[str]) -> Probe:
        """Send two finished replies to the annotators; errors as for `probes.send`.

        NotFound for a reply that is no longer kept.
        """
        if len(set(replies)) != 2:
            raise ValueError("Choose two replies.")
        missing = [id for id in replies if id not in self._finished]
        if missing:
            raise NotFound(FORGOTTEN.format(id=missing[0]))
        one, two = (self._finished[id] for id in replies)
        if one.messages != two.messages:
            raise Conflict(MIXED)
        found = {id: self._finished[id].reply for id in replies}
        return probes.send(self._db, one.messages, found)

    def _keep(self, ask: Ask, reply: SampledReply) -> str:
        id = new_id("r")
        self._finished[id] = _Finished(messages=ask.messages, reply=reply)
        while len(self._finished) > KEPT:
            self._finished.popitem(last=False)
        return id

    def _models(self) -> list[ModelVersion]:
        """The models of the workspace that can reply, oldest first."""
        gone = {model.id for model in models.missing(self._db)}
        listed = models.listing(self._db)
        return [m for m in listed if m.role in ("sft", "policy") and m.id not in gone]

    def _refusal(self, known: Sequence[ModelVersion]) -> str | None:
        if self._generation is None:
            return NO_SERVICE
        return self._generation.refusal() if known else NO_MODEL

    def _required(self, chosen: Sequence[str]) -> Generation:
        known = self._models()
        if reason := self._refusal(known):
            raise GenerationRefused(reason)
        unknown = [id for id in chosen if id not in {model.id for model in known}]
        if unknown:
            raise NotFound(
                f"This workspace has no model {unknown[0]} that replies; there are "
                f"{', '.join(model.id for model in known)}."
            )
        assert self._generation is not None  # `_refusal` has checked it
        return self._generation


def _reference(known: Sequence[ModelVersion]) -> str | None:
    return next((model.id for model in reversed(known) if model.role == "sft"), None)


def _choice(model: ModelVersion) -> Choice:
    return Choice(
        id=model.id,
        role=model.role,
        iteration=model.iteration,
        method=str(model.summary.get("method", "")),
    )


def _require(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} must be {low:g} to {high:g}.")


def _require_text(text: str) -> None:
    if len(text) > MAX_MESSAGE_LENGTH:
        raise ValueError(f"A message has at most {MAX_MESSAGE_LENGTH:,} characters.")
    if "\0" in text:
        raise ValueError("A message contains a NUL character, which exports cannot store.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("A message contains half of a character (a lone surrogate).") from None
