"""Parquet files batch by batch, in bounded memory.

A file of a kilobyte can contain a list of a billion values, or one long text in every row, and its
footer can claim that it is small.  So a subprocess with bounded memory decodes each file first,
and only files that pass are read here.

The subprocess runs this module as a program, so it imports nothing else of Kitestring.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet

MIB = 2**20
_MIN_MEMORY, _MAX_MEMORY, _TIMES = 64 * MIB, 1024 * MIB, 50
_BATCH_ROWS, _VALUE_BYTES = 256, 64
_OVERHEAD = 256 * MIB
"""Memory for decoding in addition to the values and the file: pages, buffers, thread stacks."""
_SECONDS = 600
_TOO_LARGE, _UNREADABLE = 3, 4
_ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "ARROW_IO_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}
"""Environment of the subprocess: threads and pools would use up its bounded address space."""


class TooLarge(Exception):
    """The files take more than `allowed` bytes in memory."""

    def __init__(self, allowed: int) -> None:
        super().__init__(allowed)
        self.allowed = allowed


def batches(files: Sequence[Path]) -> Iterator[pa.RecordBatch]:
    """The rows of the files in order.  Raises `TooLarge`, or ValueError for a file that is not
    parquet."""
    size = sum(file.stat().st_size for file in files)
    # Real text is compressed by a factor of ten at best.
    allowed = min(_MAX_MEMORY, max(_MIN_MEMORY, _TIMES * size))
    _check_in_subprocess(files, allowed, limit=allowed + size + _OVERHEAD)
    yield from _decoded(files, allowed)


def _check_in_subprocess(files: Sequence[Path], allowed: int, *, limit: int) -> None:
    """Decode the files in another process with at most `limit` bytes of memory."""
    # Without -P, modules in this folder would shadow others of the same name.
    command = [sys.executable, "-P", __file__, str(allowed), str(limit)]
    try:
        completed = subprocess.run(
            command, env=os.environ | _ENVIRONMENT, input=b"\0".join(map(os.fsencode, files)),
            capture_output=True, check=False, timeout=_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"{files[0].name} takes more than {_SECONDS} s to read; split it"
        ) from None
    if -completed.returncode in (signal.SIGINT, signal.SIGTERM):
        raise ValueError(f"reading {files[0].name} was interrupted; import it again")
    # Another signal means that a library ran out of memory or crashed.
    if completed.returncode == _TOO_LARGE or completed.returncode < 0:
        raise TooLarge(allowed)
    # A file that failed for any reason is never read in this process.
    if completed.returncode == _UNREADABLE:
        raise ValueError(completed.stdout.decode(errors="replace"))
    if completed.returncode:
        *_, last = completed.stderr.decode(errors="replace").strip().splitlines() or [
            "no reason given"
        ]
        raise ValueError(f"{files[0].name} cannot be read as parquet: {last}")


def _decoded(files: Sequence[Path], allowed: int) -> Iterator[pa.RecordBatch]:
    taken = 0
    for each in files:
        try:
            with parquet.ParquetFile(each) as file:
                groups = [
                    file.metadata.row_group(n).total_byte_size
                    for n in range(file.metadata.num_row_groups)
                ]
                _require_small(taken + sum(groups), allowed)
                # A text is no larger than its row group, but a million rows may share one text.
                rows_at_once = min(_BATCH_ROWS, max(1, allowed // max([1, *groups])))
                for batch in file.iter_batches(rows_at_once, use_threads=False):
                    taken += sum(map(_in_memory, batch.columns), _VALUE_BYTES * batch.num_rows)
                    _require_small(taken, allowed)
                    yield batch
        except MemoryError:
            raise
        except (pa.ArrowException, OSError) as problem:
            if "bad_alloc" in str(problem):  # the parser of the footer ran out of memory
                raise MemoryError from None
            raise ValueError(f"{each.name} is not a parquet file: {problem}") from None


def _in_memory(array: pa.Array) -> int:
    """The approximate size of a column's values as Python objects in bytes, nulls included."""
    own = _VALUE_BYTES * len(array)
    if isinstance(array, pa.ExtensionArray):
        return own + _in_memory(array.storage)
    if pa.types.is_dictionary(array.type):  # as Python objects, rows do not share a text
        return _in_memory(array.dictionary_decode())
    if pa.types.is_struct(array.type):
        return own + sum(map(_in_memory, array.flatten()))
    if pa.types.is_map(array.type):  # no flatten, and keys and items ignore the slice
        first, end = array.offsets[0].as_py(), array.offsets[len(array)].as_py()
        parts = (each.slice(first, end - first) for each in (array.keys, array.items))
        return own + _VALUE_BYTES * (end - first) + sum(map(_in_memory, parts))
    if pa.types.is_nested(array.type):
        return own + _in_memory(array.flatten())
    return own + array.nbytes


def _require_small(taken: int, allowed: int) -> None:
    if taken > allowed:
        raise TooLarge(allowed)


def _bound_memory(more: int) -> None:
    """Limit this process to `more` bytes beyond its current size, if the system supports it."""
    with suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + more
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _decode_all(allowed: int, limit: int, files: Sequence[Path]) -> int:
    _bound_memory(limit)
    resource.setrlimit(
        resource.RLIMIT_CPU, (_SECONDS, _SECONDS)
    )  # in case the parent process has died
    try:
        for _ in _decoded(files, allowed):
            pass
    except (TooLarge, MemoryError):
        return _TOO_LARGE
    except ValueError as problem:
        sys.stdout.buffer.write(str(problem).encode(errors="replace"))
        return _UNREADABLE
    return 0


if __name__ == "__main__":
    named = [Path(os.fsdecode(name)) for name in sys.stdin.buffer.read().split(b"\0")]
    sys.exit(_decode_all(int(sys.argv[1]), int(sys.argv[2]), named))
