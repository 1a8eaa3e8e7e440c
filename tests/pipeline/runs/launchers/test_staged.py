"""What becomes of a run whose files travel through a store, and of what fails on the way."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from pipeline.config.sections import Config, WorkerConfig
from pipeline.runs import jobs as jobs_module
from pipeline.runs.jobs import Jobs
from pipeline.runs.launchers.choose import cluster_launcher
from pipeline.runs.launchers.launcher import Launcher, LaunchError, NoAnswer
from pipeline.runs.launchers.ray_jobs import RayCluster
from pipeline.runs.launchers.remote import job_name
from pipeline.runs.launchers.staged import StagedLauncher
from pipeline.runs.rundir import Job, RunDirectory
from pipeline.runs.staging import attempt
from pipeline.runs.staging.attempt import StagedAttempt
from pipeline.runs.staging.layout import folder
from pipeline.runs.staging.store import Store
from pipeline.worker import staged
from storage.engine.database import Database
from storage.records import Run
from storage.tables.runs import runs
from tests.helpers.clusters import ProcessCluster
from tests.helpers.stage_inputs import make_job, tiny_models_and_reward
from tests.helpers.worker_runs import fill, numbered, steps_reported, until, updated

SLOW = {"tests.pipeline.runs.launchers.test_launchers:slow": 1.0}


class Clock:
    """The time that the launcher sees."""

    later = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.later


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cluster(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, tmp_path: Path
) -> Iterator[ProcessCluster]:
    made = ProcessCluster()
    made.printed = tmp_path / "printed"
    made.printed.touch()
    made.environment["EVERY"] = "0.1"
    monkeypatch.setattr(attempt, "EVERY", 0.1)

    def launcher(config: WorkerConfig, workspace: Path) -> Launcher:
        return StagedLauncher(made, config, workspace=workspace, clock=clock)

    monkeypatch.setattr(jobs_module, "cluster_launcher", launcher)
    yield made
    for name in made.jobs:
        made.kill(name)


@pytest.fixture
def jobs(db: Database) -> Iterator[Jobs]:
    made = Jobs(db)
    yield made
    made.shut_down()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return tiny_models_and_reward(tmp_path_factory.mktemp("models"))


def ppo(models: dict[str, str], tmp_path: Path, **settings: Any) -> Job:
    return make_job(
        "policy", models, shaping__weights=SLOW,
        **{
            "worker__launcher": "ray",
            "worker__staging": f"file://{tmp_path}/store",
            "worker__root": f"{tmp_path}/node",
            **settings,
        },
    )  # fmt: skip


def started(jobs: Jobs, job: Job) -> tuple[Run, RunDirectory]:
    run = jobs.start(job, fill=fill)
    return run, jobs.directory(run)


def held(cluster: ProcessCluster, db: Database) -> str:
    """Let the next run's job wait; return its name."""
    path = db.workspace / "runs" / "run-1"
    cluster.held.add(name := job_name(RunDirectory(path), 1))
    return name


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()
    }


def test_nothing_that_a_node_gets_names_the_workspace(
    db: Database, jobs: Jobs, models: dict[str, str], cluster: ProcessCluster, tmp_path: Path
) -> None:
    name = held(cluster, db)
    _, directory = started(jobs, ppo(models, tmp_path))
    until(lambda: jobs.poll() or name in cluster.commands)
    url, root = f"file://{tmp_path}/store", f"{tmp_path}/node"
    assert cluster.commands[name][1:] == ["-m", "pipeline.worker.staged", url, name, root]
    sent = contents(tmp_path / "store")
    secret = [str(db.workspace).encode(), str(db.workspace.resolve()).encode()]
    assert [file for file, data in sent.items() if any(path in data for path in secret)] == []
    assert [file for file, data in sent.items() if models["policy"].encode() in data] == []
    names = {file.partition("/")[0] for file in sent}
    assert names == {"models", "runs"}
    given = Store(url).read(f"{folder(name)}/in.json")
    assert given is not None
    assert f"runs/{directory.path.name}/inputs/prompts.parquet" in given[0]["files"]


def test_a_job_that_waits_for_its_turn_is_cancelled_and_leaves_only_the_models(
    db: Database, jobs: Jobs, models: dict[str, str], cluster: ProcessCluster, tmp_path: Path
) -> None:
    name = held(cluster, db)
    run, _ = started(jobs, ppo(models, tmp_path))
    until(lambda: jobs.poll() or name in cluster.commands)
    assert jobs.poll() == []
    assert runs.get(db, run.id).message == "waits for the cluster: no node is free"
    jobs.cancel(run.id)
    until(jobs.poll)
    ended = runs.get(db, run.id)
    assert (ended.status, ended.reason) == ("cancelled", "cancelled by the researcher")
    over = tmp_path / "store" / folder(name)
    until(lambda: [*contents(over)] == ["over"])


def test_a_cluster_that_falls_silent_while_files_are_sent_is_asked_again(
    db: Database, jobs: Jobs, models: dict[str, str], cluster: ProcessCluster, tmp_path: Path
) -> None:
    name = held(cluster, db)
    run, _ = started(jobs, ppo(models, tmp_path))
    cluster.silent = True
    until(lambda: jobs.poll() or runs.get(db, run.id).message == "the cluster does not answer")
    cluster.silent, cluster.refuses = False, "the cluster has no GPU"
    until(jobs.poll)
    ended = runs.get(db, run.id)
    assert (ended.status, ended.reason) == ("failed", "the cluster has no GPU")
    assert name not in cluster.jobs


def test_a_store_that_fails_in_between_costs_nothing(
    db: Database, jobs: Jobs, models: dict[str, str], cluster: ProcessCluster, clock: Clock,
    tmp_path: Path,
) -> None:  # fmt: skip
    store, away = tmp_path / "store", tmp_path / "away"
    store.mkdir()
    (store / "runs").touch()  # a model can be sent, and nothing else
    run, directory = started(jobs, ppo(models, tmp_path, ppo__updates=6))

    def said() -> str:
        return runs.get(db, run.id).message

    until(lambda: jobs.poll() or said().startswith(f"file://{store} cannot be used ("))
    assert said().endswith("; it is tried again")
    (store / "runs").unlink()
    until(lambda: jobs.poll() or updated(directory, 2))
    store.rename(away)  # while it works
    store.touch()
    until(lambda: jobs.poll() or said().startswith(f"file://{store} cannot be used ("))
    clock.later += 2 * WorkerConfig().lost_after  # a store's silence is not the worker's
    assert jobs.poll() == []
    store.unlink()
    away.rename(store)
    until(jobs.poll)
    ended = runs.get(db, run.id)
    assert ended.status == "succeeded", directory.log_tail()
    assert steps_reported(directory) == [1, 2, 3, 4, 5, 6]
    assert numbered(directory)
    assert (directory.model / "model.safetensors").is_file()
    assert (directory.outputs / "samples.parquet").is_file()
    assert len(cluster.jobs) == 1
    until(lambda: not (store / "runs" / next(iter(cluster.jobs))).exists())


def test_the_outcome_comes_last(
    db: Database, jobs: Jobs, models: dict[str, str], cluster: ProcessCluster, tmp_path: Path
) -> None:
    run, directory = started(jobs, ppo(models, tmp_path, ppo__updates=1))
    model = directory.model / "model.safetensors"
    directory.model.write_text("in the way")  # the model cannot arrive
    until(lambda: jobs.poll() or "staging failed" in runs.get(db, run.id).message)
    assert "tried again" in runs.get(db, run.id).message
    until(lambda: cluster.jobs[job_name(directory, 1)].poll() == 0)
    assert jobs.poll() == []
    assert directory.result() is None
    directory.model.unlink()
    until(jobs.poll)
    assert runs.get(db, run.id).status == "succeeded"
    assert model.stat().st_mtime_ns < (directory.path / "result.json").stat().st_mtime_ns


def test_a_worker_that_was_given_up_ends_and_touches_nothing_of_the_next(
    db: Database, jobs: Jobs, models: dict[str, str], cluster: ProcessCluster, clock: Clock,
    tmp_path: Path,
) -> None:  # fmt: skip
    run, directory = started(jobs, ppo(models, tmp_path, ppo__updates=1000))
    until(lambda: jobs.poll() or updated(directory, 2))
    old = cluster.jobs[name := job_name(directory, 1)]
    until(lambda: (tmp_path / "store" / folder(name) / "out.json").exists())
    os.killpg(old.pid, signal.SIGSTOP)
    assert not directory.has_checkpoint()
    cluster.silent = True  # so that nobody can stop the job
    clock.later += 10
    jobs.poll()
    time.sleep(0.5)  # what it had sent has arrived
    jobs.poll()
    clock.later += WorkerConfig().lost_after + 1
    until(jobs.poll)
    lost = runs.get(db, run.id)
    assert lost.status == "failed"
    assert "has given no sign of life for" in (lost.reason or "")
    assert directory.has_checkpoint()
    cluster.silent = False
    resumed = jobs.resume(run.id)
    until(lambda: jobs.poll() or b'"attempt": 2' in directory.events.read_bytes())
    os.killpg(old.pid, signal.SIGCONT)
    until(lambda: old.poll() is not None, seconds=30)
    assert runs.get(db, resumed.id).status == "running"
    assert numbered(directory)
    assert directory.error() is None
    assert [*contents(tmp_path / "store" / folder(name))] == ["over"]


class Here(LocalFileSystem):
    """A store that only the studio has a driver for."""

    def __init__(self, **options: Any) -> None:
        super().__init__(auto_mkdir=True, **options)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(str(path).removeprefix("here://"))


def test_a_node_without_the_stores_driver_says_so(
    db: Database, jobs: Jobs, models: dict[str, str], cluster: ProcessCluster, clock: Clock,
    tmp_path: Path,
) -> None:  # fmt: skip
    fsspec.register_implementation("here", Here, clobber=True)  # the node's process has none
    store = tmp_path / "store"
    run, _ = started(jobs, ppo(models, tmp_path, worker__staging=f"here://{store}"))
    until(lambda: jobs.poll() or cluster.jobs)
    until(lambda: next(iter(cluster.jobs.values())).poll() is not None)
    clock.later += 100
    until(jobs.poll)
    reason = runs.get(db, run.id).reason or ""
    assert reason.startswith(f"{os.uname().nodename}: here://{store} cannot be used (")
    assert "Protocol not known: here" in reason


@pytest.fixture
def sent(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[StagedAttempt, Store, str]]:
    """An attempt whose files were sent, with nobody at work."""
    for module in (attempt, staged):
        monkeypatch.setattr(module, "EVERY", 0.1)
    job = ppo(models, tmp_path, ppo__updates=1)
    directory = RunDirectory.create(tmp_path / "workspace" / "runs" / "run-1", job)
    fill(directory.inputs)
    url, name = f"file://{tmp_path}/store", job_name(directory, 1)
    made = StagedAttempt(url, directory, name, uploads=True)
    until(lambda: not made.uploading)
    yield made, Store(url), name
    made.close("studio ends")


def test_a_model_that_is_damaged_in_the_store_fails_the_run_and_is_removed(
    sent: tuple[StagedAttempt, Store, str], tmp_path: Path
) -> None:
    made, store, name = sent
    given = store.read(f"{folder(name)}/in.json")
    assert given is not None
    files = given[0]["files"]
    stored = next(each["name"] for file, each in files.items() if file.endswith(".safetensors"))
    damaged = tmp_path / "store" / stored
    damaged.write_bytes(bytes(damaged.stat().st_size))
    before = signal.getsignal(signal.SIGTERM)
    try:
        status = staged.main([store.url, name, str(tmp_path / "node")], start=nobody)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert status == staged.FAILED
    assert not damaged.exists()
    assert [each.name for each in (tmp_path / "node").iterdir()] == ["kitestring-models"]
    directory = RunDirectory(tmp_path / "workspace" / "runs" / "run-1")
    until(lambda: directory.error() is not None)
    assert made.finished
    assert directory.error() == (
        f"{os.uname().nodename}: {store.url}/{stored} is not the file that was uploaded; it was "
        "removed, and a retry sends it again"
    )


def nobody(*_: Any) -> Any:
    raise AssertionError("no worker starts without its files")


@pytest.mark.parametrize(
    ("name", "object"), [("../../config.toml", "files/000001"), ("model/x", "../../secret")]
)
def test_a_store_cannot_write_elsewhere_or_read_what_is_not_the_attempts(
    sent: tuple[StagedAttempt, Store, str], tmp_path: Path, name: str, object: str
) -> None:
    made, store, job = sent
    (tmp_path / "evil").write_text("evil")
    stored = store.put(tmp_path / "evil", f"{folder(job)}/files/000001")
    file = stored.to_json() | {"name": f"{folder(job)}/{object}"}
    store.write(
        f"{folder(job)}/out.json",
        {"files": {name: file}, "outcome": {"result.json": "{}"}},
    )
    until(lambda: made.problem)
    assert made.problem.startswith("staging failed (ValueError: the store names the ")
    directory = RunDirectory(tmp_path / "workspace" / "runs" / "run-1")
    assert not directory.has_outcome()
    assert not (tmp_path / "workspace" / "config.toml").exists()


def test_a_job_that_starts_after_its_attempt_was_given_up_does_nothing(
    sent: tuple[StagedAttempt, Store, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made, store, name = sent
    made.close("given up")
    until(lambda: [*contents(tmp_path / "store" / folder(name))] == ["over"])
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert staged.main([store.url, name], start=nobody) == staged.FAILED
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err == f"kitestring: {name} has ended already\n"


def test_a_store_that_does_not_answer_refuses_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "store").touch()
    config = WorkerConfig(launcher="ray", staging=f"file://{tmp_path}/store")
    made = cluster_launcher(config, tmp_path)
    assert isinstance(made, StagedLauncher)
    monkeypatch.setattr(made, "_cluster", ProcessCluster())
    with pytest.raises(LaunchError) as refused:
        made.check()
    sentence = str(refused.value)
    assert sentence.startswith(f"file://{tmp_path}/store cannot be used (")
    assert sentence.endswith(
        ". Check worker.staging, and the credentials that its driver reads in this account"
    )


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("No available agent to submit job, please try again later", NoAnswer),
        ("Job with submission_id run-1 already exists", LaunchError),
    ],
)
def test_a_ray_that_is_still_starting_is_asked_again(answer: str, kind: type[Exception]) -> None:
    class Dashboard(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(500)
            self.end_headers()
            self.wfile.write(f"Traceback:\n{answer}.".encode())

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Dashboard) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        cluster = RayCluster(WorkerConfig(ray_address=f"http://127.0.0.1:{server.server_port}"))
        with pytest.raises(LaunchError, match=f"^Ray refuses the request: {answer}$") as refused:
            cluster.submit("run-1", ["true"], log=Path("log.txt"), nodes=1)
        server.shutdown()
    assert refused.type is kind


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"worker.staging": "bucket/kitestring"}, "must be a URL that fsspec opens"),
        ({"worker.staging": "memory://store"}, "must be a URL that fsspec opens"),
        ({"worker.staging": "simplecache::s3://bucket"}, "must be a URL that fsspec opens"),
        ({"worker.staging": "s3://key:secret@bucket/x"}, "must not contain a password"),
        ({"worker.staging": "abfs://c/x?sig=secret"}, "must not contain [?] or #"),
        (
            {
                "worker.staging": "s3://b", "worker.launcher": "slurm", "worker.nodes": "2",
                "worker.processes": "2",
            },
            "worker.staging needs worker.nodes=1",
        ),
        (
            {"worker.staging": "s3://b", "worker.launcher": "ray", "optimize.method": "openrlhf"},
            "optimize.method=openrlhf needs a shared file system",
        ),
    ],
)  # fmt: skip
def test_wrong_settings_of_staging_are_refused(settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as refused:
        Config().override(settings)
    assert "secret" not in str(refused.value)


def test_a_store_may_have_an_account_or_a_port() -> None:
    for url in ("abfs://box@account.dfs.core.windows.net/x", "sftp://user@host:22/x"):
        assert WorkerConfig(staging=url).staging == url
