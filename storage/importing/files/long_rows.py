"""Rows of an imported file that are too long for the workspace's base model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from storage.records import Message

TooLong = Callable[[Sequence[Message], Sequence[str]], str | None]
"""Returns why a prompt with its answers is too long, or None."""


class LongRow(ValueError):
    """A row is too long for the model."""


@dataclass(frozen=True)
class LengthCheck:
    """Finds rows that are too long; with `skip`, they are left out instead of reported as bad."""

    too_long: TooLong | None = None
    skip: bool = False

    def require_fit(self, messages: Sequence[Message], *answers: str) -> None:
        """Raise `LongRow` if a prompt with its answers is too long."""
        reason = self.too_long(messages, answers) if self.too_long else None
        if reason is not None:
            raise LongRow(reason)


ANY_LENGTH = LengthCheck()
