"""The evaluation stage: the new policy, the SFT reference and the previous policy.

All three answer the same held-out prompts (`evaluate.prompts` of them), sampled at
`evaluate.temperature` or found by beam search (`evaluate.beams`).  PPO has exploited the reward
model, so these rewards are optimistic; people judge the policy in the next iteration.  The policy
and SFT also answer the prompts of the canary (`pipeline/canary`), if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any, TypeVar

import pandas as pd
import torch

from pipeline.canary.evaluation import CanaryEvaluation
from pipeline.config.metric_definitions import METRICS
from pipeline.config.sections import EvaluateConfig
from pipeline.models.devices import pick_device
from pipeline.models.generate import Response, Sampler
from pipeline.models.likelihoods import sequence_kl
from pipeline.models.text import Messages, name_rows, read_messages
from pipeline.promotion.overoptimization import remaining_lead
from pipeline.reward.ensemble import Ensemble
from pipeline.reward.scoring import audit_model
from pipeline.runs.parquet import write_rows
from pipeline.runs.rundir import Job, Report, RunDirectory
from pipeline.sampling.best_of_n import BestOfN, sampler_of_job
from pipeline.sampling.follow_ups import answer_judged, read_judged, write_answers
from pipeline.stages.sample import COMPLETION_COLUMNS, completion_row
from pipeline.statistics.canary import canary_figures
from pipeline.statistics.winrate import outcome, win_rate
from storage.records import Message, derive_seed, digest
from storage.reports import EvaluatedPolicy, Evaluation

_T = TypeVar("_T")
_SAMPLED, _SCORED = 0.8, 0.95
"""The stage's progress when all responses are sampled, and when they are scored."""


def run(job: Job, report: Report, directory: RunDirectory) -> Evaluation:
    """Sample, score and compare; writes completions, scores and follow_ups.parquet."""
    config = job.config.evaluate
    prompts = [
        pair for pair in evaluation_prompts(directory, config) for _ in range(config.completions)
    ]
    device = pick_device(job.config.worker.device)
    evaluation = _Evaluation(job, report, prompts, device)
    evaluation.judged = read_judged(directory.inputs)
    roles = ["policy", "reference"]
    # In the first iteration the previous policy is the reference.
    if job.models.get("previous") and job.names["previous"] != job.names["reference"]:
        roles.append("previous")
    for role in roles:
        evaluation.sample(role, steps=len(roles))
    rewards = evaluation.score()
    audit = evaluation.audit()
    figures = {role: evaluation.figures(role, rewards[role], audit.get(role)) for role in roles}
    canary = evaluation.canary.results() if evaluation.canary else None
    if canary:
        passed = canary_figures(canary)
        figures["policy"] = replace(figures["policy"], canary=passed.policy)
        figures["reference"] = replace(figures["reference"], canary=passed.reference)
    rates = {
        opponent: win_rate(
            [outcome(a, b) for a, b in zip(rewards["policy"], rewards[opponent], strict=True)],
            [prompt for prompt, _ in prompts],
        )
        for opponent in roles[1:]
    }
    won = rates["reference"].win_rate
    evaluation.write(directory, rewards)
    report.metrics(0, _metrics(figures) | {"evaluate/win_rate": won})
    return Evaluation(
        policy=figures["policy"],
        reference=figures["reference"],
        previous=figures.get("previous"),
        win_rate_against_reference=rates["reference"],
        win_rate_against_previous=rates.get("previous"),
        win_rate_reward_model=won,
        lead=remaining_lead(evaluation.kl("policy"), job.config.gate.kl_discount),
        canary=canary,
    )


def evaluation_prompts(
    directory: RunDirectory, config: EvaluateConfig
) -> list[tuple[str, tuple[Message, ...]]]:
    """(id, messages) of inputs/prompts.parquet, `evaluate.prompts` of them at most."""
    frame = pd.read_parquet(directory.inputs / "prompts.parquet").head(config.prompts)
    if frame.empty:
        raise ValueError("there are no held-out prompts to evaluate on; import some")
    rows = zip(frame["id"], frame["messages"], strict=True)
    return [(id, read_messages(text)) for id, text in rows]


def require_room(
    sampler: Sampler, prompts: Sequence[tuple[str, Sequence[Message]]], limit: int
) -> None:
    """ValueError unless every prompt leaves room for a response of `limit` tokens."""
    long = {
        id: sampler.needs(messages, limit)
        for id, messages in prompts
        if not sampler.fits(messages, limit)
    }
    if long:
        raise ValueError(
            f"{len(long)} held-out prompts exceed the model's context with "
            f"evaluate.max_new_tokens={limit}: {name_rows(list(long.items()))}; lower it or "
            "remove them"
        )


def _metrics(figures: Mapping[str, EvaluatedPolicy]) -> dict[str, float]:
    found = {
        f"evaluate/{role}/{name}": value
        for role, policy in figures.items()
        for name, value in vars(policy).items()
        if value is not None and name != "kl_is_bound"
    }
    known = {name.replace("<policy>", role) for name in METRICS for role in figures}
    unknown = found.keys() - known
    assert not unknown, f"undefined metrics {unknown}"
    return found


class _Evaluation:
    """The responses of each policy, and the figures on them."""

    def __init__(
        self,
        job: Job,
        report: Report,
        prompts: list[tuple[str, tuple[Message, ...]]],
        device: torch.device,
    ) -> None:
        self._job = job
        self._report = report
        self._prompts = prompts
        self._device = device
        self._seed = derive_seed("evaluate", str(job.seed))
        evaluate = job.config.evaluate
        # 0 is deterministic decoding.
        self._temperature = job.config.evaluation_temperature if evaluate.beams == 1 else 0.0
        self._reference: Sampler | None = None
        self._responses: dict[str, list[Response]] = {}
        self._kl: dict[str, list[float]] = {}
        self._bounds: set[str] = set()
        self._own: dict[str, list[float]] = {}
        self.judged: list[tuple[str, Messages]] = []
        """Judged prompts that the policy answers too; no figure uses these answers."""
        self._follow_ups: list[dict[str, Any]] = []
        self.canary = CanaryEvaluation.of(job)

    def sample(self, role: str, *, steps: int) -> None:
        """Answer every prompt with one policy and measure its KL to the reference."""
        config = self._job.config.evaluate
        self._reference = self._reference or self._load("reference")
        sampler = self._reference if role == "reference" else self._load(role)
        conversations = [messages for _, messages in self._prompts]
        require_room(sampler, self._prompts, config.max_new_tokens)
        done, total = len(self._responses) * len(self._prompts), steps * len(self._prompts)

        def progress(batch: list[Response]) -> None:
            nonlocal done
            done += len(batch)
            doing = f"{role}: {done:,} of {total:,} completions sampled"
            self._report.progress(_SAMPLED * done, total, doing)

        responses = self._answers(sampler, conversations, self._seed, progress)
        self._responses[role] = responses
        if self.canary and role != "previous":
            self.canary.answer(role, sampler, partial(self._answers, sampler))
        if role == "policy" and self.judged:
            self._follow_ups = answer_judged(sampler, self.judged, self._job, self._report)
        if isinstance(sampler, BestOfN):
            self._bounds.add(role)
            self._kl[role] = [sampler.manifest.kl_bound] * len(responses)
            return
        self._kl[role] = (
            [0.0] * len(responses)
            if role == "reference"
            else sequence_kl(
                sampler.model, self._reference.model, responses,
                temperature=self._temperature or 1.0, pad_id=sampler.chat.pad_id,
            )
        )  # fmt: skip

    def _answers(
        self,
        sampler: Sampler,
        conversations: Sequence[Messages],
        seed: int,
        progress: Callable[[list[Response]], Any] = lambda _: None,
    ) -> list[Response]:
        """One policy's response to each prompt, sampled or found by beam search."""
        config = self._job.config.evaluate
        if config.beams > 1:
            return sampler.search(
                conversations,
                beams=config.beams,
                length_penalty=config.length_penalty,
                max_new_tokens=config.max_new_tokens,
                batch=config.batch,
                on_batch=progress,
            )
        # All policies use the same random numbers, so differences come from their weights.
        return sampler.sample(
            conversations,
            temperature=self._temperature,
            max_new_tokens=config.max_new_tokens,
            seed=seed,
            batch=config.batch,
            on_batch=progress,
        )

    def score(self) -> dict[str, list[float]]:
        """The reward of every response, as for PPO before shaping, by role.

        Frees the memory of the reference.  Also keeps the scores of the iteration's own reward
        model, which the gate's predictions use.
        """
        self._reference = None
        self._report.progress(_SAMPLED, 1, "loading the reward model")
        answer = self._job.config.evaluate.max_new_tokens
        judges = Ensemble.load(
            self._job, device=self._device, asked=dict(self._prompts), answer=answer
        )
        verdicts = self._scored("reward", (_SAMPLED, _SCORED), judges)
        self._own = {role: verdict.own for role, verdict in verdicts.items()}
        return {role: verdict.scores for role, verdict in verdicts.items()}

    def audit(self) -> dict[str, list[float]]:
        """The audit model's rewards, by role; empty without an audit model.

        The audit model learned from other judgments, and PPO does not use it.  If only the reward
        rises, PPO over-optimizes the reward model.
        """
        model = audit_model(self._job.model("reward"), device=self._device)
        return {} if model is None else self._scored("audit", (_SCORED, 1.0), model)

    def _scored(
        self,
        name: str,
        share: tuple[float, float],
        judge: Callable[[Sequence[Messages], list[str]], _T],
    ) -> dict[str, _T]:
        """One model's scores of all responses, by role; `share` is its part of the progress."""
        conversations = [messages for _, messages in self._prompts]
        begin, end = share
        scores: dict[str, _T] = {}
        for number, (role, responses) in enumerate(self._responses.items(), 1):
            scores[role] = judge(conversations, [response.text for response in responses])
            done = begin + (end - begin) * number / len(self._responses)
            self._report.progress(done, 1, f"{role}: answers scored by the {name} model")
        return scores

    def figures(
        self, role: str, rewards: Sequence[float], audit: Sequence[float] | None
    ) -> EvaluatedPolicy:
        """Means over one policy's responses, with their rewards by the two models."""
        responses = self._responses[role]
        return EvaluatedPolicy(
            kl=self.kl(role),
            kl_is_bound=role in self._bounds,
            reward=fmean(rewards),
            length=fmean(len(response.ids) for response in responses),
            distinct=distinct_share([response.ids for response in responses]),
            unique=len({response.text for response in responses}) / len(responses),
            audit_reward=fmean(audit) if audit else None,
        )

    def kl(self, role: str) -> float:
        """The mean KL of one policy's responses to the reference, in nats."""
        return fmean(self._kl[role])

    def write(self, directory: RunDirectory, rewards: dict[str, list[float]]) -> None:
        """Write all responses and their rewards, for the Samples tab, and the answers to judged
        prompts, for the annotators' page."""
        completions, scores = [], []
        for role, responses in self._responses.items():
            rows = zip(self._prompts, responses, rewards[role], self._own[role], strict=True)
            for number, ((prompt, _), response, reward, own) in enumerate(rows):
                id = f"r-{digest('evaluate', self._job.run, role, prompt, str(number))}"
                settings = {"temperature": self._temperature, "top_p": 1.0, "seed": self._seed}
                name = self._job.names[role]
                completions.append(completion_row(id, prompt, name, response, **settings))
                scores.append({"completion": id, "reward": reward, "own_reward": own})
        write_rows(directory.outputs / "completions.parquet", completions, COMPLETION_COLUMNS)
        columns = ("completion", "reward", "own_reward")
        write_rows(directory.outputs / "scores.parquet", scores, columns)
        write_answers(directory.outputs, self._follow_ups)
        if self.canary:
            self.canary.write(directory.outputs)

    def _load(self, role: str) -> Sampler:
        return sampler_of_job(self._job, self._job.model(role), self._device)


def distinct_share(texts: Sequence[Sequence[int]], n: int = 2) -> float:
    """Distinct n-grams over all n-grams of all texts (distinct-n, Li et al. 2016); 0 for none."""
    grams = [tuple(ids[i : i + n]) for ids in texts for i in range(len(ids) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 0.0
