"""Stops at any step: the n-th call that changes a file fails, or ends the program there."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

CHANGING = (
    *("open", "write", "fsync", "ftruncate", "chmod"),
    *("rename", "replace", "unlink", "remove", "mkdir", "rmdir"),
)


class Killed(BaseException):
    """Stands for the end of the program: whatever would tidy up afterwards is stopped as well."""


class Steps:
    """What was called, in order, as (name, arguments)."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __len__(self) -> int:
        return len(self.calls)


def _is_reading(name: str, arguments: tuple[Any, ...]) -> bool:
    return name == "open" and not arguments[1] & (os.O_WRONLY | os.O_RDWR)


@contextmanager
def stopping(at: int | None = None, *, kill: bool = True) -> Iterator[Steps]:
    """Within it, call number `at` (from 0) of the functions of `os` that change files fails.

    With `kill` so does every later one, and a write that is hit has written half; without, the
    disk refuses that one call and takes the next.  `None` counts only.
    """
    steps = Steps()

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if _is_reading(name, arguments):
                return real(*arguments, **named)
            number = len(steps)
            steps.calls.append((name, _named(arguments)))
            if at is None or number < at or (number > at and not kill):
                return real(*arguments, **named)
            if not kill:
                raise OSError(errno.ENOSPC, "No space left on device")
            if number == at and name == "write":
                real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
            raise Killed(name, arguments)

        return call

    with ExitStack() as patches:
        for name in CHANGING:
            patches.enter_context(mock.patch.object(os, name, counted(name, getattr(os, name))))
        yield steps


def _named(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """With the path in place of a file descriptor."""
    if arguments and isinstance(arguments[0], int):
        return (str(Path(f"/proc/self/fd/{arguments[0]}").readlink()), *arguments[1:])
    return tuple(map(str, arguments[:2]))
