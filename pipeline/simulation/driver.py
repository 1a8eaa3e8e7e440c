"""Runs whole iterations over HTTP with simulated annotators, and measures them by the gold preference.

The annotators judge by a hidden gold preference, which the pipeline does not read.  They use the same
interfaces as people: accounts and "Train" through the admin interface, pairs, judgments and live
conversations through ``/label/api``, several clients at once.  Practice comes first, if the
workspace asks for it; then live conversations; then the queue with its gold pairs and re-asks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from pipeline.simulation.annotators import SimulatedAnnotator, population
from pipeline.simulation.checks import ChecksReport, checks_report
from pipeline.simulation.clients import LabelClient, Tally
from pipeline.simulation.preference import GoldReward
from pipeline.simulation.report import IterationReport, Labeled, PairJudge
from pipeline.simulation.report import report as gold_report
from pipeline.simulation.worlds import WORLDS, World
from storage.records import EvaluatedCompletion
from storage.reports import LoopState, from_json

S = TypeVar("S")
Admin = Callable[[str, dict[str, Any]], Any]
"""(command, arguments) → result; ``ValueError`` with a sentence if it is refused."""

_PAIRS_IN_HAND = 4  # as many as the page keeps
_PAUSE_WHEN_EMPTY = 0.05  # seconds
_TALKING = 8
"""Annotators who hold live conversations at once: two replies each, half of serving.queue."""


class SimulationFailed(RuntimeError):
    """The loop stopped before the end of the simulation; the message says where and why."""


@dataclass(frozen=True, kw_only=True)
class SimulationReport:
    """The report of a simulation."""

    seed: int
    iterations: tuple[IterationReport, ...]
    checks: ChecksReport | None
    """None if nobody got a gold pair, a re-ask or a practice pair."""


def simulate(
    base_url: str,
    admin: Admin,
    *,
    iterations: int = 1,
    labels: int = 400,
    annotators: int = 8,
    bad: float | None = None,
    seed: int = 0,
    world: World = WORLDS["plain"],
    gold: GoldReward | None = None,
    shuffle_labels: bool = False,
    live: float = 0.0,
    edits: float = 0.0,
    progress: Callable[[str], None] | None = None,
    timeout: float = 3600.0,
    poll: float = 1.0,
) -> SimulationReport:
    """Label and train `iterations` times.

    Every iteration gets exactly `labels` judgments by `annotators`, of whom the share `bad` is bad
    (by default the world's).  The `world` says what annotators are like, and their gold preference
    unless `gold` is another one; the workspace already has its prompts.
    With `shuffle_labels` every judgment is that of another pair: a control without information.
    The share `live` of the judgments is given in live conversations, and the share `edits` of the
    preferences comes with an edit (see `PairJudge`).
    A phase fails after `timeout` seconds without progress; `poll` is the pause in seconds between
    two requests for its state.

    Raises ``ValueError`` in a workspace with judgments by people or without prompts, and if `live` needs live
    conversations that are off; `SimulationFailed` if a stage fails or the pairs run out.
    """
    if iterations < 1 or labels < 1:
        raise ValueError(f"iterations={iterations} and labels={labels} must be at least 1")
    if not (0 <= live <= 1 and 0 <= edits <= 1):
        raise ValueError(f"live={live} and edits={edits} must be shares between 0 and 1")
    if shuffle_labels and edits:
        raise ValueError(
            "shuffled labels carry no information, but edits do; leave out one of them"
        )
    status = admin("status", {})
    refuse_people(status["judgments_by_kind"])
    if not status["iteration"] and not status["prompts"].get("train"):
        # The loop would wait for them.
        raise ValueError(
            "this workspace has no prompts with the role train; "
            "import some with `python launch.py import --prompts FILE`"
        )
    driver = _Driver(
        base_url=base_url,
        admin=admin,
        annotators=population(
            annotators,
            bad=world.population.bad if bad is None else bad,
            seed=seed,
            like=world.population,
        ),
        labels=labels,
        seed=seed,
        world=world,
        gold=gold or world.gold,
        shuffle_labels=shuffle_labels,
        live=live,
        edits=edits,
        progress=progress or (lambda _: None),
        timeout=timeout,
        poll=poll,
    )
    tokens = driver.sign_up()
    if live:
        driver.require_live(tokens[0])
    reports = tuple(driver.iterate(tokens) for _ in range(iterations))
    return SimulationReport(seed=seed, iterations=reports, checks=driver.checks())


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
    world: World
    gold: GoldReward
    shuffle_labels: bool
    live: float
    edits: float
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
        labeled = self._label(tokens)
        self.progress(
            f"iteration {number}: {self.labels} judgments in {labeled.seconds} s; training"
        )
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
            record, completions, self.gold, judges, seed=self.seed, labeled=labeled
        )
        gold = report.gold
        self.progress(
            f"iteration {number}: gold win rate against SFT {gold.win_rate:.3f} "
            f"[{gold.low:.3f}, {gold.high:.3f}]"
        )
        return report

    def _advance(self) -> LoopState:
        return from_json(LoopState, self.admin("advance", {}))

    def _label(self, tokens: Sequence[str]) -> Labeled:
        """Judge until the iteration has its labels.  Gold pairs and re-asks are no labels, and an
        annotator cannot recognize them, so the server counts."""
        started, before = time.monotonic(), self._status()
        self._practice(tokens, before["checks"])
        if turns := round(self.live * self.labels):
            self._talk(tokens, turns)
        wanted = before["judgments"] + self.labels
        while (missing := wanted - self._status()["judgments"]) > 0:
            self._judge_pairs(tokens, missing)
        after = self._status()
        return Labeled(
            by_arm=after["iteration"]["labels_by_arm"],
            edits=after["edits"] - before["edits"],
            seconds=round(time.monotonic() - started, 1),
        )

    def _status(self) -> Mapping[str, Any]:
        return self.admin("status", {})

    def checks(self) -> ChecksReport | None:
        """What the checks say about the annotators so far."""
        found = checks_report(self._status()["checks"], self.annotators)
        if found:
            groups = [f"{g.found} of {g.annotators} {g.group}" for g in found.groups]
            self.progress(f"annotators found by checks: {', '.join(groups)}")
        return found

    def _practice(self, tokens: Sequence[str], checks: Mapping[str, Any]) -> None:
        """Let every annotator finish the practice pairs, as the queue asks before any other pair."""
        pairs = checks["practice_pairs"] if checks["practice_asked"] else 0
        had = {row["name"]: row["practice"]["answered"] for row in checks["annotators"]}
        left = [pairs - had.get(annotator.name, 0) for annotator in self.annotators]
        if any(left):
            self._in_parallel(self._practice_as, tokens, left)

    def _practice_as(self, annotator: SimulatedAnnotator, token: str, count: int) -> None:
        judge = self._judge(annotator)
        with LabelClient(self.base_url, token) as client:
            for _ in range(count):
                pairs = client.next(1)
                # A practice pair with a flag is not asked, and another pair comes in its place.
                if not (pairs and client.judge(pairs[0].id, judge(pairs[0]))):
                    return

    def require_live(self, token: str) -> None:
        """ValueError unless the workspace has live conversations."""
        with LabelClient(self.base_url, token) as client:
            if not client.live()["enabled"]:
                raise ValueError(
                    "live conversations are off in this workspace; add --set live.replies=policy "
                    "(two replies of the policy) or --set live.replies=reference"
                )

    def _talk(self, tokens: Sequence[str], turns: int) -> None:
        """Judge `turns` turns of live conversations, everybody about the same number."""
        with LabelClient(self.base_url, tokens[0]) as client:
            client.prepare_live()
        everybody = len(self.annotators)
        shares = [turns // everybody + (n < turns % everybody) for n in range(everybody)]
        self._in_parallel(self._talk_as, tokens, shares, at_once=_TALKING)

    def _talk_as(self, annotator: SimulatedAnnotator, token: str, count: int) -> None:
        """One annotator's conversations, with `count` turns together.

        Every message is one of the page's suggestions.  A conversation ends with its last turn, or
        after *both bad*.
        """
        judge, conversation = self._judge(annotator), None
        with LabelClient(self.base_url, token) as client:
            for _ in range(count):
                suggested = client.live()["suggestions"]
                if not suggested:
                    raise SimulationFailed("there are no train prompts to begin conversations with")
                turn = client.live_turn(suggested[0], conversation)
                choice = judge(turn.pair)
                client.judge(turn.pair.id, choice)
                over = turn.last or choice.outcome == "both_bad"
                conversation = None if over else turn.conversation

    def _judge_pairs(self, tokens: Sequence[str], count: int) -> None:
        """Judge `count` pairs of the queue, gold pairs and re-asks included."""
        tally = Tally(count, [annotator.name for annotator in self.annotators])
        self._in_parallel(self._label_as, tokens, [tally] * len(tokens))
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

    def _in_parallel(
        self,
        session: Callable[[SimulatedAnnotator, str, S], None],
        tokens: Sequence[str],
        tasks: Sequence[S],
        *,
        at_once: int | None = None,
    ) -> None:
        """Run a session of every annotator with its token and task, all or `at_once` at a time."""
        with ThreadPoolExecutor(at_once or len(self.annotators)) as pool:
            for done in list(map(partial(pool.submit, session), self.annotators, tokens, tasks)):
                done.result()

    def _judge(self, annotator: SimulatedAnnotator) -> PairJudge:
        return PairJudge(
            annotator,
            self.world.as_seen_by(annotator, self.gold),
            seed=self.seed,
            shuffle=self.shuffle_labels,
            edits=self.edits,
        )

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
