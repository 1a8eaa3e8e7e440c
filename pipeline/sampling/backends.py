"""What samples pairs: the studio's loop, vLLM, or a server (`sampling.backend`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from pipeline.models.generate import Response
from pipeline.models.text import ChatTokenizer, Messages
from pipeline.runs.rundir import Job
from pipeline.sampling.best_of_n import sampler_of_job
from pipeline.sampling.server import ServerSampler
from pipeline.sampling.vllm import vllm_sampler


class PairSampler(Protocol):
    """Answers conversations with one model; `Sampler.sample` describes the arguments."""

    def sample(
        self,
        conversations: Sequence[Messages],
        *,
        temperature: float,
        max_new_tokens: int,
        seed: int,
        top_p: float = 1.0,
        batch: int = 32,
        on_batch: Callable[[list[Response]], Any] = lambda _: None,
    ) -> list[Response]: ...


@contextmanager
def pair_sampler(job: Job, role: str, device: torch.device) -> Iterator[PairSampler]:
    """The sampler of the job's model with this role; its memory is free at the end.

    Raises ValueError with one sentence if the backend is missing or does not start.
    """
    config, path = job.config.sampling, job.model(role)
    if config.backend == "vllm":
        with vllm_sampler(job, path, device) as sampler:
            yield sampler
    elif config.backend == "url":
        name = job.names[role]
        assert name is not None, "the worker's job names every model"
        yield ServerSampler(config.url, name, ChatTokenizer.load(path))
    else:
        yield sampler_of_job(job, path, device)
