"""A generation service whose replies a test chooses: texts and failures that no model promises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from storage.generation_records import (
    CurrentModels,
    LiveSettings,
    MeasureRequest,
    ReplyEnd,
    ReplyMeasures,
    ReplyRequest,
)

_LIVE = LiveSettings(replies="reference", turns=3, temperatures=(1.0, 0.5))
_MODELS = CurrentModels(policy="policy-1", reference="sft-1")


@dataclass
class Scripted:
    """The port of the pages, with scripted replies.

    `texts` are the replies in the order in which they are asked for, an exception in their place is
    raised after the first word.
    """

    texts: list[str | Exception] = field(default_factory=list)
    live: LiveSettings = _LIVE
    stage: str | None = None
    stage_then: str | None = None
    """The stage that has started when an exception of `texts` is raised."""
    models: CurrentModels = _MODELS
    asked: list[ReplyRequest] = field(default_factory=list)
    open: int = 0
    most_open: int = 0
    at_once: int = 3
    measures: ReplyMeasures | Exception = field(default_factory=ReplyMeasures)
    measured: list[MeasureRequest] = field(default_factory=list)
    pause: asyncio.Event | None = None
    """Holds every reply after its first word until it is set."""

    def reset(self) -> None:
        """As new: the application keeps this object."""
        self.__dict__.update(Scripted().__dict__)

    def refusal(self) -> str | None:
        return self.stage and f"The {self.stage} stage uses the device."

    def current_models(self) -> CurrentModels:
        return self.models

    async def prepare(self, *models: str) -> None:
        self.asked += [ReplyRequest(model=model, messages=(), max_tokens=1) for model in models]

    async def stream(self, request: ReplyRequest, *, person: str) -> AsyncGenerator[str | ReplyEnd]:
        assert person == "operator" or person.startswith(("who-", "a-"))
        self.asked.append(request)
        text = self.texts.pop(0)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            if isinstance(text, Exception):
                yield "Well, "
                self.stage = self.stage_then or self.stage
                raise text
            for word in text.split(" "):
                yield word + " "
                await (self.pause.wait() if self.pause else asyncio.sleep(0))
            ids = tuple(text.encode()) if request.token_ids else ()
            yield ReplyEnd(finish_reason="stop", tokens=len(text), ids=ids)
        finally:
            self.open -= 1

    async def measure(self, request: MeasureRequest, *, person: str) -> ReplyMeasures:
        assert person == "operator" or person.startswith(("who-", "a-"))
        self.measured.append(request)
        if isinstance(self.measures, Exception):
            raise self.measures
        return self.measures
