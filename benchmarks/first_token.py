"""Times the first token of the generation service on the embedded model.

    python -m benchmarks.first_token [--rounds 50] [--people 1] [--playground]

In each round every person asks for two replies at once, as a live duel does, from the SFT model and
from a second copy of it.  With ``--playground``, researchers ask three models at once in the
playground instead, and each reply is scored and measured token by token.  Conversations have one to
five turns.  Prints one JSON object: seconds from
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
from collections.abc import Mapping
from contextlib import aclosing
from importlib import import_module
from pathlib import Path

import psutil

from labeler.research.models.playground.session import Ask, Playground
from pipeline.config.sections import CONFIGS, Config
from pipeline.models.hub import base_model_path
from pipeline.serving.client import Generation
from storage.engine.database import Database
from storage.generation_records import CurrentModels, ReplyRequest
from storage.records import Message, ModelRole, ModelVersion
from storage.tables import models

_QUESTIONS = ("How do I boil an egg?", "And how long?", "Can I keep it?", "Where?", "Thank you!")
_ANSWER = "Boil the egg for eight minutes, then cool it in cold water."
TARGET_MS = 300
PLAYGROUND = ("sft-1", "policy-1", "policy-2")
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


async def ask(session: Playground, round: int, person: str) -> tuple[list[float], float]:
    """Milliseconds until the first piece of each reply, and until all replies are measured."""
    asked = Ask(
        messages=conversation(1 + round % 5),
        models=PLAYGROUND,
        max_tokens=48,
        top_p=0.9,
        seed=round,
    )
    start, first = time.perf_counter(), dict[str, float]()
    async with aclosing(session.replies(asked, person=person)) as events:
        async for event in events:
            if event["event"] == "text":
                first.setdefault(event["model"], 1000 * (time.perf_counter() - start))
            if event["event"] == "error" or event.get("no_tokens"):
                raise RuntimeError(f"a reply failed: {event}")
    return [*first.values()], 1000 * (time.perf_counter() - start)


async def measure_playground(session: Playground, rounds: int, people: int) -> dict[str, object]:
    """Start the service and time the playground's replies."""
    start = time.perf_counter()
    await session.prepare(PLAYGROUND)
    await ask(session, 0, "first")  # loads the reward model
    ready = time.perf_counter() - start
    first: list[float] = []
    whole: list[float] = []
    for round in range(rounds):
        asked = (ask(session, round, f"person {n}") for n in range(people))
        for each, last in await asyncio.gather(*asked):
            first += each
            whole.append(last)
    return {
        "replies": len(first),
        "people": people,
        "ready_s": round_to(ready),
        "first_token_ms": quantiles(tuple(first)),
        "measured_ms": quantiles(tuple(whole)),
        "target_first_token_ms": TARGET_MS,
        "load_average": os.getloadavg()[0],
    }


def add_models(db: Database, paths: Mapping[str, str]) -> None:
    """Register the models of the playground."""
    roles: dict[str, ModelRole] = {"sft": "sft", "reward": "reward", "policy": "policy"}
    for id, path in paths.items():
        role = roles[id.partition("-")[0]]
        models.add(db, ModelVersion(id=id, role=role, name=id, path=path))


def save_reward_model(path: str, to: Path) -> None:
    """A reward model on the embedded model, with a random head; nothing depends on its rewards."""
    torch = import_module("torch")
    transformers = import_module("transformers")
    torch.manual_seed(0)
    for folder in (to, to / "audit"):
        network = transformers.AutoModelForSequenceClassification.from_pretrained(
            path, num_labels=1
        )
        network.save_pretrained(folder)
        transformers.AutoTokenizer.from_pretrained(path).save_pretrained(folder)


def cpu_seconds(generation: Generation) -> float:
    """The processor time of the service so far."""
    (pid,) = generation.processes
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def round_to(value: float) -> float:
    return round(value, 1)


def quantiles(values: tuple[float, ...]) -> dict[str, float]:
    """p50, p95 and the maximum."""
    # One value is each of its quantiles; `statistics` asks for two.
    several = values if len(values) > 1 else values * 2
    cuts = statistics.quantiles(several, n=20, method="inclusive")
    return {
        "p50": round_to(cuts[9]), "p95": round_to(cuts[18]), "max": round_to(max(values))
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="requests of each person")
    parser.add_argument("--people", type=int, default=1, help="people who ask at the same time")
    parser.add_argument("--playground", action="store_true", help="measure the playground")
    given = parser.parse_args()
    if min(given.rounds, given.people) < 1:
        parser.error("--rounds and --people must be at least 1")
    config = Config.load([CONFIGS / "demo.toml"]).override({"serving.queue": "1000"})
    path = base_model_path("demo")
    with tempfile.TemporaryDirectory(prefix="kitestring-first-token-") as folder:
        paths = dict.fromkeys(PLAYGROUND, path) | {"reward-1": str(Path(folder) / "reward-1")}
        generation = Generation(
            config,
            Path(folder) / "log",
            paths=lambda: paths,
            current=CurrentModels,
            running=lambda: None,
        )
        try:
            if given.playground:
                save_reward_model(path, Path(paths["reward-1"]))
                with Database.open(Path(folder) / "workspace") as db:
                    add_models(db, paths)
                    session = Playground(db, generation)
                    found = asyncio.run(measure_playground(session, given.rounds, given.people))
            else:
                found = asyncio.run(measure(generation, given.rounds, given.people))
        finally:
            generation.shut_down()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
