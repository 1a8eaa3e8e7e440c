"""How far stated probabilities are from observed frequencies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_BINS = 10


def expected_calibration_error(probabilities: Sequence[float], outcomes: Sequence[float]) -> float:
    """Mean |stated − observed| over ten equal bins of confidence, weighted by their size.

    Confidence is the probability of the likelier response, from .5 to 1, so the order of responses
    does not matter (Guo et al. 2017, *On Calibration of Modern Neural Networks*, eq. 3).
    """
    p, y = np.asarray(probabilities), np.asarray(outcomes)
    confidence, right = np.maximum(p, 1 - p), np.where(p >= 0.5, y, 1 - y)
    bins = np.minimum(((confidence - 0.5) * 2 * _BINS).astype(int), _BINS - 1)
    gaps = [
        abs(confidence[bins == b].mean() - right[bins == b].mean()) * (bins == b).sum()
        for b in np.unique(bins)
    ]
    return float(sum(gaps) / len(p))
