"""Dynamic sampling: replaces groups of responses that all have the same reward.

All advantages of such a group are 0.  (DAPO: Yu et al. 2025, arXiv:2503.14476, section 3.2.)
"""

from collections.abc import Callable
from itertools import chain

from torch import Tensor

from pipeline.ppo.batch import Batch, merge

SAME_REWARD = 1e-6
"""Rewards of a group that differ by less, relative to their size, are equal up to rounding."""


def differing(outcomes: Tensor, size: int) -> Tensor:
    """(groups,) whether the rewards (B,) of a group differ; each `size` rows are a group."""
    groups = outcomes.view(-1, size)
    spread = groups.amax(1) - groups.amin(1)
    return spread > SAME_REWARD * groups.abs().amax(1).clamp_min(1)


def fill_batch(
    sample: Callable[[int], Batch],
    outcomes: Callable[[Batch], Tensor],
    *,
    groups: int,
    size: int,
    rounds: int,
    least: int = 1,
) -> tuple[Batch, int]:
    """(a batch of `groups` groups, number of groups that were sampled and left out).

    `sample(n)` returns n groups of `size` scored responses, and `outcomes` the reward (B,) of each
    response.  At most `rounds` further rounds replace groups without a difference; what is still
    missing then is filled up with such groups, so the batch never shrinks.  A round has `least`
    groups or more.
    """
    batch, dropped = sample(groups), 0
    for _ in range(rounds):
        missing = groups - int(differing(outcomes(batch), size).sum())
        if not missing:
            break
        more = max(missing, least)
        batch = merge([batch, sample(more)], _concatenated)
        signal = differing(outcomes(batch), size).tolist()
        # A stable sort: groups with a difference in the order in which they were sampled.
        chosen = sorted(range(len(signal)), key=lambda group: not signal[group])[:groups]
        batch = batch.take([group * size + row for group in chosen for row in range(size)])
        dropped += more
    return batch, dropped


def _concatenated(parts: list[list]) -> list:
    return list(chain.from_iterable(parts))
