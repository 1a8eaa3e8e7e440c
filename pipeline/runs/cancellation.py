"""Requests to stop, immediately or at the end of a step if work would be lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

WAS_CANCELLED = "cancelled"
"""The reason of a stage that stopped on request."""
WAS_TERMINATED = (
    "the cluster stopped the worker, as at a time limit; resume continues from the last checkpoint, "
    "if there is one"
)
"""The reason of a stage on a cluster that stopped although the researcher had not asked."""

_deferring = False
_requested = False


class Cancelled(BaseException):
    """The researcher cancelled; not an Exception, so that no stage catches it by mistake."""


def request_cancel() -> None:
    """Stop now; inside `deferred`, only remember the request."""
    global _requested
    _requested = True
    if not _deferring:
        raise Cancelled


def cancel_requested() -> bool:
    return _requested


@contextmanager
def deferred() -> Iterator[None]:
    """Defer requests to stop: the code must check `cancel_requested` and raise `Cancelled`."""
    global _deferring
    _deferring = True
    try:
        yield
    finally:
        _deferring = False
