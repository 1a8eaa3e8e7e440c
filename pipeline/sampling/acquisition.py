"""Acquisition functions: which pairs to label, from the rewards of several ensemble members.

K members (networks or heads of one or several reward models) disagree where they have learned too
little.  With p_k the probabilities of first, second and tie that member k gives a pair under
the tie model, p̄ their mean and H the entropy in nats:

    bald         H(p̄) − mean_k H(p_k)     information of the answer about the members
    uncertainty  H(p̄)                     uncertainty of the answer, including annotators' noise
    d_optimal    greedy log det Σ I·φφᵀ   information of the answers about a linear head
    random       uniform

BALD is Houlsby, Huszár, Ghahramani and Lengyel (2011), *Bayesian Active Learning for
Classification and Preference Learning* (arXiv 1112.5745); D-optimal design on a reward model's last
layer is Shen, Sun and Ton (2025), *Active Reward Modeling* (arXiv 2502.04354), here with the Fisher
information I of the tie model.  Pure functions; the sampling stage calls `choose`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.reward.likelihood import FIRST, SECOND, TIE, TieModel, log_probabilities

MAX_FEATURES = 256
"""The width after `narrow`; a few hundred pairs do not span more directions."""

Floats = NDArray[np.floating]


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """M pairs to choose from.

    `probabilities` (K, M, 3) are the K members' probabilities of first, second and tie; `prompts`
    (M,) are the pairs' prompts.  `features` (M, F) are differences of last states, for acquisitions
    that need them.  `tie_models` are the K members', by default Rao and Kupper's.
    """

    probabilities: Tensor
    prompts: Sequence[Hashable]
    features: Tensor | None = field(default=None)
    tie_models: Sequence[TieModel] = ()

    def __post_init__(self) -> None:
        if self.probabilities.shape[1:] != (len(self.prompts), 3):
            raise ValueError(
                f"{len(self.prompts)} pairs need three probabilities each by every member, not "
                f"{tuple(self.probabilities.shape)}"
            )
        if not bool(self.probabilities.isfinite().all()):
            raise ValueError(
                "the reward model gave a candidate a reward that is not finite; train it again "
                "before it chooses pairs"
            )

    @property
    def members(self) -> int:
        return len(self.probabilities)

    @property
    def information(self) -> Tensor:
        """(M,) Fisher information of one answer, the mean over members."""
        models: Sequence[TieModel] = self.tie_models or ("rao_kupper",) * self.members
        each = [
            fisher_information(p, model)
            for p, model in zip(self.probabilities, models, strict=True)
        ]
        return torch.stack(each).mean(0)


def pairs_within(prompts: Sequence[Hashable]) -> tuple[list[int], list[int]]:
    """Indices of the first and second text of every pair of texts of one prompt.

    `prompts` are the texts' prompts; four texts of a prompt make six pairs.
    """
    texts: dict[Hashable, list[int]] = {}
    for number, prompt in enumerate(prompts):
        texts.setdefault(prompt, []).append(number)
    pairs = [pair for group in texts.values() for pair in combinations(group, 2)]
    return [first for first, _ in pairs], [second for _, second in pairs]


# -- the information of a pair -----------------------------------------------------------------


def outcome_probabilities(
    differences: Tensor, theta: Tensor | float, tie_model: TieModel = "rao_kupper"
) -> Tensor:
    """(K, M, 3) probabilities of first, second and tie, of (K, M) differences r_first − r_second.

    `theta` is the tie threshold of the reward model that the K members belong to.
    """
    return log_probabilities(differences.double(), theta, tie_model).exp()


def entropy(probabilities: Tensor) -> Tensor:
    """Entropy in nats over the last axis; an outcome of probability 0 adds nothing."""
    return torch.special.entr(probabilities).sum(-1)


def bald(probabilities: Tensor) -> Tensor:
    """(M,) mutual information of the answer and the member, nats, of (K, M, 3): at most log K."""
    return entropy(probabilities.mean(0)) - entropy(probabilities).mean(0)


def uncertainty(probabilities: Tensor) -> Tensor:
    """(M,) entropy of the mean over members of (K, M, 3), nats: at most log 3."""
    return entropy(probabilities.mean(0))


def fisher_information(probabilities: Tensor, tie_model: TieModel = "rao_kupper") -> Tensor:
    """(…,) Fisher information of one answer about the difference d, of (…, 3): Σ p (∂ log p / ∂d)².

    With thresholds the three derivatives are 1 − p_first, p_second − 1 and p_second − p_first;
    without ties this is p (1 − p).  Davidson's are ±½ and 0, each minus their mean.
    """
    first, second, tie = (probabilities[..., code] for code in (FIRST, SECOND, TIE))
    if tie_model == "davidson":
        return (first + second - (first - second) ** 2) / 4
    return first * (1 - first) ** 2 + second * (1 - second) ** 2 + tie * (second - first) ** 2


def narrow(features: Tensor, *, seed: int) -> Tensor:
    """(N, F) features as (N, at most MAX_FEATURES), by a random projection that the seed draws.

    Inner products are kept on average (Johnson and Lindenstrauss 1984).
    """
    width = features.shape[1]
    if width <= MAX_FEATURES:
        return features
    generator = torch.Generator().manual_seed(seed)
    return features @ torch.randn(width, MAX_FEATURES, generator=generator) / MAX_FEATURES**0.5


# -- choosing ----------------------------------------------------------------------------------


class Gains(Protocol):
    """The gain of each candidate, given those taken so far."""

    values: Floats
    """(M,): the higher, the better."""

    def take(self, pair: int) -> None:
        """Record that a pair is taken."""


class _Scores:
    """Gains that do not depend on what was taken."""

    def __init__(self, values: Tensor) -> None:
        self.values = values.numpy()

    def take(self, pair: int) -> None:
        """Nothing changes."""


class _Design:
    """Leverages φᵀA⁻¹φ under the information A gathered so far; log det A grows by log(1 + φᵀA⁻¹φ).

    A starts with the information of an average pair, equal in all directions.  Taking a pair is a
    rank-one update of A⁻¹ (Sherman and Morrison), which lowers all leverages.
    """

    def __init__(self, features: Tensor) -> None:
        self._features = features.float().numpy()
        squares = np.einsum("mf,mf->m", self._features, self._features)
        prior = max(float(squares.mean()), np.finfo(np.float32).tiny) / features.shape[1]
        self._inverse = np.eye(features.shape[1], dtype=np.float32) / np.float32(prior)
        self.values = squares / np.float32(prior)

    def take(self, pair: int) -> None:
        along = self._inverse @ self._features[pair]
        along /= np.sqrt(1 + self._features[pair] @ along)
        self._inverse -= np.outer(along, along)
        self.values -= (self._features @ along) ** 2


def _by_bald(pool: Candidates, _: torch.Generator) -> Gains:
    return _Scores(bald(pool.probabilities))


def _by_uncertainty(pool: Candidates, _: torch.Generator) -> Gains:
    return _Scores(uncertainty(pool.probabilities))


def _by_design(pool: Candidates, _: torch.Generator) -> Gains:
    if pool.features is None:
        raise ValueError("d_optimal chooses by features, and the candidates have none")
    return _Design(pool.features.float() * pool.information.sqrt().float().unsqueeze(-1))


def _by_chance(pool: Candidates, generator: torch.Generator) -> Gains:
    return _Scores(torch.rand(len(pool.prompts), generator=generator, dtype=torch.float64))


@dataclass(frozen=True, kw_only=True)
class Acquisition:
    """An acquisition function: its gains, and the members and features that it needs."""

    gains: Callable[[Candidates, torch.Generator], Gains]
    members: int = 1
    features: bool = False


# The names are also choices of `sampling.selection` (`pipeline/config/sections.py`) and values of `Arm`
# (`storage/records.py`), which must not import torch, so they cannot read them from here.
ACQUISITIONS: dict[str, Acquisition] = {
    "bald": Acquisition(gains=_by_bald, members=2),
    "uncertainty": Acquisition(gains=_by_uncertainty),
    "d_optimal": Acquisition(gains=_by_design, features=True),
    "random": Acquisition(gains=_by_chance),
}


def choose(
    name: str,
    pool: Candidates,
    count: int,
    *,
    seed: int,
    may: Callable[[int], bool] = lambda _: True,
) -> list[int]:
    """Indices of at most `count` pairs, best first, no two of one prompt.

    The seed breaks ties.  `may(i)` can refuse pair i when it would be chosen, for example as a
    near-duplicate; the prompt's next pair may then be chosen.  Raises ValueError for an unknown
    name, or for fewer members than the acquisition needs.
    """
    if name not in ACQUISITIONS:
        raise ValueError(f"acquisition {name!r} must be one of {', '.join(ACQUISITIONS)}")
    if pool.members < ACQUISITIONS[name].members:
        raise ValueError(
            f"{name} needs at least {ACQUISITIONS[name].members} members of a reward model, "
            f"and there is {pool.members}"
        )
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(pool.prompts), generator=generator).numpy()
    codes: dict[Hashable, int] = {}
    group = np.array([codes.setdefault(prompt, len(codes)) for prompt in pool.prompts])
    gains = ACQUISITIONS[name].gains(pool, generator)
    out = np.zeros(len(order), dtype=bool)
    chosen: list[int] = []
    while len(chosen) < count and not out.all():
        # argmax returns the first of equal values, in the random order.
        best = int(order[np.argmax(np.where(out, -np.inf, gains.values)[order])])
        out[best] = True
        if may(best):
            chosen.append(best)
            out |= group == group[best]
            gains.take(best)
    return chosen
