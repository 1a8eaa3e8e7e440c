"""Runs of worker processes, with their metrics and notes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from storage.engine import lookup
from storage.engine.codec import to_entry
from storage.engine.database import Database
from storage.engine.transaction import Transaction
from storage.records import Iteration, Metric, ModelVersion, Run, RunNote, Stage
from storage.tables.runs import events

if TYPE_CHECKING:
    import pandas

_LISTING = """
    SELECT * FROM runs WHERE $iteration IS NULL OR iteration = $iteration
    ORDER BY created_at, id
"""
_DROP_METRICS = """
    DELETE FROM metrics WHERE run = $run AND seq BETWEEN $first AND coalesce($last, seq)
"""
_DROP_NOTES = """
    DELETE FROM run_notes WHERE run = $run AND seq BETWEEN $first AND coalesce($last, seq)
"""
_LAST_OF = """
    SELECT name, max(step) AS step, arg_max(seq, (step, seq)) AS seq,
           arg_max(value, (step, seq)) AS value
    FROM metrics WHERE run = $run GROUP BY name
"""
_LAST_STORED = "SELECT name, step, seq, value FROM last_metrics WHERE run = $run"
_DROP_LAST = "DELETE FROM last_metrics WHERE run = $run"
_LAST_VALUES = """
    SELECT run, name, value FROM last_metrics WHERE name IN (SELECT unnest($names))
"""
_METRIC_NAMES = """
    SELECT DISTINCT name FROM last_metrics WHERE run IN (SELECT unnest($runs)) ORDER BY name
"""
_PROGRESS = """
    UPDATE runs SET progress = $progress, message = $message, ingested_seq = $seq
    WHERE id = $run
"""
_SAY = "UPDATE runs SET message = $message WHERE id = $run"
# All points if there are few; otherwise the last of each of `points` ranges of steps.
_METRICS = """
    WITH chosen AS (
        SELECT step, name, value, seq FROM metrics
        WHERE run = $run
        QUALIFY row_number() OVER (PARTITION BY name, step ORDER BY seq DESC) = 1),
    numbered AS (
        SELECT *, row_number() OVER (PARTITION BY name ORDER BY step) AS place,
               count(*) OVER (PARTITION BY name) AS many
        FROM chosen)
    SELECT step, name, value FROM numbered
    QUALIFY row_number() OVER (
        PARTITION BY name, CASE WHEN many <= $points THEN place
                                ELSE (place - 1) * $points // many END
        ORDER BY step DESC) = 1
    ORDER BY name, step
"""
_NOTES = """
    SELECT * FROM run_notes WHERE run = $run AND ($kind IS NULL OR kind = $kind) ORDER BY seq
"""


METHODS = {
    "ppo": "PPO", "grpo": "GRPO", "reinforce++": "REINFORCE++", "dpo": "DPO", "rloo": "RLOO",
    "best-of-n": "best-of-N", "openrlhf": "OpenRLHF PPO",
}  # fmt: skip
"""The names of the methods by ``optimize.method``."""


def kind(run: Run) -> str:
    """The method of a policy run; the stage of any other run."""
    return method_of(run.config) if run.stage == "policy" else run.stage


def name(run: Run) -> str:
    """The name of a run's stage in sentences."""
    return METHODS.get(kind(run), kind(run))


def method_of(config: Mapping[str, Any]) -> str:
    """``optimize.method`` of a stored configuration; early versions had only PPO."""
    return config.get("optimize", {}).get("method", "ppo")


def method(db: Database, iteration: Iteration) -> str:
    """The method that trained the policy of an iteration, or the one that is expected to."""
    listed = listing(db, iteration=iteration.number)
    trained = [run for run in listed if run.stage == "policy"]
    if not trained and "optimize.method" in iteration.settings:
        return str(iteration.settings["optimize.method"])
    newest = (trained or listed or listing(db))[-1:]
    return method_of(newest[0].config) if newest else "ppo"


def methods_used(listed: Iterable[Run]) -> dict[int, str]:
    """The name of the method that trained the policy, by number of the iteration; `listed` has the
    runs, oldest first.  Iterations without a policy run are left out."""
    return {run.iteration: name(run) for run in listed if run.stage == "policy"}


def method_made(model: ModelVersion) -> str | None:
    """The name of the method that made a policy; None for other models."""
    if model.role != "policy":
        return None
    method = model.summary.get("method", "ppo")
    return METHODS.get(method, method)


def save(db: Database, run: Run) -> Run:
    """Store a run; it replaces the one with the same id.  A failed run is an event."""

    def operation(tx: Transaction) -> None:
        tx.store(run)
        if run.status == "failed":
            events.record(tx, events.stage_failed(run, name=name(run)))

    db.write(operation)
    return run


def set_message(db: Database, run: Run, message: str) -> None:
    """Set the message of a run.  Not journaled; `save` ignores a run that differs only in this."""
    db.write(lambda tx: tx.execute(_SAY, run=run.id, message=message))


def newest(db: Database, iteration: int, stage: Stage) -> Run | None:
    """The newest run of a stage in an iteration."""
    found = [run for run in listing(db, iteration=iteration) if run.stage == stage]
    return found[-1] if found else None


def attempts(listed: Iterable[Run], run: Run) -> list[Run]:
    """The run and the runs that it retries, oldest first; `listed` has all runs, oldest first."""
    chain: list[Run] = []
    for each in listed:
        if (each.iteration, each.stage) != (run.iteration, run.stage):
            continue
        if not chain or each.attempt <= chain[-1].attempt:  # on a new snapshot of judgments
            chain = []
        chain.append(each)
        if each.id == run.id:
            break
    return chain


def count_attempts(listed: Iterable[Run]) -> int:
    """How often workers started in these runs, which are oldest first: retries and resumes count."""
    count, known = 0, dict[tuple[int, str], int]()
    for run in listed:
        before = known.get(stage := (run.iteration, run.stage), 0)
        count += run.attempt - before if run.attempt > before else run.attempt
        known[stage] = run.attempt
    return count


def get(db: Database, run: str) -> Run:
    """The run with this id, or NotFound."""
    return lookup.by_key(db, Run, run)


def listing(db: Database, iteration: int | None = None) -> list[Run]:
    """All runs, or those of one iteration, oldest first."""
    return lookup.select(db, Run, _LISTING, iteration=iteration)


def by_stage(listed: Sequence[Run], iteration: int) -> list[Run]:
    """The newest run of each stage of an iteration, the policy's first, then in their order."""
    newest = {run.stage: run for run in listed if run.iteration == iteration}
    return sorted(newest.values(), key=lambda run: run.stage != "policy")


def has_checkpoint(db: Database, run: Run) -> bool:
    """Whether a stopped run has a checkpoint to resume from."""
    folder = db.workspace / run.directory / "checkpoint"
    return folder.is_dir() and any(folder.iterdir())


def working_seconds(db: Database, run: Run) -> float | None:
    """Seconds that the workers of an ended run took, over all of its attempts.

    None for adopted outputs.  Of a run that an earlier version recorded: the seconds of a successful
    worker since its last start; None for other runs, and if the run's directory is missing.
    """
    if run.seconds is not None:
        return None if run.status == "running" else run.seconds
    result = db.workspace / run.directory / "result.json"
    if run.status != "succeeded" or not result.exists():
        return None
    return json.loads(result.read_text()).get("seconds")


def cancelling(db: Database, run: Run) -> bool:
    """Whether a running run was asked to stop, by a file in its directory."""
    return run.status == "running" and (db.workspace / run.directory / "cancel").exists()


def ingest(
    db: Database,
    run: Run,
    metrics: Sequence[Metric],
    notes: Sequence[RunNote],
    *,
    replace_from: int | None = None,
) -> None:
    """Store the events of a run up to `run.ingested_seq`, with its progress; not journaled.

    Repeated events replace the stored ones.  `replace_from` first deletes that event and all later
    ones, for a worker that resumed from an earlier checkpoint (0 deletes all).
    """

    def operation(tx: Transaction) -> None:
        replace_events(tx, run.id, metrics, notes, replace_from=replace_from)
        events.record(tx, *events.red_flags(run, notes, name=name(run)))
        tx.execute(
            _PROGRESS,
            run=run.id,
            progress=run.progress,
            message=run.message,
            seq=run.ingested_seq,
        )

    db.write(operation)


def replace_events(
    tx: Transaction,
    run: str,
    metrics: Sequence[Metric],
    notes: Sequence[RunNote],
    *,
    replace_from: int | None,
) -> None:
    """Store events as `ingest` describes; `run` is also the id of a study's run."""
    seqs = [reported.seq for reported in (*metrics, *notes)]
    for first, last in (
        (replace_from, None),
        (min(seqs, default=None), max(seqs, default=None)),
    ):
        if first is not None:
            tx.execute(_DROP_METRICS, run=run, first=first, last=last)
            tx.execute(_DROP_NOTES, run=run, first=first, last=last)
    tx.insert("metrics", [to_entry(metric) for metric in metrics])
    tx.insert("run_notes", [to_entry(note) for note in notes])
    _renew_last(tx, run, metrics, reread=replace_from is not None)


def _renew_last(tx: Transaction, run: str, new: Sequence[Metric], *, reread: bool) -> None:
    """Store the last values of the run's metrics: the newest of those stored and `new`.

    `reread` finds them among all metrics of the run, for stored ones that no longer exist.
    """
    known = tx.rows(_LAST_OF if reread else _LAST_STORED, run=run)
    entries = [each | {"run": run} for each in known] + [to_entry(each) for each in new]
    last = {each["name"]: each for each in sorted(entries, key=itemgetter("step", "seq"))}
    tx.execute(_DROP_LAST, run=run)
    tx.insert("last_metrics", [*last.values()])


def last_values(db: Database, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """The last values of these metrics by run and name; runs that report none are left out."""
    found: dict[str, dict[str, float]] = {}
    for row in db.read(_LAST_VALUES, names=list(names)):
        found.setdefault(row["run"], {})[row["name"]] = row["value"]
    return found


def metric_names(db: Database, ids: Sequence[str]) -> list[str]:
    """All metrics that any of these runs reports."""
    return [row["name"] for row in db.read(_METRIC_NAMES, runs=list(ids))]


def metrics(db: Database, run: str, points: int = 400) -> pandas.DataFrame:
    """Metrics as columns step, name, value; more than `points` rows per name are thinned evenly."""
    return db.cursor().execute(_METRICS, {"run": run, "points": points}).df()


def notes(db: Database, run: str, kind: str | None = None) -> list[RunNote]:
    """Red flags, warnings and samples in the order in which they were reported."""
    return lookup.select(db, RunNote, _NOTES, run=run, kind=kind)
