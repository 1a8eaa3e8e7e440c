"""A workspace in which studies can run: a policy run and an evaluation of tiny models, as an
iteration leaves them, without running it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.config.sections import Config
from pipeline.loop.loop import Loop
from pipeline.runs.rundir import Job, RunDirectory
from storage.engine.database import Database
from storage.records import Iteration, Prompt, Run, Study
from storage.tables import iterations, prompts
from storage.tables.runs import runs, studies
from tests.helpers.stage_inputs import give, make_job, make_prompts, tiny_models_and_reward


def fill_for_studies(workspace: Path, **chosen: Any) -> Job:
    """Store a finished iteration 2 and start iteration 3, which waits for labels; returns the job of
    the policy run."""
    models = tiny_models_and_reward(workspace / "models")
    (workspace / "config.toml").write_text("")
    with Database.open(workspace) as db:
        prompts.add(db, [Prompt.make("What is 1 + 1?", role="train")])
        for stage in ("reward", "policy", "evaluate"):
            job = make_job(stage, models, **chosen)
            directory = RunDirectory.create(workspace / "runs" / stage, job)
            if stage != "reward":
                count = 8 if stage == "policy" else 4
                give(directory, "prompts.parquet", make_prompts(count))
            record = Run(
                id=stage, stage=stage, iteration=2, status="succeeded",
                directory=f"runs/{stage}", config=job.config.to_dict(),
            )  # fmt: skip
            runs.save(db, record)
        iterations.save(db, Iteration(number=2, phase="done", policy_produced="policy-2"))
        iterations.save(db, Iteration(number=3, phase="labeling"))
    return RunDirectory(workspace / "runs" / "policy").job()


def looped(db: Database) -> Loop:
    return Loop(db, Config().override({"worker.threads": "1", "worker.nice": "0"}))


def until(
    db: Database, loop: Loop, reached: Callable[[Study], bool], *, id: str, seconds: float = 150
) -> Study:
    """Poll, as the timer does, until a study is as wanted."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        loop.refresh()
        if (found := studies.find(db, id)) is not None and reached(found):
            return found
        time.sleep(0.2)
    raise AssertionError(f"{id} is {studies.find(db, id)}")
