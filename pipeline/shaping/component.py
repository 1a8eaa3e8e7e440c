"""The type of a component: a callable of (conversations, completions) that returns scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from storage.records import Message

Conversation = Sequence[Message]
Component = Callable[[Sequence[Conversation], Sequence[str]], list[float]]


def of_text(score: Callable[[str], float]) -> Component:
    """A component from a score of the completion alone."""
    return lambda _, texts: [float(score(text)) for text in texts]


def of_pair(score: Callable[[str, str], float]) -> Component:
    """A component from a score of the user's last message and the completion."""

    def component(conversations: Sequence[Conversation], texts: Sequence[str]) -> list[float]:
        pairs = zip(conversations, texts, strict=True)
        return [float(score(last_user_message(messages), text)) for messages, text in pairs]

    return component


def last_user_message(messages: Conversation) -> str:
    """The user's last message, or ""."""
    return next((m.content for m in reversed(messages) if m.role == "user"), "")
