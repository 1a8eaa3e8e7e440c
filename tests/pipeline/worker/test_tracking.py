"""Trackers get what the events get."""

import json
import subprocess
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pipeline.runs.rundir import RunDirectory
from pipeline.worker import tracking
from pipeline.worker.tracking import Trackers
from tests.helpers.stage_inputs import give, make_job, make_prompts, tiny_models_and_reward


def test_tensorboard_shows_the_metrics_of_the_events(tmp_path):
    models = tiny_models_and_reward(tmp_path / "models")
    job = make_job("policy", models, ppo__updates=2, worker__report_to=["tensorboard"])
    directory = RunDirectory.create(tmp_path / "run", job)
    give(directory, "prompts.parquet", make_prompts(4))
    run_worker(directory)
    events = [json.loads(line) for line in directory.events.read_text().splitlines()]
    expected = [(e["step"], e["values"]["kl/penalty"]) for e in events if e["kind"] == "metrics"]
    board = EventAccumulator(str(directory.path / "trackers" / "iteration-2-ppo")).Reload()
    found = [(e.step, e.value) for e in board.Scalars("kl/penalty")]
    assert [step for step, _ in found] == [1, 2]
    assert dict(found) == pytest.approx(dict(expected), abs=1e-6)


def run_worker(directory: RunDirectory) -> None:
    """In a process of its own: a worker takes standard output over."""
    done = subprocess.run([sys.executable, "-m", "pipeline.worker", str(directory.path)])
    assert done.returncode == 0, directory.failure()


def test_a_tracker_that_cannot_be_had_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"names 'tensorbord'; there are aim, .*tensorboard"):
        Trackers(["tensorbord"], run="r", project="p", folder=tmp_path)
    with pytest.raises(ValueError, match="'dvclive', which is not installed: pip install dvclive"):
        Trackers(["dvclive"], run="r", project="p", folder=tmp_path)


def test_other_trackers_show_the_run_in_the_workspaces_project(tmp_path, monkeypatch):
    """wandb is not installed here, so its class in accelerate is replaced by what it is given."""
    made = []

    class Recorded:
        requires_logging_directory = False

        def __init__(self, run_name, **more):
            made.append((run_name, more))

        def start(self):
            pass

    monkeypatch.setitem(tracking.LOGGER_TYPE_TO_CLASS, "wandb", Recorded)
    monkeypatch.setattr(tracking, "get_available_trackers", lambda: ["wandb"])
    Trackers(["wandb"], run="iteration-2-ppo", project="study", folder=tmp_path)
    assert made == [("study", {"name": "iteration-2-ppo"})]
