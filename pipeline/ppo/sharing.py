"""What one process found out about its share of the rollouts, and all shares put together."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from pipeline.ppo.distributed import Processes
from pipeline.ppo.learner import Scored
from pipeline.ppo.rewarder import Scores
from pipeline.ppo.rollout import Rollout


@dataclass(frozen=True, kw_only=True)
class Share:
    """Rollouts with their scores and reference log-probabilities, row for row."""

    rollout: Rollout
    scores: Scores
    scored: Scored


def put_together(share: Share, processes: Processes) -> Share:
    """The shares of all processes as one batch, on every process, in the order they were drawn."""
    if processes.size == 1:
        return share
    device = share.rollout.tokens.device
    shares = processes.gather(_moved(share, torch.device("cpu")))
    return _moved(_joined(shares, processes), device)


def _joined(shares: Sequence[Share], processes: Processes) -> Share:
    width = max(share.rollout.tokens.shape[1] for share in shares)

    def rows(parts: Sequence[Tensor | None]) -> Tensor | None:
        given = [part for part in parts if part is not None]
        if len(given) < len(parts):
            return None
        if given[0].dim() > 1:
            given = [pad(part, (0, width - part.shape[1])) for part in given]
        return torch.stack(processes.whole([list(part) for part in given]))

    def always(parts: Sequence[Tensor]) -> Tensor:
        found = rows(parts)
        assert found is not None
        return found

    rollouts = [share.rollout for share in shares]
    scored = [share.scored for share in shares]
    scores = [share.scores for share in shares]
    return Share(
        rollout=Rollout(
            tokens=always([r.tokens for r in rollouts]),
            lengths=always([r.lengths for r in rollouts]),
            logprobs=always([r.logprobs for r in rollouts]),
            entropies=rows([r.entropies for r in rollouts]),
            values=rows([r.values for r in rollouts]),
            finish_reasons=processes.whole([r.finish_reasons for r in rollouts]),
        ),
        scores=Scores(
            total=always([s.total for s in scores]),
            components={
                name: processes.whole([s.components[name] for s in scores])
                for name in scores[0].components
            },
            texts=processes.whole([s.texts for s in scores]),
        ),
        scored=Scored(
            reference_logprobs=always([s.reference_logprobs for s in scored]),
            logprobs=rows([s.logprobs for s in scored]),
            values=rows([s.values for s in scored]),
            kl=rows([s.kl for s in scored]),
            entropies=rows([s.entropies for s in scored]),
        ),
    )


def _moved(share: Share, device: torch.device) -> Share:
    """The same with every tensor on `device`."""

    def moved(value: object) -> object:
        return value.to(device) if isinstance(value, Tensor) else value

    parts = {
        name: type(part)(**{key: moved(value) for key, value in vars(part).items()})
        for name, part in vars(share).items()
    }
    return Share(**parts)
