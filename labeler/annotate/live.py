"""Live conversations on the annotator's page, independent of HTTP.

The annotator sees two replies side by side and not which model writes which: the ids of the turn are
random, and the sides follow from them before the first token.  The order of the work follows the
sides too, and errors do not name a model.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any, Literal

from labeler.annotate.session import ShownMessage, ShownPair, shown_message, shown_pair
from labeler.ports import Generation
from storage.engine.database import Database
from storage.errors import Conflict
from storage.generation_records import GenerationBusy, GenerationRefused, ReplyEnd, ReplyRequest
from storage.labeling import live, queue
from storage.labeling.live import Conversation, NextTurn, SampledReply
from storage.records import Annotator

SUGGESTIONS = 3
"""Prompts that the page suggests."""
RESAMPLED = 2
"""How often a reply is sampled again if it equals the other one: equal replies teach nothing."""
NOT_READY = "There is no model yet. The first one is made before sampling."
OFF = "Live conversations are off in this project."
TRAINING = "The model is being trained. Replies are possible when the training has ended."
ENDED_EARLY = "A reply ended early. Send the message again."
TOO_LONG = "The conversation may be too long for a reply. Start a new one."
Event = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class LiveConversation:
    """A conversation as its annotator sees it; `pair` is the turn that waits for a judgment.

    `over` says why it cannot go on.
    """

    id: str
    turn: int
    messages: tuple[ShownMessage, ...]
    pair: ShownPair | None
    over: str | None


@dataclass(frozen=True, kw_only=True)
class LiveState:
    """What the page needs for live conversations.

    `reason` says why no replies can be generated now.  `conversation` is the annotator's newest.
    """

    enabled: bool
    reason: str | None = None
    turns: int = 0
    suggestions: tuple[str, ...] = ()
    conversation: LiveConversation | None = None


@dataclass(frozen=True, kw_only=True)
class _Side:
    """A reply of a turn: the id of its completion, its model and its temperature."""

    completion: str
    model: str
    temperature: float
    name: Literal["a", "b"]


class LiveSession:
    """Live conversations of all annotators.  Without `generation` there are none."""

    def __init__(self, db: Database, generation: Generation | None) -> None:
        self._db = db
        self._generation = generation

    def state(self, annotator: Annotator) -> LiveState:
        """The annotator's newest conversation, and whether they can go on."""
        generation = self._generation
        if generation is None or generation.live.replies == "off":
            return LiveState(enabled=False)
        found = live.latest(self._db, annotator.id)
        turns = generation.live.turns
        return LiveState(
            enabled=True,
            reason=self._refusal(generation),
            turns=turns,
            suggestions=tuple(live.suggested(self._db, secrets.token_hex(8), SUGGESTIONS)),
            conversation=found and self._shown(found, annotator.id, turns),
        )

    def _shown(self, found: Conversation, annotator: str, most: int) -> LiveConversation:
        last = found.turns[-1]
        over = live.is_over(self._db, found, annotator, most)
        waits = over == live.UNJUDGED
        context = found.context(annotator) or last.messages
        return LiveConversation(
            id=found.id,
            turn=len(found.turns),
            messages=tuple(map(shown_message, context)),
            pair=self._pair(annotator, last.comparison.id) if waits else None,
            over=None if waits else over,
        )

    def _pair(self, annotator: str, comparison: str) -> ShownPair:
        return shown_pair(queue.pair(self._db, annotator, comparison))

    def _refusal(self, generation: Generation) -> str | None:
        if generation.current_models().policy is None:
            return NOT_READY
        return TRAINING if generation.refusal() else None

    def _required(self) -> Generation:
        """The service; Conflict if live conversations are off, GenerationRefused if it cannot be used."""
        if self._generation is None or self._generation.live.replies == "off":
            raise Conflict(OFF)
        if reason := self._refusal(self._generation):
            raise GenerationRefused(reason)
        return self._generation

    async def prepare(self) -> None:
        """Load the models, so that the first reply comes at once."""
        generation = await asyncio.to_thread(self._required)
        models = dict.fromkeys(_models(generation))
        await generation.prepare(*models)

    def begin(self, annotator: Annotator, text: str, conversation: str | None) -> NextTurn:
        """Check a message before its replies are sampled; errors as for `live.next_turn`."""
        turns = self._required().live.turns
        return live.next_turn(self._db, annotator.id, text, conversation=conversation, most=turns)

    async def replies(self, turn: NextTurn) -> AsyncGenerator[Event]:
        """Sample both replies side by side, then store the turn; closing it cancels both.

        The last event is the stored pair, or an error.
        """
        yield {
            "event": "turn",
            "conversation": turn.conversation,
            "turn": turn.number,
            "messages": [asdict(shown_message(each)) for each in turn.messages],
        }
        try:
            async with aclosing(self._sampled(turn)) as events:
                async for event in events:
                    yield event
        except (GenerationRefused, ValueError) as error:
            yield {"event": "error", "error": str(error)}

    async def _sampled(self, turn: NextTurn) -> AsyncGenerator[Event]:
        generation = await asyncio.to_thread(self._required)
        settings = generation.live
        first, second = _models(generation)
        temperatures = settings.temperatures if first == second else settings.temperatures[:1] * 2
        # By side, never by model: who starts first and who is sampled again can be seen.
        one, two = sorted(
            (
                _Side(completion=id, model=model, temperature=temperature, name=turn.side(id))
                for id, model, temperature in zip(
                    turn.completions, (first, second), temperatures, strict=True
                )
            ),
            key=lambda side: side.name,
        )
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        replies: dict[str, SampledReply] = {}

        async def sample(side: _Side) -> None:
            replies[side.completion] = await self._reply(turn, side, events)

        async def both() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(sample(one))
                group.create_task(sample(two))
            for _ in range(RESAMPLED):
                if replies[one.completion].text.strip() != replies[two.completion].text.strip():
                    break
                events.put_nowait({"event": "again", "side": two.name})
                await sample(two)

        task = asyncio.create_task(both())
        task.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            await task
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            task.cancel()
        made = await asyncio.to_thread(live.store, self._db, turn, replies)
        pair = await asyncio.to_thread(self._pair, turn.annotator, made.id)
        yield {"event": "pair", "pair": asdict(pair), "last": turn.number >= settings.turns}

    async def _reply(
        self, turn: NextTurn, side: _Side, events: asyncio.Queue[Event | None]
    ) -> SampledReply:
        assert self._generation is not None
        settings, seed = self._generation.live, secrets.randbits(31)
        request = ReplyRequest(
            model=side.model,
            messages=turn.messages,
            max_tokens=settings.max_tokens,
            temperature=side.temperature,
            top_p=settings.top_p,
            seed=seed,
        )
        text, end = "", None
        try:
            async with aclosing(self._generation.stream(request, person=turn.annotator)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, ReplyEnd):
                        end = piece
                    else:
                        text += piece
                        events.put_nowait({"event": "text", "side": side.name, "text": piece})
        except ValueError as error:  # the service's own sentence is in the log and names the model
            raise GenerationRefused(TOO_LONG) from error
        except GenerationBusy:
            raise
        except GenerationRefused as error:
            # A stage has started meanwhile; the page has a translation of this sentence.
            raise (GenerationRefused(TRAINING) if self._generation.refusal() else error) from error
        if end is None:
            raise GenerationRefused(ENDED_EARLY)
        events.put_nowait({"event": "end", "side": side.name})
        return SampledReply(
            policy=side.model,
            text=text,
            end=end,
            temperature=side.temperature,
            top_p=settings.top_p,
            seed=seed,
        )


def _models(generation: Generation) -> tuple[str, str]:
    """The models of the two replies."""
    current = generation.current_models()
    assert current.policy is not None  # `_refusal` has checked it
    assert current.reference is not None
    other = current.reference if generation.live.replies == "reference" else current.policy
    return current.policy, other
