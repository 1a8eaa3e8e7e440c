"""`Studio`: what a researcher does with a studio from Python.

Methods are named as the pages and commands are.  All of them raise `StudioError`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self, get_args

from kitestring.client.connection import Connection, StudioError, part, route
from kitestring.client.data import Adjudications, GoldPairs, Prompts
from kitestring.client.imports import Imports
from kitestring.client.playground import Playground
from kitestring.client.pushes import Pushes
from kitestring.client.records import (
    ConfigFile,
    Curves,
    EvaluationResponse,
    Exclusion,
    Flag,
    Gate,
    Imported,
    Judgment,
    Leaderboard,
    Outcome,
    Pair,
    Phase,
    RewardReport,
    Ruling,
    Run,
    RunDetails,
    Setting,
    Standing,
    Status,
)
from kitestring.client.rows import Pages, Rows, parsed
from kitestring.client.studies import Studies
from kitestring.client.team import Audit, People, Project, Webhooks

API = "/research/api"
PHASES: tuple[Phase, ...] = get_args(Phase)
Settings = Mapping[str, int | float | str | bool]
"""Settings by name, such as ``{"ppo.kl_weight": 0.1}``."""


class Studio:
    """A studio, as the person whose API token is given; a context manager.

    `url` is the address that `serve` prints.  `token` comes from ``python launch.py users add NAME
    --role researcher --token``, by default from the environment variable KITESTRING_TOKEN; a viewer's
    token can read.  `timeout` is the longest wait for an answer, and `patience` how long a request is
    repeated while the studio is busy or restarts, both in seconds.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:7860",
        *,
        token: str | None = None,
        timeout: float = 60.0,
        patience: float = 10.0,
    ) -> None:
        self._at = Connection(url, token, timeout=timeout, patience=patience)
        self.prompts = Prompts(self._at)
        self.adjudication = Adjudications(self._at)
        self.gold = GoldPairs(self._at)
        self.imports = Imports(self._at)
        self.pushes = Pushes(self._at)
        self.people = People(self._at)
        self.project = Project(self._at)
        self.webhooks = Webhooks(self._at)
        self.audit = Audit(self._at)
        self.playground = Playground(self._at)
        self.studies = Studies(self._at)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._at.close()

    def __repr__(self) -> str:
        return f"Studio({self._at.url!r})"

    @route("GET", f"{API}/status")
    def status(self) -> Status:
        """Counts, the newest iteration with its runs, and what the loop waits for."""
        return parsed(Status, self._at.get(f"{API}/status"))

    @route("GET", f"{API}/settings")
    def settings(self) -> Rows[Setting]:
        """Every setting with its value, default and meaning."""
        return Rows.of(Setting, self._at.get(f"{API}/settings"))

    @route("GET", f"{API}/config")
    def config(self) -> ConfigFile:
        """The settings in config.toml, which apply to all iterations, and when a change applies."""
        return parsed(ConfigFile, self._at.get(f"{API}/config"))

    @route("POST", f"{API}/config")
    def configure(self, changes: Settings, *, version: str | None = None) -> ConfigFile:
        """Save settings in config.toml; with a `version` of `config`, only if it is still that one."""
        seen = version if version is not None else self.config().version
        body = {"changes": _texts(changes), "version": seen}
        return parsed(ConfigFile, self._at.post(f"{API}/config", body))

    @route("POST", f"{API}/loop/train")
    def start(self, settings: Settings | None = None) -> None:
        """Start training on the current labels, with these settings in place of the current ones."""
        self._at.post(f"{API}/loop/train", {"overrides": _texts(settings)})

    @route("POST", f"{API}/loop/cancel")
    def cancel(self) -> str:
        """Stop the running stage after its current step; returns the run's id."""
        return self._at.post(f"{API}/loop/cancel")["run"]

    @route("POST", f"{API}/loop/resume")
    def resume(self) -> str:
        """Continue the stopped stage from its last checkpoint; returns the run's id."""
        return self._at.post(f"{API}/loop/resume")["run"]

    @route("POST", f"{API}/loop/retry")
    def retry(
        self,
        settings: Settings | None = None,
        *,
        run: str | None = None,
        attempt: int | None = None,
    ) -> str:
        """Run the stopped stage again from scratch with these settings; returns the new run's id.

        With `run` and `attempt`, it is refused if another run or attempt is stopped now.
        """
        body = {"overrides": _texts(settings), "run": run, "attempt": attempt}
        return self._at.post(f"{API}/loop/retry", body)["run"]

    @route("POST", f"{API}/loop/label-more")
    def label_more(self) -> str:
        """Leave a stopped reward stage and continue labeling; returns the run's id."""
        return self._at.post(f"{API}/loop/label-more")["run"]

    def wait(
        self,
        phase: Phase = "labeling",
        *,
        timeout: float | None = None,
        every: float = 2.0,
        progress: Callable[[str], None] | None = None,
    ) -> Status:
        """Wait until the loop next reaches a phase; after `start`, until pairs can be labeled again.

        Asks every `every` seconds.  `progress` gets a line when the state changes; `print` will do.
        Raises StudioError if a stage stops, and if `timeout` seconds pass.
        """
        if phase not in PHASES:
            raise StudioError(f"{phase!r} is not a phase; choose one of {', '.join(PHASES)}.")
        give_up = None if timeout is None else time.monotonic() + timeout
        target, said = None, ""
        while True:
            now = self.status()
            if now.trouble:
                raise StudioError(now.trouble)
            if now.stopped:
                raise StudioError(_stopped(now))
            if place := _place(now):
                late = place[1] > PHASES.index(phase)
                target = target or (place[0] + late, PHASES.index(phase))
                if place >= target:
                    return now
            line = _line(now)
            if progress and line != said:
                progress(line)
            said = line
            if give_up is not None and time.monotonic() + every > give_up:
                raise StudioError(
                    f"After {timeout:g} s the studio has not reached the phase {phase!r}: {line}."
                )
            time.sleep(every)

    @route("GET", f"{API}/runs")
    def runs(self) -> Rows[Run]:
        """All runs, the newest first."""
        return Rows.of(Run, self._at.get(f"{API}/runs")["runs"])

    @route("GET", f"{API}/runs/{{id}}")
    def run(self, id: str) -> RunDetails:
        """One run with its settings, and what changed in them."""
        return parsed(RunDetails, self._at.get(f"{API}/runs/{part(id)}"))

    @route("POST", f"{API}/runs/{{id}}")
    def describe_run(self, id: str, *, name: str | None = None, note: str | None = None) -> None:
        """Give a run a name and a note; None changes nothing, "" removes it."""
        self._at.post(f"{API}/runs/{part(id)}", {"name": name, "note": note}, again=True)

    @route("GET", f"{API}/runs/{{id}}/log")
    def log(self, id: str, tail: int = 200) -> str:
        """The last `tail` lines of a run's log."""
        return self._at.get(f"{API}/runs/{part(id)}/log", tail=tail)["log"]

    @route("GET", f"{API}/runs/curves")
    def curves(self, run: str | Iterable[str], metric: str | Iterable[str] = ()) -> Curves:
        """Curves of one to ten runs, by default of reward and KL; at most 2,000 points each.

        ``studio.curves(run).metrics`` lists the metrics that there are.
        """
        names = _names(metric)
        asked = {"run": _names(run), "metric": names or None}
        found = parsed(Curves, self._at.get(f"{API}/runs/curves", **asked))
        # Without this, curves("run-1", "run-2") is an empty frame: the second run is taken for a metric.
        if names and found.metrics and not set(names) & set(found.metrics):
            raise StudioError(
                f"no metric is called {' or '.join(map(repr, names))}; curves(run).metrics lists those "
                "there are, and several runs are a list: curves([run, other])"
            )
        return found

    @route("GET", f"{API}/iterations/{{number}}")
    def iteration(self, number: int) -> Mapping[str, Any]:
        """A stored iteration, with its evaluation and the figures of its reward model."""
        return self._at.get(f"{API}/iterations/{number}")

    @route("GET", f"{API}/iterations/{{number}}/evaluation")
    def evaluation(self, number: int) -> Rows[EvaluationResponse]:
        """The responses that the evaluation of an iteration sampled, with their rewards."""
        return Rows.of(EvaluationResponse, self._at.get(f"{API}/iterations/{number}/evaluation"))

    @route("GET", f"{API}/gate")
    def gate(self) -> Gate:
        """The verdict on each policy with its evidence."""
        return parsed(Gate, self._at.get(f"{API}/gate"))

    @route("POST", f"{API}/gate/override")
    def override_gate(self, ruling: Ruling, reason: str, *, policy: str | None = None) -> Standing:
        """Override the verdict on a policy, by default the candidate."""
        body = {"ruling": ruling, "reason": reason, "policy": policy}
        return parsed(Standing, self._at.post(f"{API}/gate/override", body))

    @route("GET", f"{API}/leaderboard")
    def leaderboard(self, *, anchor: str | None = None, category: str | None = None) -> Leaderboard:
        """All models in the judgments, best first, by their win rate against `anchor`."""
        found = self._at.get(f"{API}/leaderboard", anchor=anchor, category=category)
        return parsed(Leaderboard, found)

    @route("GET", f"{API}/reward")
    def reward(self, model: str | None = None) -> RewardReport:
        """Whether a reward model is good enough for PPO, by default the newest."""
        return parsed(RewardReport, self._at.get(f"{API}/reward", model=model))

    @route("POST", f"{API}/reward/{{model}}/curve/start")
    def start_curve(self, model: str) -> None:
        """Compute the learning curve of a reward model, or continue it; `reward` then has it."""
        self._at.post(f"{API}/reward/{part(model)}/curve/start")

    @route("POST", f"{API}/reward/{{model}}/curve/stop")
    def stop_curve(self, model: str) -> None:
        """Stop computing the learning curve; finished models are kept."""
        self._at.post(f"{API}/reward/{part(model)}/curve/stop")

    @route("GET", f"{API}/lineage")
    def lineage_graph(self) -> Mapping[str, Any]:
        """Pairs, snapshots, reward models and policies as `nodes` and `edges`."""
        return self._at.get(f"{API}/lineage")

    @route("GET", f"{API}/lineage/{{policy}}")
    def lineage(self, policy: str) -> Mapping[str, Any]:
        """Which judgments and models a policy comes from: `lineage`, and the same as `text`."""
        return self._at.get(f"{API}/lineage/{part(policy)}")

    @route("GET", f"{API}/judgments")
    def judgments(
        self,
        *,
        annotator: str | None = None,
        arm: str | None = None,
        outcome: Outcome | None = None,
        category: str | None = None,
        iteration: int | None = None,
        text: str | None = None,
        disagreement: bool | None = None,
        surprise: bool | None = None,
        flagged: bool | None = None,
        commented: bool | None = None,
        excluded: bool | None = None,
        limit: int = 200,
    ) -> Pages[Judgment]:
        """Current judgments, the newest first, read `limit` at a time (up to 500).

        `annotator` is a name, and `text` a part of the prompt, a response or the comment.
        `disagreement` and the marks after it are True or False; None does not filter.
        """
        wanted = {
            "annotator": annotator, "arm": arm, "outcome": outcome, "category": category,
            "iteration": iteration, "text": text, "disagreement": disagreement,
            "surprise": surprise, "flagged": flagged, "commented": commented, "excluded": excluded,
        }  # fmt: skip
        return Pages(
            Judgment,
            lambda before, n: self._at.get(f"{API}/judgments", **wanted, before=before, limit=n),
            limit,
        )

    @route("GET", f"{API}/judgments/{{id}}")
    def pair(self, id: str) -> Pair:
        """A pair by the id of a judgment or of the pair: texts, judgments, flags and rulings."""
        return parsed(Pair, self._at.get(f"{API}/judgments/{part(id)}"))

    @route("POST", f"{API}/judgments/{{id}}/exclude")
    def exclude(self, id: str, reason: str) -> Exclusion:
        """Exclude a judgment from training and figures."""
        return parsed(
            Exclusion, self._at.post(f"{API}/judgments/{part(id)}/exclude", {"reason": reason})
        )

    @route("POST", f"{API}/judgments/{{id}}/restore")
    def restore(self, id: str, reason: str = "") -> Exclusion:
        """Use an excluded judgment again."""
        return parsed(
            Exclusion, self._at.post(f"{API}/judgments/{part(id)}/restore", {"reason": reason})
        )

    @route("POST", f"{API}/judgments/exclude")
    def exclude_all(
        self,
        reason: str,
        *,
        annotator: str | None = None,
        arm: str | None = None,
        outcome: str | None = None,
        category: str | None = None,
        iteration: int | None = None,
        text: str = "",
        disagreement: bool | None = None,
        surprise: bool | None = None,
        flagged: bool | None = None,
        commented: bool | None = None,
    ) -> int:
        """Exclude all judgments that match, such as those of an annotator; return their number.

        The filters are those of `judgments`, and at least one is required.
        """
        body = {
            "reason": reason, "annotator": annotator, "arm": arm, "outcome": outcome,
            "category": category, "iteration": iteration, "text": text,
            "disagreement": disagreement, "surprise": surprise, "flagged": flagged,
            "commented": commented,
        }  # fmt: skip
        return self._at.post(f"{API}/judgments/exclude", body)["judgments"]

    @route("POST", f"{API}/judgments/restore")
    def restore_all(
        self,
        reason: str = "",
        *,
        annotator: str | None = None,
        arm: str | None = None,
        outcome: str | None = None,
        category: str | None = None,
        iteration: int | None = None,
        text: str = "",
        disagreement: bool | None = None,
        surprise: bool | None = None,
        flagged: bool | None = None,
        commented: bool | None = None,
    ) -> int:
        """Use all excluded judgments that match again; return their number."""
        body = {
            "reason": reason, "annotator": annotator, "arm": arm, "outcome": outcome,
            "category": category, "iteration": iteration, "text": text,
            "disagreement": disagreement, "surprise": surprise, "flagged": flagged,
            "commented": commented,
        }  # fmt: skip
        return self._at.post(f"{API}/judgments/restore", body)["judgments"]

    @route("GET", f"{API}/flags")
    def flags(self, *, all: bool = False) -> Rows[Flag]:
        """The open flags, or all of them, with their answers."""
        return Rows.of(Flag, self._at.get(f"{API}/flags", all=all))

    @route("POST", f"{API}/flags/{{id}}/answer")
    def answer_flag(self, id: str, text: str, *, clear: bool = False) -> None:
        """Answer a flag and, with `clear`, return its pair to the queue."""
        self._at.post(f"{API}/flags/{part(id)}/answer", {"text": text, "clear": clear})

    @route("POST", f"{API}/flags/{{id}}/clear")
    def clear_flag(self, id: str) -> None:
        """Return a flagged pair to the queue."""
        self._at.post(f"{API}/flags/{part(id)}/clear", again=True)

    @route("GET", "/research/download/export")
    def export(
        self,
        format: str = "trl",
        out: str | Path | None = None,
        *,
        ties: Literal["drop", "split", "keep"] = "drop",
        file: Literal["jsonl", "parquet", "csv"] | None = None,
        names: bool = False,
        csv_safe: bool = False,
        history: bool = False,
    ) -> Path:
        """Write the judgments as a dataset to the file `out`, by default in the current directory.

        `format` is trl, trl-conversational, trl-unpaired, trl-edits, sft or raw.  The type of the file
        follows from its name.
        """
        target = Path(out or f"kitestring-{format}.{file or 'jsonl'}")
        kind = file or target.suffix.removeprefix(".")
        return self._at.download(
            "/research/download/export", target, format=format, ties=ties, file=kind, names=names,
            csv_safe=csv_safe, history=history,
        )  # fmt: skip

    @route("GET", "/research/download/evidence")
    def evidence(self, out: str | Path = "kitestring-evidence.zip") -> Path:
        """Write an evidence package, with which a reviewer recomputes every figure."""
        return self._at.download("/research/download/evidence", Path(out))

    @route("POST", "/research/upload/pairs")
    def upload_pairs(
        self, file: str | Path, *, skip_bad: bool = False, skip_long: bool = False
    ) -> Imported:
        """Queue pairs that were written elsewhere; if a row is bad, nothing is stored."""
        path = Path(file)
        query = {"name": path.name, "skip_bad": skip_bad, "skip_long": skip_long}
        return parsed(Imported, self._at.upload("/research/upload/pairs", path, **query))


def _texts(settings: Settings | None) -> dict[str, str]:
    """Settings as the studio reads them: true, not True."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in (settings or {}).items()
    }


def _names(given: str | Iterable[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _place(now: Status) -> tuple[int, int] | None:
    """The iteration and the index of its phase, to be compared; None before the first iteration."""
    current = now.iteration
    return (current.number, PHASES.index(current.phase)) if current else None


def _line(now: Status) -> str:
    if now.iteration is None:
        return "no iteration has started"
    line = f"iteration {now.iteration.number}: {now.iteration.phase}"
    running = [run for run in now.runs if run.status == "running"]
    return f"{line}, {running[-1].name} {running[-1].progress:.0%}" if running else line


def _stopped(now: Status) -> str:
    found = now.stopped
    assert found
    ways = ["retry()"] + ["resume()"] * found.resumable + ["label_more()"] * found.may_label
    first, *rest = ways
    return (
        f"The {found.stage} stage stopped: {found.reason.rstrip('.')}. Call {first}"
        f"{''.join(f' or {way}' for way in rest)}."
    )
