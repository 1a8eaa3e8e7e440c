"""Runs whole iterations over HTTP with simulated annotators, and measures them by the gold preference.

The annotators judge by a hidden gold preference, which the pipeline does not read.  They use the same
interfaces as people: accounts and "Train" through the admin interface, pairs and judgments through
``/label/api``, several clients at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pipeline.simulation import preference as builtin
from pipeline.simulation.annotators import SimulatedAnnotator, population
from pipeline.simulation.clients import LabelClient, Tally
from pipeline.simulation.preference import GoldReward
from pipeline.simulation.report import IterationReport, PairJudge
from pipeline.simulation.report import report as gold_report
from storage.records import EvaluatedCompletion
from storage.reports import LoopState, from_json

Admin = Callable[[str, dict[str, Any]], Any]
"""(command, arguments) → result; ``ValueError`` with a sentence if it is refused."""

_PAIRS_IN_HAND = 4  # as many as the page keeps
_PAUSE_WHEN_EMPTY = 0.05  # seconds


class SimulationFailed(RuntimeError):
    """The loop stopped before the end of the simulation; the message says where and why."""


@dataclass(frozen=True, kw_only=True)
class SimulationReport:
    """The report of a simulation."""

    seed: int
    iterations: tuple[IterationReport, ...]


def simulate(
    base_url: str,
    admin: Admin,
    *,
    iterations: int = 1,
    labels: int = 400,
    annotators: int = 8,
    bad: float = 0.25,
    seed: int = 0,
    gold: GoldReward = builtin.score,
    shuffle_labels: bool = False,
    progress: Callable[[str], None] | None = None,
    timeout: float = 3600.0,
    poll: float = 1.0,
) -> SimulationReport:
    """Label and train `iterations` times.

    Every iteration gets exactly `labels` judgments by `annotators`, of whom the share `bad` is bad.
    With `shuffle_labels` every judgment is that of another pair: a control without information.
    A phase fails after `timeout` seconds without progress; `poll` is the pause in seconds between
    two requests for its state.

    Raises ``ValueError`` in a workspace with judgments by people, `SimulationFailed` if a stage
    fails or the pairs run out.
    """
    if iterations < 1 or labels < 1:
        raise ValueError(f"iterations={iterations} and labels={labels} must be at least 1")
    refuse_people(admin("status", {})["judgments_by_kind"])
    driver = _Driver(
        base_url=base_url,
        admin=admin,
        annotators=population(annotators, bad=bad, seed=seed),
        labels=labels,
        seed=seed,
        gold=gold,
        shuffle_labels=shuffle_labels,
        progress=progress or (lambda _: None),
        timeout=timeout,
        poll=poll,
    )
    tokens = driver.sign_up()
    reports = tuple(driver.iterate(tokens) for _ in range(iterations))
    return SimulationReport(seed=seed, iterations=reports)


def refuse_people(judgments_by_kind: Mapping[str, int]) -> None:
    """``ValueError`` if the workspace holds judgments that are not simulated."""
    others = {k: n for k, n in judgments_by_kind.items() if n and k != "simulated"}
    if others:
        counts = ", ".join(f"{kind}: {n}" for kind, n in sorted(others.items()))
        raise ValueError(
            f"this workspace holds judgments that are not simulated ({counts}); "
            "simulate in a fresh one with --workspace DIR"
        )


@dataclass(frozen=True, kw_only=True)
class _Driver:
    """One simulation; the fields are `simulate`'s arguments."""

    base_url: str
    admin: Admin
    annotators: Sequence[SimulatedAnnotator]
    labels: int
    seed: int
    gold: GoldReward
    shuffle_labels: bool
    progress: Callable[[str], None]
    timeout: float
    poll: float

    def sign_up(self) -> list[str]:
        """An API token for each annotator; `users.add` issues another one for a known name."""
        account = {"role": "annotator", "kind": "simulated", "token": True}
        return [
            self.admin("users.add", account | {"name": annotator.name})["token"]
            for annotator in self.annotators
        ]

    def iterate(self, tokens: Sequence[str]) -> IterationReport:
        """Run one iteration: label, train, wait, measure."""
        number = self._wait_for("labeling")
        started = time.monotonic()
        self._label(tokens)
        seconds = round(time.monotonic() - started, 1)
        self.progress(f"iteration {number}: {self.labels} judgments in {seconds} s; training")
        # With labeling.auto_train, this or an earlier call has started training.
        state = self._advance()
        if (state.iteration, state.phase) == (number, "labeling"):
            self.admin("train", {"overrides": {}})
        self._wait_for("done", number)
        record = self.admin("iteration", {"number": number})
        rows = self.admin("evaluation.completions", {"iteration": number})
        judges = [self._judge(annotator) for annotator in self.annotators]
        completions = [from_json(EvaluatedCompletion, row) for row in rows]
        report = gold_report(
            record, completions, self.gold, judges, seed=self.seed, labeling_seconds=seconds
        )
        gold = report.gold
        self.progress(
            f"iteration {number}: gold win rate against SFT {gold.win_rate:.3f} "
            f"[{gold.low:.3f}, {gold.high:.3f}]"
        )
        return report

    def _advance(self) -> LoopState:
        return from_json(LoopState, self.admin("advance", {}))

    def _label(self, tokens: Sequence[str]) -> None:
        """Judge until the iteration has its labels.  Gold pairs and re-asks are no labels, and an
        annotator cannot recognize them, so the server counts."""
        wanted = self._judgments() + self.labels
        while (missing := wanted - self._judgments()) > 0:
            self._judge_pairs(tokens, missing)

    def _judgments(self) -> int:
        return int(self.admin("status", {})["judgments"])

    def _judge_pairs(self, tokens: Sequence[str], count: int) -> None:
        """Judge `count` pairs, gold pairs and re-asks included."""
        tally = Tally(count, [annotator.name for annotator in self.annotators])
        with ThreadPoolExecutor(len(self.annotators)) as pool:
            sessions = [
                pool.submit(self._label_as, annotator, token, tally)
                for annotator, token in zip(self.annotators, tokens, strict=True)
            ]
        for session in sessions:
            session.result()
        if tally.saved < count:
            raise SimulationFailed(
                f"the pairs ran out after {self.labels - count + tally.saved} of {self.labels} judgments; ask for fewer "
                "with --labels, or start in a fresh workspace with more pairs per judgment: a larger "
                "--set sampling.surplus (default 1.3)"
            )

    def _label_as(self, annotator: SimulatedAnnotator, token: str, tally: Tally) -> None:
        """One annotator's session: judge pair after pair until the tally is full."""
        judge = self._judge(annotator)
        try:
            with LabelClient(self.base_url, token) as client:
                while not tally.all_claimed():
                    pairs = client.next(_PAIRS_IN_HAND)
                    for pair in pairs:
                        if not tally.claim():
                            return
                        client.judge(pair.id, judge(pair))
                        tally.count()
                    if not pairs:
                        if tally.empty_handed(annotator.name):
                            return
                        time.sleep(_PAUSE_WHEN_EMPTY)
        except BaseException:
            tally.close()  # the others would wait for the judgment that this client claimed
            raise

    def _judge(self, annotator: SimulatedAnnotator) -> PairJudge:
        return PairJudge(annotator, self.gold, seed=self.seed, shuffle=self.shuffle_labels)

    def _wait_for(self, phase: str, number: int | None = None) -> int:
        """Wait until the current iteration is in `phase`; return its number.

        With a `number`, a later iteration also ends the wait, because the loop continues on its own.
        """
        deadline, seen = time.monotonic() + self.timeout, None
        while time.monotonic() < deadline:
            state = self._advance()
            here = (state.iteration or 0, state.phase or "not started")
            if here != seen:
                deadline, seen = time.monotonic() + self.timeout, here
                self.progress(f"iteration {here[0]}: {state.phase_name or here[1]}")
            if number is not None and here[0] > number:
                return number
            if here[1] == phase:
                return here[0]
            if state.trouble:
                raise SimulationFailed(f"the loop cannot continue: {state.trouble}")
            if stopped := state.blocked:
                raise SimulationFailed(
                    f"the {stopped.stage} stage of iteration {here[0]} stopped: {stopped.reason}"
                )
            time.sleep(self.poll)
        raise SimulationFailed(
            f"the loop made no progress for {self.timeout:.0f} s before it reached {phase}: {seen}"
        )
