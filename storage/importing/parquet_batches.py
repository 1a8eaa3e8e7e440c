"""Parquet files batch by batch, in bounded memory whatever they say of themselves.

A file of a kilobyte can hold one list of a billion values, or a long text that is in every row, and
its footer may call that small: what comes of it shows when it is decoded.  So files are decoded in
a process of its own first, whose memory is bounded, and only what came through that is read here.

Run as a program this module is that process; it imports nothing else of Kitestring.
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
_LEAST, _MOST, _TIMES = 64 * MIB, 1024 * MIB, 50
_BATCH_ROWS, _VALUE_BYTES = 256, 64
_BESIDE = 256 * MIB
"""What decoding takes beside the values and the file: pages, buffers, stacks of threads."""
_SECONDS = 600
_TOO_LARGE, _UNREADABLE = 3, 4
_ALONE = {"ARROW_DEFAULT_MEMORY_POOL": "system", "ARROW_IO_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Environment of the trial: threads and pools of their own reserve addresses, which are what is bounded."""


class TooLarge(Exception):
    """The files become larger than `allowed` bytes in memory."""

    def __init__(self, allowed: int) -> None:
        super().__init__(allowed)
        self.allowed = allowed


def batches(files: Sequence[Path]) -> Iterator[pa.RecordBatch]:
    """Their rows in order; `TooLarge`, or ValueError for what is not a parquet file."""
    size = sum(file.stat().st_size for file in files)
    # Text that people wrote shrinks to a tenth at best.
    allowed = min(_MOST, max(_LEAST, _TIMES * size))
    _try(files, allowed, limit=allowed + size + _BESIDE)
    yield from _decoded(files, allowed)


def _try(files: Sequence[Path], allowed: int, *, limit: int) -> None:
    """Decode the files in another process, which may take `limit` bytes for that."""
    # -P: its own folder has modules of the names of others.
    command = [sys.executable, "-P", __file__, str(allowed), str(limit)]
    try:
        told = subprocess.run(
            command, env=os.environ | _ALONE, input=b"\0".join(map(os.fsencode, files)),
            capture_output=True, check=False, timeout=_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"{files[0].name} takes more than {_SECONDS} s to read; split it"
        ) from None
    if -told.returncode in (signal.SIGINT, signal.SIGTERM):
        raise ValueError(f"{files[0].name} was not read to its end; import it again")
    # Another signal: out of memory within a library, or a defect of one.
    if told.returncode == _TOO_LARGE or told.returncode < 0:
        raise TooLarge(allowed)
    # What did not come through is never read here, whatever broke there.
    if told.returncode == _UNREADABLE:
        raise ValueError(told.stdout.decode(errors="replace"))
    if told.returncode:
        *_, last = told.stderr.decode(errors="replace").strip().splitlines() or ["no reason told"]
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
                # No text is longer than its group, but a million rows may share one of a page.
                rows_at_once = min(_BATCH_ROWS, max(1, allowed // max([1, *groups])))
                for batch in file.iter_batches(rows_at_once, use_threads=False):
                    taken += sum(map(_in_memory, batch.columns), _VALUE_BYTES * batch.num_rows)
                    _require_small(taken, allowed)
                    yield batch
        except MemoryError:
            raise
        except (pa.ArrowException, OSError) as problem:
            if "bad_alloc" in str(problem):  # the footer's parser has no error of its own for that
                raise MemoryError from None
            raise ValueError(f"{each.name} is not a parquet file: {problem}") from None


def _in_memory(array: pa.Array) -> int:
    """About how many bytes the values of a column are as Python objects; a null is one, too."""
    own = _VALUE_BYTES * len(array)
    if isinstance(array, pa.ExtensionArray):
        return own + _in_memory(array.storage)
    if pa.types.is_dictionary(array.type):  # as Python object each row gets a text of its own
        return _in_memory(array.dictionary_decode())
    if pa.types.is_struct(array.type):
        return own + sum(map(_in_memory, array.flatten()))
    if pa.types.is_map(array.type):  # it has no flatten, and its keys know of no slice
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
    """Let this process take no more than `more` bytes beyond what it has; where that can be told."""
    with suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + more
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _trial(allowed: int, limit: int, files: Sequence[Path]) -> int:
    _bound_memory(limit)
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))  # where nobody waits any more
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
    sys.exit(_trial(int(sys.argv[1]), int(sys.argv[2]), named))
