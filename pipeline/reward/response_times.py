"""What the time of a judgment says about the difference of its rewards (`reward.response_times`).

People decide sooner if one response is much better.  In a drift-diffusion model whose choice has the
log-odds z, the mean decision time is

    MDT(z) = MDT(0) · tanh(z/2) / (z/2)        Wagenmakers et al. 2007, *An EZ-diffusion model*, eq. 9

Most of a response time is reading, which z does not change.  So the standardized log time t of a
judgment is modeled with a learned share γ ≥ 0 of this effect:

    t ~ N(c − γ · g(z), 1)        g(z) = log(z/2) − log tanh(z/2)

γ = 0 says that times carry no information.  z contains the slope and bias of the annotator.  Li et
al. 2025 (arXiv:2505.22820) learn rewards from choices and times of the same model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from pipeline.reward.data import JudgedPair
from pipeline.reward.likelihood import BOTH_BAD

MIN_TIMES = 20
"""With fewer known times nothing is learned from them."""

_PRIOR_TIMES = 5.0
"""An annotator's variance is shrunk to the common one, as if it had this many judgments."""
_MOST = 3.0
"""Standardized times are clipped to ± this: a coffee break is no judgment."""
_START = 0.05
"""γ before training."""


class ResponseTimes(nn.Module):
    """γ and c, learned with the rewards."""

    def __init__(self) -> None:
        super().__init__()
        # No scalars, because sharded training does not support them.
        self.raw = nn.Parameter(torch.tensor([math.log(math.expm1(_START))]))
        self.level = nn.Parameter(torch.zeros(1))

    def forward(self) -> Tensor:
        """(2,): γ and c."""
        return torch.cat([softplus(self.raw), self.level])


def speedup(z: Tensor) -> Tensor:
    """g(z) ≥ 0 in the shape of z: how much smaller the log of the mean decision time is than at 0."""
    u = z.abs() / 2
    small = u < 0.01
    safe = torch.where(small, torch.ones_like(u), u)
    return torch.where(small, u.square() / 3, safe.log() - safe.tanh().log())


def time_loss(z: Tensor, times: Tensor, learned: Tensor) -> Tensor:
    """Mean over N judgments of −log N(t; c − γ · g(z), 1), relative to that of γ = c = 0.

    `z` and `times` are (N,), `learned` is (2,).  A time that is not known is NaN and adds 0.
    """
    known = ~times.isnan()
    t = torch.where(known, times, torch.zeros_like(times))
    left = t - learned[1] + learned[0] * speedup(z)
    return (known * (left.square() - t.square()) / 2).mean()


def standardized(pairs: Sequence[JudgedPair]) -> list[float]:
    """Each judgment's log time in standard deviations (N,), or NaN if it says nothing about z.

    The annotator's mean and the common slope on the log of the tokens shown are subtracted; the
    standard deviation is the annotator's, shrunk to the common one.  Times of edits, of *both bad*
    and of annotators with a single time are NaN, and all are with fewer than `MIN_TIMES`.
    """
    found = np.full(len(pairs), np.nan)
    rows = [n for n, pair in enumerate(pairs) if _tells(pair)]
    people = [pairs[n].annotator for n in rows]
    _, who, counts = np.unique(people, return_inverse=True, return_counts=True)
    kept = counts[who] > 1 if rows else np.zeros(0, dtype=bool)
    rows, who = np.array(rows, dtype=int)[kept], who[kept]
    if len(rows) < MIN_TIMES:
        return found.tolist()

    def within(values: np.ndarray) -> np.ndarray:
        return values - (np.bincount(who, values) / np.maximum(np.bincount(who), 1))[who]

    y = within(np.log([pairs[n].milliseconds or 1 for n in rows]))
    x = within(np.log([len(pairs[n].first_ids) + pairs[n].second_length for n in rows]))
    left = y - x * (x @ y / max(x @ x, 1e-12))
    common = left @ left / len(left)
    squares, number = np.bincount(who, left**2), np.bincount(who)
    variance = (squares + _PRIOR_TIMES * common) / (number + _PRIOR_TIMES)
    found[rows] = np.clip(left / np.sqrt(np.maximum(variance[who], 1e-12)), -_MOST, _MOST)
    return found.tolist()


def _tells(pair: JudgedPair) -> bool:
    return bool(pair.milliseconds) and not pair.edited and pair.outcome != BOTH_BAD
