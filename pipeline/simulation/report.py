"""The report of a simulated iteration: the policy by the gold preference, and the gate's figures."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from pipeline.promotion.overoptimization import over_optimization
from pipeline.simulation import preference as builtin
from pipeline.simulation.annotators import Choice, SimulatedAnnotator
from pipeline.simulation.clients import LeasedPair, conversation
from pipeline.simulation.preference import Gold
from pipeline.statistics.sequential_test import sequential_test
from pipeline.statistics.winrate import outcome, win_rate
from storage.records import digest

GATE_LABELS = 60
"""Fresh judgments of a policy against SFT, as many as `gate.labels` asks for."""

_OUTCOMES = {"a": 1.0, "b": 0.0, "tie": 0.5, "both_bad": 0.5}


class PairJudge:
    """One annotator's judgments of pairs.

    The noise depends on seed, annotator and pair only.  With `shuffle` each pair gets the judgment
    of the pair before it.
    """

    def __init__(
        self, annotator: SimulatedAnnotator, gold: Gold, *, seed: int, shuffle: bool
    ) -> None:
        self._annotator, self._gold, self._seed, self._shuffle = annotator, gold, seed, shuffle
        left, right = self._coin("first").normal(size=2)
        self._held = (float(left), float(right))

    def __call__(self, pair: LeasedPair) -> Choice:
        scores = scored(self._gold, pair.prompt, (pair.left, pair.right))
        if self._shuffle:
            scores, self._held = self._held, scores
        left, right = scores
        coin = self._coin(pair.id)
        return self._annotator.judge(left=left, right=right, words=pair.words, coin=coin)

    def _coin(self, pair: str) -> np.random.Generator:
        return np.random.default_rng([self._seed, int(digest(self._annotator.name, pair), 16)])


def scored(gold: Gold, prompt: str, responses: Sequence[str]) -> tuple[float, ...]:
    """Gold's scores of responses to a prompt; ``ValueError`` unless all are finite numbers."""
    scores = tuple(float(gold(prompt, response)) for response in responses)
    if not all(math.isfinite(score) for score in scores):
        raise ValueError(f"the gold preference gave {scores} on the prompt {prompt[:80]!r}")
    return scores


def compare(rows: Iterable[Mapping[str, Any]], gold: Gold) -> dict[str, float]:
    """The new policy against SFT under `gold`: mean scores, win rate and its 95% interval.

    `rows` are held-out completions with prompt (id), messages, policy_role and text.  Every
    completion of the policy is compared with every one of the reference on the same prompt.
    """
    scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        text = conversation(row["messages"])
        scores[row["prompt"]][row["policy_role"]] += scored(gold, text, (row["text"],))
    meetings = [
        (prompt, outcome(ours, theirs))
        for prompt, by_role in scores.items()
        for ours in by_role["policy"]
        for theirs in by_role["reference"]
    ]
    if not meetings:
        raise ValueError("the evaluation left no held-out completions to compare")
    rate = win_rate([o for _, o in meetings], [prompt for prompt, _ in meetings])
    sft, policy = (
        float(np.mean([score for by_role in scores.values() for score in by_role[role]]))
        for role in ("reference", "policy")
    )
    return {
        "sft": sft,
        "policy": policy,
        "win_rate": rate.win_rate,
        "low": rate.low,
        "high": rate.high,
    }


def gate_says(
    rows: Iterable[Mapping[str, Any]],
    judges: Sequence[PairJudge],
    *,
    reward_model: Mapping[str, Any],
    seed: int,
    labels: int = GATE_LABELS,
) -> dict[str, Any] | None:
    """The gate's figures from `labels` fresh judgments of the policy against SFT, one per prompt.

    `rows` are held-out completions as for `compare`, with `own_reward`, the score of the iteration's
    own reward model; `reward_model` is that model's summary (`theta`, `tie_model`).  Annotators take
    turns, sides are random, and pairs of equal texts are left out.  None if all texts are equal.
    """
    # Imported here, because torch is slow to import and only the end of a simulation needs it.
    import torch  # noqa: PLC0415

    from pipeline.reward.predictions import expected_outcome  # noqa: PLC0415

    sides: dict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for row in rows:
        sides[row["prompt"]].setdefault(row["policy_role"], row)
    differing = [p for p, s in sides.items() if s["policy"]["text"] != s["reference"]["text"]]
    asked = sorted(differing, key=lambda p: digest("gate", str(seed), p))[:labels]
    if not asked:
        return None
    outcomes = [
        _judged(sides[prompt], judges[n % len(judges)], prompt) for n, prompt in enumerate(asked)
    ]
    d = [sides[p]["policy"]["own_reward"] - sides[p]["reference"]["own_reward"] for p in asked]
    predicted = expected_outcome(
        torch.tensor(d, dtype=torch.float64),
        theta=reward_model["theta"] or 0.0,
        tie_model=reward_model["tie_model"],
    ).tolist()
    rate, test = win_rate(outcomes, asked), sequential_test(outcomes, asked)
    return asdict(over_optimization(predicted, outcomes, asked)) | {
        "low": rate.low,
        "high": rate.high,
        "log_e": test.log_e,
        "decision": test.decision,
    }


def _judged(sides: Mapping[str, Mapping[str, Any]], judge: PairJudge, prompt: str) -> float:
    """1 if the annotator prefers the policy's answer, 0 for SFT's, ½ for neither."""
    swapped = int(digest("side", prompt), 16) % 2 == 1
    left, right = ("reference", "policy") if swapped else ("policy", "reference")
    shown = LeasedPair(
        id=f"gate-{prompt}",
        prompt=conversation(sides["policy"]["messages"]),
        left=sides[left]["text"],
        right=sides[right]["text"],
    )
    won = _OUTCOMES[judge(shown).outcome]
    return 1 - won if swapped else won


def report(
    record: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    gold: Gold,
    judges: Sequence[PairJudge],
    *,
    seed: int,
) -> dict[str, Any]:
    """One iteration of the JSON report, from its record and held-out completions."""
    reached = record["evaluation"]["policy"]
    fitted = record["reward_model_summary"]
    return {
        "iteration": record["number"],
        "gold": compare(rows, gold),
        "yardsticks": {
            "built-in gold": compare(rows, builtin.score),
            "longest": compare(rows, builtin.longest),
        },
        "reward_model": {name: fitted[name] for name in ("accuracy", "log_loss", "ece")},
        "gate": gate_says(rows, judges, reward_model=fitted, seed=seed),
        "verdict": record["verdict"],
        "kl": reached["kl"],
        "reward": reached["reward"],
        "length": reached["length"],
        "seconds": dict(record["seconds"]),
    }
