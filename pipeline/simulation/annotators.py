"""Simulated annotators: noisy judgments around a hidden preference.

All annotators use one formula with different parameters.  With left and right scores l and r,

    z = slope · (l − r) + left_bias
    P(a) = σ(z − θ)   P(b) = σ(−z − θ)   P(tie) = 1 − P(a) − P(b)          (Rao and Kupper 1967)

unless the judgment is *both bad*, with probability σ(4 · (standard − max(l, r))).  The stated
strength of a preference follows an ordinal model with the same noise (McCullagh 1980):

    P(a, clearly or much) = σ(z − θ − gap₁)   P(a, much) = σ(z − θ − gap₁ − gap₂)   for b with −z

Strengths need no further random numbers, so outcomes are the same without them.  Scores have a
standard deviation of about 1 over ordinary responses.

A `Population` says from which distributions the parameters are drawn.  In some populations
annotators also differ by taste: each adds to the scores what a response's features are worth to it.
With `decision_ms` the time to decide follows the symmetric drift-diffusion model whose probability of
the left side is σ(z), so that clear pairs take less time (Ratcliff 1978; moments from Wagenmakers et
al. 2007, Psychon. Bull. Rev. 14):

    mean = decision · tanh(z/2) / (z/2)          `decision` is the mean time at z = 0
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from storage.records import ScreenOutcome

AnnotatorProfile = Literal["careful", "careless", "side-biased", "noisy", "inverted"]
"""careful: agrees with gold in 3 of 4 decisive judgments.  careless: guesses, in a tenth of the
time, and never presses both bad.  side-biased: prefers the left, at 0.4 of the careful slope.
noisy: 0.2 of the careful slope.  inverted: prefers the worse response."""

BAD_PROFILES: tuple[AnnotatorProfile, ...] = ("careless", "side-biased", "noisy", "inverted")
"""Profiles of bad annotators, in the order in which they are assigned."""

_READING_MS_PER_WORD = 252.0  # 238 words a minute: Brysbaert 2019, J. Mem. Lang. 109
_DECISION_MS = 1500.0


@dataclass(frozen=True, kw_only=True)
class Population:
    """The distributions of careful annotators' parameters; bad ones change some of them.

    Slopes, thresholds and gaps vary by a factor of exp(`spread`), speeds by exp(`speed_spread`).
    """

    slope: float
    tie: float
    gaps: tuple[float, float]
    standard: float
    """Scores below it are bad."""
    sharpness: float = 4.0
    """The slope of the logit of *both bad*."""
    spread: float = 0.22
    speed_spread: float = 0.35
    reading_noise: float = 0.35
    """Standard deviation of the logarithm of the time per judgment."""
    decision_ms: float | None = None
    """Mean time to decide between equals, with drift diffusion; None: 1.5 s for every pair."""
    tastes: Mapping[str, float] = field(default_factory=dict)
    """Standard deviation over annotators of what a feature is worth to one, by the feature's name,
    in the units of scores.  Their mean is 0 in every population."""
    bad: float = 0.25
    """The usual share of bad annotators."""
    bad_profiles: tuple[AnnotatorProfile, ...] = BAD_PROFILES
    """Profiles of the bad annotators, in turn."""


PLAIN = Population(slope=1.1, tie=0.35, gaps=(1.1, 1.7), standard=-1.2)
"""On standard-normal scores, careful annotators agree with gold in 3 of 4 decisive judgments and
press tie or both bad in 1 of 6 (InstructGPT reports 73% agreement).  Of their preferences 2 in 5 are
"slightly", 2 in 5 "clearly" and 1 in 5 "much"."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A judgment as given on the screen, and how long the pair was shown.

    `strength` of a preference is 1 slightly, 2 clearly, 3 much, or None if none was stated.
    `edit` is the preferred response as the annotator improved it, or "".
    """

    outcome: ScreenOutcome
    milliseconds: int
    strength: int | None = None
    edit: str = ""


@dataclass(frozen=True, kw_only=True)
class SimulatedAnnotator:
    """One annotator with the parameters of the module's formula.

    `gaps` are gap₁ and gap₂; with None the annotator states no strengths.  `time_factor` multiplies
    the time of an average reader.  `tastes` is what features of a response are worth to this
    annotator, in addition to the scores of `judge`: whoever computes those adds it.
    """

    name: str
    profile: AnnotatorProfile
    slope: float
    tie: float
    left_bias: float = 0.0
    standard: float = -math.inf
    gaps: tuple[float, float] | None = None
    time_factor: float = 1.0
    sharpness: float = PLAIN.sharpness
    reading_noise: float = PLAIN.reading_noise
    decision_ms: float | None = None
    tastes: Mapping[str, float] = field(default_factory=dict)

    def judge(self, *, left: float, right: float, words: int, rng: np.random.Generator) -> Choice:
        """Judge a pair with these scores; the screen shows `words` words."""
        z = self._advantage(left, right)
        milliseconds = self._milliseconds(z, words, rng)
        both_bad_logit = self.sharpness * (self.standard - max(left, right))
        if rng.random() < _sigmoid(both_bad_logit):
            return Choice(outcome="both_bad", milliseconds=milliseconds)
        a, b = self.preference(left=left, right=right)
        draw = rng.random()
        if draw < a:
            strength = self._strength(z, draw)
            return Choice(outcome="a", milliseconds=milliseconds, strength=strength)
        if draw < a + b:
            strength = self._strength(-z, draw - a)
            return Choice(outcome="b", milliseconds=milliseconds, strength=strength)
        return Choice(outcome="tie", milliseconds=milliseconds)

    def preference(self, *, left: float, right: float) -> tuple[float, float]:
        """The probabilities of A and B, given that the judgment is not both bad."""
        z = self._advantage(left, right)
        return _sigmoid(z - self.tie), _sigmoid(-z - self.tie)

    def _advantage(self, left: float, right: float) -> float:
        return self.slope * (left - right) + self.left_bias

    def _milliseconds(self, z: float, words: int, rng: np.random.Generator) -> int:
        reading = words * _READING_MS_PER_WORD
        noise = math.exp(rng.normal(0, self.reading_noise))
        if self.decision_ms is None:
            return int(self.time_factor * (_DECISION_MS + reading) * noise)
        mean, variance = decision_time(z)
        # A gamma distribution with the model's mean and variance.
        deciding = self.decision_ms * rng.gamma(mean**2 / variance, variance / mean)
        return int(self.time_factor * (reading * noise + deciding))

    def _strength(self, z: float, draw: float) -> int | None:
        """The stated strength of a preference; `draw` is uniform in (0, σ(z − θ)).

        The utility z − logit(toss) exceeds a threshold t if toss < σ(z − t).
        """
        if self.gaps is None:
            return None
        clearly = self.tie + self.gaps[0]
        much = clearly + self.gaps[1]
        return 1 + (draw < _sigmoid(z - clearly)) + (draw < _sigmoid(z - much))


def decision_time(z: float) -> tuple[float, float]:
    """Mean and variance of the drift-diffusion time at log odds z, where the mean at z = 0 is 1.

    With boundaries ±1 and diffusion 1 the drift is z/2, and the mean time tanh(z/2) / (z/2).
    """
    y = abs(z)
    if y < 1e-2:  # the formulas lose their digits
        return 1.0, 2 / 3
    e = math.exp(-y)
    return math.tanh(y / 2) / (y / 2), 8 / y**3 * (1 - 2 * y * e - e * e) / (1 + e) ** 2


def population(
    count: int,
    *,
    bad: float,
    seed: int,
    profiles: Sequence[AnnotatorProfile] | None = None,
    like: Population = PLAIN,
) -> list[SimulatedAnnotator]:
    """`count` annotators named sim-01…; the share `bad` of them, rounded, have bad profiles, which
    are `profiles` (by default those of the population) in turn.

    The seed decides who is bad, and each annotator's parameters.
    """
    if count < 1:
        raise ValueError(f"annotators={count} must be at least 1")
    if not 0 <= bad <= 1:
        raise ValueError(f"bad={bad} must be a share between 0 and 1")
    rng = np.random.default_rng([seed, 1])
    number_bad = round(count * bad)
    careful: list[AnnotatorProfile] = ["careful"] * (count - number_bad)
    profiles = profiles or like.bad_profiles
    chosen = [profiles[i % len(profiles)] for i in range(number_bad)] + careful
    order = rng.permutation(count)
    # Separate generators, so that strengths and tastes change no other random number.
    scales = np.exp(np.random.default_rng([seed, 1, 1]).normal(0, like.spread, count)).tolist()
    tastes = _tastes(like, count, np.random.default_rng([seed, 1, 2]))
    return [
        _annotator(f"sim-{n:02d}", chosen[i], scale, liked, rng, like)
        for n, (i, scale, liked) in enumerate(zip(order, scales, tastes, strict=True), start=1)
    ]


def _tastes(like: Population, count: int, rng: np.random.Generator) -> list[dict[str, float]]:
    """Each annotator's tastes; their mean is 0, so that the gold is what people like on average."""
    drawn = rng.normal(size=(count, len(like.tastes))) * np.array([*like.tastes.values()])
    return [dict(zip(like.tastes, row, strict=True)) for row in (drawn - drawn.mean(0)).tolist()]


def _annotator(
    name: str,
    profile: AnnotatorProfile,
    scale: float,
    tastes: Mapping[str, float],
    rng: np.random.Generator,
    like: Population,
) -> SimulatedAnnotator:
    slope = like.slope * math.exp(rng.normal(0, like.spread))
    tie = like.tie * math.exp(rng.normal(0, like.spread))
    time_factor = math.exp(rng.normal(0, like.speed_spread))
    factor, left_bias, time_share = {
        "careful": (1.0, 0.0, 1.0),
        "careless": (0.0, 0.0, 0.1),
        "side-biased": (0.4, 1.5, 0.5),
        "noisy": (0.2, 0.0, 0.8),
        "inverted": (-1.0, 0.0, 1.0),
    }[profile]
    return SimulatedAnnotator(
        name=name,
        profile=profile,
        slope=slope * factor,
        tie=tie,
        left_bias=left_bias,
        standard=-math.inf if profile == "careless" else like.standard,
        gaps=(scale * like.gaps[0], scale * like.gaps[1]),
        time_factor=time_factor * time_share,
        sharpness=like.sharpness,
        reading_noise=like.reading_noise,
        decision_ms=like.decision_ms,
        tastes=tastes,
    )


def _sigmoid(x: float) -> float:
    # The form whose exp cannot overflow.
    if x >= 0:
        return 1 / (1 + math.exp(-x))
    return math.exp(x) / (1 + math.exp(x))
