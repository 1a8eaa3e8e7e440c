"""What the sections of the Data page share: pairs as HTML, and buttons.  Texts are untrusted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gradio as gr

from labeler.html import components, formulas
from labeler.html.components import Markup
from labeler.html.markdown import render_pair
from storage.records import Message, Outcome, ScreenOutcome

OUTCOMES: dict[Outcome, str] = {
    "first": "1 is better",
    "second": "2 is better",
    "tie": "Tie",
    "both_bad": "Both bad",
}
"""Outcomes in the stored order of a pair."""
ON_SCREEN: dict[ScreenOutcome, str] = {
    "a": "A is better",
    "b": "B is better",
    "tie": "Tie",
    "both_bad": "Both bad",
}
BROWSE_JS = (Path(__file__).parent / "browse.js").read_text(encoding="utf-8")
"""A script that sends what is pressed in a list, a table or a pair."""
TYPESET = f"""
{formulas.SCRIPT}
new MutationObserver(() => typesetEach(element)).observe(element, {{ childList: true, subtree: true }});
typesetEach(element);
"""
"""A script that typesets the formulas of rendered responses."""


def texts(
    messages: Sequence[Message],
    first: str,
    second: str,
    *,
    about: str = "",
    titles: tuple[Markup | str, Markup | str],
) -> Markup:
    """A prompt and both responses, rendered as annotators see them."""
    one, other, notice = render_pair(first, second)
    return Markup(
        '<section class="ks-prompt">{}{}</section><div class="ks-sides">'
        '<div class="ks-side"><h3>{}</h3>{}</div><div class="ks-side"><h3>{}</h3>{}</div></div>{}'
    ).format(
        components.conversation(messages),
        Markup('<div class="ks-detail">{}</div>').format(about) if about else "",
        titles[0],
        _rendered(one),
        titles[1],
        _rendered(other),
        components.note("warn", notice) if notice else "",
    )


def _rendered(html: str) -> Markup:
    # `render_pair` returns safe HTML for any Markdown.
    return Markup('<div class="ks-guidelines" dir="auto">{}</div>').format(Markup(html))


def asking(
    label: str,
    action: str,
    target: str,
    *,
    title: str,
    ask: str,
    submit: str,
    note: str = "",
    more: str = "",
    most: int = 2_000,
    optional: bool = False,
    value: str = "",
    tone: components.Tone = "neutral",
) -> Markup:
    """A button that asks for a text before it sends its action; see browse.js."""
    return Markup(
        '<button type="button" class="ks-button ks-{}" data-action="{}" data-target="{}" '
        'data-title="{}" data-ask="{}" data-submit="{}" data-note="{}" data-most="{}" '
        'data-value="{}"{}{}>{}</button>'
    ).format(
        tone,
        action,
        target,
        title,
        ask,
        submit,
        note,
        most,
        value,
        Markup(' data-more="{}"').format(more) if more else "",
        Markup(" data-optional") if optional else "",
        label,
    )


def pressed(event: gr.EventData) -> tuple[str, str, str]:
    """Action, target and text that browse.js sends; "" for what it does not send."""
    sent = event._data if isinstance(event._data, dict) else {}
    action, target, text = (
        value if isinstance(value := sent.get(name), str) else ""
        for name in ("action", "id", "text")
    )
    return action, target, text
