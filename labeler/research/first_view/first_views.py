"""The first view of any address of the site."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.blocks import Block

from labeler.html.components import Markup, render
from labeler.research.first_view.document import FRAME
from labeler.research.first_view.view import section, shown, slot
from labeler.research.navigation import named, navigation
from labeler.research.tab import Script, Tab, Updates
from labeler.research.top import role_note
from labeler.security.access import GRANTS
from storage.records import Annotator

_HERE = Path(__file__).parent
_STYLE = (_HERE / "first_view.css").read_text(encoding="utf-8") + FRAME
_SCRIPT = (_HERE / "first_view.js").read_text(encoding="utf-8")
_LOG = logging.getLogger(__name__)


class FirstViews:
    """Makes the first view of a section: what `Tab.refresh_for` gives, before Gradio asks for it.

    `tabs` are the sections by page and name; `headline` makes the header, `style` the style sheet.
    `head` is HTML that the scripts of sections need (`labeler.research.tab.Script`).
    """

    def __init__(
        self,
        tabs: Mapping[str, Mapping[str, tuple[gr.Tab, Tab]]],
        *,
        headline: Callable[[], str],
        style: Callable[[], str],
        head: str,
    ) -> None:
        self._tabs = tabs
        self._pages = {page: list(sections) for page, sections in tabs.items()}
        self._headline = headline
        self._style = style
        self._head = Markup(head)

    def __call__(self, person: Annotator, query: Mapping[str, str]) -> str:
        """The first view for a person and the query of the address, as HTML.

        Empty for people who may not read the sections, and when a section fails: Gradio will ask
        for the section again, and show its error.
        """
        if "viewer" not in GRANTS[person.role]:
            return ""
        page, name = named(self._pages, query)
        block, tab = self._tabs[page][name]
        try:
            updates = _updates(tab, person, query)
        except Exception:
            _LOG.exception("No first view of %s: %s", page, name)
            return ""
        content = Markup(
            '<div class="gradio-container"><div class="main">{}{}{}<div class="tab" inert>{}</div></div></div>'
        ).format(
            Markup("<div inert>{}</div>").format(slot(self._headline())),
            slot(role_note(person.role)),
            slot(render(navigation(self._pages, (page, name)))),
            section(block, updates),
        )
        return render(
            Markup(
                '<style id="first-view-style">{}</style>'
                '<div id="first-view" data-section="{}" data-filled="{}"></div>'
                '<template id="first-view-content">{}</template>{}<script>{}</script>'
            ).format(
                Markup(_STYLE + self._style() + (tab.script.style if tab.script else "")),
                f"{page}: {name}",
                json.dumps(_filled(tab, updates)),
                content,
                self._head if tab.script else "",
                Markup(_with_script(tab.script)),
            )
        )


def _updates(tab: Tab, person: Annotator, query: Mapping[str, str]) -> Updates:
    updates: Updates = {**tab.load(), **tab.open_at(query)}
    values = [_value(each, updates) for each in tab.inputs]
    return updates | tab.refresh_for(person, *values)


def _value(component: Any, updates: Updates) -> Any:
    update = updates.get(component, component.value)
    return update.constructor_args.get("value") if isinstance(update, Block) else update


def _with_script(script: Script | None) -> str:
    if script is None:
        return _SCRIPT
    entry = f"{json.dumps(script.elem_id)}: (element) => {{{script.code}\n}}"
    return _SCRIPT.replace("/* scripts */", entry).replace("</", "<\\/")


def _filled(tab: Tab, updates: Updates) -> list[str]:
    """The ids of the components of a section that have content or a value, and of the header.

    Gradio makes what is in a closed fold only when the fold is opened.
    """
    parts = [each for each in (*tab.outputs, *tab.loaded) if isinstance(each, gr.HTML | gr.Textbox)]
    named = [
        str(each.elem_id)
        for each in parts
        if each.elem_id and _value(each, updates) and not _folded(each, updates)
    ]
    own = [tab.script.elem_id] if tab.script else []
    return ["top", *own, *dict.fromkeys(named)]


def _folded(block: Block, updates: Updates) -> bool:
    return any(
        isinstance(each, gr.Accordion) and not shown(each, updates)("open")
        for each in _around(block)
    )


def _around(block: Block) -> Iterator[Block]:
    while block.parent is not None:
        block = block.parent
        yield block
