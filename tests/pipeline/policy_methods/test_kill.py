"""A PPO worker killed by SIGKILL wherever it happens to be, and resumed, loses and repeats nothing."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.ppo.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from pipeline.runs.jobs import Jobs
from pipeline.runs.rundir import Job, RunDirectory
from storage.records import Run
from storage.tables.runs import runs
from tests.helpers.ppo_helpers import TIMED, assert_same_state
from tests.helpers.stage_inputs import give, make_job, make_prompts, rows_of, tiny_models_and_reward
from tests.helpers.worker_runs import until

ROOT = Path(__file__).parents[3]
UPDATES = 14
STATEFUL = {
    "ppo__updates": UPDATES,
    "ppo__rollouts": 8,
    "ppo__epochs": 2,
    "ppo__lr": 1e-3,
    "ppo__critic": "separate",
    "ppo__value_warmup": 1,
    "ppo__kl_control": "adaptive",
    "ppo__kl_target": 0.5,
    "ppo__kl_horizon": 64,
    "ppo__score_scaling": "running",
}

# Torch is loaded once; every order is then a process of its own, born at the loop.  Audit events
# are where Python is about to touch the file system.
FORK_SERVER = """
import json, os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from pipeline.worker import worker
from pipeline.runs.jobs import Jobs
from pipeline.runs.rundir import RunDirectory
from pipeline.ppo.checkpoint import save_checkpoint

def die_at(count):
    def hook(event, args):
        nonlocal count
        if event == "open" or event.startswith("os."):
            paths = " ".join(str(a) for a in args if isinstance(a, (str, Path)))
            count -= any(mark in paths for mark in ("checkpoints", "step-", "state.pt"))
            if not count:
                count = -1  # the kill is an event as well
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)

def obey(directory, count=0, save=0):
    if count:
        die_at(count)
    if not save:
        return worker.main([directory])
    save_checkpoint(RunDirectory(directory).path, save, {"step": save, "new": True})
    return 0

for line in sys.stdin:
    pid = os.fork()
    if not pid:
        os._exit(obey(**json.loads(line)))
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Forks:
    """Starts workers from a process that has loaded everything already."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-c", FORK_SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )

    def start(self, directory: Path, **order: int) -> int:
        """The process id of a worker."""
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps({"directory": str(directory), **order}) + "\n")
        self._server.stdin.flush()
        return self._read()

    def ended(self) -> int:
        """The exit status of the worker started last, once it has one."""
        return self._read()

    def _read(self) -> int:
        assert self._server.stdout is not None
        return int(self._server.stdout.readline())

    def close(self) -> None:
        self._server.communicate(timeout=60)


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    forks = Forks()
    yield forks
    forks.close()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return tiny_models_and_reward(tmp_path_factory.mktemp("models"))


def fill(inputs: Path) -> None:
    """Prompts that fit and one that is left out, which is told once."""
    rows = make_prompts(6)
    rows[4]["messages"] = json.dumps([{"role": "user", "content": "long " * 40}])
    give(RunDirectory(inputs.parent), "prompts.parquet", rows)


def make_run(path: Path, job: Job) -> RunDirectory:
    directory = RunDirectory.create(path, job)
    fill(directory.inputs)
    return directory


def prepare_next(directory: RunDirectory) -> None:
    """What `Jobs.resume` does to a run directory."""
    directory.clear_outcome()
    job = directory.job()
    directory.write_job(replace(job, attempt=job.attempt + 1, resume=directory.has_checkpoint()))


def events(directory: RunDirectory) -> list[dict[str, Any]]:
    """All events but for what a clock decides and who told them."""
    found = []
    for line in directory.events.read_text().splitlines():
        event = json.loads(line)
        del event["time"], event["attempt"]
        if event["kind"] == "metrics":
            event["values"] = untimed(event["values"])
        found.append(event)
    return found


def untimed(values: dict[str, Any]) -> dict[str, Any]:
    return {name: v for name, v in values.items() if not name.startswith((*TIMED, "seconds"))}


def updates_told(directory: RunDirectory) -> int:
    if not directory.events.exists():
        return 0
    return directory.events.read_bytes().count(b'"kind": "metrics"')


def newest(directory: RunDirectory) -> dict[str, Any] | None:
    """The checkpoint that a resume starts from."""
    found = list_checkpoints(directory.checkpoint / "checkpoints")
    return load_checkpoint(found[-1]) if found else None


def kill_soon(forks: Forks, directory: RunDirectory, chance: random.Random) -> None:
    """At a random time after its next updates."""
    process, told = forks.start(directory.path), updates_told(directory)
    until(lambda: updates_told(directory) != told, pause=0.002)
    time.sleep(chance.uniform(0, 0.08))
    os.kill(process, signal.SIGKILL)


def kill_while_writing(forks: Forks, directory: RunDirectory, chance: random.Random) -> None:
    """Once drafts of one or two checkpoints were seen, not counting those found."""
    folder = directory.checkpoint / "checkpoints"
    left = set(folder.glob(".step-*"))
    wanted, seen = chance.randint(1, 2), set(left)
    process = forks.start(directory.path)

    def written() -> bool:
        seen.update(folder.glob(".step-*.tmp"))
        return len(seen - left) >= wanted

    until(written, pause=0)
    os.kill(process, signal.SIGKILL)


def die_writing(forks: Forks, directory: RunDirectory, chance: random.Random) -> None:
    """By its own hand, just before one of its calls to the file system."""
    forks.start(directory.path, count=chance.randint(1, 40))


def assert_same_run(ours: RunDirectory, theirs: RunDirectory) -> None:
    """Events, checkpoint (weights, optimizer, every generator), results and files."""
    assert events(ours) == events(theirs)
    assert_same_state(newest(ours), newest(theirs))
    files = [(d.model / "model.safetensors").read_bytes() for d in (ours, theirs)]
    assert files[0] == files[1]
    samples = [rows_of(d.outputs / "samples.parquet") for d in (ours, theirs)]
    assert samples[0] == samples[1]
    results = [untimed(d.result() or {}) for d in (ours, theirs)]
    assert results[0] == results[1]
    paths = [{p.relative_to(d.path) for p in d.path.rglob("*")} for d in (ours, theirs)]
    assert paths[0] == paths[1]  # and so no leftovers


@pytest.fixture(scope="module")
def undisturbed(forks: Forks, models: dict[str, str], tmp_path_factory: Any) -> RunDirectory:
    directory = make_run(
        tmp_path_factory.mktemp("whole") / "run", make_job("policy", models, **STATEFUL)
    )
    forks.start(directory.path)
    assert forks.ended() == 0, directory.failure()
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_killed_five_times_it_equals_the_run_nobody_disturbed(forks, undisturbed, tmp_path, seed):
    chance = random.Random(seed)
    directory = make_run(tmp_path / "run", undisturbed.job())
    kills = [die_writing, kill_soon, kill_while_writing, kill_soon, die_writing]
    chance.shuffle(kills)
    for kill in kills:
        kill(forks, directory, chance)
        assert forks.ended() == -signal.SIGKILL, directory.failure()
        assert not directory.is_running()
        newest(directory)  # loads, if there is one
        prepare_next(directory)
    forks.start(directory.path)
    assert forks.ended() == 0, directory.failure()
    assert directory.job().attempt == 6
    assert_same_run(directory, undisturbed)
    told = [event["step"] for event in events(directory) if event["kind"] == "metrics"]
    assert told == list(range(1, UPDATES + 1))


@pytest.mark.slow
def test_killed_after_its_last_update_it_has_only_the_rest_to_do(forks, models, tmp_path):
    job = make_job("policy", models, **STATEFUL, ppo__kl_budget=1e-6)
    whole = make_run(tmp_path / "whole", replace(job, notes={"kl_raise": "It is held closer."}))
    forks.start(whole.path)
    assert forks.ended() == 0, whole.failure()
    assert (whole.result() or {})["stopped"] == "kl_budget"
    directory = make_run(tmp_path / "run", whole.job())
    shutil.copytree(whole.checkpoint, directory.checkpoint)
    shutil.copy(whole.events, directory.events)
    prepare_next(directory)
    forks.start(directory.path)
    assert forks.ended() == 0, directory.failure()
    assert_same_run(directory, whole)
    assert (directory.result() or {})["kl_weight"] == job.config.ppo.kl_weight
    told = [(e["name"], e["message"]) for e in events(directory) if e["kind"] == "note"]
    notes = [name for name, _ in told]
    assert [notes.count(name) for name in ("kl_budget", "long_prompts")] == [1, 1]
    assert [said for name, said in told if name == "kl_raise"] == ["It is held closer."]


@pytest.mark.parametrize("step", [3, 4], ids=["written once more", "next"])
def test_killed_anywhere_in_a_save_a_whole_one_is_left(forks, tmp_path, step):
    before = tmp_path / "before"
    for done in (1, 2, 3):
        save_checkpoint(before, done, {"step": done, "new": False})
    (before / ".step-000009.tmp").mkdir()
    outcomes, status, count = set(), -signal.SIGKILL, 0
    while status != 0:
        count += 1
        folder = tmp_path / f"checkpoints-{count}"
        shutil.copytree(before, folder)
        forks.start(folder, save=step, count=count)
        status = forks.ended()
        assert status in (0, -signal.SIGKILL)
        newest = load_checkpoint(list_checkpoints(folder)[-1])
        outcomes.add((newest["step"], newest["new"]))
        for path in list_checkpoints(folder):
            load_checkpoint(path)
        save_checkpoint(folder, step + 1, {})
        kept = sorted(path.name for path in folder.iterdir())
        assert kept[-1] == f"step-{step + 1:06d}"
        assert len(kept) == 2
    assert count > 10
    old = {(3, False)} if step == 4 else {(3, False), (2, False)}
    assert {(step, True)} < outcomes <= old | {(step, True)}


@pytest.mark.slow
@pytest.mark.timeout(900)  # seven starts of torch, each up to a minute on a busy machine
def test_killed_and_resumed_by_jobs_the_stored_run_is_whole(db, models):
    jobs, chance = Jobs(db), random.Random(5)
    job = make_job("policy", models, **STATEFUL)
    names = []
    for name, kills in (("broken", 5), ("whole", 0)):
        directory = jobs.directory(jobs.start(replace(job, run=name), fill=fill))
        for _ in range(kills):
            told = updates_told(directory)
            until(lambda: updates_told(directory) != told, pause=0.002)  # noqa: B023
            time.sleep(chance.uniform(0, 0.1))
            os.kill(int((directory.path / "pid").read_text()), signal.SIGKILL)
            assert ended(jobs).status == "failed"
            if directory.has_checkpoint():
                jobs.resume(name)
            else:
                name = jobs.retry(name, replace(job, run=f"{name}-again"), fill=fill).id
                directory = jobs.directory(runs.get(db, name))
        assert ended(jobs).status == "succeeded", directory.failure()
        names.append(name)
    broken, whole = (jobs.directory(runs.get(db, name)) for name in names)
    assert broken.job().attempt == 6
    assert_same_run(broken, whole)
    stored = [
        [
            row
            for row in runs.metrics(db, name).to_dict("records")
            if not row["name"].startswith(TIMED)
        ]
        for name in names
    ]
    assert stored[0] == stored[1]
    notes = [[replace(n, run="") for n in runs.notes(db, name)] for name in names]
    assert notes[0] == notes[1]
    jobs.shut_down()  # a worker may outlive its last event for a moment


def ended(jobs: Jobs) -> Run:
    """The run that ends next."""
    found: list[Run] = []
    until(lambda: bool(found.extend(jobs.poll()) or found), pause=0.02)
    return found[0]
