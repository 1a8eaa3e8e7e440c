"""Several processes as one: each samples and reads its share, and all see the whole batch.

A batch is drawn alike everywhere; a process samples, scores and reads every `size`-th row of it,
and the results, a few numbers a token, are gathered.  From there on every process computes
the same advantages and minibatches, reads its share of each, and gradients are summed.  So
two processes make the steps that one would make, whatever the lengths of their texts.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import PartialState
from torch import Tensor, nn

T = TypeVar("T")


class Processes:
    """This process among its like: those that `accelerate launch` or torchrun started, if any."""

    def __init__(self) -> None:
        launched = int(os.environ.get("WORLD_SIZE", "1")) > 1
        if launched and dist.is_available() and not dist.is_initialized():
            PartialState(cpu=not torch.cuda.is_available())  # joins them
        together = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if together else 0
        self.size = dist.get_world_size() if together else 1

    def share(self, rows: Sequence[T]) -> list[T]:
        """The rows that are this process's to do."""
        return list(rows[self.rank :: self.size])

    def whole(self, shares: Sequence[Sequence[T]]) -> list[T]:
        """The inverse of `share`: the shares of all processes as the rows they came from."""
        rows: list[Any] = [None] * sum(map(len, shares))
        for rank, share in enumerate(shares):
            rows[rank :: self.size] = share
        return rows

    def gather(self, mine: T) -> list[T]:
        """What every process has, by rank."""
        if self.size == 1:
            return [mine]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, mine)
        return found

    def total(self, sums: Tensor) -> Tensor:
        """The sum over processes, in place."""
        if self.size > 1:
            dist.all_reduce(sums)
        return sums

    def largest(self, maxima: Tensor) -> Tensor:
        """The maximum over processes, in place."""
        if self.size > 1:
            dist.all_reduce(maxima, op=dist.ReduceOp.MAX)
        return maxima

    def any(self, mine: bool, device: torch.device) -> bool:
        """Whether it is so in any process; all must ask."""
        return bool(self.largest(torch.tensor(float(mine), device=device)))

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Add up every process's gradients; one that has none counts as zero."""
        if self.size == 1:
            return
        parameters = list(parameters)
        present = torch.tensor([float(p.grad is not None) for p in parameters])
        anywhere = self.total(present.to(parameters[0].device)).tolist()
        used = [p for p, count in zip(parameters, anywhere, strict=True) if count]
        for p in used:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        flat = self.total(torch.cat([p.grad.flatten() for p in used if p.grad is not None]))
        for p, part in zip(used, flat.split([p.numel() for p in used]), strict=True):
            assert p.grad is not None
            p.grad.copy_(part.view_as(p))


def same_weights_everywhere(processes: Processes, model: nn.Module) -> None:
    """Give all processes the first one's weights, such as a value head made at random."""
    if processes.size > 1:
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, src=0)
