"""Pairs that a reward model chooses from several completions per prompt.

::

    resolve_fallbacks   without reward models that can choose, these pairs become random
    choose_pairs        completions → rewards by member → candidates → `choose` → drafts
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pipeline.models.devices import pick_device
from pipeline.models.text import ChatTokenizer
from pipeline.reward.likelihood import TieModel
from pipeline.reward.scoring import RewardModel
from pipeline.runs.rundir import Job, Report
from pipeline.sampling.acquisition import (
    ACQUISITIONS,
    Candidates,
    bald,
    choose,
    narrow,
    outcome_probabilities,
    pairs_within,
)
from pipeline.sampling.pairs import Draft, PlanRow, Pool, are_near_duplicates
from storage.records import RANDOM_STREAM, derive_seed

_TEXTS_AT_ONCE = 256

CHOOSING_ARMS = tuple(name for name in ACQUISITIONS if name not in RANDOM_STREAM)


def resolve_fallbacks(plan: Sequence[PlanRow], job: Job, report: Report) -> list[PlanRow]:
    """The plan, with random pairs for arms that the reward models cannot choose.

    There may be no reward model yet, and BALD needs several members.  A note reports the change.
    Spare prompts of these arms are dropped.
    """
    asked = {row.arm for row in plan} & set(CHOOSING_ARMS)
    members = _members(job) if asked else 0
    refused = {arm for arm in asked if members < ACQUISITIONS[arm].members}
    if not refused:
        return list(plan)
    pairs = sum(row.pairs for row in plan if row.arm in refused)
    if members:
        arm = min(refused)
        kind, why = (
            "warning",
            f"{arm} compares the members of a reward model, and {job.names.get('reward')} has "
            "only one: train a reward model with several, or set sampling.selection to random "
            "or uncertainty",
        )
    else:
        kind, why = "info", "there is no reward model yet"
    message = f"{pairs} pairs were taken at random instead of being chosen: {why}"
    report.note(kind, "selection", message, pairs=pairs, members=members)
    rows = (replace(row, arm="random") if row.arm in refused else row for row in plan)
    return [row for row in rows if row.pairs]


def choose_pairs(
    pools: Sequence[Pool], job: Job, report: Report, chat: ChatTokenizer
) -> list[Draft]:
    """The planned number of pairs from the pools, at most one per prompt, without near-duplicates.

    If too few prompts have two different responses, random pairs of other prompts replace them.
    """
    arms = sorted({pool.arm for pool in pools})
    parts = [[pool for pool in pools if pool.arm == arm] for arm in arms]
    return [draft for part in parts for draft in _choose_for_arm(part, job, report, chat)]


def _choose_for_arm(
    pools: Sequence[Pool], job: Job, report: Report, chat: ChatTokenizer
) -> list[Draft]:
    arm, owed = pools[0].arm, sum(pool.pairs for pool in pools)
    sides = [side for pool in pools for side in pool.sides]
    owner = [number for number, pool in enumerate(pools) for _ in pool.sides]
    first, second = pairs_within(owner)
    judged = [_judge(path, pools, job, report) for path in _reward_models(job)]
    states = _states(pools, job) if ACQUISITIONS[arm].features else None
    candidates = Candidates(
        probabilities=torch.cat(
            [
                outcome_probabilities(rewards[:, first] - rewards[:, second], theta, tie_model)
                for rewards, theta, tie_model in judged
            ]
        ),
        prompts=[owner[i] for i in first],
        features=None if states is None else states[first] - states[second],
        tie_models=[tie_model for rewards, _, tie_model in judged for _ in rewards],
    )
    tokens, threshold = cache(chat.plain), job.config.sampling.near_duplicate

    def differ(pair: int) -> bool:
        texts = sides[first[pair]].text, sides[second[pair]].text
        return not are_near_duplicates(*texts, tokens, threshold)

    seed = derive_seed("selection", str(job.seed))
    chosen = choose(arm, candidates, owed, seed=seed, may=differ)
    _report_choice(arm, candidates, chosen, owed, report)
    pairs = {owner[first[pair]]: (sides[first[pair]], sides[second[pair]]) for pair in chosen}
    drafts = [Draft(pools[n].prompt, pools[n].messages, arm, pair) for n, pair in pairs.items()]
    rest = [pool for number, pool in enumerate(pools) if number not in pairs][: owed - len(drafts)]
    return drafts + [Draft(p.prompt, p.messages, "random", (p.sides[0], p.sides[1])) for p in rest]


def _report_choice(
    arm: str, candidates: Candidates, chosen: Sequence[int], owed: int, report: Report
) -> None:
    pairs = len(candidates.prompts)
    message = f"{arm} chose {len(chosen)} of {pairs} pairs that {candidates.members} members scored"
    figures: dict[str, float] = {}
    if candidates.members > 1 and chosen:
        scores = bald(candidates.probabilities)
        figures = {
            "sampling/bald": scores.mean().item(),
            "sampling/bald_chosen": scores[list(chosen)].mean().item(),
        }
        report.metrics(0, figures)
    if short := owed - len(chosen):
        message += f"; {short} others are random, because too few prompts had different responses"
    report.note("info", "selection", message, chosen=len(chosen), candidates=pairs)


def _reward_models(job: Job) -> list[str]:
    """Paths of the job's reward models."""
    return [path for key, path in job.models.items() if path and key.startswith("reward")]


def _members(job: Job) -> int:
    """The total number of members; frees the models again."""
    device = pick_device(job.config.worker.device)
    return sum(RewardModel.load(path, device=device).members for path in _reward_models(job))


def _judge(
    path: str, pools: Sequence[Pool], job: Job, report: Report
) -> tuple[Tensor, float, TieModel]:
    """(K, N) rewards of all N completions by the members of one reward model, and its tie model."""
    model = RewardModel.load(path, device=pick_device(job.config.worker.device))
    conversations, texts = _answers(pools)
    rewards: list[list[float]] = [[] for _ in range(model.members)]
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        part = slice(start, start + _TEXTS_AT_ONCE)
        scored = model.member_scores(conversations[part], texts[part])
        for scores, more in zip(rewards, scored, strict=True):
            scores += more
        done = len(rewards[0])
        report.progress(done, len(texts), f"scored {done:,} of {len(texts):,} completions")
    ties = model.network.ties().item(), model.network.likelihood.tie_model
    return torch.tensor(rewards, dtype=torch.float64), *ties


def _states(pools: Sequence[Pool], job: Job) -> Tensor:
    """(N, at most MAX_FEATURES) last states of the completions in the first reward model."""
    path = _reward_models(job)[0]
    model = RewardModel.load(path, device=pick_device(job.config.worker.device))
    return narrow(model.states(*_answers(pools)), seed=job.seed)


def _answers(pools: Sequence[Pool]) -> tuple[list[Any], list[str]]:
    """The conversations and texts of all completions, pool by pool."""
    conversations = [pool.messages for pool in pools for _ in pool.sides]
    return conversations, [side.text for pool in pools for side in pool.sides]
