"""The theme of all pages: light, dark or the system's, as a cookie of this browser says.

``theme.js`` writes the cookie, and adds the switch to the pages with scripts. The server renders the
theme into the document of every page, so no page shows another one first.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from markupsafe import Markup
from starlette.datastructures import Headers
from starlette.types import Scope

from labeler.cookies import read_cookie

THEME_COOKIE = "kitestring_theme"
"""The cookie with the theme that was chosen in this browser; the system's without one."""
Theme = Literal["light", "dark"]

_HEAD = b"<head>"
_HTML = b"<html"
_SCRIPT = (Path(__file__).parent / "theme.js").read_text(encoding="utf-8")
_STYLE = """
html:root { color-scheme: light dark; --kite-page: %(light)s; --bg: var(--kite-page); --bg-dark: var(--kite-page); }
@media (prefers-color-scheme: dark) { html:root { --kite-page: %(dark)s; } }
html:root[data-theme="light"] { color-scheme: light; --kite-page: %(light)s; }
html:root[data-theme="dark"] { color-scheme: dark; --kite-page: %(dark)s; }
"""


def theme_of(headers: Mapping[str, str]) -> Theme | None:
    """The theme that was chosen in this browser; None for any other value of the cookie."""
    found = read_cookie(headers, THEME_COOKIE)
    return next((theme for theme in get_args(Theme) if theme == found), None)


def attribute(theme: Theme | None) -> Markup:
    """The attribute of ``<html>``, with a space before it; none for the system's theme."""
    return Markup(' data-theme="{}"').format(theme) if theme else Markup("")


class Themed:
    """Gives each document of Gradio the theme and its script (`labeler.documents.Edit`).

    Gradio adds the scripts of its `head` only after its own start, when a page has been shown
    already. `light` and `dark` are the colors of the empty page (CSS).
    """

    def __init__(self, *, light: str, dark: str) -> None:
        style = _STYLE % {"light": light, "dark": dark}
        self._added = _HEAD + f"<style>{style}</style><script>{_SCRIPT}</script>".encode()

    async def __call__(self, scope: Scope, document: bytes) -> bytes:
        tag = _HTML + attribute(theme_of(Headers(scope=scope))).encode()
        return document.replace(_HTML, tag, 1).replace(_HEAD, self._added, 1)
