"""A new policy's answers to prompts that people judged, for the annotators' page.

The web process chooses the prompts (`storage/labeling/follow_ups.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.models.generate import Sampler
from pipeline.models.text import Messages, read_messages
from pipeline.runs.parquet import write_rows
from pipeline.runs.rundir import Job, Report
from storage.records import derive_seed, digest

FILE = "follow_ups.parquet"
"""The name of the input and of the output."""
_COLUMNS = (
    "id", "prompt", "policy", "text", "tokens", "finish_reason", "temperature", "top_p", "seed",
)  # fmt: skip


def read_judged(inputs: Path) -> list[tuple[str, Messages]]:
    """(id, messages) of the prompts; none without the file."""
    if not (inputs / FILE).exists():
        return []
    frame = pd.read_parquet(inputs / FILE)
    rows = zip(frame["prompt"], frame["messages"], strict=True)
    return [(id, read_messages(text)) for id, text in rows]


def answer_judged(
    sampler: Sampler, prompts: list[tuple[str, Messages]], job: Job, report: Report
) -> list[dict[str, Any]]:
    """One answer to each prompt, sampled as the first response of a pair; rows of the output."""
    config = job.config.sampling
    fitting = [each for each in prompts if sampler.fits(each[1], config.max_new_tokens)]
    if len(fitting) < len(prompts):
        report.log(f"{len(prompts) - len(fitting)} judged prompts exceed the model's context")
    seed, temperature = derive_seed("follow-ups", str(job.seed)), config.temperatures[0]
    responses = sampler.sample(
        [messages for _, messages in fitting],
        temperature=temperature,
        top_p=config.top_p,
        max_new_tokens=config.max_new_tokens,
        seed=seed,
        batch=config.batch,
    )
    return [
        {
            "id": f"u-{digest('follow-up', job.run, prompt)}",
            "prompt": prompt,
            "policy": job.names["policy"],
            "text": response.text,
            "tokens": len(response.ids),
            "finish_reason": response.finish_reason,
            "temperature": temperature,
            "top_p": config.top_p,
            "seed": seed,
        }
        for (prompt, _), response in zip(fitting, responses, strict=True)
    ]


def write_answers(outputs: Path, rows: list[dict[str, Any]]) -> None:
    """Write the rows of `answer_judged`."""
    write_rows(outputs / FILE, rows, _COLUMNS)
