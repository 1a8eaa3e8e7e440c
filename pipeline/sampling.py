"""The sampling stage: fresh pairs of completions for the annotators.

::

    plan (prompt × arm × pairs) → drafts of two sides → sample, model by model
      → sides nearly the same? sample the second again, twice at most, then from the reference;
        leave the pair out where that says the same too
      → completions.parquet, comparisons.parquet
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.config import SamplingConfig
from pipeline.devices import pick_device
from pipeline.rundir import Job, Report, RunDirectory
from pipeline.sampler import Response, Sampler
from pipeline.text import ChatTokenizer, read_messages
from storage.records import Message, digest

SECOND_CHANCES = 2
"""How often the second side of a pair of near-duplicates is sampled again."""

OPPONENT = {"random": "policy", "previous": "previous", "reference": "reference"}
"""Whose completion meets the policy's own, by arm."""

COMPLETION_COLUMNS = (
    "id", "prompt", "policy", "text", "tokens", "finish_reason", "temperature", "top_p", "seed",
)  # fmt: skip
COMPARISON_COLUMNS = ("id", "prompt", "first", "second", "arm")


@dataclass
class Side:
    """One of a pair's completions, before and after it is sampled."""

    model: str
    temperature: float
    id: str
    seed: int = 0
    response: Response | None = None

    @property
    def text(self) -> str:
        assert self.response is not None
        return self.response.text


@dataclass
class Draft:
    """A pair to be: the policy's side, and the one it is compared with."""

    prompt: str
    messages: tuple[Message, ...]
    arm: str
    sides: tuple[Side, Side]
    duplicate: bool = field(default=False)

    def canonical(self) -> tuple[str, str]:
        """The sides' ids in an order that says nothing about who wrote which."""
        first, second = sorted(side.id for side in self.sides)
        return first, second


def run(job: Job, report: Report, directory: RunDirectory) -> dict[str, Any]:
    """Sample what inputs/prompts.parquet asks for."""
    config = job.config.sampling
    drafts = read_plan(directory.inputs / "prompts.parquet", job)
    session = _Session(job, report, total=2 * len(drafts))
    drafts = session.only_fitting(drafts)
    pending = [side for draft in drafts for side in draft.sides]
    session.sample(drafts, pending)
    chat = ChatTokenizer.load(job.model("policy"))
    for _ in range(SECOND_CHANCES):
        again = mark_duplicates(drafts, chat, config.near_duplicate)
        if not again:
            break
        report.log(f"{len(again)} pairs are nearly the same text; sampling their second side again")
        session.sample(again, [draft.sides[1] for draft in again])
    turned = against_reference(mark_duplicates(drafts, chat, config.near_duplicate), job)
    if turned:
        report.log(
            f"{len(turned)} pairs stayed nearly the same text; the reference answers instead"
        )
        session.sample(turned, [draft.sides[1] for draft in turned])
    dropped = len(mark_duplicates(drafts, chat, config.near_duplicate))
    if dropped:
        message = f"{dropped} of {len(drafts)} pairs stayed nearly the same text and were left out"
        report.note("warning", "near_duplicates", message, count=dropped)
    kept = [draft for draft in drafts if not draft.duplicate]
    write_outputs(kept, job, config, directory.outputs)
    speed = session.tokens / max(session.seconds, 1e-9)
    report.metrics(0, {"sampling/near_duplicates": dropped, "sampling/tokens_per_second": speed})
    return {
        "comparisons": len(kept),
        "near_duplicates": dropped,
        "too_long": session.too_long,
        "tokens_per_second": speed,
        "arms": pd.Series([draft.arm for draft in kept], dtype=object).value_counts().to_dict(),
    }


def read_plan(path: Path, job: Job) -> list[Draft]:
    """Drafts for the plan's rows (id, messages, arm, pairs).

    A completion's id follows from run, prompt and its number among the prompt's completions, so
    that a stage run again makes the same ones.  Sides of one model differ in temperature; sides
    of two models share the first temperature, so that it is the models that are compared.
    """
    drafts: list[Draft] = []
    numbers: dict[str, int] = defaultdict(int)
    warm, other = job.config.sampling.temperatures
    for row in pd.read_parquet(path).to_dict("records"):
        if row["arm"] not in OPPONENT:
            raise ValueError(f"arm={row['arm']!r} must be one of {', '.join(OPPONENT)}")
        opponent = OPPONENT[row["arm"]]
        for key in ("policy", opponent):
            job.model(key)
        temperatures = (warm, other if opponent == "policy" else warm)
        for _ in range(row["pairs"]):
            sides = []
            for model, temperature in zip(("policy", opponent), temperatures, strict=True):
                number = numbers[row["id"]]
                numbers[row["id"]] += 1
                id = f"r-{digest('completion', job.run, row['id'], str(number))}"
                sides.append(Side(model=model, temperature=temperature, id=id))
            messages = read_messages(row["messages"])
            drafts.append(Draft(row["id"], messages, row["arm"], (sides[0], sides[1])))
    return drafts


class _Session:
    """Samples sides, one model in memory at a time."""

    def __init__(self, job: Job, report: Report, *, total: int) -> None:
        self._job = job
        self._report = report
        self._device = pick_device(job.config.worker.device)
        self._total = total
        self._done = self._rounds = 0
        self.tokens = self.too_long = 0
        self.seconds = 0.0

    def only_fitting(self, drafts: list[Draft]) -> list[Draft]:
        """The drafts whose prompt leaves room for an answer; the others are counted and said."""
        sampler = self._load("policy")
        limit = self._job.config.sampling.max_new_tokens
        fitting = [draft for draft in drafts if sampler.fits(draft.messages, limit)]
        self.too_long = len(drafts) - len(fitting)
        if self.too_long:
            message = (
                f"{self.too_long} of {len(drafts)} pairs were left out: with "
                f"sampling.max_new_tokens={limit} their prompts exceed the model's context"
            )
            self._report.note("warning", "long_prompts", message, count=self.too_long)
        return fitting

    def sample(self, drafts: Sequence[Draft], sides: Sequence[Side]) -> None:
        """Fill in the response of each of these sides of these drafts."""
        self._rounds += 1
        self._total = max(self._total, self._done + len(sides))
        messages = {side.id: draft.messages for draft in drafts for side in draft.sides}
        groups: dict[tuple[str, float], list[Side]] = defaultdict(list)
        for side in sides:
            groups[side.model, side.temperature].append(side)
        sampler, loaded = None, None
        for (model, temperature), group in sorted(groups.items()):
            if sampler is None or loaded != model:
                sampler, loaded = self._load(model), model
            self._sample_group(sampler, group, temperature, [messages[s.id] for s in group])

    def _sample_group(
        self, sampler: Sampler, group: list[Side], temperature: float, conversations: list[Any]
    ) -> None:
        config = self._job.config.sampling
        parts = (str(self._job.seed), group[0].model, str(temperature), str(self._rounds))
        seed = int(digest("sampling", *parts), 16) % 2**31
        start = time.perf_counter()
        responses = sampler.sample(
            conversations,
            temperature=temperature,
            top_p=config.top_p,
            max_new_tokens=config.max_new_tokens,
            seed=seed,
            batch=config.batch,
            on_batch=self._count,
        )
        self.seconds += time.perf_counter() - start
        for side, response in zip(group, responses, strict=True):
            side.response, side.seed = response, seed

    def _count(self, batch: list[Response]) -> None:
        self._done += len(batch)
        self.tokens += sum(len(response.ids) for response in batch)
        message = f"sampled {self._done} of {self._total} completions"
        self._report.progress(self._done, self._total, message)

    def _load(self, model: str) -> Sampler:
        return Sampler.of_job(self._job, self._job.model(model), self._device)


def mark_duplicates(drafts: Sequence[Draft], chat: ChatTokenizer, threshold: float) -> list[Draft]:
    """The drafts whose sides are at least `threshold` alike; each draft remembers the verdict."""
    for draft in drafts:
        first, second = draft.sides
        draft.duplicate = similarity(first.text, second.text, chat.plain) >= threshold
    return [draft for draft in drafts if draft.duplicate]


def against_reference(drafts: Sequence[Draft], job: Job) -> list[Draft]:
    """Those of the drafts that now compare the policy with the reference instead.

    A policy that has grown sure of itself says the same again and again: its own answers make
    no pairs, and the loop would starve for labels.  None where the policy is the reference.
    """
    if job.names.get("reference") in (None, job.names.get("policy")):
        return []
    turned = [draft for draft in drafts if draft.arm != "reference"]
    for draft in turned:
        draft.arm = "reference"
        draft.sides[1].model = "reference"
        draft.sides[1].temperature = job.config.sampling.temperatures[0]
    return turned


def similarity(a: str, b: str, tokens: Callable[[str], list[int]]) -> float:
    """How much of two texts is the same run of tokens, 0 to 1, whatever case and spacing.

    Twice the matching tokens over all tokens (Ratcliff and Obershelp); 1 for two empty texts.
    """
    one, two = (tokens(" ".join(text.casefold().split())) for text in (a, b))
    # autojunk would ignore tokens that are frequent in a long text.
    return SequenceMatcher(None, one, two, autojunk=False).ratio()


def write_outputs(drafts: Sequence[Draft], job: Job, config: SamplingConfig, to: Path) -> None:
    """completions.parquet and comparisons.parquet, with their columns even when empty."""
    completions = [
        completion_row(
            side.id, draft.prompt, job.names.get(side.model), side.response,
            temperature=side.temperature, top_p=config.top_p, seed=side.seed,
        )
        for draft in drafts
        for side in draft.sides
    ]  # fmt: skip
    comparisons = [
        {
            "id": f"c-{digest('comparison', *draft.canonical())}",
            "prompt": draft.prompt,
            "first": draft.canonical()[0],
            "second": draft.canonical()[1],
            "arm": draft.arm,
        }
        for draft in drafts
    ]
    write_rows(to / "completions.parquet", completions, COMPLETION_COLUMNS)
    write_rows(to / "comparisons.parquet", comparisons, COMPARISON_COLUMNS)


def completion_row(
    id: str, prompt: str, policy: str | None, response: Response | None, **sampled: Any
) -> dict[str, Any]:
    """A row of completions.parquet; `sampled` is temperature, top_p and seed."""
    if policy is None or response is None:
        raise ValueError(f"completion {id} of prompt {prompt} has no policy name or no text")
    return {
        "id": id,
        "prompt": prompt,
        "policy": policy,
        "text": response.text,
        "tokens": len(response.ids),
        "finish_reason": response.finish_reason,
    } | sampled


def write_rows(path: Path, rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    """A parquet file that has its columns whether or not it has rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(list(rows), columns=list(columns)).to_parquet(path, index=False)
