"""TensorBoard's folder: readable names that lead to the events of the runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config.sections import Config
from pipeline.runs import tensorboard
from pipeline.runs.jobs import Jobs
from pipeline.runs.rundir import Job
from storage.engine.database import Database

REPORTING = Config().override({"worker.report_to": '["tensorboard"]'})
JOB = Job(run="8f3c", stage="policy", iteration=2, config=REPORTING)


def links(workspace: Path) -> dict[str, str]:
    folder = workspace / tensorboard.FOLDER
    return {each.name: str(each.readlink()) for each in sorted(folder.iterdir())}


def test_each_run_is_linked_once_under_its_iteration_and_method(tmp_path: Path) -> None:
    dpo = REPORTING.override({"optimize.method": "dpo"})
    for job in (JOB, JOB, replace(JOB, run="9a1d", attempt=2), replace(JOB, run="b2", config=dpo)):
        tensorboard.link(tmp_path, job)
    tensorboard.link(tmp_path, replace(JOB, run="c3", stage="reward", iteration=3))
    assert links(tmp_path) == {
        "iteration-2-dpo": "../runs/b2/trackers/iteration-2-dpo",
        "iteration-2-ppo": "../runs/8f3c/trackers/iteration-2-ppo",
        "iteration-2-ppo-2": "../runs/9a1d/trackers/iteration-2-ppo",
        "iteration-3-reward": "../runs/c3/trackers/iteration-3-reward",
    }
    events = tmp_path / "runs" / "8f3c" / "trackers" / "iteration-2-ppo" / "events"
    events.parent.mkdir(parents=True)
    events.touch()
    assert (tmp_path / tensorboard.FOLDER / "iteration-2-ppo" / "events").exists()


def test_without_tensorboard_there_is_no_folder(tmp_path: Path) -> None:
    tensorboard.link(tmp_path, replace(JOB, config=Config()))
    assert not (tmp_path / tensorboard.FOLDER).exists()


@pytest.mark.usefixtures("dying_workers")
def test_a_run_is_linked_when_it_starts(db: Database) -> None:
    jobs = Jobs(db)
    jobs.start(JOB, fill=lambda _: None)
    jobs.shut_down()
    assert links(db.workspace) == {"iteration-2-ppo": "../runs/8f3c/trackers/iteration-2-ppo"}
