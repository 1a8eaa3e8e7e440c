"""The base class and helpers of all sections of the research site."""

from __future__ import annotations

import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import gradio as gr
from gradio.blocks import Block
from gradio.components import Component
from gradio.context import Context

from labeler.html.components import Markup, Tone, heading, note, render, sentence
from labeler.research.calls import Page
from labeler.security.access import Access
from storage.records import Annotator

T = TypeVar("T")

Updates = dict[Block, Any]


@dataclass(frozen=True)
class Script:
    """The script of a section that fills its only component by itself.

    `code` is JavaScript that finds the component's content as `element`. The first view runs it
    before Gradio has started, and hands `element` over. `style` is CSS.
    """

    elem_id: str
    code: str
    style: str = ""

    def slot(self) -> gr.HTML:
        """The component, empty until the script has filled it."""
        return html_slot(
            value="<div></div>",
            css_template=self.style,
            js_on_load=_TAKE % {"id": json.dumps(self.elem_id), "code": self.code},
            elem_id=self.elem_id,
        )


_TAKE = """
if (!window.ksFirstView?.give(%(id)s, element)) {
  const own = document.createElement("div");
  element.replaceChildren(own);
  ((element) => {%(code)s
  })(own);
}
"""


class Tab(ABC):
    """A tab: its components and their event handlers.

    A subclass creates its components in ``__init__``, inside the Gradio tab, and sets `outputs`.
    """

    every: float | None = None
    """Seconds between refreshes while the tab is open; None refreshes it only when it is opened."""
    inputs: Sequence[Component] = ()
    """The components whose values `refresh` takes."""
    outputs: Sequence[Block] = ()
    """The components that `refresh` updates."""
    loaded: Sequence[Block] = ()
    """The components that `load` updates."""
    script: Script | None = None
    """What fills the section instead of `refresh`."""

    @abstractmethod
    def refresh(self, *args: Any, **kwargs: Any) -> Updates:
        """The current values of `outputs`."""

    def refresh_for(self, person: Annotator, *args: Any) -> Updates:  # noqa: ARG002
        """Like `refresh`, for the person who opens the section."""
        return self.refresh(*args)

    def load(self) -> Updates:
        """The values of `loaded` when the page is loaded, such as fields to edit."""
        return {}

    def open_at(self, query: Mapping[str, str]) -> Updates:  # noqa: ARG002 (subclasses use it)
        """The values of `loaded` that the address asks for (address.js)."""
        return {}


def on(
    event: Callable[..., Any],
    handler: Callable[..., Any],
    inputs: Sequence[Component] = (),
    outputs: Sequence[Block] = (),
    *,
    access: Access = "researcher",
) -> None:
    """Call `handler` at a Gradio event, without a spinner and without a public API endpoint.

    `access` says who may call it: "viewer" for a handler that changes nothing, "adjudicator" for one
    that adjudicators use.  The server refuses the call to all others, and the page hides the button.
    """
    function = event(
        handler,
        inputs=list(inputs),
        outputs=list(outputs),
        show_progress="hidden",
        api_visibility="private",
    )
    page = Context.root_block
    if isinstance(page, Page):
        page.allow(function["id"], access)
        for component, _ in function["targets"] if access == "researcher" else ():
            acting = page.blocks[component]
            if isinstance(acting, gr.Button | gr.Checkbox):
                acting.elem_classes = [*(acting.elem_classes or []), "ks-acts"]


def caller(request: gr.Request) -> Annotator:
    """The person who called; the access check has stored them in the request."""
    assert request.request is not None
    return request.request.state.identity.annotator


def html_slot(**options: Any) -> gr.HTML:
    """A component for HTML; without `js_on_load`, it reports no clicks."""
    return gr.HTML(js_on_load=options.pop("js_on_load", None), apply_default_css=False, **options)


_FROM_ADDRESS = (Path(__file__).parent / "from_address.js").read_text(encoding="utf-8")


def address_slot(page: str, section: str, name: str, content: str) -> gr.HTML:
    """An empty component whose event `act` comes once, if the address of the section has a `name`.

    It comes when the element `content` (a CSS selector) is filled, so after the first refresh.
    """
    call = f"fromAddress({page!r}, {section!r}, {name!r}, {content!r});"
    return html_slot(js_on_load=f"{_FROM_ADDRESS}\n{call}", elem_classes="ks-none")


def named_in_address(event: gr.EventData) -> str:
    """What the address names; "" for an event that is not from `address_slot`."""
    sent = event._data if isinstance(event._data, dict) else {}
    return str(sent.get("id", ""))


def heading_slot(title: str, detail: str = "") -> gr.HTML:
    """A heading that never changes."""
    return html_slot(value=render(heading(title, detail)))


def alert(tone: Tone, title: str, body: str = "") -> str:
    """The answer to a button."""
    return render(note(tone, title, body))


@dataclass(frozen=True)
class Answer:
    """The answer to a button as HTML; `refusal` is the reason if the action was refused."""

    html: str
    refusal: str = ""


def attempt(
    action: Callable[[], str | Markup], refused: str = "The request was refused."
) -> Answer:
    """Run the action of a button.

    `action` returns the sentence or HTML to show, or "" if the rest of the page shows the result.
    ``ValueError`` and ``LookupError`` become refusals with the title `refused`; all other errors
    propagate.
    """
    try:
        done = action()
    except (ValueError, LookupError) as error:
        return Answer(alert("bad", refused, sentence(str(error))), str(error))
    if isinstance(done, Markup):
        return Answer(render(done))
    return Answer(alert("good", done) if done else "")


class Cached(Generic[T]):
    """The cached result of a slow function, computed again when its key or occasion changes.

    A new key, such as the number of judgments, causes at most one computation in `at_most_every`
    seconds. A new occasion, which is rare, causes one immediately. Thread-safe. `clock` returns
    seconds.
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
