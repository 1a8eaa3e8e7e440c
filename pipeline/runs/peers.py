"""Processes of a stage that divide work which each does alone, and exchange its results.

torch.distributed is not used: where it is initialized, transformers saves models in one process only
and trains one model in all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Peers:
    """The processes of a stage, seen from process `rank` of `size`."""

    rank: int = 0
    size: int = 1
    connections: tuple[Connection, ...] = ()
    """To the other processes in the first one, by rank; to the first one in the others."""

    def share(self, rows: Sequence[_T]) -> list[_T]:
        """This process's rows."""
        return list(rows[self.rank :: self.size])

    def gather(self, mine: _T) -> list[_T]:
        """Every process's object, by rank; waits until all have called it.

        Raises RuntimeError if another process stops.
        """
        if self.rank:
            (first,) = self.connections
            with _naming(1, self.size):
                first.send(mine)
                return first.recv()
        found = [mine]
        for number, other in enumerate(self.connections, 2):
            with _naming(number, self.size):
                found.append(other.recv())
        for number, other in enumerate(self.connections, 2):
            with _naming(number, self.size):
                other.send(found)
        return found


@contextmanager
def _naming(number: int, size: int) -> Iterator[None]:
    """Name the process if it has closed the connection."""
    try:
        yield
    except (EOFError, ConnectionError) as error:
        raise RuntimeError(f"process {number} of {size} stopped; see the log") from error


ALONE = Peers()
"""The only process of a stage."""
_current = ALONE


def current() -> Peers:
    """The processes of this stage; only this one unless it was started with others."""
    return _current


@contextmanager
def joined(peers: Peers) -> Iterator[None]:
    """Make them the `current` ones; close their connections on exit."""
    global _current
    _current = peers
    try:
        yield
    finally:
        _current = ALONE
        for connection in peers.connections:
            connection.close()
