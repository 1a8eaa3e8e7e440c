"""Data-parallel training: several processes make the same steps as one.

All processes draw the same batch.  Each samples and scores every `size`-th row, and the results
are gathered.  Then every process computes the same advantages and minibatches, runs its share of
each minibatch, and gradients are summed.

With FSDP2, weights, gradients and optimizer states are split among the processes.  The first process
has the weights and hands out one layer at a time.  A forward pass fetches each layer's weights, so
all processes must make the same number of passes: a process with fewer micro-batches adds passes with
a loss weight of 0.  Sampling fetches all weights once instead.
In bf16, weights are fetched in bf16; shards, sums of gradients and optimizer states are fp32.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor

T = TypeVar("T")


class Processes:
    """The processes that `accelerate launch` or torchrun started, or only this one."""

    def __init__(self) -> None:
        launched = int(os.environ.get("WORLD_SIZE", "1")) > 1
        if launched and dist.is_available() and not dist.is_initialized():
            # Imported here, because a single process does not need accelerate.
            from accelerate import PartialState  # noqa: PLC0415

            PartialState(cpu=not torch.cuda.is_available())  # joins them
        together = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if together else 0
        self.size = dist.get_world_size() if together else 1

    def share(self, rows: Sequence[T]) -> list[T]:
        """This process's rows."""
        return list(rows[self.rank :: self.size])

    def balanced_share(self, rows: Sequence[int], lengths: Sequence[int]) -> list[int]:
        """This process's rows; every process gets about as many tokens, `lengths[row]` for each row.

        The longest row is assigned first, each to the process with the fewest tokens so far.  The
        largest share is at most 4/3 of the smallest possible maximum (Graham 1969).
        """
        mine: set[int] = set()
        tokens = [0] * self.size
        for row in sorted(rows, key=lambda row: -lengths[row]):
            least = tokens.index(min(tokens))
            tokens[least] += lengths[row]
            if least == self.rank:
                mine.add(row)
        return [row for row in rows if row in mine]

    def interleave(self, shares: Sequence[Sequence[T]]) -> list[T]:
        """The inverse of `share`: the shares of all processes in the order of the rows."""
        rows: list[Any] = [None] * sum(map(len, shares))
        for rank, share in enumerate(shares):
            rows[rank :: self.size] = share
        return rows

    def gather(self, mine: T) -> list[T]:
        """Every process's object, by rank; a collective call."""
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

    def first(self, act: Callable[[], T]) -> T:
        """What the first process finds or does, in all of them; a collective call.

        Its OSError or ValueError is raised in all too: the others would wait for it.
        """
        if self.size == 1:
            return act()
        found: list[Any] = [None, None]
        if self.rank == 0:
            try:
                found[0] = act()
            except (OSError, ValueError) as error:
                found[1] = error
        dist.broadcast_object_list(found, src=0)
        if found[1] is not None:
            raise found[1]
        return found[0]

    def any(self, mine: bool, device: torch.device) -> bool:
        """Whether `mine` is True in any process; a collective call."""
        return bool(self.largest(torch.tensor(float(mine), device=device)))

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum gradients over processes; a missing gradient counts as zero."""
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


def broadcast_weights(processes: Processes, model: nn.Module) -> None:
    """Give all processes the first one's weights; a new value head is random."""
    if processes.size > 1:
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, src=0)


_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


# Inputs keep their precision: as in a whole model, autocast decides what a layer rounds.
_MIXED = {
    "fp32": MixedPrecisionPolicy(),
    "bf16": MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
    ),
}


def shard(
    model: nn.Module, precision: str, device: torch.device, *, exact: Iterable[nn.Module] = ()
) -> None:
    """Move the first process's weights to the device, every transformer layer and then the rest of
    the model, and keep each process's shard.

    The model may be in host memory, and in the other processes on the meta device: a device has its
    shards and one layer at a time.

    In bf16 the model must run under autocast, and gives the results of a whole model whose weights
    are rounded to bf16, but for the parts `exact`: sums of layers, values, logits and losses are fp32.
    """
    modules = list(model.modules())
    layers = {name for m in modules for name in getattr(m, "_no_split_modules", None) or ()}
    for module in modules:
        if type(module).__name__ in layers:
            _split(module, precision, device)
        if isinstance(module, nn.Embedding) and precision == "bf16":
            module.register_forward_hook(_widen)
    for part in exact:
        _split(part, "fp32", device)
    _split(model, precision, device)
    if hasattr(model, "values"):  # a second entry point of the policy with its critic
        register_fsdp_forward_method(model, "values")


def _split(module: nn.Module, precision: str, device: torch.device) -> None:
    """Shard the weights of a module that are not sharded yet."""
    for tensor in (*module.parameters(), *module.buffers()):
        if isinstance(tensor, DTensor):
            continue
        if tensor.is_meta:
            _materialize(tensor, device)
        tensor.data = tensor.data.to(device)
        # Buffers too: some, such as rotary frequencies, are in no file.
        dist.broadcast(tensor.data, src=0)
    fully_shard(module, mp_policy=_MIXED[precision])


def _materialize(tensor: Tensor, device: torch.device) -> None:
    """Give a meta tensor memory on the device; it stays the same object, which tied layers share."""
    memory = torch.empty_like(tensor, device=device)
    if isinstance(tensor, nn.Parameter):
        memory = nn.Parameter(memory, requires_grad=tensor.requires_grad)
    torch.utils.swap_tensors(tensor, memory)


def _widen(_embedding: nn.Module, _inputs: Any, rows: Tensor) -> Tensor:
    """Rows in fp32; all layers add to them, and sums in bf16 would lose what a layer adds."""
    return rows.float()


@contextmanager
def gathered(model: nn.Module, *, layers: bool = True) -> Iterator[None]:
    """Gather all weights on every process; forward passes inside need no communication.

    Without `layers`, only the other weights: embedding, output layer and heads.
    """
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    parts = parts if layers else parts[:1]  # the model itself comes first
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(True, recurse=False)
            part.reshard()


def is_sharded(model: nn.Module) -> bool:
    return isinstance(model, FSDPModule)


def full_tensor(tensor: Tensor) -> Tensor:
    """The tensor with every process's shard; a collective call."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_tensor(tensor: Tensor) -> Tensor:
    """This process's shard of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def frozen_names(model: nn.Module) -> set[str]:
    """State-dict names of the parameters that are not trained."""
    named = model.state_dict(keep_vars=True).items()
    return {name for name, x in named if isinstance(x, nn.Parameter) and not x.requires_grad}


def part_state(model: nn.Module, part: str) -> dict[str, Any] | None:
    """A submodule's whole state by its own names, on the first process; None without sharding."""
    if not is_sharded(model):
        return None
    state, prefix = get_model_state_dict(model, options=_WHOLE), f"{part}."
    return {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}


def whole_states(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The states of a model that is not sharded, without frozen weights, and of its optimizer.

    With LoRA, nearly all weights are frozen.
    """
    frozen = frozen_names(model)
    trained = {name: x for name, x in model.state_dict().items() if name not in frozen}
    return {"model": trained, "optimizer": optimizer.state_dict()}


def load_whole_states(
    model: nn.Module, optimizer: torch.optim.Optimizer, states: dict[str, Any]
) -> None:
    """Load the result of `whole_states`."""
    found = model.load_state_dict(states["model"], strict=False)
    assert set(found.missing_keys) <= frozen_names(model), found.missing_keys
    assert not found.unexpected_keys, found.unexpected_keys
    optimizer.load_state_dict(states["optimizer"])
