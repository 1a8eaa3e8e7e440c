"""A request to stop: at once, or, where work would be lost, at the next good moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

WAS_CANCELLED = "cancelled"
"""The reason that a stage gives which stopped because it was asked to."""

_deferring = False
_asked = False


class Cancelled(BaseException):
    """The researcher cancelled; not an Exception, so that no stage can swallow it."""


def ask() -> None:
    """Stop now, or note the request where somebody has promised to look (`deferred`)."""
    global _asked
    _asked = True
    if not _deferring:
        raise Cancelled


def asked() -> bool:
    return _asked


@contextmanager
def deferred() -> Iterator[None]:
    """Inside, a request waits until `asked` is looked at; the caller then raises `Cancelled`."""
    global _deferring
    _deferring = True
    try:
        yield
    finally:
        _deferring = False
