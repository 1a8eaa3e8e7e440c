"""The worker process of one job: ``python -m pipeline.worker RUN_DIR [ATTEMPT]``.

It reads job.json and calls the module of the job's kind (`JOB_MODULES`).  Progress, metrics and notes
go to events.jsonl (`pipeline.runs.rundir.Report`), which the web process reads
(`pipeline/runs/jobs.py`).  It holds the run directory's lock while it lives and writes its output to
log.txt.  With ATTEMPT it is the job of a cluster: it holds no lock and writes a heartbeat instead
(`pipeline/worker/heartbeat.py`).  It ends with result.json (it succeeded), error.json (it failed or was asked to stop) or
neither (it was killed).
"""

from __future__ import annotations

import errno
import gc
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from pipeline.config.sections import Config
from pipeline.ppo.config import needs_bitsandbytes
from pipeline.runs.cancellation import WAS_CANCELLED, WAS_TERMINATED, Cancelled, request_cancel
from pipeline.runs.rundir import Job, Report, RunDirectory
from pipeline.runs.tensorboard import TRACKERS, run_name
from pipeline.worker import distributed, heartbeat, resources
from storage.reports import to_json

JOB_MODULES = {
    "sft": "pipeline.stages.sft",
    "sampling": "pipeline.stages.sample",
    "reward": "pipeline.stages.reward",
    "ppo": "pipeline.stages.policy",
    "grpo": "pipeline.stages.policy",
    "rloo": "pipeline.stages.policy",
    "reinforce++": "pipeline.stages.policy",
    "dpo": "pipeline.policy_methods.dpo",
    "best-of-n": "pipeline.policy_methods.best_of_n",
    "openrlhf": "pipeline.policy_methods.openrlhf.stage",
    "evaluate": "pipeline.stages.evaluate",
    "measure": "pipeline.studies.measure",
    "curve": "pipeline.reward.report.curve_stage",
    "retrain": "pipeline.studies.retrain.stage",
}
"""By `Job.kind`; ``run(job, report, directory)`` of each module returns a dataclass, the summary."""

FAILED = 1
CANCELLED = 128 + signal.SIGTERM


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the job of a run directory; return the exit status of the process."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if len(arguments) not in (1, 2) or not (Path(arguments[0]) / "job.json").is_file():
        sys.stderr.write(
            "usage: python -m pipeline.worker RUN_DIR [ATTEMPT] (a directory with job.json)\n"
        )
        return 2
    directory = RunDirectory(Path(arguments[0]).resolve())
    rank = distributed.this_rank()
    if rank is not None:
        return _run_rank(directory, rank)
    if len(arguments) == 2:
        return _on_cluster(directory, int(arguments[1]))
    with directory.hold_lock() as lock:
        return _end_with_outcome(directory, lambda: _work(directory, locks=[lock.fileno()]))


def _on_cluster(directory: RunDirectory, attempt: int) -> int:
    """Run as the job of a cluster, unless the studio has given up this attempt."""
    if heartbeat.is_over(directory, attempt):
        sys.stderr.write(f"attempt {attempt} of {directory.path} has ended already\n")
        return FAILED

    node = distributed.this_node()
    if node.count == 1:
        return _on_first_node(directory, attempt, node)
    with heartbeat.tied_to_parent(directory):
        if node.number > 0:
            return _on_further_node(directory, node)
        return _on_first_node(directory, attempt, node)


def _on_first_node(directory: RunDirectory, attempt: int, node: distributed.Node) -> int:
    def work() -> dict[str, Any]:
        with heartbeat.kept(directory, attempt):
            return _work(directory, node=node)

    return _end_with_outcome(directory, work, if_not_asked=WAS_TERMINATED)


def _end_with_outcome(
    directory: RunDirectory,
    work: Callable[[], dict[str, Any]],
    *,
    if_not_asked: str = WAS_CANCELLED,
) -> int:
    """Write the result, or why there is none; return the exit status.

    `if_not_asked` is the reason of a SIGTERM without a request in the run directory.
    """
    signal.signal(signal.SIGTERM, _cancel)
    _log_output(directory.log)
    try:
        directory.write_result(work())
    except Cancelled:
        asked = directory.cancel_requested_at() is not None
        return _fail(directory, WAS_CANCELLED if asked else if_not_asked, CANCELLED)
    except BaseException as error:
        return _fail(directory, reason_of(error), FAILED)
    return 0


def _work(
    directory: RunDirectory, *, locks: Sequence[int] = (), node: distributed.Node | None = None
) -> dict[str, Any]:
    """Run the stage; return its summary as JSON, with its duration in seconds."""
    start = time.monotonic()
    job = directory.job()
    configure_process(job.config)
    report = Report(directory, attempt=job.attempt)
    if job.attempt > 1 and not job.resume:
        report.rewind(0)
    report.log(f"{job.stage} of iteration {job.iteration}, attempt {job.attempt}")
    try:
        with (
            _tracked(job, report, directory),
            distributed.launch_ranks(job, directory.path, locks=locks, node=node) as connected,
            resources.sampled(directory),
        ):
            stage = _loaded_stage(job)  # takes seconds; the other processes load theirs meanwhile
            with connected():
                summary = stage.run(job, report, directory)
    finally:
        report.close()
    seconds = time.monotonic() - start
    report.log(f"done in {seconds:.1f} s")
    return _null_for_nan(to_json(summary) | {"seconds": seconds})


def _run_rank(directory: RunDirectory, rank: distributed.Rank) -> int:
    """Run as a further process of a stage."""
    # A process that trains networks alone would notice only at the end that the first one is gone.
    with heartbeat.tied_to_parent(directory):
        return _share(directory, lambda job: nullcontext(lambda: distributed.joined(rank, job)))


def _on_further_node(directory: RunDirectory, node: distributed.Node) -> int:
    """Run as the worker of a node that is not the first, with the processes of that node."""
    status = _share(directory, lambda job: distributed.launch_ranks(job, directory.path, node=node))
    # The cluster ends the first worker, which may still save the model, some time after this one.
    while not directory.has_outcome():
        time.sleep(0.5)
    return status


def _share(
    directory: RunDirectory,
    launched: Callable[[Job], AbstractContextManager[distributed.Connect]],
) -> int:
    """Do a share of the stage's work and report nothing."""
    signal.signal(signal.SIGTERM, _cancel)
    job = directory.job()
    configure_process(job.config)
    try:
        with (
            TemporaryDirectory() as folder,
            Report(RunDirectory(Path(folder)), attempt=job.attempt) as unread,
            launched(job) as connected,
        ):
            stage = _loaded_stage(job)
            with connected():
                stage.run(job, unread, directory)
    except Cancelled:
        return CANCELLED
    return 0


@contextmanager
def _tracked(job: Job, report: Report, directory: RunDirectory) -> Iterator[None]:
    """Send metrics to the trackers in `worker.report_to`."""
    names = job.config.worker.report_to
    if not names:
        yield
        return
    kind = import_module("pipeline.worker.tracking").Trackers
    trackers = kind(
        names,
        run=run_name(job),
        project=directory.path.resolve().parents[1].name,  # the workspace
        folder=directory.path / TRACKERS,
    )
    report.listeners.append(trackers.log)
    try:
        yield
    finally:
        trackers.close()


def _loaded_stage(job: Job) -> Any:
    """The job's module.  Ends the pause of garbage collections, if the process started with one.

    The objects of modules live as long as the process, so later collections do not visit them.
    """
    configure_libraries(job.config)
    stage = stage_module(job)
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    return stage


def stage_module(job: Job) -> Any:
    """The module with the job's `run`."""
    return import_module(JOB_MODULES[job.kind])


def configure_process(config: Config, *, nice: int | None = None) -> None:
    """Set priority (`worker.nice` by default) and environment, before torch is imported."""
    nice = config.worker.nice if nice is None else nice
    niceness = os.nice(0)
    if nice > niceness:
        os.nice(nice - niceness)
    with suppress(OSError):
        # With Linux's autogroups, nice applies within a session only, and a worker has its own.
        Path("/proc/self/autogroup").write_text(str(nice))
    if config.worker.threads:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = str(config.worker.threads)
    # Otherwise threads spin at barriers while the web process uses the core.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    if not needs_bitsandbytes(config.ppo):
        # Where it is installed, PEFT imports it, which takes a second and 45 MB.
        sys.modules.setdefault("bitsandbytes", None)  # type: ignore[arg-type]


def configure_libraries(config: Config) -> None:
    """Import torch and transformers; set torch's threads, and no progress bars."""
    import_module("pipeline.models.devices").cap_threads(config.worker)
    import_module("transformers.utils.logging").disable_progress_bar()


def reason_of(error: BaseException) -> str:
    """Why a stage failed, in one sentence."""
    if type(error).__name__ == "OutOfMemoryError":
        return (
            "the GPU ran out of memory; lower the stage's batch (ppo.micro_batch_tokens, "
            "ppo.rollout_batch, sampling.batch) or max_new_tokens, or use a smaller model"
        )
    if isinstance(error, MemoryError):
        return "the machine ran out of memory; lower the stage's batch or use a smaller model"
    if any(isinstance(e, OSError) and e.errno == errno.ENOSPC for e in _causes(error)):
        return "the disk is full; free some space and resume or retry"
    lines = str(error).strip().splitlines()
    if not lines:
        return f"the stage stopped with {type(error).__name__}"
    # Our own errors are sentences; other errors need their type.
    plain = type(error) in (ValueError, RuntimeError) or type(error).__module__.startswith(
        "pipeline"
    )
    return lines[0] if plain else f"{type(error).__name__}: {lines[0]}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and its causes: libraries wrap the error of a full disk."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _fail(directory: RunDirectory, reason: str, status: int) -> int:
    trace = traceback.format_exc()
    directory.write_error(reason, trace)
    if status == FAILED:
        with directory.log.open("a", encoding="utf-8") as log:
            log.write(f"{trace}\n")
    directory.append_log(reason)
    return status


def _log_output(path: Path) -> None:
    """Redirect the output of this process, C libraries included, to the log."""
    sys.stdout.flush()
    sys.stderr.flush()
    with path.open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)


def _cancel(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
    # A second request must not interrupt the handling of the first.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    request_cancel()


def _null_for_nan(value: Any) -> Any:
    """NaN and infinities as None: JSON does not have them."""
    if isinstance(value, Mapping):
        return {key: _null_for_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_null_for_nan(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
