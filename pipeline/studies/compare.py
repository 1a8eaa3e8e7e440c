"""Compares SFT, best-of-N, PPO, GRPO, REINFORCE++, DPO and RLOO at equal KL to SFT.

Each method runs on the inputs of the workspace's newest PPO run, outside the loop, in
``compare/NAME/METHOD``.  Snapshots along training, or the values of N, make each method a curve of
gold score against KL; methods are compared at one KL.  All policies answer the same held-out
prompts with the same random numbers.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from pipeline.config.policy import ENGINE_METHODS
from pipeline.models.best_of_n import best_of_n_kl
from pipeline.models.snapshots import snapshots_of
from pipeline.runs.repeat import (
    Progress,
    compare_settings,
    copy_inputs,
    folder_of,
    newest_ppo_run,
    newest_run,
    run_to_end,
)
from pipeline.runs.rundir import Job, RunDirectory, write_atomically
from pipeline.runs.study_folder import METHODS, TRAINED
from pipeline.simulation.clients import conversation
from pipeline.simulation.preference import GoldReward
from pipeline.statistics.winrate import WinRate, outcome, standard_error, win_rate

BEST_OF_NS = (1, 2, 4, 8, 16)
"""Values of N: best-of-N takes the sample with the highest reward out of N per prompt."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer to a held-out prompt, with its scores."""

    prompt: str
    text: str
    gold: float
    reward: float
    kl: float
    length: int


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """One policy: means over its answers."""

    label: str
    gold: float
    reward: float
    kl: float
    """Mean Σ KL over a response's tokens, whole vocabulary; for best-of-N an upper bound.  Nats."""
    length: float
    gold_error: float | None
    """Standard error of the mean gold score, clustered by prompt; None for a single prompt."""
    reward_error: float | None
    win_rate: WinRate
    """Against SFT, by gold score, clustered by prompt."""
    sampling_seconds: float
    """Time to answer every prompt once."""


@dataclass(frozen=True, kw_only=True)
class MethodCurve:
    """A method's points, in the order of training or of N; the last is its result."""

    method: str
    points: list[CurvePoint]
    training_seconds: float

    def at(self, kl: float) -> tuple[float, float] | None:
        """(gold, reward) where the curve first reaches that KL, linear between points.

        None if it never does.
        """
        last: CurvePoint | None = None
        for point in self.points:
            if point.kl == kl:
                return point.gold, point.reward
            if last and min(last.kl, point.kl) < kl < max(last.kl, point.kl):
                part = (kl - last.kl) / (point.kl - last.kl)
                return (
                    (1 - part) * last.gold + part * point.gold,
                    (1 - part) * last.reward + part * point.reward,
                )
            last = point
        return None


def compare(
    workspace: Path,
    methods: Sequence[str],
    *,
    name: str,
    overrides: Mapping[str, str],
    gold: GoldReward,
    snapshots: int,
    progress: Progress,
    source: RunDirectory | None = None,
    asked: RunDirectory | None = None,
) -> list[MethodCurve]:
    """Train and measure each method that has no result yet; SFT is always the first.

    `source` is the run that is repeated, by default the newest PPO run; `asked` is the evaluation
    whose held-out prompts are answered, by default the newest.
    """
    folder = folder_of(workspace / "compare", name)
    source = source or newest_ppo_run(workspace)
    asked = asked or newest_run(workspace, "evaluate")
    if asked is None:
        raise ValueError(
            f"{workspace} has no evaluation, so no held-out prompts to compare on; finish an "
            "iteration (`launch.py iterate`) first"
        )
    config = compare_settings(source, snapshots, overrides)
    job = replace(source.job(), config=config, repeats=source.path.name)
    study = _Study(workspace, folder, source, asked, job)
    measured: dict[str, tuple[RunDirectory, float]] = {}
    for method in dict.fromkeys(["sft", *methods]):
        measured[method] = study.run(method, lambda text, m=method: progress(f"{m}: {text}"))
    scored = _GoldScorer(gold)
    return [
        _curve(method, *found, measured["sft"][0], scored) for method, found in measured.items()
    ]


@dataclass(frozen=True)
class _Study:
    workspace: Path
    folder: Path
    source: RunDirectory
    evaluation: RunDirectory
    job: Job

    def run(self, method: str, progress: Progress) -> tuple[RunDirectory, float]:
        """(the run that measured the method, its training time in seconds)."""
        policies: list[dict[str, str]] = [{"name": "answers", "path": self.job.model("reference")}]
        seconds = 0.0
        if method in TRAINED:
            trained = self._train(method, progress)
            result = trained.result() or {}
            seconds = result["seconds"]
            policies = [
                {"name": path.name, "path": str(path)} for _, path in snapshots_of(trained)
            ] + [{"name": "last", "path": str(trained.model)}]
        plan = {"policies": policies, "samples": max(BEST_OF_NS) if method == "best_of_n" else 1}

        def fill(inputs: Path) -> None:
            copy_inputs(self.evaluation, "prompts.parquet")(inputs)
            write_atomically(inputs / "plan.json", json.dumps(plan))

        models = {
            key: path
            for key, path in self.job.models.items()
            if key == "reference" or key.startswith("reward")
        }
        job = replace(self.job, stage="measure", run=f"measure-{method}", models=models)
        path = self.folder / method / "measure"
        return run_to_end(path, job, fill=fill, progress=progress, apart=True), seconds

    def _train(self, method: str, progress: Progress) -> RunDirectory:
        config = self.job.config.override({"optimize.method": method} | _adjusted(method))
        job = replace(self.job, run=f"compare-{method}", config=config)

        def fill(inputs: Path) -> None:
            copy_inputs(self.source)(inputs)
            if method == "dpo":
                copy_inputs(self._reward_run())(inputs)

        place = self.folder / method / "train"
        return run_to_end(place, job, fill=fill, progress=progress, apart=True)

    def _reward_run(self) -> RunDirectory:
        """The reward stage whose judgments the newest PPO run's reward model learned from."""
        iteration = self.job.iteration
        found = newest_run(self.workspace, "reward", iteration=iteration)
        if found is None:
            raise ValueError(
                f"the judgments of iteration {iteration} are not in {self.workspace}/runs, and DPO "
                "needs them; leave dpo out of --methods"
            )
        return found


def _adjusted(method: str) -> dict[str, Any]:
    """Settings of the repeated run that a method cannot have."""
    has_critic = method == "ppo" or method not in ENGINE_METHODS
    return {} if has_critic else {"ppo.critic": "shared", "ppo.value_warmup": 0}


class _GoldScorer:
    """Reads answers and scores each text once with the gold preference."""

    def __init__(self, gold: GoldReward) -> None:
        self._gold = gold
        self._known: dict[tuple[str, str], float] = {}

    def answers(self, directory: RunDirectory, name: str) -> list[Answer]:
        """The answers of a policy in a measuring run."""
        frame = pd.read_parquet(directory.outputs / f"{name}.parquet")
        return [
            Answer(
                prompt=row["prompt"],
                text=row["text"],
                gold=self._score(row["prompt"], row["messages"], row["text"]),
                reward=row["reward"],
                kl=row["kl"],
                length=row["length"],
            )
            for row in frame.to_dict("records")
        ]

    def _score(self, prompt: str, messages: str, text: str) -> float:
        if (prompt, text) not in self._known:
            text_of_prompt = conversation(json.loads(messages))
            self._known[prompt, text] = float(self._gold(text_of_prompt, text))
        return self._known[prompt, text]


def _curve(
    method: str, directory: RunDirectory, seconds: float, sft: RunDirectory, scored: _GoldScorer
) -> MethodCurve:
    sft_gold = {answer.prompt: answer.gold for answer in scored.answers(sft, "answers")}
    sampling: Mapping[str, float] = (directory.result() or {})["sampling_seconds"]
    start = point("SFT", scored.answers(sft, "answers"), sft_gold, seconds=0.0)
    if method == "best_of_n":
        answers = scored.answers(directory, "answers")
        each = sampling["answers"] / max(BEST_OF_NS)
        points = [
            point(f"N = {n}", best_of(answers, n), sft_gold, seconds=n * each, kl=best_of_n_kl(n))
            for n in BEST_OF_NS
        ]
    else:
        points = [
            point(_label(name), scored.answers(directory, name), sft_gold, seconds=sampling[name])
            for name in sampling
        ]
    return MethodCurve(
        method=method,
        points=[start, *points] if method in TRAINED else points,
        training_seconds=seconds,
    )


def _label(name: str) -> str:
    """The title of a policy such as ``step-000020``."""
    return {"last": "last", "answers": "SFT"}.get(name) or f"step {int(name.rpartition('-')[2])}"


def point(
    label: str,
    answers: Sequence[Answer],
    sft_gold: Mapping[str, float],
    *,
    seconds: float,
    kl: float | None = None,
) -> CurvePoint:
    """The means of a policy's answers; `sft_gold` are the gold scores of SFT's answers by prompt."""
    outcomes = [outcome(answer.gold, sft_gold[answer.prompt]) for answer in answers]
    prompts = [answer.prompt for answer in answers]
    gold, reward = [answer.gold for answer in answers], [answer.reward for answer in answers]
    return CurvePoint(
        label=label,
        gold=fmean(gold),
        reward=fmean(reward),
        gold_error=standard_error(gold, prompts),
        reward_error=standard_error(reward, prompts),
        kl=fmean(answer.kl for answer in answers) if kl is None else kl,
        length=fmean(answer.length for answer in answers),
        win_rate=win_rate(outcomes, prompts),
        sampling_seconds=seconds,
    )


def best_of(answers: Sequence[Answer], n: int) -> list[Answer]:
    """The answer with the highest reward from every `n` answers to a prompt.

    Sixteen answers give eight results for n = 2; a remainder of fewer than `n` is left out.
    """
    of_prompt: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        of_prompt[answer.prompt].append(answer)
    return [
        max(found[i : i + n], key=lambda answer: answer.reward)
        for found in of_prompt.values()
        for i in range(0, len(found) - n + 1, n)
    ]


def chosen_methods(text: str) -> list[str]:
    """The methods of ``ppo,dpo``, each once; ValueError for an unknown name."""
    found = list(dict.fromkeys(part.strip().replace("-", "_") for part in text.split(",")))
    for method in found:
        if method not in METHODS:
            raise ValueError(f"--methods names {method!r}; there are {', '.join(METHODS)}")
    return found
