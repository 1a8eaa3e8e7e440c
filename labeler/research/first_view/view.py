"""A section as plain HTML, with the class names that Gradio gives its elements, for the style sheet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gradio as gr
from gradio.blocks import Block, BlockContext

from labeler.html.components import Markup, lines
from labeler.research.tab import Updates

Shown = Callable[[str], Any]
"""The current value of a component's property."""


def slot(html: str, names: Markup | None = None) -> Markup:
    """An HTML component; `names` are its attributes."""
    return Markup('<div {}><div class="html-container"><div>{}</div></div></div>').format(
        names or Markup('class="block hide-container"'), Markup(html)
    )


def section(block: gr.Tab, updates: Updates) -> Markup:
    """The components of a section with the values that `updates` gives them."""
    return _inside(block.children, updates)


def _inside(blocks: Iterable[Block], updates: Updates) -> Markup:
    return lines(each for each in (_shown(block, updates) for block in blocks) if each)


def shown(block: Block, updates: Updates) -> Shown:
    """The properties of a component after `updates`."""
    values = _values(updates.get(block))
    return lambda name: values.get(name, getattr(block, name, None))


def _shown(block: Block, updates: Updates) -> Markup:
    current = shown(block, updates)
    if current("visible") is not True:
        return Markup("")
    draw = _DRAWN.get(type(block))
    if draw is not None:
        return draw(current)
    if isinstance(block, BlockContext):
        return _group(block, current, updates)
    return Markup("")  # states and timers


def _values(update: Any) -> Mapping[str, Any]:
    """An update as properties: a component, whose arguments are the changed ones, or a value."""
    if isinstance(update, Block):
        return {name: getattr(update, name, None) for name in update.constructor_args}
    return {} if update is None else {"value": update}


def _group(block: BlockContext, shown: Shown, updates: Updates) -> Markup:
    kind = type(block).__name__.lower()
    scale, width = shown("scale"), shown("min_width")
    style = f"flex: {scale} 1 0%; " if scale else ""
    style += f"min-width: min({width}px, 100%)" if width else ""
    return Markup('<div {} style="{}">{}</div>').format(
        _named(shown, kind), style, _inside(block.children, updates)
    )


def _named(shown: Shown, css: str) -> Markup:
    """The id and the classes of a component, `css` being Gradio's own."""
    names = Markup('class="{}"').format(" ".join([css, *(shown("elem_classes") or ())]))
    return Markup('id="{}" {}').format(shown("elem_id"), names) if shown("elem_id") else names


def _html(shown: Shown) -> Markup:
    return slot(str(shown("value") or ""), _named(shown, "block hide-container"))


def _fold(shown: Shown) -> Markup:
    return Markup(
        '<div {}><button class="label-wrap"><span>{}</span><span class="icon">▼</span></button></div>'
    ).format(_named(shown, "block gr-accordion"), shown("label"))


def _button(shown: Shown) -> Markup:
    return Markup("<button {}{}>{}</button>").format(
        _named(shown, f"{shown('size')} {shown('variant')}"),
        " disabled" if shown("interactive") is False else "",
        shown("value"),
    )


def _text(shown: Shown) -> Markup:
    control = Markup('<textarea rows="{}" placeholder="{}">{}</textarea>').format(
        shown("lines") or 1, shown("placeholder") or "", shown("value") or ""
    )
    return _field(shown, Markup('<div class="input-container">{}</div>').format(control))


def _choice(shown: Shown) -> Markup:
    chosen = shown("value") if isinstance(shown("value"), list) else [shown("value")]
    names = {value: name for name, value in shown("choices") or ()}
    text = ", ".join(str(names.get(each, each)) for each in chosen if each is not None)
    box = Markup(
        '<div class="wrap"><div class="wrap-inner"><input value="{}"><span class="arrow"></span></div></div>'
    )
    return _field(shown, box.format(text))


def _checks(shown: Shown) -> Markup:
    boxes = lines(
        _box(name, checked=value in (shown("value") or ()))
        for name, value in shown("choices") or ()
    )
    return _field(shown, Markup('<div class="wrap">{}</div>').format(boxes))


def _check(shown: Shown) -> Markup:
    box = _box(shown("label"), checked=bool(shown("value")), css="plain")
    info = Markup('<div class="info">{}</div>').format(shown("info")) if shown("info") else ""
    return Markup("<div {}>{}{}</div>").format(_named(shown, "block padded"), box, info)


def _box(name: str, *, checked: bool, css: str = "box") -> Markup:
    return Markup('<label class="{}"><input type="checkbox"{}><span>{}</span></label>').format(
        css, " checked" if checked else "", name
    )


def _field(shown: Shown, control: Markup) -> Markup:
    scale, width = shown("scale") or 1, shown("min_width") or 160
    bare = shown("container") is False
    label = Markup('<span class="label">{}</span>').format(shown("label") or "")
    info = Markup('<div class="info">{}</div>').format(shown("info")) if shown("info") else ""
    return Markup('<div {} style="flex: {} 1 0%; min-width: min({}px, 100%)">{}{}{}</div>').format(
        _named(shown, "block" if bare else "block padded"),
        scale,
        width,
        "" if bare else label,
        info,
        control,
    )


_DRAWN: Mapping[type[Block], Callable[[Shown], Markup]] = {
    gr.HTML: _html,
    gr.Accordion: _fold,
    gr.Button: _button,
    gr.Textbox: _text,
    gr.Number: _text,
    gr.Dropdown: _choice,
    gr.CheckboxGroup: _checks,
    gr.Checkbox: _check,
}
