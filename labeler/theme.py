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
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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


class ThemedPages:
    """ASGI middleware inside Gradio's compression: each HTML document gets the theme and its script.

    Gradio adds the scripts of its `head` only after its own start, when a page has been shown
    already. `light` and `dark` are the colors of the empty page (CSS).
    """

    def __init__(self, app: ASGIApp, *, light: str, dark: str) -> None:
        self._app = app
        style = _STYLE % {"light": light, "dark": dark}
        self._added = _HEAD + f"<style>{style}</style><script>{_SCRIPT}</script>".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start: Message | None = None
        body = b""

        async def adding(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start" and _is_html(message):
                start = message
            elif start is None:
                await send(message)
            else:
                body += message.get("body", b"")
                if not message.get("more_body", False):
                    whole = self._themed(body, theme_of(Headers(scope=scope)))
                    await send({**start, "headers": _with_length(start, len(whole))})
                    await send({"type": "http.response.body", "body": whole})

        await self._app(scope, receive, adding if scope["type"] == "http" else send)

    def _themed(self, body: bytes, theme: Theme | None) -> bytes:
        tag = _HTML + attribute(theme).encode()
        return body.replace(_HTML, tag, 1).replace(_HEAD, self._added, 1)


def _is_html(start: Message) -> bool:
    return dict(start["headers"]).get(b"content-type", b"").startswith(b"text/html")


def _with_length(start: Message, length: int) -> list[tuple[bytes, bytes]]:
    kept = [(name, value) for name, value in start["headers"] if name != b"content-length"]
    return [*kept, (b"content-length", str(length).encode())]
