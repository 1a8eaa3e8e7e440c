"""What a policy loses on the canary: pass rates, and their difference with its interval.

A prompt's answer passes if it passes every check of the prompt.  Policy and SFT answer the same
prompts with the same random numbers, so the difference is one of pairs.
"""

from __future__ import annotations

import numpy as np

from pipeline.statistics.winrate import mean_share
from storage.gate_records import CanaryResults
from storage.gate_report import CanaryFigures, CheckRates

_ROUNDING = 1e-9


def canary_figures(results: CanaryResults) -> CanaryFigures:
    """Pass rates and the loss, reference − policy, with a paired 95% interval.

    The interval is that of the mean of (1 + reference − policy) / 2, a share of wins with ties as
    half, over prompts (`mean_share`): it does not collapse when hardly any answer differs.
    """
    policy, reference = _passed(results, "policy"), _passed(results, "reference")
    prompts = len(policy)
    lost = int(reference.sum()) - int(policy.sum())
    share = mean_share((1 + reference.astype(float) - policy) / 2, range(prompts))
    low, high = 2 * share.low - 1, 2 * share.high - 1
    # Of counts, because .95 − .90 is below .05 in floating point.
    too_much = lost >= results.allowed_loss * prompts - _ROUNDING
    return CanaryFigures(
        function=results.function,
        prompts=prompts,
        policy=float(policy.mean()),
        reference=float(reference.mean()),
        loss=lost / prompts,
        low=low,
        high=high,
        allowed_loss=results.allowed_loss,
        holds=too_much,
        blocks=too_much and low > 0,
        checks=[CheckRates.of(check) for check in results.checks],
        lost=list(results.lost),
    )


def _passed(results: CanaryResults, model: str) -> np.ndarray:
    """(prompts,) whether the answer to each prompt passes all of its checks."""
    failed: dict[int, bool] = {}
    for check in results.checks:
        for prompt, mark in zip(check.prompts, getattr(check, model), strict=True):
            failed[prompt] = failed.get(prompt, False) or mark == "0"
    return np.array([not failed[prompt] for prompt in sorted(failed)])
