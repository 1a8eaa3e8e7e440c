"""Times the first token of the generation service on the embedded model.

    python -m benchmarks.first_token [--rounds 50] [--people 1]

In each round every person asks for two replies at once, as a live duel does, from the SFT model and
from a second copy of it.  Each conversation has five turns.  Prints one JSON object: seconds from
the start of the process until both models are loaded, and p50, p95 and maximum of the time from the
request to the first and to the last token, in milliseconds.  The service's processor time for a
reply of one token does not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from contextlib import aclosing
from pathlib import Path

import psutil

from pipeline.config.sections import CONFIGS, Config
from pipeline.models.hub import base_model_path
from pipeline.serving.client import Generation
from storage.generation_records import CurrentModels, ReplyRequest
from storage.records import Message

_QUESTIONS = ("How do I boil an egg?", "And how long?", "Can I keep it?", "Where?", "Thank you!")
_ANSWER = "Boil the egg for eight minutes, then cool it in cold water."
TARGET_MS = 300
_ALONE = 200
"""Replies of one token, whose processor time is measured."""


def conversation(turns: int) -> tuple[Message, ...]:
    """A conversation of so many turns that ends with a question."""
    asked = [Message("user", each) for each in _QUESTIONS[:turns]]
    answered = [Message("assistant", _ANSWER)] * turns
    return tuple(m for pair in zip(asked, answered, strict=True) for m in pair)[:-1]


async def reply(
    generation: Generation, model: str, round: int, person: str, *, tokens: int = 48
) -> tuple[float, float]:
    """Milliseconds from the request to the first and to the last piece."""
    asked = ReplyRequest(
        model=model, messages=conversation(1 + round % 5), max_tokens=tokens, top_p=0.9, seed=round
    )
    start, first = time.perf_counter(), 0.0
    async with aclosing(generation.stream(asked, person=person)) as pieces:
        async for _ in pieces:
            first = first or time.perf_counter() - start
    return 1000 * first, 1000 * (time.perf_counter() - start)


async def measure(generation: Generation, rounds: int, people: int) -> dict[str, object]:
    """Start the service and time the replies."""
    start = time.perf_counter()
    await generation.prepare("sft-1", "policy-1")
    ready = time.perf_counter() - start
    times: list[tuple[float, float]] = []
    for round in range(rounds):
        asked = [
            reply(generation, model, round, f"person {n}")
            for n in range(people)
            for model in ("sft-1", "policy-1")
        ]
        times += await asyncio.gather(*asked)
    first, last = zip(*times, strict=True)
    before = cpu_seconds(generation)
    for round in range(_ALONE):
        await reply(generation, "sft-1", round, "alone", tokens=1)
    alone = 1000 * (cpu_seconds(generation) - before) / _ALONE
    return {
        "replies": len(times),
        "people": people,
        "ready_s": round_to(ready),
        "first_token_ms": quantiles(first),
        "last_token_ms": quantiles(last),
        "target_first_token_ms": TARGET_MS,
        "cpu_ms_of_one_token": round_to(alone),
        "load_average": os.getloadavg()[0],
    }


def cpu_seconds(generation: Generation) -> float:
    """The processor time of the service so far."""
    (pid,) = generation.processes
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def round_to(value: float) -> float:
    return round(value, 1)


def quantiles(values: tuple[float, ...]) -> dict[str, float]:
    """p50, p95 and the maximum."""
    cuts = statistics.quantiles(values, n=20, method="inclusive")
    return {
        "p50": round_to(cuts[9]), "p95": round_to(cuts[18]), "max": round_to(max(values))
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="requests of each person")
    parser.add_argument("--people", type=int, default=1, help="people who ask at the same time")
    given = parser.parse_args()
    if min(given.rounds, given.people) < 1:
        parser.error("--rounds and --people must be at least 1")
    config = Config.load([CONFIGS / "demo.toml"]).override({"serving.queue": "1000"})
    path = base_model_path("demo")
    with tempfile.TemporaryDirectory(prefix="kitestring-first-token-") as folder:
        generation = Generation(
            config,
            Path(folder) / "log",
            paths=lambda: {"sft-1": path, "policy-1": path},
            current=CurrentModels,
            running=lambda: None,
        )
        try:
            found = asyncio.run(measure(generation, given.rounds, given.people))
        finally:
            generation.shut_down()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
