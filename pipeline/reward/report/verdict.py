"""Is the reward model good enough?  A plain verdict from its figures, with the reasons.

PPO follows a reward model as far as it leads, so its mistakes are found and paid for; best-of-N
only picks among the policy's own answers and stays within log N − (N − 1)/N nats of it, whatever
the rewards (Stiennon et al. 2020, *Learning to summarize from human feedback*), so it asks less.  Each check says what a figure
allows, and the verdict is the least that any allows.  Checks go by the ends of intervals: what is
not known to be good does not count as good, and what is not known to be bad does not count as bad.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pipeline.reward.quality.ceiling import FEWEST as LEAST_OVERLAP

Verdict = Literal["enough for PPO", "best-of-N is safer", "keep labeling"]
Allows = Literal["ppo", "best_of_n", "labeling"]

VERDICTS: dict[Allows, Verdict] = {
    "labeling": "keep labeling",
    "best_of_n": "best-of-N is safer",
    "ppo": "enough for PPO",
}
"""From the least to the most that is allowed."""

FEWEST, ENOUGH = 20, 50
"""Held-out preferences below which nothing is known, and from which a 95% interval of an accuracy
around 70% is narrower than ± 13 points."""
ACCURATE = 0.6
"""Lower end of the accuracy that PPO asks for.  Reward models that PPO was trained against with
success were right about 63% (Touvron et al. 2023, *Llama 2*, its helpfulness) to 72% (Ouyang et al.
2022, *InstructGPT*) of held-out judgments."""
NEAR_CEILING = 0.9
"""Share of the noise ceiling that an accuracy may not surely be below: more is then to be learned."""
CALIBRATED = 0.1
"""ECE above which probabilities mislead, where chance cannot explain it."""
FOLLOWS_LENGTH = 0.5
"""Correlation with length, its weaker end, from which a quarter of the rewards is length."""
GAIN = 0.01
"""Points of accuracy that the next labels surely bring, where it pays to wait for them."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One reason: what was looked at, what it allows at most, and that in a sentence.

    Where nothing is `known` it allows everything.
    """

    name: str
    allows: Allows
    says: str
    known: bool = True


def verdict(quality: Mapping[str, Any], forecast: Mapping[str, Any] | None) -> dict[str, Any]:
    """``verdict`` and ``checks``, as plain values.

    `quality` is what `quality.quality` returns, `forecast` what `forecast.forecast` does; None where
    there is no learning curve.
    """
    checks = [_judgments(quality)]
    if quality["accuracy"]:
        checks += [_accuracy(quality), _ceiling(quality), _calibration(quality), _length(quality)]
    checks.append(_labels(forecast))
    allowed = {check.allows for check in checks}
    least = next(word for allows, word in VERDICTS.items() if allows in allowed)
    return {"verdict": least, "checks": [asdict(check) for check in checks]}


def _judgments(quality: Mapping[str, Any]) -> Check:
    count, prompts = quality["decisive"], quality["prompts"]
    said = f"{count} held-out preferences on {prompts} prompts"
    if count < FEWEST:
        return Check(
            name="judgments",
            allows="labeling",
            says=f"{said}: too few to tell anything (at least {FEWEST})",
        )
    if count < ENOUGH:
        return Check(
            name="judgments",
            allows="best_of_n",
            says=f"{said}: few, so every figure is rough ({ENOUGH} are enough)",
        )
    return Check(name="judgments", allows="ppo", says=f"{said}: enough to tell")


def _accuracy(quality: Mapping[str, Any]) -> Check:
    found = quality["accuracy"]
    low = found["low"]
    said = f"it is right about {_interval(found['win_rate'], low, found['high'])} of them"
    if low <= 0.5:
        return Check(
            name="accuracy", allows="labeling", says=f"{said}, which may be no better than a coin"
        )
    if low < ACCURATE:
        return Check(
            name="accuracy",
            allows="best_of_n",
            says=f"{said}: better than a coin, but not surely better than {ACCURATE:.0%}",
        )
    return Check(name="accuracy", allows="ppo", says=f"{said}, surely more than {ACCURATE:.0%}")


def _ceiling(quality: Mapping[str, Any]) -> Check:
    share, ceiling = quality["share_of_ceiling"], quality["ceiling"]
    if share is None:
        return Check(
            name="ceiling",
            allows="ppo",
            says=f"how right a perfect one could be is not known: two people have both preferred a "
            f"response of the same pair {quality['overlap']} times, and {LEAST_OVERLAP} are needed "
            "(labeling.overlap)",
            known=False,
        )
    best = _interval(ceiling["value"], ceiling["low"], ceiling["high"])
    said = (
        f"people's own noise lets a perfect one be right about {best}; it reaches "
        f"{_interval(share['value'], share['low'], share['high'])} of that"
    )
    if share["high"] < NEAR_CEILING:
        return Check(
            name="ceiling", allows="best_of_n", says=f"{said}, surely less than {NEAR_CEILING:.0%}"
        )
    return Check(name="ceiling", allows="ppo", says=said)


def _calibration(quality: Mapping[str, Any]) -> Check:
    found = quality["calibration"]
    ece, chance, gap = found["ece"], found["ece_by_chance"], found["overconfidence"]["value"]
    said = f"its probabilities are off by {ece:.0%} on average (ECE)"
    if ece > max(chance, CALIBRATED):
        which = "too sure" if gap > 0 else "not sure enough"
        return Check(
            name="calibration",
            allows="best_of_n",
            says=f"{said}, more than chance explains ({chance:.0%}): it is {which} of itself, and "
            "PPO goes by how large rewards are, best-of-N only by which is larger",
        )
    if ece > chance:
        return Check(
            name="calibration", allows="ppo", says=f"{said}, more than chance explains but not much"
        )
    says = f"{said}, as true ones would be by chance on so few judgments (up to {chance:.0%})"
    if ece <= CALIBRATED:
        return Check(name="calibration", allows="ppo", says=says)
    says += ": whether they mislead is not known"
    return Check(name="calibration", allows="ppo", says=says, known=False)


def _length(quality: Mapping[str, Any]) -> Check:
    found = quality["length"]
    if found is None:
        return Check(
            name="length",
            allows="ppo",
            says="no preference is between responses of different length",
        )
    rho = found["correlation"]
    people, reward = found["rule"]["win_rate"], found["reward"]["win_rate"]
    said = (
        f"its rewards correlate with length by {_number(rho['value'])}; people prefer the longer "
        f"response in {people:.0%} of pairs, it does in {reward:.0%}"
    )
    weaker = _weaker_end(rho)
    if weaker is not None and weaker > FOLLOWS_LENGTH:
        return Check(
            name="length",
            allows="best_of_n",
            says=f"{said}: length is much of what it rewards, and PPO would find that "
            "(reward.length_penalty_weight)",
        )
    return Check(name="length", allows="ppo", says=said)


def _weaker_end(rho: Mapping[str, Any]) -> float | None:
    """The end of the interval nearer 0, as a size; 0 where the interval holds 0."""
    low, high = rho["low"], rho["high"]
    if low is None:
        return None
    return 0.0 if low <= 0 <= high else min(abs(low), abs(high))


def _labels(forecast: Mapping[str, Any] | None) -> Check:
    if forecast is None:
        return Check(
            name="labels",
            allows="ppo",
            says="what more labels would bring is not known: there is no learning curve yet",
            known=False,
        )
    low = forecast["low"]
    pays = low is not None and low > GAIN
    return Check(
        name="labels",
        allows="labeling" if pays else "ppo",
        says=forecast["says"],
        known=low is not None,
    )


def _interval(value: float, low: float, high: float) -> str:
    return f"{value:.0%} ({low:.0%} to {high:.0%})"


def _number(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")
