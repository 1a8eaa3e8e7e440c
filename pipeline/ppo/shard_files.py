"""Weights and optimizer states of a sharded run in a checkpoint: each process writes its own part.

torch.distributed.checkpoint writes and reads the parts, so that no process holds the whole, and a run
may go on with another number of processes.  Its own index of the files is a pickle, which could run
code, and has a hidden name; here the index is plain data in the checkpoint's `state.pt`, with the
SHA-256 of each file.  These functions are collective calls.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from pipeline.ppo.network.distributed import Processes

_WEIGHT = "weight"


def write_shards(
    draft: Path, model: nn.Module, optimizer: torch.optim.Optimizer, processes: Processes
) -> dict[str, Any]:
    """Write this process's part; return what a checkpoint must remember: `index` and `checksums`.

    Raises an error of any process, such as of a full disk, in all of them.
    """
    with _plain_errors():
        written = dcp.save(_tensors(model, optimizer), storage_writer=_Writer(draft))
    index = _index(written)
    files = sorted({part["file"] for entry in index.values() for part in entry["parts"]})
    checksums = {}
    for found in processes.gather(
        [(name, _sha256(draft / name)) for name in processes.share(files)]
    ):
        checksums |= dict(found)
    return {"index": index, "checksums": checksums}


def damage(checkpoint: Path, checksums: Mapping[str, str], processes: Processes) -> str | None:
    """What is wrong with the files, in all processes; each of them reads its share."""
    mine = [
        _damage_of(checkpoint / name, checksums[name])
        for name in processes.share(sorted(checksums))
    ]
    return next((reason for part in processes.gather(mine) for reason in part if reason), None)


def read_shards(
    checkpoint: Path,
    index: Mapping[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Read this process's part of weights and optimizer states, in place."""
    weights = dict(_weights(model))
    optimizer.state.clear()
    targets: dict[str, Any] = {}
    for key, entry in index.items():
        field, _, name = key.partition("/")
        target = weights[name].detach()
        if field != _WEIGHT:
            target = _state_for(target, entry)
            optimizer.state[weights[name]][field] = target
        targets[key] = target
    with _plain_errors():
        dcp.load(targets, storage_reader=_Reader(checkpoint, index))


def _state_for(weight: Tensor, entry: Mapping[str, Any]) -> Tensor:
    """Zeros for a state of the optimizer: moments are sharded as their weight, counts are whole."""
    shape = torch.Size(entry["shape"])
    if shape == weight.shape:
        return torch.zeros_like(weight)
    return torch.zeros(shape, dtype=entry["dtype"], device=weight.device)


def _tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """All that is written, by field and name of the weight."""
    found = {}
    for name, weight in _weights(model):
        found[f"{_WEIGHT}/{name}"] = weight.detach()
        for field, tensor in optimizer.state.get(weight, {}).items():
            found[f"{field}/{name}"] = tensor
    return found


def _weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Weights and persistent buffers; those with several names once."""
    seen: set[int] = set()
    for name, weight in model.state_dict(keep_vars=True).items():
        if id(weight) not in seen:
            seen.add(id(weight))
            yield name, weight


class _Writer(dcp.FileSystemWriter):
    """Writes no index; `dcp.save` returns it."""

    def finish(self, metadata: Metadata, results: list[list[Any]]) -> None:
        metadata.storage_data = {done.index: done.storage_data for part in results for done in part}


class _Reader(dcp.FileSystemReader):
    """Reads files with a given index."""

    def __init__(self, path: Path, index: Mapping[str, Any]) -> None:
        super().__init__(path)
        self._index = index

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        places: dict[MetadataIndex, _StorageInfo] = {}
        tensors: dict[str, Any] = {}
        for name, entry in self._index.items():
            chunks = []
            for part in entry["parts"]:
                offsets, sizes = torch.Size(part["offsets"]), torch.Size(part["sizes"])
                chunks.append(ChunkStorageMetadata(offsets, sizes))
                places[MetadataIndex(name, offsets)] = _StorageInfo(
                    part["file"], part["start"], part["length"]
                )
            properties = TensorProperties(dtype=entry["dtype"])
            tensors[name] = TensorStorageMetadata(properties, torch.Size(entry["shape"]), chunks)
        return Metadata(tensors, storage_data=places, storage_meta=StorageMeta())


def _index(metadata: Metadata) -> dict[str, Any]:
    """Where the parts of each tensor are, as plain data."""
    index: dict[str, Any] = {}
    for name, tensor in metadata.state_dict_metadata.items():
        assert isinstance(tensor, TensorStorageMetadata), name
        parts = []
        for chunk in tensor.chunks:
            place = metadata.storage_data[MetadataIndex(name, chunk.offsets)]
            parts.append(
                {
                    "offsets": list(chunk.offsets),
                    "sizes": list(chunk.sizes),
                    "file": place.relative_path,
                    "start": place.offset,
                    "length": place.length,
                }
            )
        index[name] = {"shape": list(tensor.size), "dtype": tensor.properties.dtype, "parts": parts}
    return index


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _damage_of(file: Path, checksum: str) -> str | None:
    try:
        return None if _sha256(file) == checksum else f"{file.name} does not match its checksum"
    except FileNotFoundError:
        return f"{file.name} is missing"
    except OSError as error:
        return f"{file.name}: {error.strerror}"


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Raise the first process's error that torch.distributed.checkpoint reports of all of them."""
    try:
        yield
    except CheckpointException as error:
        first, _ = error.failures[min(error.failures)]
        raise first from None
