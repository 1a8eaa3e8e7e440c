"""95% intervals of shares, from sums that SQL can make.  Pure."""

from __future__ import annotations

import math

from scipy.special import stdtrit

NORMAL = 1.959963984540054
"""The 97.5% point of the normal distribution."""


def wilson(share: float, n: float, z: float = NORMAL) -> tuple[float, float]:
    """Wilson's (1927) score interval of a share seen in `n` trials, at `z` standard errors."""
    center = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return max(0.0, center - half), min(1.0, center + half)


def clustered(
    share: float, *, n: float, clusters: int, squares: float, most: float
) -> tuple[float, float] | None:
    """Interval of a mean of `n` values in [0, 1] that resemble each other within clusters.

    `squares` is Σ_c (Σ_{i∈c} (x_i − share))², so that the variance of the mean is Liang and
    Zeger's (1986) C/(C−1) · squares / n².  Wilson's interval with the effective sample size
    share · (1 − share) / variance and Student's t at C−1 degrees of freedom (Korn and Graubard
    1998).  `most` is how many single answers the values average: no mean knows more than that.
    None for one cluster, which says nothing about how clusters differ.
    """
    if clusters < 2:
        return None
    t = float(stdtrit(clusters - 1, 0.975))
    variance = clusters / (clusters - 1) * squares / n**2
    # Where all clusters happen to be alike, each is taken as one observation.
    spread = share * (1 - share)
    effective = spread / variance if variance > 1e-12 else float(clusters)
    return wilson(share, min(effective, most), t)
