"""The sampling stage: new pairs of completions for the annotators.

::

    plan (prompt × arm × pairs) → drafts of two sides, pools of several → sample, model by model
      → the reward model's members score the pools and choose two sides of some as drafts
      → near-duplicates: sample the second side again, at most twice, then from the reference;
        leave the pair out if that is a near-duplicate too
      → completions.parquet, comparisons.parquet
"""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.config.sections import SamplingConfig
from pipeline.models.devices import pick_device
from pipeline.models.generate import Response, needed_tokens
from pipeline.models.loading import context_of
from pipeline.models.text import ChatTokenizer, name_rows, read_messages
from pipeline.runs.parquet import write_rows
from pipeline.runs.rundir import Job, Report, RunDirectory
from pipeline.sampling.backends import PairSampler, pair_sampler
from pipeline.sampling.pairs import Draft, PlanRow, Pool, Side, are_near_duplicates
from pipeline.sampling.reward_selection import CHOOSING_ARMS, choose_pairs, resolve_fallbacks
from storage.records import derive_seed, digest

MAX_RESAMPLES = 2
"""Maximum number of times that the second side of a near-duplicate pair is sampled again."""

OPPONENT = {"random": "policy", "previous": "previous", "reference": "reference"}
"""The model that the policy is compared with, by arm of the random stream.  The arm `reference`
compares the candidate policy, which is not the sampled policy after a block."""

COMPLETION_COLUMNS = (
    "id", "prompt", "policy", "text", "tokens", "finish_reason", "temperature", "top_p", "seed",
)  # fmt: skip
COMPARISON_COLUMNS = ("id", "prompt", "first", "second", "arm")
_PLAN_COLUMNS = ("id", "messages", "arm", "pairs")


@dataclass(frozen=True, kw_only=True)
class SamplingSummary:
    """The summary of a sampling stage, in pairs."""

    comparisons: int
    """New pairs."""
    near_duplicates: int
    """Pairs left out, because their texts were nearly the same."""
    too_long: int
    """Pairs left out, because their prompts leave no room for a response."""
    tokens_per_second: float
    arms: Mapping[str, int]
    """New pairs by arm."""


def run(job: Job, report: Report, directory: RunDirectory) -> SamplingSummary:
    """Sample the plan in inputs/prompts.parquet."""
    config = job.config.sampling
    chat = ChatTokenizer.load(job.model("policy"))
    rows = resolve_fallbacks(read_rows(directory.inputs / "prompts.parquet"), job, report)
    session = _Session(job, report)
    fitting = session.only_fitting(rows, chat)
    if not any(row.pairs for row in fitting):
        raise ValueError(
            "the prompts leave no room for an answer in the model's context; lower "
            f"sampling.max_new_tokens={config.max_new_tokens} and retry, or import shorter prompts"
        )
    drafts, pools = read_plan(fitting, job)
    drafts_and_pools = [*drafts, *pools]
    session.sample(drafts_and_pools, [side for each in drafts_and_pools for side in each.sides])
    drafts += choose_pairs(pools, job, report, chat)
    for _ in range(MAX_RESAMPLES):
        again = mark_duplicates(drafts, chat, config.near_duplicate)
        if not again:
            break
        report.log(f"{len(again)} pairs are near-duplicates; sampling their second responses again")
        session.sample(again, [draft.sides[1] for draft in again])
    replaced = against_reference(mark_duplicates(drafts, chat, config.near_duplicate), job)
    if replaced:
        report.log(
            f"{len(replaced)} pairs are still near-duplicates; comparing with the reference instead"
        )
        session.sample(replaced, [draft.sides[1] for draft in replaced])
    dropped = len(mark_duplicates(drafts, chat, config.near_duplicate))
    if dropped:
        message = f"{dropped} of {len(drafts)} pairs are still near-duplicates and were left out"
        report.note("warning", "near_duplicates", message, count=dropped)
    kept = [draft for draft in drafts if not draft.duplicate]
    if not kept:
        raise ValueError(_all_alike(dropped, session.too_long))
    write_outputs(kept, job, config, directory.outputs)
    speed = session.tokens / max(session.seconds, 1e-9)
    report.metrics(0, {"sampling/near_duplicates": dropped, "sampling/tokens_per_second": speed})
    return SamplingSummary(
        comparisons=len(kept),
        near_duplicates=dropped,
        too_long=session.too_long,
        tokens_per_second=speed,
        arms=Counter(draft.arm for draft in kept),
    )


def _all_alike(dropped: int, too_long: int) -> str:
    """Why no pair is left."""
    left_out = (
        f" ({too_long} more had prompts too long for the model's context)" if too_long else ""
    )
    return (
        f"the two answers were nearly the same text in all {dropped} pairs{left_out}; raise "
        "sampling.temperatures or sampling.near_duplicate and retry"
    )


def read_rows(path: Path) -> list[PlanRow]:
    """The plan's rows (id, messages, arm, pairs); ValueError for an unknown arm."""
    known = [*OPPONENT, *CHOOSING_ARMS]
    rows = []
    for prompt, text, arm, pairs in pd.read_parquet(path)[[*_PLAN_COLUMNS]].itertuples(index=False):
        if arm not in known:
            raise ValueError(f"arm={arm!r} must be one of {', '.join(known)}")
        messages = read_messages(text)
        rows.append(PlanRow(prompt=prompt, messages=messages, arm=arm, pairs=pairs))
    return rows


def read_plan(rows: Sequence[PlanRow], job: Job) -> tuple[list[Draft], list[Pool]]:
    """Drafts for the plan's rows, and pools for rows from which a reward model chooses.

    A completion's id depends on run, prompt and number only, so that a retry makes the same ids.
    Two sides of one model differ in temperature; sides of two models have the same temperature, so
    that only the models differ.
    """
    drafts: list[Draft] = []
    pools: list[Pool] = []
    numbers: dict[str, int] = defaultdict(int)
    first_temperature, second_temperature = job.config.sampling.temperatures
    candidate = job.names.get("candidate")
    waits = candidate is not None and candidate == job.names.get("previous")
    judged = "previous" if waits else "policy"

    def side(prompt: str, model: str, temperature: float) -> Side:
        job.model(model)
        number = numbers[prompt]
        numbers[prompt] += 1
        id = f"r-{digest('completion', job.run, prompt, str(number))}"
        return Side(model=model, temperature=temperature, id=id)

    for row in rows:
        prompt, messages, arm = row.prompt, row.messages, row.arm
        if arm in CHOOSING_ARMS:
            both = (first_temperature, second_temperature)
            temperatures = [both[n % 2] for n in range(job.config.sampling.candidates)]
            sides = tuple(side(prompt, "policy", each) for each in temperatures)
            pools.append(Pool(prompt, messages, arm, sides, row.pairs))
            continue
        opponent = OPPONENT[arm]
        for _ in range(row.pairs):
            ours = side(prompt, judged if arm == "reference" else "policy", first_temperature)
            # Sides of two models differ in the model only.
            opposite = second_temperature if opponent == "policy" else first_temperature
            theirs = side(prompt, opponent, opposite)
            drafts.append(Draft(prompt, messages, arm, (ours, theirs)))
    return drafts, pools


class _Session:
    """Samples sides, one model in memory at a time."""

    def __init__(self, job: Job, report: Report) -> None:
        self._job = job
        self._report = report
        self._device = pick_device(job.config.worker.device)
        self._total = self._done = self._before = self._rounds = 0
        self.tokens = self.too_long = 0
        self.seconds = 0.0

    def only_fitting(self, rows: Sequence[PlanRow], chat: ChatTokenizer) -> list[PlanRow]:
        """The rows whose prompt leaves room for a response; a warning counts the others."""
        limit = self._job.config.sampling.max_new_tokens
        needs = [needed_tokens(chat, row.messages, limit) for row in rows]
        context = context_of(self._job.model("policy")) or sys.maxsize
        fitting = [row for row, tokens in zip(rows, needs, strict=True) if tokens <= context]
        long = [(row.prompt, n) for row, n in zip(rows, needs, strict=True) if n > context]
        pairs = sum(row.pairs for row in rows)
        self.too_long = pairs - sum(row.pairs for row in fitting)
        if self.too_long:
            message = (
                f"{self.too_long} of {pairs} pairs were left out: with "
                f"sampling.max_new_tokens={limit} their prompts exceed the model's context of "
                f"{context} tokens: {name_rows(long)}"
            )
            self._report.note("warning", "long_prompts", message, count=self.too_long)
        return fitting

    def sample(self, asked: Sequence[Draft | Pool], sides: Sequence[Side]) -> None:
        """Sample the responses of `sides`, which belong to the drafts and pools in `asked`."""
        self._rounds += 1
        self._before, self._total = self._done, self._done + len(sides)
        messages = {side.id: each.messages for each in asked for side in each.sides}
        groups: dict[str, dict[float, list[Side]]] = defaultdict(lambda: defaultdict(list))
        for side in sides:
            groups[side.model][side.temperature].append(side)
        for model, by_temperature in sorted(groups.items()):
            with pair_sampler(self._job, model, self._device) as sampler:
                for temperature, group in sorted(by_temperature.items()):
                    conversations = [messages[side.id] for side in group]
                    self._sample_group(sampler, group, temperature, conversations)
            del sampler  # freed before the next is loaded

    def _sample_group(
        self, sampler: PairSampler, group: list[Side], temperature: float, conversations: list[Any]
    ) -> None:
        config = self._job.config.sampling
        parts = (str(self._job.seed), group[0].model, str(temperature), str(self._rounds))
        seed = derive_seed("sampling", *parts)
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
        # Each round counts from 0: the number of responses to resample is not known in advance.
        message = (
            f"sampled {self._done - self._before:,} of {self._total - self._before:,} completions"
        )
        if self._rounds > 1:
            message = f"{message} again, for near-duplicates"
        self._report.progress(self._done, self._total, message)


def mark_duplicates(drafts: Sequence[Draft], chat: ChatTokenizer, threshold: float) -> list[Draft]:
    """The drafts whose sides are at least `threshold` alike; sets `Draft.duplicate`."""
    for draft in drafts:
        first, second = draft.sides
        draft.duplicate = are_near_duplicates(first.text, second.text, chat.plain, threshold)
    return [draft for draft in drafts if draft.duplicate]


def against_reference(drafts: Sequence[Draft], job: Job) -> list[Draft]:
    """Turn drafts into comparisons with the reference; return none if the policy is the reference.

    A policy with low entropy repeats itself, and without these pairs there would be too few to
    label.  Their arm is ``repeated``, because a win rate over such prompts would be biased.
    """
    if job.names.get("reference") in (None, job.names.get("policy")):
        return []
    turned = [draft for draft in drafts if draft.arm != "reference"]
    for draft in turned:
        draft.arm = "repeated"
        draft.sides[1].model = "reference"
        draft.sides[1].temperature = job.config.sampling.temperatures[0]
    return turned


def write_outputs(drafts: Sequence[Draft], job: Job, config: SamplingConfig, to: Path) -> None:
    """Write completions.parquet and comparisons.parquet."""
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
