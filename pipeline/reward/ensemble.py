"""Several reward models combined into one score, which their disagreement can lower.

A policy gains less from an error of one reward model that others do not share (Coste et al. 2023,
"Reward Model Ensembles Help Mitigate Overoptimization").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pipeline.config.shaping import ShapingConfig
from pipeline.models.text import Messages
from pipeline.ppo.network.distributed import Processes
from pipeline.reward.scoring import RewardModel
from pipeline.runs.rundir import Job


class Scorer(Protocol):
    """Scores completions by each of its members."""

    @property
    def members(self) -> int: ...

    def member_scores(
        self, conversations: Sequence[Messages], completions: Sequence[str]
    ) -> list[list[float]]:
        """(K, B): one list of scores per member."""
        ...


@dataclass(frozen=True, kw_only=True)
class EnsembleScores:
    """Scores (B,) of completions, and the figures (B,) named in `Ensemble.figures`.

    `own` (B,) is the mean over the members of the first reward model, the iteration's own.
    """

    scores: list[float]
    own: list[float]
    figures: dict[str, list[float]]


def spread(scores: Tensor) -> Tensor:
    """Standard deviation over members, (K, B) to (B,).

    Divided by K and not by K − 1, as the intra-ensemble variance of Coste et al.; 0 for one member.
    """
    return scores.std(0, correction=0)


def aggregate(scores: Tensor, *, how: str, weight: float) -> Tensor:
    """One score per completion, (B,), from (K, B) scores of K members.

    ``mean``; ``min``, the worst-case optimization of Coste et al.; ``lower_bound``, mean − `weight` ·
    sd.  Coste et al. subtract the variance instead (uncertainty-weighted optimization); with the
    sd, `weight` does not depend on the scale of rewards.
    """
    match how:
        case "mean":
            return scores.mean(0)
        case "min":
            return scores.amin(0)
        case "lower_bound":
            return scores.mean(0) - weight * spread(scores)
        case _:
            raise ValueError(f"there is no shaping.ensemble {how!r}")


class Ensemble:
    """The reward of a job: one reward model, or several combined as `shaping.ensemble` says.

    `figures` names additional figures: each member's score and the disagreement of the members.
    It is empty with one member.
    """

    def __init__(self, scorers: Sequence[Scorer], config: ShapingConfig) -> None:
        self._scorers = scorers
        self._config = config
        self.members = sum(scorer.members for scorer in scorers)
        if self.members == 1 and config.ensemble != "mean":
            raise ValueError(
                f"shaping.ensemble={config.ensemble!r} needs several members; train the reward model "
                "with reward.members above 1, or name more in shaping.extra_reward_models"
            )
        self.figures: list[str] = []
        if self.members > 1:
            numbers = range(1, self.members + 1)
            self.figures = [*(f"member_{number}" for number in numbers), "ensemble_sd"]

    @classmethod
    def load(
        cls,
        job: Job,
        *,
        device: torch.device,
        asked: Mapping[str, Messages],
        answer: int,
        offload: bool = False,
        processes: Processes | None = None,
    ) -> Ensemble:
        """The reward models that a job names: in host memory between calls if `offload`, and sharded
        among `processes` if they are given.

        Raises `TooLong` if a prompt of `asked`, by id, with a response of `answer` tokens does not
        fit one of them.
        """
        models = [
            RewardModel.load(path, device=device, processes=processes)
            for path in job.reward_models()
        ]
        for model in models:
            model.require_room(asked, answer)
            model.freeze(offload=offload)
        return cls(models, job.config.shaping)

    def __call__(
        self, conversations: Sequence[Messages], completions: Sequence[str]
    ) -> EnsembleScores:
        """Each member's scores of the completions, and the combined scores."""
        members = [
            scores
            for scorer in self._scorers
            for scores in scorer.member_scores(conversations, completions)
        ]
        table = torch.tensor(members, dtype=torch.float64)
        config = self._config
        together = aggregate(table, how=config.ensemble, weight=config.ensemble_lambda)
        watched = zip(self.figures, [*members, spread(table).tolist()], strict=False)
        own = table[: self._scorers[0].members].mean(0)
        return EnsembleScores(scores=together.tolist(), own=own.tolist(), figures=dict(watched))
