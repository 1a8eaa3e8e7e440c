"""Simulations over seeds and arms, to compare the full loop with a plain baseline.

An arm is a configuration of the loop.  All arms of a seed have the same annotators, number of
labels and gold preference, so differences are paired.  Each run has its own workspace; its report
is stored in the seed's JSON file, and stored runs are not repeated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from pipeline.runs.rundir import write_atomically
from storage.analysis.intervals import student_t


@dataclass(frozen=True, kw_only=True)
class TrialArm:
    """The settings that an arm changes; a `one_shot` arm gets all labels in one iteration."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    one_shot: bool = False

    def plan(self, iterations: int, labels: int) -> tuple[int, int]:
        """(iterations, labels in each) with the same total as the full loop."""
        return (1, iterations * labels) if self.one_shot else (iterations, labels)


FULL = TrialArm(name="full")
NAIVE = TrialArm(
    name="naive",
    one_shot=True,
    settings={
        "reward.tie_model": "drop",
        "reward.both_bad": "tie",
        "reward.annotators": False,
        "reward.members": 1,
        "reward.early_stopping": False,
        "reward.audit_share": 0.0,
        "reward.calibrate": False,
        "sampling.selection": "random",
    },
)
"""The plain baseline: one round of labels, Bradley-Terry, ties dropped, one network."""

ARMS: dict[str, TrialArm] = {arm.name: arm for arm in (FULL, NAIVE)}

Figure = Callable[[Mapping[str, Any]], float]
FIGURES: dict[str, Figure] = {
    "gold gain": lambda last: last["gold"]["policy"] - last["gold"]["sft"],
    "wins against SFT, by gold": lambda last: last["gold"]["win_rate"],
    "KL, nats": lambda last: last["kl"],
}
"""The figures that are compared, from the last iteration of a report."""


def run_all(
    run: Callable[[TrialArm, int], dict[str, Any]],
    arms: Sequence[TrialArm],
    seeds: Sequence[int],
    folder: Path,
    *,
    conditions: Mapping[str, Any],
    progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Every seed's results, from FOLDER/seed-N.json or by `run`: {"seed", "conditions", "arms"}.

    All runs share `conditions` (labels, annotators, settings, …); ``ValueError`` for a file with
    other conditions.  The file is written after each arm, with the arms that another process has
    added since.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for seed in seeds:
        path = folder / f"seed-{seed}.json"
        for arm in arms:
            if arm.name not in _results(path, seed, conditions)["arms"]:
                progress(f"{arm.name}, seed {seed}")
                done = run(arm, seed)
                results = _results(path, seed, conditions)
                results["arms"][arm.name] = done
                write_atomically(path, json.dumps(results, indent=1) + "\n")
        found.append(_results(path, seed, conditions))
    return found


def _results(path: Path, seed: int, conditions: Mapping[str, Any]) -> dict[str, Any]:
    results = stored(path, conditions) if path.exists() else {}
    return {"seed": seed, "conditions": dict(conditions), "arms": {}} | results


def stored(path: Path, conditions: Mapping[str, Any]) -> dict[str, Any]:
    """A seed's file; ``ValueError`` if it is damaged or has other conditions."""
    try:
        results = json.loads(path.read_text())
        made, _ = results["conditions"], results["arms"]
        others = {k: made.get(k) for k in conditions | made if made.get(k) != conditions.get(k)}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is not a results file of simulations ({error!r}); delete it"
        ) from None
    if others:
        different = ", ".join(f"{name}={value}" for name, value in others.items())
        raise ValueError(f"{path} was made with {different}; name another folder, or delete it")
    return results


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over `n` seeds with its 95% t-interval (none for a single seed)."""

    mean: float
    low: float | None
    high: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        mean, n = fmean(values), len(values)
        if n < 2:
            return cls(mean=mean, low=None, high=None, n=n)
        half = student_t(n) * stdev(values) / n**0.5
        return cls(mean=mean, low=mean - half, high=mean + half, n=n)

    def text(self, digits: int = 2, *, signed: bool = False) -> str:
        """Mean and interval with `digits` decimals, with a plus sign if `signed`."""
        shape = f"{'+' if signed else ''}.{digits}f"
        if self.low is None or self.high is None:
            return f"{self.mean:{shape}}".replace("-", "−")
        return f"{self.mean:{shape}} [{self.low:{shape}}, {self.high:{shape}}]".replace("-", "−")

    def __str__(self) -> str:
        return self.text()


@dataclass(frozen=True, kw_only=True)
class TrialSummary:
    """The `FIGURES` of trials, by name."""

    arms: Mapping[str, Mapping[str, Estimate]]
    """By arm."""
    differences: Mapping[str, Mapping[str, Estimate]]
    """First arm minus each other arm, paired over the seeds that both have."""


def summary(seeds: Sequence[Mapping[str, Any]], order: Sequence[str] = ()) -> TrialSummary:
    """The summary of seeds' results, as `run_all` returns them.

    Arms are in the `order` of these names, then in that of `ARMS`.
    """
    values: dict[str, dict[str, dict[int, float]]] = {}
    for results in seeds:
        for arm, report in results["arms"].items():
            last = report["iterations"][-1]
            for name, figure in FIGURES.items():
                values.setdefault(arm, {}).setdefault(name, {})[results["seed"]] = figure(last)
    known = dict.fromkeys([*order, *ARMS, *values])
    values = {arm: values[arm] for arm in known if arm in values}
    first, *others = values
    return TrialSummary(
        arms={
            arm: {name: Estimate.of([*by_seed.values()]) for name, by_seed in figures.items()}
            for arm, figures in values.items()
        },
        differences={
            f"{first} − {other}": {
                name: Estimate.of(paired(by_seed, values[other][name]))
                for name, by_seed in values[first].items()
                if by_seed.keys() & values[other][name].keys()
            }
            for other in others
        },
    )


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    """Differences over the seeds that both have."""
    return [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]


def format_trials(found: TrialSummary) -> str:
    """The summary as a Markdown table."""
    lines = [f"| | {' | '.join(FIGURES)} | seeds |", "|---" * (len(FIGURES) + 2) + "|"]
    for rows in (found.arms, found.differences):
        for name, figures in rows.items():
            cells = [str(figures[f]) if f in figures else "" for f in FIGURES]
            seeds = max((each.n for each in figures.values()), default=0)
            lines.append(f"| {name} | {' | '.join(cells)} | {seeds} |")
    return "\n".join(lines)
