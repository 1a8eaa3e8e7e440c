"""The stage of a study: policies answer the held-out prompts, and the stage measures the answers.

inputs/plan.json lists the policies: ``{"policies": [{"name", "path"}, …], "samples": 1}``.  Answers
go to outputs/NAME.parquet; a continued study measures only the policies that are missing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pipeline.models.devices import pick_device
from pipeline.models.generate import Response, Sampler
from pipeline.models.likelihoods import sequence_kl
from pipeline.reward.ensemble import Ensemble
from pipeline.runs.parquet import write_rows
from pipeline.runs.rundir import Job, Report, RunDirectory
from pipeline.stages.evaluate import evaluation_prompts, require_room
from storage.records import derive_seed, messages_json

COLUMNS = ("prompt", "messages", "sample", "text", "reward", "kl", "length")


@dataclass(frozen=True)
class MeasureSummary:
    """The summary of a study's stage."""

    sampling_seconds: Mapping[str, float]
    """Seconds of sampling, by the policy's name in the plan."""


def run(job: Job, report: Report, directory: RunDirectory) -> MeasureSummary:
    """Sample and measure every policy of the plan."""
    plan = json.loads((directory.inputs / "plan.json").read_text())
    bench = _Bench(job, directory, samples=plan["samples"])
    seconds, count = {}, len(plan["policies"])
    for number, policy in enumerate(plan["policies"]):

        def progress(done: int, of: int, name: str = policy["name"], before: int = number) -> None:
            report.progress(before * of + done, count * of, f"{name}: {done} of {of} answers")

        seconds[policy["name"]] = bench.measure(policy["name"], policy["path"], progress)
    return MeasureSummary(seconds)


class _Bench:
    """Measures all policies with the same prompts, reference and reward model."""

    def __init__(self, job: Job, directory: RunDirectory, *, samples: int) -> None:
        self._job = job
        self._outputs = directory.outputs
        self._config = job.config.evaluate
        # All policies use the same random numbers, so differences come from training.
        self._seed = derive_seed("compare", str(job.seed), str(samples))
        self._device = pick_device(job.config.worker.device)
        prompts = evaluation_prompts(directory, self._config)
        self._asked = [(*prompt, n) for prompt in prompts for n in range(samples)]
        self._reference = Sampler.of_job(job, job.model("reference"), self._device)
        self._reward = Ensemble.load(
            job, device=self._device, asked=dict(prompts), answer=self._config.max_new_tokens
        )

    def measure(self, name: str, path: str, progress: Callable[[int, int], None]) -> float:
        """Write the policy's answers unless they exist; return the seconds that sampling took.

        `progress` is called with (answers so far, answers in all).
        """
        target, clock = self._outputs / f"{name}.parquet", self._outputs / f"{name}.seconds"
        if clock.exists():  # written last
            return float(clock.read_text())
        same = path == self._job.model("reference")
        sampler = self._reference if same else Sampler.of_job(self._job, path, self._device)
        config, conversations = self._config, [messages for _, messages, _ in self._asked]
        asked = [(id, messages) for id, messages, _ in self._asked]
        require_room(sampler, asked, config.max_new_tokens)
        done = 0

        def count(batch: Sequence[Response]) -> None:
            nonlocal done
            done += len(batch)
            progress(done, len(conversations))

        start = time.perf_counter()
        responses = sampler.sample(
            conversations,
            temperature=self._job.config.evaluation_temperature,
            max_new_tokens=config.max_new_tokens,
            seed=self._seed,
            batch=config.batch,
            on_batch=count,
        )
        seconds = time.perf_counter() - start
        rewards = self._reward(conversations, [response.text for response in responses]).scores
        divergences = [0.0] * len(responses)
        if not same:
            divergences = sequence_kl(
                sampler.model, self._reference.model, responses,
                temperature=self._job.config.evaluation_temperature, pad_id=sampler.chat.pad_id,
            )  # fmt: skip
        rows = [
            {
                "prompt": prompt,
                "messages": messages_json(messages),
                "sample": sample,
                "text": response.text,
                "reward": reward,
                "kl": kl,
                "length": len(response.ids),
            }
            for (prompt, messages, sample), response, reward, kl in zip(
                self._asked, responses, rewards, divergences, strict=True
            )
        ]
        write_rows(target, rows, COLUMNS)
        clock.write_text(str(seconds))
        return seconds
