"""Reward shaping: named components beside the reward model's score, each weighted and logged.

    components = load({"repetition": -1.0, "my_package.rewards:politeness": 0.5}, config)
    components["repetition"](conversations, completions)  # one score a completion

A component is a callable of (conversations, completions), or a `module:function` of one
(prompt text, completion) or one (completion).  Loads no torch.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence

from pipeline.shaping import lexical, sycophancy
from pipeline.shaping.config import ShapingConfig
from storage.records import Message

Conversation = Sequence[Message]
Component = Callable[[Sequence[Conversation], Sequence[str]], list[float]]


def built_in(config: ShapingConfig) -> dict[str, Component]:
    """Every component that comes with Kitestring, by name."""
    return {
        "length": of_text(lambda text: lexical.words(text) / 100),
        "overlong": of_text(
            lambda text: lexical.overlong(text, limit=config.words, buffer=config.words_buffer)
        ),
        "format": of_text(lambda text: lexical.matches(text, config.format)),
        "relevance": of_pair(lexical.relevance),
        "repetition": of_text(lexical.repetition),
        "sentiment": of_text(lexical.sentiment),
        "toxicity": of_text(lexical.toxicity),
        "hedging": of_text(lexical.hedging),
        "buzzwords": of_text(lexical.buzzwords),
        "sycophancy": of_pair(sycophancy.agrees_or_flatters),
        "honesty": of_pair(sycophancy.corrects_or_admits),
    }


def load(weights: Mapping[str, float], config: ShapingConfig) -> dict[str, Component]:
    """The components that `weights` names; ValueError for one that is unknown or cannot be had."""
    known = built_in(config)
    found: dict[str, Component] = {}
    for name in weights:
        if name in known:
            found[name] = known[name]
        elif ":" in name:
            found[name] = imported(name)
        else:
            raise ValueError(
                f"there is no shaping component {name!r}; there are {', '.join(known)}, "
                "and any module:function"
            )
    return found


def imported(path: str) -> Component:
    """`module:function` as a component, whichever arguments it takes."""
    module, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"the shaping component {path!r} cannot be imported: {error}") from None
    count = len(inspect.signature(function).parameters)
    if count == 1:
        return of_text(function)
    if count == 2:
        return of_pair(function)
    raise ValueError(
        f"the shaping component {path!r} takes {count} arguments; it must take (completion) or "
        "(prompt, completion)"
    )


def of_text(score: Callable[[str], float]) -> Component:
    """A component from a score of the completion alone."""
    return lambda _, texts: [float(score(text)) for text in texts]


def of_pair(score: Callable[[str, str], float]) -> Component:
    """A component from a score of the last thing the user said, and the completion."""

    def component(conversations: Sequence[Conversation], texts: Sequence[str]) -> list[float]:
        pairs = zip(conversations, texts, strict=True)
        return [float(score(last_said(messages), text)) for messages, text in pairs]

    return component


def last_said(messages: Conversation) -> str:
    """The user's last message; "" where he said nothing."""
    said = [message.content for message in messages if message.role == "user"]
    return said[-1] if said else ""
