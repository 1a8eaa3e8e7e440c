"""Uses a callable as an annotator (RLAIF): it judges pairs, and its answers are stored.

Judges have a position bias: GPT-4 gave the same answer in both orders in only 65% of cases (Zheng
et al. 2023, arXiv:2306.05685).  So the judge is asked in both orders, as they propose, and
contradictory answers are a tie.  Asking in one random order per pair costs half as much.
"""

from __future__ import annotations

import inspect
import json
import math
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pipeline.config.plugins import in_a_line, load_function
from pipeline.simulation.clients import conversation
from storage.records import OpenPair

Judge = Callable[[Sequence[Mapping[str, str]], str, str], str]
"""(messages, left, right) → "A", "B" or "tie"."""

AT_ONCE = 64
TIMEOUT = 600.0
"""Seconds for one answer; other processes cannot use the workspace meanwhile."""
_ANSWERS = {"A": "left", "B": "right", "tie": "tie"}


def load_judge(name: str) -> Judge:
    """The judge ``module:function``; ValueError if it cannot be used.

    It takes (prompt, left, right).  The prompt is one text, or a list of {"role", "content"} if its
    parameter is called ``messages``.
    """
    function = load_function(name, what="judge")
    try:
        parameters = [*inspect.signature(function).parameters]
    except (ValueError, TypeError):  # some built-in functions have no signature
        parameters = ["", "", ""]
    if len(parameters) != 3:
        raise ValueError(
            f"judge {name!r} takes {len(parameters)} arguments, not prompt, left, right"
        )
    if parameters[0] == "messages":
        return function
    return lambda messages, left, right: function(conversation(messages), left, right)


@dataclass(frozen=True, kw_only=True)
class JudgeReport:
    """The judgments that a run of a judge stored."""

    judge: str
    judgments: int
    ties: int
    contradictions: int | None
    """Pairs with contradictory answers in the two orders; None if only one order was asked."""


def judge_all(
    call: Callable[..., Any],
    judge: Judge,
    *,
    name: str,
    both_orders: bool = True,
    limit: int | None = None,
    timeout: float = TIMEOUT,
    progress: Callable[[str], None] = lambda _: None,
) -> JudgeReport:
    """Let `judge` judge every open pair that it has not judged, at most `limit`.

    `call` runs a command in the workspace.  Each answer is stored before the next pair, so a stopped
    run can be continued.  Raises ValueError for an invalid answer, and RuntimeError for a judge that
    fails or does not answer within `timeout` seconds.  Runs in the main thread only, where an alarm
    can interrupt the judge.
    """
    if not (math.isfinite(timeout) and timeout > 0):
        raise ValueError(f"--timeout {timeout:g} must be a number of seconds above 0")
    checked = _CheckedJudge(judge, name=name, timeout=timeout)
    counts: Counter[str] = Counter()
    left = limit
    while left is None or left > 0:
        found = call("judge.open", name=name, limit=min(AT_ONCE, left or AT_ONCE))
        if not found["pairs"]:
            break
        for pair in (OpenPair(**each) for each in found["pairs"]):
            start = time.monotonic()
            outcome, comment = _verdict(checked, pair, both_orders=both_orders)
            stored = call(
                "judge.save",
                name=name,
                comparison=pair.id,
                outcome=outcome,
                comment=comment,
                milliseconds=round(1000 * (time.monotonic() - start)),
            )
            counts["contradictions"] += bool(comment)
            counts["stored" if stored else "known"] += 1
            counts["ties"] += outcome == "tie"
        if left is not None:
            left -= len(found["pairs"])
        progress(f"{counts['stored']} judgments stored")
    return JudgeReport(
        judge=name,
        judgments=counts["stored"],
        ties=counts["ties"],
        contradictions=counts["contradictions"] if both_orders else None,
    )


def _verdict(checked: _CheckedJudge, pair: OpenPair, *, both_orders: bool) -> tuple[str, str]:
    """(first, second or tie; a comment if the two orders contradict each other)."""
    one = checked.ask(pair, swapped=pair.swapped)
    if not both_orders:
        return one, ""
    other = checked.ask(pair, swapped=not pair.swapped)
    if one == other:
        return one, ""
    return "tie", f"contradicts itself: {one} in one order, {other} in the other"


class _CheckedJudge:
    """Calls a judge with a time limit and validates its answers."""

    def __init__(self, judge: Judge, *, name: str, timeout: float) -> None:
        self._judge = judge
        self._name = name
        self._timeout = timeout

    def ask(self, pair: OpenPair, *, swapped: bool) -> str:
        """The judge's answer, first, second or tie; `swapped` puts `second` on the left."""
        sides = ("second", "first") if swapped else ("first", "second")
        texts = (pair.second, pair.first) if swapped else (pair.first, pair.second)
        answer = self._answer(pair, json.loads(pair.messages), *texts)
        if not isinstance(answer, str) or answer not in _ANSWERS:
            raise ValueError(
                f"the judge {self._name} answered {answer!r} on comparison {pair.id}; it must "
                'answer "A" (the left), "B" (the right) or "tie"'
            )
        return {"left": sides[0], "right": sides[1], "tie": "tie"}[_ANSWERS[answer]]

    def _answer(self, pair: OpenPair, messages: Any, left: str, right: str) -> Any:
        try:
            with _at_most(self._timeout):
                return self._judge(messages, left, right)
        except _TooLong:
            raise RuntimeError(
                f"the judge {self._name} gave no answer on comparison {pair.id} within "
                f"{self._timeout:g} s; fix it, or give it longer with --timeout"
            ) from None
        # A judge that calls sys.exit must not end the command.
        except (Exception, SystemExit) as error:
            raise RuntimeError(
                f"the judge {self._name} failed on comparison {pair.id}: {in_a_line(error)}"
            ) from error


class _TooLong(BaseException):
    """Not an Exception, so that a judge's own retries do not catch it."""


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raise `_TooLong` in the block after `seconds`; compiled code delays that until it returns."""

    def on_alarm(*_: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
