"""95% intervals of shares.  Pure functions of numbers, so that `pipeline` may import them too."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import stdtrit

NORMAL = 1.959963984540054
"""The 97.5% point of the normal distribution."""
UNLIKELY = 3.0
"""Standard errors beyond which an annotator's figure gets a remark: by chance, for one in 370."""
_NO_VARIANCE = 1e-12  # a sum below this is a rounding error of zero


@dataclass(frozen=True, kw_only=True)
class WinRate:
    """A win rate with its 95% interval, over `comparisons` outcomes of `prompts` prompts."""

    win_rate: float
    low: float
    high: float
    comparisons: int
    prompts: int


def student_t(clusters: int) -> float:
    """The 97.5% point of Student's t for a mean over `clusters`; infinite for one cluster."""
    return float(stdtrit(clusters - 1, 0.975)) if clusters > 1 else math.inf


def wilson(share: float, n: float, z: float = NORMAL) -> tuple[float, float]:
    """Wilson's (1927) score interval of a share seen in `n` trials, at `z` standard errors."""
    center = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return max(0.0, center - half), min(1.0, center + half)


def clearly_below(matched: int, answered: int, usual_matched: int, usual_answered: int) -> bool:
    """Whether `matched` of `answered` is below the share of the others by more than chance.

    Fisher's exact test, one-sided, at `UNLIKELY` standard errors of the normal distribution: a share
    seen in few trials, theirs or the others', never differs clearly.
    """
    hits, trials = matched + usual_matched, answered + usual_answered
    total = _log_binomial(trials, answered)
    at_most = sum(
        math.exp(_log_binomial(hits, k) + _log_binomial(trials - hits, answered - k) - total)
        for k in range(max(0, hits - usual_answered), matched + 1)
    )
    return at_most < math.erfc(UNLIKELY / math.sqrt(2)) / 2


def _log_binomial(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def cluster_variance(squares: float, *, n: float, clusters: int) -> float:
    """Variance of the mean of `n` values that are correlated within clusters.

    `squares` is Σ_c (Σ_{i∈c} (x_i − mean))².  The estimator is C/(C−1) · squares / n² (Liang and
    Zeger 1986, Biometrika 73).  Infinite for one cluster: the variance between clusters is unknown.
    """
    return clusters / (clusters - 1) * squares / n**2 if clusters > 1 else math.inf


def clustered(
    share: float, variance: float, *, clusters: int, most: float = math.inf
) -> tuple[float, float] | None:
    """Interval of a mean in [0, 1] whose `variance` is `cluster_variance`; None for one cluster.

    Wilson's interval with the effective sample size share · (1 − share) / variance, at most `most`,
    and Student's t at C−1 degrees of freedom (Korn and Graubard 1998; Franco et al. 2019, J. Surv.
    Stat. Methodol. 7).  It stays inside [0, 1] and does not collapse when all values are equal:
    each cluster then counts as one observation.
    """
    if clusters < 2:
        return None
    effective = share * (1 - share) / variance if variance > _NO_VARIANCE else float(clusters)
    return wilson(share, min(effective, most), student_t(clusters))
