"""Rows of an imported file that are too long for the model that a workspace starts from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from storage.records import Message

TooLong = Callable[[Sequence[Message], Sequence[str]], str | None]
"""Says of a prompt and its answers, or of a prompt alone, why they are too long; else None."""


class LongRow(ValueError):
    """A row is too long for the model."""


@dataclass(frozen=True)
class LengthCheck:
    """How too long rows are told from others, and whether they are left out or bad rows."""

    too_long: TooLong | None = None
    skip: bool = False

    def require_fit(self, messages: Sequence[Message], *answers: str) -> None:
        """Raise `LongRow` where a prompt with its answers is too long."""
        reason = self.too_long(messages, answers) if self.too_long else None
        if reason is not None:
            raise LongRow(reason)


ANY_LENGTH = LengthCheck()
