"""A check of lengths for imports.  In a module of its own, which the process of an import loads."""

from __future__ import annotations

import time
from collections.abc import Sequence

from storage.records import Message


class NoLongerThan:
    """Refuses prompts of more than `most` characters."""

    def __init__(self, most: int) -> None:
        self.most = most

    def __call__(self, messages: Sequence[Message], _answers: Sequence[str]) -> str | None:
        longest = max(len(message.content) for message in messages)
        return f"{longest} characters are too long" if longest > self.most else None


class Slow:
    """Takes a minute for each row."""

    def __call__(self, _messages: Sequence[Message], _answers: Sequence[str]) -> str | None:
        time.sleep(60)
        return None
