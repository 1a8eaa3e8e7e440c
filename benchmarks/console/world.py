"""A large workspace for the console benchmark: runs with metrics, judgments, models and samples.

Records go through `Database.write` and the journal in bulk transactions.  Metrics are rows that are
not journaled; one SQL statement per run stores them in the order in which a run reports them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import pandas as pd

from pipeline.config.sections import CONFIGS, Config
from pipeline.ppo.metrics import METRICS
from pipeline.promotion import gate
from storage.engine.database import Database
from storage.engine.transaction import encode
from storage.gate_records import Prediction
from storage.records import (
    Annotator,
    Comparison,
    Completion,
    Iteration,
    Judgment,
    ModelVersion,
    Prompt,
    Run,
    RunNote,
    Snapshot,
    Stage,
    new_id,
    now,
)
from storage.sides import shown_swapped
from storage.tables import iterations, policy_judgments
from storage.tables.runs import runs
from tests.helpers.reward_figures import quality

BATCH = 4000
"""Records in a transaction."""
OUTCOMES = ("first", "second", "tie", "both_bad")
CATEGORIES = ("code", "advice", "facts", "")
NAMES = tuple(name for name in METRICS if "<" not in name)
SENTENCE = (
    "A response of ordinary length names the steps, gives a reason and ends with a question. "
)
NOTES_EVERY = 20
"""Updates between two samples in a run's notes."""

# A curve of each metric: rises towards a level that depends on its name, with noise.
_METRICS = """
    INSERT INTO metrics BY NAME
    SELECT $run AS run, step AS seq, step, name,
           (1 + hash(name) % 5) * (1 - exp(-step / ($updates / 3.0)))
               + 0.2 * (hash($run || name || step) % 1000) / 1000.0 AS value
    FROM range(1, $updates + 1) AS s(step), (SELECT unnest($names) AS name)
    ORDER BY step, name
"""
_LAST = """
    INSERT INTO last_metrics BY NAME
    SELECT run, name, step, seq, value FROM metrics WHERE run = $run AND step = $updates
"""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is stored; `attempts` policy runs for each iteration."""

    iterations: int = 25
    attempts: int = 8
    updates: int = 2000
    judgments: int = 100_000
    annotators: int = 40
    prompts: int = 4000
    open_pairs: int = 4000

    @classmethod
    def tiny(cls) -> Size:
        return cls(
            iterations=2, attempts=5, updates=40, judgments=600, annotators=4, prompts=40,
            open_pairs=400,
        )  # fmt: skip


class World:
    """Fills a workspace; every figure follows from the seed."""

    def __init__(self, db: Database, size: Size, *, seed: int = 7) -> None:
        self.db, self.size = db, size
        self.coin = random.Random(seed)
        self.began = now() - timedelta(days=2 * size.iterations)
        self.config = Config.load([CONFIGS / "demo.toml"])
        self.prompts = [
            Prompt.make(
                f"Question {i}: {SENTENCE}",
                role="train" if i % 5 else "held-out",
                category=CATEGORIES[i % len(CATEGORIES)],
            )
            for i in range(size.prompts)
        ]
        self.stored: list[str] = []

    def fill(self) -> None:
        """Store everything: finished iterations, and one that is being labeled."""
        self.store([Annotator(id="researcher", name="Rosa", role="researcher")])
        self.store(
            Annotator(id=f"a-{i}", name=f"Annotator {i}") for i in range(self.size.annotators)
        )
        self.store(self.prompts)
        self.store([ModelVersion(id="sft-1", role="sft", name="SFT", created_at=self.began)])
        for number in range(1, self.size.iterations + 1):
            self.iteration(number)
        current = self.size.iterations + 1
        self.store(self.pairs(current, self.size.open_pairs, judged=False))
        self.state(current, "labeling")
        iterations.save(self.db, self.judged_by_gate(current))

    def iteration(self, number: int) -> None:
        """An iteration from its samples to its evaluation."""
        self.store(self.pairs(number, self.size.judgments // self.size.iterations, judged=True))
        snapshot = snapshots_of(self.db, number)
        self.store([snapshot])
        self.run(number, "sampling")
        reward = self.run(number, "reward")
        self.store([self.reward_model(number, reward, snapshot)])
        for attempt in range(1, self.size.attempts):
            self.updates(self.run(number, "policy", attempt=attempt, failed=True))
        policy = self.run(number, "policy", attempt=self.size.attempts)
        self.updates(policy)
        self.store([self.policy(number, policy)])
        self.evaluate(number)
        self.state(number, "done")

    def store(self, records: Iterable[Any]) -> None:
        left = iter(records)
        while batch := list(islice(left, BATCH)):
            encoded = encode(batch)
            self.db.write(lambda tx, encoded=encoded: tx.store_encoded(encoded, fresh=True))

    def pairs(self, number: int, judgments: int, *, judged: bool) -> Iterator[Any]:
        """Comparisons with their responses; every tenth is judged twice."""
        policy = f"policy-{number - 1}" if number > 1 else "sft-1"
        left = judgments
        for i in range(judgments):
            if left <= 0:
                return
            prompt = self.prompts[self.coin.randrange(len(self.prompts))]
            against_sft = number > 1 and i % 10 == 1
            sides = [
                Completion(
                    id=f"k-{number}-{i}-{side}", prompt=prompt.id, tokens=40, finish_reason="stop",
                    policy="sft-1" if against_sft and side == "y" else policy,
                    text=f"{SENTENCE * self.coin.randint(1, 4)} {number}.{i}{side}",
                )
                for side in "xy"
            ]  # fmt: skip
            wanted = 2 if i % 10 == 0 else 1
            pair = Comparison(
                id=f"c-{number}-{i}", prompt=prompt.id, first=sides[0].id, second=sides[1].id,
                iteration=number, arm="reference" if against_sft else "random", wanted=wanted,
                position=i,
            )  # fmt: skip
            yield from (*sides, pair)
            if judged:
                yield from self.judgments(pair, number, i, min(wanted, left))
            left -= wanted

    def judgments(self, pair: Comparison, number: int, i: int, count: int) -> Iterator[Any]:
        people = self.coin.sample(range(self.size.annotators), count)
        when = self.began + timedelta(days=2 * (number - 1), seconds=20 * i)
        for person in people:
            who = f"a-{person}"
            yield Judgment(
                id=new_id("j"), comparison=pair.id, annotator=who,
                outcome=self.coin.choices(OUTCOMES, (5, 3, 2, 1))[0],
                shown_swapped=shown_swapped(who, pair.id),
                milliseconds=self.coin.randint(3000, 40000), created_at=when,
                comment=f"the needle is in {pair.id}" if i % 100 == 0 else "",
            )  # fmt: skip
        if pair.arm == "reference":
            yield Prediction(
                comparison=pair.id, reward_model=f"reward-{number - 1}",
                first=self.coin.uniform(0.2, 0.9), first_score=1.0, second_score=0.2,
            )  # fmt: skip

    def run(self, number: int, stage: Stage, *, attempt: int = 1, failed: bool = False) -> Run:
        offset = {"sampling": 0, "reward": 1, "policy": 2, "evaluate": 20}[stage]
        began = self.began + timedelta(days=2 * number - 1, hours=offset + attempt)
        id = f"run-{number}-{stage}" + (f"-{attempt}" if stage == "policy" else "")
        changed = {
            "ppo.lr": f"{1e-5 * (1 + attempt)}",
            "ppo.kl_weight": f"{0.01 * (1 + number % 5)}",
        }
        record = Run(
            id=id, stage=stage, iteration=number, attempt=attempt, directory=f"runs/{id}",
            status="failed" if failed else "succeeded", reason="out of memory" if failed else None,
            config=self.config.override(changed).to_dict(), progress=1.0, created_at=began,
            finished_at=began + timedelta(minutes=50), seconds=3000.0,
        )  # fmt: skip
        (self.db.workspace / record.directory).mkdir(parents=True)
        return runs.save(self.db, record)

    def updates(self, run: Run) -> None:
        """Metrics of every update, samples, and a few red flags."""
        updates = self.size.updates
        notes = [self.sample(run, step) for step in range(NOTES_EVERY, updates + 1, NOTES_EVERY)]
        notes += [flag(run, step) for step in range(updates - 3, updates + 1)]
        done = replace(run, ingested_seq=updates)

        def write(tx: Any) -> None:
            tx.execute(_METRICS, run=run.id, updates=updates, names=list(NAMES))
            tx.execute(_LAST, run=run.id, updates=updates)

        runs.ingest(self.db, done, [], notes)
        self.db.write(write)

    def sample(self, run: Run, step: int) -> RunNote:
        prompt = self.coin.choice(self.prompts)
        return RunNote(
            run=run.id, seq=step, step=step, kind="sample", name="response", message=SENTENCE,
            payload={"prompt": prompt.id, "reward": 1.0, "kl": 2.0, "finish_reason": "stop"},
        )  # fmt: skip

    def reward_model(self, number: int, run: Run, snapshot: Snapshot) -> ModelVersion:
        fitted = [
            {"annotator": f"a-{i}", "slope": 1.1, "slope_sd": 0.12, "side_bias": 0.1,
             "side_bias_sd": 0.15, "weight": 1.2, "judgments": 400, "decided": 310,
             "with_model": 0.66, "with_model_expected": 0.7}
            for i in range(self.size.annotators)
        ]  # fmt: skip
        summary = {
            "accuracy": 0.7, "ece": 0.05, "held_out_preferences": 400, "expected_agreement": 0.66,
            "observed_agreement": 0.6, "expected_alpha": 0.34, "observed_alpha": 0.27,
            "overlapping_items": 400, "annotators": fitted, "quality": quality(),
        }  # fmt: skip
        return ModelVersion(
            id=f"reward-{number}", role="reward", name=f"reward-{number}", parent="sft-1",
            iteration=number, run=run.id, snapshot=snapshot.hash, summary=summary,
        )  # fmt: skip

    def policy(self, number: int, run: Run) -> ModelVersion:
        return ModelVersion(
            id=f"policy-{number}", role="policy", name=f"policy-{number}", parent="sft-1",
            iteration=number, run=run.id, reward_model=f"reward-{number}",
        )  # fmt: skip

    def evaluate(self, number: int) -> None:
        """The files of an evaluation, which the Samples section reads."""
        run = self.run(number, "evaluate")
        outputs = self.db.workspace / run.directory / "outputs"
        outputs.mkdir()
        policies = {"reference": "sft-1", "policy": f"policy-{number}"}
        if number > 1:
            policies["previous"] = f"policy-{number - 1}"
        answers = [
            {"id": f"e-{number}-{i}-{role}", "prompt": prompt.id, "policy": policy,
             "text": f"{SENTENCE} {role}"}
            for i, prompt in enumerate(p for p in self.prompts if p.role == "held-out")
            for role, policy in policies.items()
        ]  # fmt: skip
        scores = [{"completion": each["id"], "reward": self.coin.gauss(0, 1)} for each in answers]
        pd.DataFrame(answers).to_parquet(outputs / "completions.parquet", index=False)
        pd.DataFrame(scores).to_parquet(outputs / "scores.parquet", index=False)

    def state(self, number: int, phase: Any) -> Iteration:
        """The iteration's record; a finished one has its evaluation and the gate's verdict."""
        record = Iteration(
            number=number, phase=phase, policy_sampled=f"policy-{number - 1}" if number > 1 else "sft-1",
            labels_wanted=self.size.judgments // self.size.iterations, created_at=self.day(number - 1),
        )  # fmt: skip
        if phase == "done":
            wins = {"win_rate": 0.64, "low": 0.58, "high": 0.7, "comparisons": 200, "prompts": 200}
            record = replace(
                record, reward_model=f"reward-{number}", policy_produced=f"policy-{number}",
                finished_at=self.day(number),
                evaluation={
                    "policy": {"reward": 0.9, "kl": 6.0, "length": 50},
                    "reference": {"reward": 0.0, "kl": 0.0, "length": 41},
                    "win_rate_reward_model": 0.66, "win_rate_against_reference": wins,
                },
            )  # fmt: skip
        return iterations.save(self.db, record)

    def day(self, number: int) -> datetime:
        return self.began + timedelta(days=2 * number)

    def judged_by_gate(self, number: int) -> Iteration:
        """The iteration with the gate's report on the policy before it."""
        evidence = policy_judgments.evidence(self.db)
        verdict = gate.verdict(evidence, f"policy-{number - 2}") if number > 2 else None
        return replace(iterations.get(self.db, number), verdict=verdict)


def snapshots_of(db: Database, number: int) -> Snapshot:
    """A snapshot of all judgments so far."""
    ids = [row["id"] for row in db.read("SELECT id FROM current_judgments ORDER BY seq")]
    return Snapshot(hash=f"s-{number}-{len(ids)}", iteration=number, judgments=tuple(ids))


def flag(run: Run, step: int) -> RunNote:
    return RunNote(
        run=run.id, seq=step, step=step, kind="flag", name="kl_high",
        message="KL to the reference is 12.0 nats per response.",
        payload={"level": "warn", "seen": "KL is 12.0.", "why": "Texts may degenerate.",
                 "remedy": "Raise kl_weight."},
    )  # fmt: skip
