"""The text of rendered HTML, as a browser's `textContent` has it."""

from __future__ import annotations

from html.parser import HTMLParser


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._in_pre = False  # directly after <pre>

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002
        self._in_pre = tag == "pre"

    def handle_data(self, data: str) -> None:
        # Browsers drop a line break directly after <pre>.
        self.parts.append(data.removeprefix("\n") if self._in_pre else data)
        self._in_pre = False


def text_of(html: str) -> str:
    """The text of HTML that `labeler.html.markdown` rendered; formulas are their LaTeX source."""
    parser = _Text()
    parser.feed(html.replace("\r\n", "\n").replace("\r", "\n"))
    parser.close()
    return "".join(parser.parts)
