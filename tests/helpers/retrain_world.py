"""A workspace with a reward model of the real stage, whose judgments differ in annotator, kind, time
and guidelines; a policy that people compared with SFT; and its stored evaluation."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd

from pipeline.runs.rundir import RunDirectory
from storage import worker_files
from storage.engine.database import Database
from storage.records import (
    Annotator,
    Arm,
    Comparison,
    Completion,
    Iteration,
    Judgment,
    ModelVersion,
    Prompt,
    Run,
    Snapshot,
)
from storage.tables import iterations, models, prompts
from storage.tables.people import annotators
from storage.tables.runs import runs
from tests.helpers.stage_inputs import give, make_job, make_prompts, tiny_models
from tests.helpers.worker_runs import work

BEGUN = datetime(2026, 3, 1, 12, tzinfo=UTC)
PROMPTS, PAIRS, COMPARED = 20, 120, 36
PEOPLE = (("ada", "Ada", "person"), ("carl", "Careless Carl", "person"), ("sim", "gold-1", "simulated"))  # fmt: skip
OLD_RULES, NEW_RULES = "0" * 16, "1" * 16


def fill_for_retraining(workspace: Path) -> RunDirectory:
    """Store a finished iteration 1, and iteration 2, which waits for labels; returns the run of the
    reward stage.

    Judgment n is on pair n, given by annotator n mod 3 in the n-th hour, the first half under
    `OLD_RULES`.  Pairs from `PAIRS` on compare policy-1 with SFT; people prefer policy-1 in those by
    Ada and gold-1, and SFT in those by Carl.  The snapshot has the judgments on the first `PAIRS`.
    """
    made = tiny_models(workspace / "models")
    (workspace / "config.toml").write_text("")
    with Database.open(workspace) as db:
        for id, name, kind in PEOPLE:
            annotators.add(db, Annotator(id=id, name=name, kind=kind))
        asked = [Prompt.make(f"What is {n}?", role="train") for n in range(PROMPTS + COMPARED)]
        held_out = [Prompt.make(f"Who is {n}?", role="held-out") for n in range(6)]
        prompts.add(db, [*asked, *held_out])
        models.add(db, ModelVersion(id="sft-1", role="sft", name="SFT", path="models/reference"))
        _judge(db, asked[:PROMPTS], range(PAIRS))
        source = _train(db, made)
        _judge(db, asked[PROMPTS:], range(PAIRS, PAIRS + COMPARED))
        _evaluate(db, held_out)
        done = Iteration(
            number=1, phase="done", reward_model="reward-1", policy_produced="policy-1"
        )
        iterations.save(db, done)
        iterations.save(
            db,
            Iteration(number=2, phase="labeling", policy_sampled="policy-1", labels_wanted=100),
        )
    return source


def _judge(db: Database, asked: list[Prompt], numbers: range) -> None:
    coin, stored = random.Random(numbers.start), []
    compared = numbers.start >= PAIRS
    for n in numbers:
        prompt, who = asked[n % len(asked)], PEOPLE[n % 3][0]
        liked, plain = ("".join(coin.choices(letters, k=8)) for letters in ("abczzzzz", "abcdefgh"))
        policies = ("policy-1", "sft-1") if compared else ("sft-1", "sft-1")
        stored += [
            Completion(id=f"r-{n}-{side}", prompt=prompt.id, policy=policy, text=text)
            for side, policy, text in zip("xy", policies, (liked, plain), strict=True)
        ]
        arm: Arm = "reference" if compared else "random"
        stored.append(
            Comparison(
                id=f"c-{n}", prompt=prompt.id, first=f"r-{n}-x", second=f"r-{n}-y", arm=arm,
                iteration=2 if compared else 1, position=n,
            )
        )  # fmt: skip
        outcome = "second" if who == "carl" and (compared or n % 2) else "first"
        stored.append(
            Judgment(
                id=f"j-{n:03}", comparison=f"c-{n}", annotator=who, shown_swapped=n % 2 == 0,
                outcome="tie" if n % 10 == 9 and not compared else outcome,
                guidelines=OLD_RULES if n < PAIRS // 2 else NEW_RULES,
                created_at=BEGUN + timedelta(hours=n),
            )
        )  # fmt: skip
    db.write(lambda tx: tx.store(*stored))


def _train(db: Database, made: dict[str, str]) -> RunDirectory:
    """Run the reward stage on the judgments so far."""
    job = make_job(
        "reward",
        {"reference": made["reference"]},
        reward__epochs=2,
        reward__held_out_share=0.25,
        reward__ensemble="heads",
        reward__audit_share=0.25,
        reward__stopping_judgments=20,
    )
    source = RunDirectory.create(db.workspace / "runs" / "reward-run", job)
    hash, ids = worker_files.write_judgments_input(db, source.inputs, iteration=1)
    db.write(lambda tx: tx.store(Snapshot(hash=hash, iteration=1, judgments=tuple(ids))))
    give(source, "prompts.parquet", make_prompts(4))
    assert work(source) == 0, source.log_tail()
    source.model.rename(db.workspace / "models" / "reward-1")
    runs.save(
        db,
        Run(
            id="reward-run", stage="reward", iteration=1, status="succeeded",
            directory="runs/reward-run", config=job.config.to_dict(),
        ),
    )  # fmt: skip
    models.add(
        db,
        ModelVersion(
            id="reward-1", role="reward", name="reward-1", path="models/reward-1", iteration=1,
            run="reward-run", snapshot=hash, summary=source.result() or {},
        ),
    )  # fmt: skip
    return source


def _evaluate(db: Database, held_out: list[Prompt]) -> None:
    """The stored responses of policy-1 and SFT to the held-out prompts."""
    outputs = RunDirectory(db.workspace / "runs" / "evaluate-run")
    outputs.outputs.mkdir(parents=True)
    outputs.inputs.mkdir()
    rows = [
        {"id": f"e-{policy}-{n}", "prompt": prompt.id, "policy": policy, "text": text * (n + 2)}
        for policy, text in (("policy-1", "zz"), ("sft-1", "eg"))
        for n, prompt in enumerate(held_out)
    ]
    RunDirectory.create(outputs.path, make_job("evaluate", {}))
    for name, found in (
        ("completions", rows),
        ("scores", [{"completion": row["id"], "reward": 0.0} for row in rows]),
    ):
        give_output(outputs, f"{name}.parquet", found)
    runs.save(
        db,
        Run(
            id="evaluate-run", stage="evaluate", iteration=1, status="succeeded",
            directory="runs/evaluate-run",
        ),
    )  # fmt: skip
    models.add(
        db,
        ModelVersion(
            id="policy-1", role="policy", name="policy-1", path="models/policy", iteration=1,
            reward_model="reward-1",
        ),
    )  # fmt: skip


def give_output(directory: RunDirectory, name: str, rows: list[dict[str, object]]) -> None:
    """Write a parquet file to the outputs of a run."""
    pd.DataFrame(rows).to_parquet(directory.outputs / name, index=False)
