"""The canary in the evaluation stage: answers of the policy and of SFT, and which pass.  Loads torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.canary.checks import Canary
from pipeline.canary.training import canary_of, canary_seed, require_canary_room
from pipeline.models.generate import Response, Sampler
from pipeline.models.loading import context_length
from pipeline.models.text import Messages
from pipeline.runs.parquet import write_rows
from pipeline.runs.rundir import Job
from storage.gate_records import CanaryResults

FILE = "canary.parquet"
_COLUMNS = ("check", "prompt", "policy", "answer", "passes")
Answer = Callable[[Sequence[Messages], int], list[Response]]
"""(prompts, seed) → a model's responses."""


class CanaryEvaluation:
    """The answers of the roles policy and reference to the canary of a job."""

    def __init__(self, canary: Canary, job: Job) -> None:
        self._canary = canary
        self._job = job
        self._answers: dict[str, list[str]] = {}
        self._passed: dict[str, list[bool]] = {}

    @classmethod
    def of(cls, job: Job) -> CanaryEvaluation | None:
        """None if `gate.canary` is empty; ValueError if it cannot be used."""
        canary = canary_of(job.config)
        return cls(canary, job) if canary else None

    def answer(self, role: str, sampler: Sampler, answer: Answer) -> None:
        """Let one model answer; both roles get the same random numbers.

        ValueError for a check that fails, or a prompt that is too long for the model.
        """
        require_canary_room(
            self._canary, sampler.chat, self._job.config.evaluate.max_new_tokens,
            context=context_length(sampler.model), setting="evaluate.max_new_tokens",
        )  # fmt: skip
        responses = answer(self._canary.prompts, canary_seed(self._job))
        self._answers[role] = [response.text for response in responses]
        self._passed[role] = self._canary.passed(self._answers[role])

    def results(self) -> CanaryResults:
        """What the policy and SFT pass."""
        return self._canary.compared(
            self._passed["policy"],
            self._passed["reference"],
            answers=self._answers["policy"],
            allowed_loss=self._job.config.gate.canary_loss,
        )

    def write(self, outputs: Path) -> None:
        """Write every answer, and whether it passes, for whoever asks why."""
        rows = [
            {
                "check": check.name,
                "prompt": self._canary.prompts[number][-1].content,
                "policy": self._job.names[role],
                "answer": answers[number],
                "passes": passes,
            }
            for role, answers in self._answers.items()
            for check, number, passes in zip(
                self._canary.checks, self._canary.numbers, self._passed[role], strict=True
            )
        ]
        write_rows(outputs / FILE, rows, _COLUMNS)
