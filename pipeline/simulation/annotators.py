"""Simulated annotators: noisy judgments around a hidden preference.

All annotators use one formula with different parameters.  With left and right scores l and r,

    z = slope · (l − r) + left_bias
    P(a) = σ(z − θ)   P(b) = σ(−z − θ)   P(tie) = 1 − P(a) − P(b)          (Rao and Kupper 1967)

unless the judgment is *both bad*, with probability σ(4 · (standard − max(l, r))).  The stated
strength of a preference follows an ordinal model with the same noise (McCullagh 1980):

    P(a, clearly or much) = σ(z − θ − gap₁)   P(a, much) = σ(z − θ − gap₁ − gap₂)   for b with −z

Strengths need no further random numbers, so outcomes are the same without them.  Scores have a
standard deviation of about 1 over ordinary responses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from storage.records import ScreenOutcome

AnnotatorProfile = Literal["careful", "careless", "side-biased", "noisy", "inverted"]
"""careful: agrees with gold in 3 of 4 decisive judgments.  careless: guesses, in a tenth of the
time, and never presses both bad.  side-biased: prefers the left, at 0.4 of the careful slope.
noisy: 0.2 of the careful slope.  inverted: prefers the worse response."""

BAD_PROFILES: tuple[AnnotatorProfile, ...] = ("careless", "side-biased", "noisy", "inverted")
"""Profiles of bad annotators, in the order in which they are assigned."""

# On standard-normal scores, careful annotators agree with gold in 3 of 4 decisive judgments and
# press tie or both bad in 1 of 6 (InstructGPT reports 73% agreement).
_SLOPE = 1.1
_TIE = 0.35
_STANDARD = -1.2
_STANDARD_SHARPNESS = 4.0
# Of their preferences 2 in 5 are "slightly", 2 in 5 "clearly" and 1 in 5 "much".
_GAPS = (1.1, 1.7)

_READING_MS_PER_WORD = 252.0  # 238 words a minute: Brysbaert 2019, J. Mem. Lang. 109
_DECISION_MS = 1500.0


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
    the time of an average reader.
    """

    name: str
    profile: AnnotatorProfile
    slope: float
    tie: float
    left_bias: float = 0.0
    standard: float = -math.inf
    gaps: tuple[float, float] | None = None
    time_factor: float = 1.0

    def judge(self, *, left: float, right: float, words: int, rng: np.random.Generator) -> Choice:
        """Judge a pair with these scores; the screen shows `words` words."""
        mean_ms = self.time_factor * (_DECISION_MS + words * _READING_MS_PER_WORD)
        milliseconds = int(mean_ms * math.exp(rng.normal(0, 0.35)))
        both_bad_logit = _STANDARD_SHARPNESS * (self.standard - max(left, right))
        if rng.random() < _sigmoid(both_bad_logit):
            return Choice(outcome="both_bad", milliseconds=milliseconds)
        z = self._advantage(left, right)
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

    def _strength(self, z: float, draw: float) -> int | None:
        """The stated strength of a preference; `draw` is uniform in (0, σ(z − θ)).

        The utility z − logit(toss) exceeds a threshold t if toss < σ(z − t).
        """
        if self.gaps is None:
            return None
        clearly = self.tie + self.gaps[0]
        much = clearly + self.gaps[1]
        return 1 + (draw < _sigmoid(z - clearly)) + (draw < _sigmoid(z - much))


def population(
    count: int, *, bad: float, seed: int, profiles: Sequence[AnnotatorProfile] = BAD_PROFILES
) -> list[SimulatedAnnotator]:
    """`count` annotators named sim-01…; the share `bad` of them, rounded, have bad profiles, which
    are `profiles` in turn.

    The seed decides who is bad, and each annotator's parameters: slopes, thresholds and gaps vary by
    a factor of about 1.25, speeds by 1.4.
    """
    if count < 1:
        raise ValueError(f"annotators={count} must be at least 1")
    if not 0 <= bad <= 1:
        raise ValueError(f"bad={bad} must be a share between 0 and 1")
    rng = np.random.default_rng([seed, 1])
    number_bad = round(count * bad)
    careful: list[AnnotatorProfile] = ["careful"] * (count - number_bad)
    chosen = [profiles[i % len(profiles)] for i in range(number_bad)] + careful
    order = rng.permutation(count)
    # A separate generator, so that strengths change no other random number.
    scales = np.exp(np.random.default_rng([seed, 1, 1]).normal(0, 0.22, count)).tolist()
    return [
        _annotator(f"sim-{n:02d}", chosen[i], scale, rng)
        for n, (i, scale) in enumerate(zip(order, scales, strict=True), start=1)
    ]


def _annotator(
    name: str, profile: AnnotatorProfile, scale: float, rng: np.random.Generator
) -> SimulatedAnnotator:
    slope = _SLOPE * math.exp(rng.normal(0, 0.22))
    tie = _TIE * math.exp(rng.normal(0, 0.22))
    time_factor = math.exp(rng.normal(0, 0.35))
    standard = -math.inf if profile == "careless" else _STANDARD
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
        standard=standard,
        gaps=(scale * _GAPS[0], scale * _GAPS[1]),
        time_factor=time_factor * time_share,
    )


def _sigmoid(x: float) -> float:
    # The form whose exp cannot overflow.
    if x >= 0:
        return 1 / (1 + math.exp(-x))
    return math.exp(x) / (1 + math.exp(x))
