"""Allocation of prompts to arms.

The prompts of the random stream and those of the arm whose pairs a reward model chooses are
disjoint and drawn at random, so that measurements on the stream do not depend on a reward model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from storage.records import Arm, digest


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """A prompt to sample.  `pairs` is 0 for a spare prompt, whose pair may be chosen instead."""

    prompt: str
    arm: Arm
    pairs: int


@dataclass(frozen=True, kw_only=True)
class PromptUsage:
    """The number of comparisons by prompt: all, and those of the random stream."""

    all: Mapping[str, int] = field(default_factory=dict)
    stream: Mapping[str, int] = field(default_factory=dict)


def allocate_prompts(
    prompts: Sequence[str],
    *,
    pairs: int,
    shares: Mapping[Arm, float],
    chosen: tuple[Arm, float] | None,
    prompts_per_pair: float,
    used: PromptUsage,
    seed: int,
) -> list[Allocation]:
    """Allocate `pairs` pairs to prompts and arms.

    `shares` maps each arm of the random stream except `random` to its share; `random` gets the
    rest.  `chosen` is the arm whose pairs a reward model chooses, with its share.  It gets at most
    one pair per prompt, and `prompts_per_pair` candidate prompts per pair if there are enough.
    Prompts with the fewest comparisons come first, in random order.  The stream counts only its own
    comparisons; otherwise the reward model would influence which prompts measure it.
    With fewer prompts than pairs, `chosen` gets its share of the prompts, at most half, and the
    stream uses the others repeatedly.
    """
    drawn = sorted(prompts, key=lambda p: digest("order", str(seed), p))
    others: list[Arm] = [arm for arm, share in shares.items() for _ in range(round(share * pairs))]
    others = others[:pairs]
    wanted = min(round(chosen[1] * pairs), pairs - len(others)) if chosen else 0
    stream = sorted(drawn, key=lambda p: used.stream.get(p, 0))
    stream = stream[: _prompts_of_stream(len(prompts), pairs - wanted, wanted)]
    kept = set(stream)
    pool = sorted((p for p in drawn if p not in kept), key=lambda p: used.all.get(p, 0))
    wanted = min(wanted, len(pool))
    plan = _stream_rows(stream, others, pairs - wanted, seed)
    if chosen and wanted:
        pool = pool[: max(wanted, round(wanted * prompts_per_pair))]
        plan += [
            Allocation(prompt=p, arm=chosen[0], pairs=int(i < wanted)) for i, p in enumerate(pool)
        ]
    return plan


def _stream_rows(
    prompts: Sequence[str], others: Sequence[Arm], pairs: int, seed: int
) -> list[Allocation]:
    """Allocate pairs to the prompts in turn, and to `others` and `random` at random."""
    random: list[Arm] = ["random"] * (pairs - len(others))
    arms: list[Arm] = [*others, *random]
    order = sorted(range(pairs), key=lambda i: digest("arm", str(seed), str(i)))
    asked: dict[tuple[str, Arm], int] = {}
    for place, i in enumerate(order):
        key = (prompts[place % len(prompts)], arms[i])
        asked[key] = asked.get(key, 0) + 1
    return [Allocation(prompt=prompt, arm=arm, pairs=n) for (prompt, arm), n in asked.items()]


def _prompts_of_stream(prompts: int, stream: int, chosen: int) -> int:
    """The number of prompts for the stream, which has `stream` of the pairs."""
    if not chosen:
        return prompts
    if stream + chosen <= prompts:
        return stream
    return prompts - min(prompts // 2, round(prompts * chosen / (stream + chosen)))
