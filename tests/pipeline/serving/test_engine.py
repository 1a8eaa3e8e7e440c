"""The decoding thread: the same replies as the sampler, in turn, bounded and cancellable."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import pytest

from pipeline.models.generate import Sampler
from pipeline.models.text import ChatTokenizer
from pipeline.serving.engine import Engine, Piece, QueueFull, Reply
from storage.generation_records import ReplyEnd, ReplyRequest
from storage.records import Message
from tests.helpers.tiny import tiny_model, tiny_tokenizer

WAIT = 60.0


@pytest.fixture(scope="module")
def sampler() -> Sampler:
    return Sampler(tiny_model(), ChatTokenizer(tiny_tokenizer()))


def reply(
    sampler: Sampler, emit: Callable[[Piece], None], *, seed: int = 0, tokens: int = 24
) -> Reply:
    asked = ReplyRequest(
        model="m", messages=(Message("user", "Hé"),), max_tokens=tokens, top_p=0.9, seed=seed
    )
    return Reply(sampler, sampler.chat.prompt(asked.messages), asked, emit)


def pieces_of(found: queue.Queue[Piece]) -> list[Piece]:
    """All pieces up to the end or the error."""
    pieces = [found.get(timeout=WAIT)]
    while isinstance(pieces[-1], str):
        pieces.append(found.get(timeout=WAIT))
    return pieces


@pytest.mark.parametrize("seed", range(4))
def test_a_streamed_reply_is_the_one_that_the_sampler_draws(sampler: Sampler, seed: int) -> None:
    """The bytes of this tokenizer split characters over tokens; no piece shows half of one."""
    found: queue.Queue[Piece] = queue.Queue()
    Engine(active=1, waiting=0).start(reply(sampler, found.put, seed=seed))
    *texts, end = pieces_of(found)
    (drawn,) = sampler.sample(["Hé"], temperature=1.0, top_p=0.9, max_new_tokens=24, seed=seed)
    assert "".join(map(str, texts)) == drawn.text
    assert end == ReplyEnd(finish_reason=drawn.finish_reason, tokens=len(drawn.ids))
    assert len(texts) > 3


def test_two_replies_grow_side_by_side(sampler: Sampler) -> None:
    order: queue.Queue[tuple[str, Piece]] = queue.Queue()
    engine, both_queued = Engine(active=2, waiting=0), threading.Event()

    def emit(name: str) -> Callable[[Piece], None]:
        def record(piece: Piece) -> None:
            both_queued.wait(WAIT)
            order.put((name, piece))

        return record

    for name in "ab":
        engine.start(reply(sampler, emit(name), seed=ord(name), tokens=12))
    both_queued.set()
    seen: list[str] = []
    ended: set[str] = set()
    while len(ended) < 2:
        name, piece = order.get(timeout=WAIT)
        seen.append(name)
        if isinstance(piece, ReplyEnd):
            ended.add(name)
    # One after the other would be all of a, then all of b.
    assert "ba" in "".join(seen)


def test_a_full_queue_refuses_and_a_cancelled_reply_makes_room(sampler: Sampler) -> None:
    blocked, found = threading.Event(), queue.Queue[Piece]()

    def hold(piece: Piece) -> None:
        found.put(piece)
        blocked.wait(WAIT)

    engine = Engine(active=1, waiting=1)
    first = reply(sampler, hold, tokens=200)
    engine.start(first)
    found.get(timeout=WAIT)  # the decoding thread is in the first reply now
    waiting: queue.Queue[Piece] = queue.Queue()
    second = reply(sampler, waiting.put)
    engine.start(second)
    with pytest.raises(QueueFull):
        engine.start(reply(sampler, print))
    engine.cancel(second)
    third: queue.Queue[Piece] = queue.Queue()
    engine.start(reply(sampler, third.put))
    engine.cancel(first)
    blocked.set()
    assert isinstance(pieces_of(third)[-1], ReplyEnd)
    assert waiting.empty()  # it was cancelled before its first token
    assert len(found.queue) < 100  # the first reply ended long before its 200 tokens
    assert not any(isinstance(piece, ReplyEnd) for piece in found.queue)


def test_an_error_ends_one_reply_and_no_other(sampler: Sampler) -> None:
    damaged = Sampler(tiny_model(), sampler.chat)
    damaged.model.lm_head.weight.data.fill_(float("nan"))
    engine = Engine(active=2, waiting=0)
    bad: queue.Queue[Piece] = queue.Queue()
    good: queue.Queue[Piece] = queue.Queue()
    engine.start(reply(damaged, bad.put))
    engine.start(reply(sampler, good.put))
    (error,) = pieces_of(bad)
    assert "its weights are damaged" in str(error)
    assert isinstance(pieces_of(good)[-1], ReplyEnd)
