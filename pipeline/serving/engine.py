"""The decoding thread of the generation service.

Active replies take turns, one token each, so that two replies of one pair grow side by side.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import torch

from pipeline.models.generate import Sampler
from pipeline.ppo.rollouts.decoding import forward_without_padding
from pipeline.ppo.rollouts.draws import on_device, sample_tokens, truncate
from storage.generation_records import ReplyEnd, ReplyRequest

Piece = str | ReplyEnd | Exception
"""A part of a reply's text, its end, or the error that ended it."""


class QueueFull(RuntimeError):
    """As many replies wait as the service accepts."""


class Reply:
    """A reply while it is decoded; `emit` receives its pieces, in the decoding thread."""

    def __init__(
        self,
        sampler: Sampler,
        prompt: list[int],
        request: ReplyRequest,
        emit: Callable[[Piece], None],
    ) -> None:
        self.sampler = sampler
        self.request = request
        self.emit = emit
        self.cancelled = False
        self._device = next(sampler.model.parameters()).device
        self._next = torch.tensor([prompt], device=self._device)
        self._cache: object = None
        self._length = 0  # tokens in the cache
        self._ids: list[int] = []
        self._said = ""
        # Drawn as `generate` draws them: the same seed gives the same reply.
        generator = torch.Generator().manual_seed(request.seed)
        size = (1, request.max_tokens)
        uniforms = torch.rand(size, generator=generator, dtype=torch.float64)
        self._uniforms = on_device(uniforms, self._device)

    def step(self) -> bool:
        """Sample one token and emit the text that it completes; True at the end of the reply."""
        request = self.request
        output = forward_without_padding(self.sampler.model, self._next, self._length, self._cache)
        self._length += self._next.shape[1]
        self._cache = output.cache
        if not bool(output.logits.isfinite().any()):
            raise ValueError(f"{request.model} returns no finite logits; its weights are damaged")
        if request.temperature == 0:
            drawn = output.logits.argmax(-1)
        else:
            logits = truncate(output.logits / request.temperature, top_k=0, top_p=request.top_p)
            drawn = sample_tokens(logits.softmax(-1), self._uniforms[:, len(self._ids)])
        self._next = drawn.unsqueeze(1)
        self._ids.append(int(drawn))
        stopped = self._ids[-1] in self.sampler.chat.stop_ids
        ended = stopped or len(self._ids) == request.max_tokens
        self._say(ended=ended)
        if ended:
            reason = "stop" if stopped else "length"
            ids = tuple(self._ids) if request.token_ids else ()
            self.emit(ReplyEnd(finish_reason=reason, tokens=len(self._ids), ids=ids))
        return ended

    def _say(self, *, ended: bool) -> None:
        text = self.sampler.chat.decode(self._ids)
        # The bytes of a character can be split over tokens; until the last one, it reads as U+FFFD.
        text = text if ended else text.rstrip("\ufffd")
        if len(text) > len(self._said) and text.startswith(self._said):
            self.emit(text[len(self._said) :])
            self._said = text


class Engine:
    """Decodes up to `active` replies in turn; up to `waiting` more wait.  Thread-safe."""

    def __init__(self, *, active: int, waiting: int) -> None:
        self._limits = active, waiting
        self._changed = threading.Condition()
        self._waiting: deque[Reply] = deque()
        self._active: list[Reply] = []
        self._thread = threading.Thread(target=self._run, name="decode", daemon=True)
        self._thread.start()

    def start(self, reply: Reply) -> None:
        """Queue a reply; raises `QueueFull`."""
        active, waiting = self._limits
        with self._changed:
            if len(self._waiting) + len(self._active) >= active + waiting:
                raise QueueFull("the queue of replies is full; try again in a few seconds")
            self._waiting.append(reply)
            self._changed.notify()

    def cancel(self, reply: Reply) -> None:
        """Stop decoding a reply after its current token."""
        with self._changed:
            reply.cancelled = True
            self._waiting = deque(each for each in self._waiting if each is not reply)

    @property
    def replies(self) -> int:
        """How many replies are active or wait."""
        with self._changed:
            return len(self._waiting) + len(self._active)

    def _run(self) -> None:
        while True:
            for reply in self._admitted():
                if reply.cancelled or self._ends(reply):
                    with self._changed:
                        self._active.remove(reply)

    def _admitted(self) -> list[Reply]:
        """The active replies, after waiting ones have taken free places; waits for a reply."""
        with self._changed:
            self._changed.wait_for(lambda: self._active or self._waiting)
            while self._waiting and len(self._active) < self._limits[0]:
                self._active.append(self._waiting.popleft())
            return list(self._active)

    @staticmethod
    def _ends(reply: Reply) -> bool:
        try:
            with torch.no_grad():
                return reply.step()
        except Exception as error:
            reply.emit(error)
            return True
