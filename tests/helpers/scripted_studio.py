"""The simulation's other side for tests: real routes and a real workspace, scripted training."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from labeler.annotate.routes import explain_errors, label_routes
from labeler.ports import Generation
from labeler.security.auth import Identity
from pipeline.simulation.driver import simulate
from storage.commands import Commands
from storage.engine.database import Database
from storage.records import (
    Comparison,
    Completion,
    Iteration,
    ModelVersion,
    Prompt,
)
from storage.reports import Blocked, LoopState, to_json
from storage.status import status
from storage.tables import comparisons, completions, iterations, models
from storage.tables import prompts as prompt_store
from storage.tables.people import tokens

PAIRS = 60


def kindness(prompt: str, response: str) -> float:
    """A gold so strong that noise cannot hide it: a hundred times the number after "kind"."""
    assert prompt.startswith("Question")
    return 100 * float(response.rsplit(" ", 1)[1])


class ScriptedStudio:
    """A workspace whose training takes no time; its new policy always says "kind 2.0"."""

    def __init__(
        self,
        db: Database,
        *,
        pairs: int = PAIRS,
        fails: bool = False,
        trains_at: int | None = None,
        lead: str = "",
    ) -> None:
        self.db, self.pairs, self.fails, self.trains_at = db, pairs, fails, trains_at
        self.lead = lead  # of every response that annotators compare
        self.commands = Commands(db)
        self.commands.register("status", lambda: status(db))
        self.commands.register("train", self.train)
        self.commands.register("advance", self.advance)
        self.commands.register("evaluation.completions", self.evaluated)
        models.add(db, ModelVersion(id="sft-1", role="sft", name="SFT", path="demo"))
        models.add(
            db,
            ModelVersion(
                id="reward-1",
                role="reward",
                name="RM",
                summary={
                    "accuracy": 0.7,
                    "log_loss": 0.9,
                    "ece": 0.04,
                    "theta": 0.4,
                    "tie_model": "rao_kupper",
                },
            ),
        )
        self.begin(1)

    def admin(self, command, arguments):
        return self.commands.call(command, arguments)

    def begin(self, number: int) -> None:
        made, texts, pairs = [], [], []
        for n in range(self.pairs):
            prompt = Prompt.make(f"Question {number}.{n}", role="train")
            # Scores from −1.5 to 1.5; 7 and 31 are coprime, so neighbors differ.
            sides = [f"{self.lead}kind {(n * step) % 31 / 10 - 1.5:.1f}" for step in (7, 11)]
            answers = [
                Completion(id=f"r-{number}-{n}-{i}", prompt=prompt.id, policy="sft-1", text=text)
                for i, text in enumerate(sides)
            ]
            made.append(prompt)
            texts += answers
            pairs.append(
                Comparison(
                    id=f"c-{number}-{n}",
                    prompt=prompt.id,
                    first=answers[0].id,
                    second=answers[1].id,
                    iteration=number,
                    arm="random",
                    wanted=2 if n % 10 == 0 else 1,
                    position=n,
                )
            )
        prompt_store.add(self.db, made)
        completions.add(self.db, texts)
        comparisons.add(self.db, pairs)
        iterations.save(self.db, Iteration(number=number, phase="labeling", labels_wanted=10))

    def advance(self):
        """Where the loop stands, as the real one says it; training is over at once."""
        current, stopped = iterations.latest(self.db), None
        if (
            self.trains_at is not None
            and current.phase == "labeling"
            and self.judged(current.number) >= self.trains_at
        ):
            self.train({})
            current = iterations.latest(self.db)
        if self.fails and current.phase == "reward":
            stopped = Blocked(run="r", stage="reward", reason="the disk is full", resumable=False)
        return LoopState(
            iteration=current.number,
            phase=current.phase,
            phase_name=current.phase,
            blocked=stopped,
        )

    def judged(self, iteration: int) -> int:
        ours = "SELECT id FROM comparisons WHERE iteration = $iteration"
        found = f"FROM current_judgments WHERE comparison IN ({ours})"
        return len(self.db.read(found, iteration=iteration))

    def train(self, overrides) -> None:
        assert overrides == {}
        current = iterations.latest(self.db)
        if current.phase != "labeling":
            raise ValueError(f"Already training: {current.phase}.")
        if self.fails:
            iterations.save(self.db, replace(current, phase="reward"))
            return
        reached = {"policy": {"kl": 3.5, "length": 2.0, "reward": 1.25}}
        done = replace(current, phase="done", reward_model="reward-1", evaluation=reached)
        iterations.save(self.db, done)

    def evaluated(self, iteration):
        """Four held-out prompts: the policy (kind 2.0) wins three times and ties once."""
        rows = []
        for n, sft in enumerate(["1.0", "1.5", "2.0", "-1.0"]):
            messages = [{"role": "user", "content": f"Question h{n}"}]
            for role, text in (("policy", "kind 2.0"), ("reference", f"kind {sft}")):
                rows.append(
                    {
                        "prompt": f"h{n}",
                        "messages": messages,
                        "policy_role": role,
                        "text": text,
                        "own_reward": 100.0 if role == "policy" else 0.0,
                    }
                )
        current = iterations.latest(self.db)
        if current.number == iteration and iteration < 2:
            self.begin(iteration + 1)
        return rows


def labeling_app(
    db: Database, *, lose_replies: int = 0, generation: Generation | None = None
) -> FastAPI:
    """The real routes; the first `lose_replies` judgments are stored but answered with 503."""
    app = FastAPI()
    explain_errors(app)
    app.include_router(label_routes(db, generation))
    lost = iter(range(lose_replies))

    @app.middleware("http")
    async def sign_in(request: Request, call_next):
        secret = request.headers["authorization"].removeprefix("Bearer ")
        who = tokens.check(db, secret, ["api"])
        if who is None:
            return JSONResponse({"error": "Sign in first."}, 401)
        request.state.identity = Identity(annotator=who, bearer=True)
        reply = await call_next(request)
        if request.method == "POST" and next(lost, None) is not None:
            return JSONResponse({"error": "try again"}, 503)
        return reply

    return app


@contextmanager
def serving(app: FastAPI):
    """The address of `app` on a free port of this machine."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(timeout=10)


def stored(db: Database):
    """Every judgment with the two texts: annotator's name, outcome, gold of first and second."""
    rows = db.read(
        "SELECT a.name, j.outcome, j.strength, j.shown_swapped, c.iteration, f.text AS f, s.text AS s"
        " FROM judgments AS j JOIN comparisons AS c ON c.id = j.comparison"
        " JOIN annotators AS a ON a.id = j.annotator"
        " JOIN completions AS f ON f.id = c.first JOIN completions AS s ON s.id = c.second"
    )
    return [
        row | {"first": float(row["f"].split()[1]), "second": float(row["s"].split()[1])}
        for row in rows
    ]


def agreement(rows) -> float:
    decisive = [
        (row["first"] > row["second"]) == (row["outcome"] == "first")
        for row in rows
        if row["outcome"] in ("first", "second") and row["first"] != row["second"]
    ]
    return sum(decisive) / len(decisive)


def drive(db: Database, **options):
    """The report of a simulation: 40 labels by four annotators, one of them bad, unless options differ."""
    studio = ScriptedStudio(db, **options.pop("studio", {}))
    routes = {name: options.pop(name) for name in ("lose_replies", "generation") if name in options}
    with serving(labeling_app(db, **routes)) as url:
        settings = {"labels": 40, "annotators": 4, "bad": 0.25, "seed": 1, "gold": kindness}
        return to_json(simulate(url, studio.admin, poll=0.01, timeout=20, **(settings | options)))
