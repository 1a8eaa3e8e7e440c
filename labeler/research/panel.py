"""What every tab of the research page is made of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import gradio as gr
from gradio.blocks import Block
from gradio.components import Component

from labeler.html import components
from labeler.html.components import Markup

T = TypeVar("T")

Updates = dict[Block, Any]


@dataclass(frozen=True, kw_only=True)
class Panel:
    """The moving parts of a tab: `refresh(*values of inputs)` says what `outputs` show now.

    `every` is how often, in seconds, while the tab is open; None means once, on opening it.
    """

    refresh: Callable[..., Updates]
    inputs: list[Component] = field(default_factory=list)
    outputs: list[Block]
    every: float | None = None


def html_slot(**options: Any) -> gr.HTML:
    """A place for HTML.  Without a script of its own it reports no clicks."""
    return gr.HTML(js_on_load=options.pop("js_on_load", None), apply_default_css=False, **options)


def alert(tone: components.Tone, title: str, body: str = "") -> str:
    """The answer to a press of a button."""
    return components.html(components.note(tone, title, body))


def attempt(action: Callable[[], T], done: Callable[[T], str]) -> str:
    """Do what a button asks; a refusal (``ValueError``, not found) is said, a defect propagates.

    Where `done` has nothing to say, the rest of the page shows the success.
    """
    try:
        result = action()
    except (ValueError, LookupError) as error:
        return alert("bad", "Refused.", str(error))
    sentence = done(result)
    return alert("good", sentence) if sentence else ""


def render(markup: Markup) -> str:
    return components.html(markup)


class Cached(Generic[T]):
    """The last result of something slow, computed again when its key or occasion changes.

    `at_most_every` seconds bounds how often that happens by the key, while annotators are busy;
    an occasion is rare and does not wait.
    """

    def __init__(
        self,
        compute: Callable[[], T],
        *,
        at_most_every: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._compute = compute
        self._pause = at_most_every
        self._clock = clock
        self._lock = threading.Lock()
        self._known: tuple[Hashable, Hashable, float, T] | None = None

    def get(self, key: Hashable, *, occasion: Hashable = None) -> T:
        with self._lock:
            if self._known is not None:
                known, then, when, value = self._known
                recent = known == key or self._clock() - when < self._pause
                if recent and then == occasion:
                    return value
            value = self._compute()
            self._known = (key, occasion, self._clock(), value)
            return value
