"""The verdict on a reward model: good enough for PPO, for best-of-N, or for neither.

PPO exploits every error of a reward model.  Best-of-N only selects among the policy's own answers
and stays within log N − (N − 1)/N nats of the policy, whatever the rewards (Stiennon et al. 2020,
*Learning to summarize from human feedback*), so its requirements are lower.  Each check says what
one figure allows; the verdict is the most cautious of them.  A figure counts as good or bad only if
its whole interval does.
"""

from __future__ import annotations

from functools import partial

from pipeline.reward.quality.ceiling import MIN_OVERLAP
from storage.analysis.intervals import WinRate
from storage.reports import (
    Allows,
    Calibration,
    Check,
    Forecast,
    Interval,
    LengthBias,
    Quality,
    RewardVerdict,
)
from storage.wording import decimal

MIN_PREFERENCES, ENOUGH_PREFERENCES = 20, 50
"""Held-out preferences below which there is no verdict, and from which a 95% interval of an
accuracy around 70% is narrower than ± 13 percentage points."""
ACCURATE = 0.6
"""Minimum for the lower end of the accuracy's interval before PPO.  Reward models of successful PPO
runs had 63% (Touvron et al. 2023, *Llama 2*, helpfulness) to 72% accuracy (Ouyang et al. 2022,
*InstructGPT*) on held-out judgments."""
NEAR_CEILING = 0.9
"""If the whole interval is below this share of the noise ceiling, the model can still improve."""
CALIBRATED = 0.1
"""ECE above which probabilities are misleading, unless chance explains it."""
FOLLOWS_LENGTH = 0.5
"""Correlation with length, at the end of its interval nearer 0, from which length explains a
quarter of the rewards' variance."""
GAIN = 0.01
"""Minimum gain in accuracy, at the lower end of its interval, for which to label more first."""


def verdict(quality: Quality, forecast: Forecast | None) -> RewardVerdict:
    """The verdict; `forecast` is None if there is no learning curve."""
    checks = [_judgments(quality)]
    if quality.accuracy and quality.calibration:
        checks += [
            _accuracy(quality.accuracy),
            _ceiling(quality),
            _calibration(quality.calibration),
            _length(quality.length),
        ]
    checks.append(_labels(forecast))
    allowed = {check.allows for check in checks}
    if "labeling" in allowed:
        return RewardVerdict(verdict="keep labeling", checks=tuple(checks))
    if "best_of_n" in allowed:
        return RewardVerdict(verdict="best-of-N is safer", checks=tuple(checks))
    return RewardVerdict(verdict="enough for PPO", checks=tuple(checks))


def _judgments(quality: Quality) -> Check:
    check = partial(Check, name="judgments")
    found = f"{quality.decisive} held-out preferences on {quality.prompts} prompts"
    if quality.decisive < MIN_PREFERENCES:
        return check(
            allows="labeling", says=f"{found} are too few; at least {MIN_PREFERENCES} are needed"
        )
    if quality.decisive < ENOUGH_PREFERENCES:
        return check(
            allows="best_of_n",
            says=f"{found} give only rough figures; {ENOUGH_PREFERENCES} are enough",
        )
    return check(allows="ppo", says=f"{found} are enough")


def _accuracy(accuracy: WinRate) -> Check:
    check = partial(Check, name="accuracy")
    found = f"it predicts {_interval(accuracy.win_rate, accuracy.low, accuracy.high)} of held-out preferences correctly"
    if accuracy.low <= 0.5:
        return check(allows="labeling", says=f"{found}, which may be no better than chance")
    if accuracy.low < ACCURATE:
        return check(
            allows="best_of_n",
            says=f"{found}: better than chance, but not certainly better than {ACCURATE:.0%}",
        )
    return check(allows="ppo", says=f"{found}, certainly more than {ACCURATE:.0%}")


def _ceiling(quality: Quality) -> Check:
    check = partial(Check, name="ceiling")
    share, ceiling = quality.share_of_ceiling, quality.ceiling
    if share is None or ceiling is None:
        return check(
            allows="ppo",
            says="the noise ceiling is not known: it needs "
            f"{MIN_OVERLAP} pairs with preferences of two people, and there are {quality.overlap} "
            "(labeling.overlap)",
            known=False,
        )
    high = share.high if share.high is not None else 1.0
    found = (
        "because people disagree, a perfect reward model would predict "
        f"{_interval(ceiling.value, ceiling.low, ceiling.high)} correctly; this one reaches "
        f"{_interval(share.value, share.low or 0.0, high)} of that"
    )
    if high < NEAR_CEILING:
        return check(allows="best_of_n", says=f"{found}, certainly less than {NEAR_CEILING:.0%}")
    return check(allows="ppo", says=found)


def _calibration(calibration: Calibration) -> Check:
    check = partial(Check, name="calibration")
    ece, chance = calibration.ece, calibration.ece_by_chance
    found = f"its probabilities are off by {ece:.0%} on average (ECE)"
    if ece > max(chance, CALIBRATED):
        over = "overconfident" if calibration.overconfidence.value > 0 else "underconfident"
        return check(
            allows="best_of_n",
            says=f"{found}, more than chance explains ({chance:.0%}): it is {over}. PPO "
            "depends on the size of rewards, best-of-N only on their order",
        )
    if ece > chance:
        return check(allows="ppo", says=f"{found}, slightly more than chance explains")
    by_chance = f"{found}; with this number of judgments, chance alone gives up to {chance:.0%}"
    if chance <= CALIBRATED:
        return check(allows="ppo", says=by_chance)
    return check(
        allows="ppo",
        says=f"{by_chance}, so it is not known whether they are misleading",
        known=False,
    )


def _length(length: LengthBias | None) -> Check:
    check = partial(Check, name="length")
    if length is None:
        return check(allows="ppo", says="all preferences are between responses of equal length")
    rho = length.correlation
    number = decimal(rho.value, 2)
    found = (
        f"its rewards correlate with length by {number}; people prefer the longer response in "
        f"{length.rule.win_rate:.0%} of pairs, the model in {length.reward.win_rate:.0%}"
    )
    if _weaker_end(rho) > FOLLOWS_LENGTH:
        rewarded = "longer" if rho.value > 0 else "shorter"
        return check(
            allows="best_of_n",
            says=f"{found}. It rewards {rewarded} responses, and PPO would exploit that "
            "(reward.length_penalty_weight)",
        )
    return check(allows="ppo", says=found)


def _weaker_end(rho: Interval) -> float:
    """The absolute value of the end nearer 0; 0 if the interval contains 0 or there is none."""
    if rho.low is None or rho.high is None or rho.low <= 0 <= rho.high:
        return 0.0
    return min(abs(rho.low), abs(rho.high))


def _labels(forecast: Forecast | None) -> Check:
    check = partial(Check, name="labels")
    if forecast is None:
        return check(
            allows="ppo",
            says="the benefit of more labels is not known, because there is no learning curve yet",
            known=False,
        )
    low = forecast.low
    allows: Allows = "labeling" if low is not None and low > GAIN else "ppo"
    return check(allows=allows, says=forecast.says, known=low is not None)


def _interval(value: float, low: float, high: float) -> str:
    return f"{value:.0%} ({low:.0%} to {high:.0%})"
