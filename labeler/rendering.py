"""Markdown of strangers → HTML that is safe and fair to show.

Model output is hostile input: no raw HTML, no images, no links but web addresses that show where
they go, and nothing that can leave its box or take for ever.  Guidelines use the same door.
"""

from __future__ import annotations

import html
import re
from functools import lru_cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from mdit_py_plugins.dollarmath import dollarmath_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

from labeler.mathml import mathml

LONGEST_MARKDOWN = 20_000
"""Characters; a longer text is shown in full but as plain text."""
LONGEST_CODE = 8_000
"""Characters of one code block that are coloured; a longer one is shown without colours."""
DEEPEST = 30
"""Levels of nested quotes and lists; a text that nests deeper is shown as plain text."""

MOST_BARS = 2_000
"""``|`` in one text: a short line of them makes a table with thousands of cells in every row."""
MOST_BRACKETS = 1_000
"""``[`` in one text that is read as Markdown: the search for link ends is quadratic in them."""

# Only lexers whose regular expressions are linear in practice; others are shown uncoloured.
_LANGUAGES = """
    bash sh shell c cpp c++ csharp css diff go haskell html http ini java javascript js json kotlin
    lua php python py r ruby rust scala sql swift toml typescript ts xml yaml
"""
LANGUAGES = frozenset(_LANGUAGES.split())

_FORMATTER = HtmlFormatter(nowrap=True, classprefix="hl-")


@lru_cache(maxsize=4096)
def render(text: str, *, document: bool = False) -> str:
    """`text` (Markdown) as an HTML fragment.

    Single line breaks are kept, as chat interfaces do, unless it is a `document`; TeX in ``$…$``,
    ``$$…$$``, ``\\(…\\)`` and ``\\[…\\]`` becomes MathML; fenced code is coloured.
    """
    plain = f'<pre class="plain">{html.escape(text)}</pre>'
    crowded = text.count("[") > MOST_BRACKETS or text.count("|") > MOST_BARS
    if crowded or len(text) > LONGEST_MARKDOWN:
        return plain
    markdown = _DOCUMENT if document else _CHAT
    tokens = markdown.parse(text)
    # Beyond maxNesting the parser drops text without a word; nothing may be hidden here.
    if any(token.level >= DEEPEST - 1 for token in tokens):
        return plain
    return markdown.renderer.render(tokens, markdown.options, {})


def _code(text: str, language: str, _attributes: str) -> str:
    """A code block; its language never becomes a class, for classes belong to the page."""
    coloured = html.escape(text)
    if language.lower() in LANGUAGES and len(text) <= LONGEST_CODE:
        coloured = highlight(text, get_lexer_by_name(language, stripnl=False), _FORMATTER)
    # tabindex: a block that scrolls sideways must be reachable with the keyboard.
    return (
        f'<pre tabindex="0" data-language="{html.escape(language)}"><code>{coloured}</code></pre>'
    )


def _tame(state: StateCore) -> None:
    """Rewrite the tokens that could mislead, reach out or break the page's outline."""
    for token in state.tokens:
        if token.type in ("heading_open", "heading_close"):
            # h1 and h2 are the page's own; a response must not appear in its outline.
            if token.nesting == 1:
                token.attrSet("class", f"heading {token.tag}")
            token.tag = "div"
        elif token.type == "table_open":
            token.attrSet("tabindex", "0")  # a wide one scrolls sideways
        if token.children:
            token.children = _tame_inline(token.children)


def _tame_inline(tokens: list[Token]) -> list[Token]:
    tamed: list[Token] = []
    link, shown = "", ""  # links do not nest, so one of each is enough
    for token in tokens:
        if token.type == "image":
            # A remote image tells its owner who is labeling what, and may show anything.
            tamed.append(_text(f"[image: {token.content} ({token.attrGet('src') or ''})]"))
        elif token.type == "link_open":
            link, shown = str(token.attrGet("href") or ""), ""
            _open_link(token, link)
            tamed.append(token)
        elif token.type == "link_close":
            token.tag = "a" if _is_web(link) else "span"
            tamed.append(token)
            if shown != link:
                tamed.append(_text(f" ({link})"))
        else:
            shown += token.content
            tamed.append(token)
    return tamed


def _open_link(token: Token, href: str) -> None:
    if _is_web(href):
        token.attrs = {
            "href": href,
            "target": "_blank",
            "rel": "nofollow noopener noreferrer",
        }
    else:
        token.tag, token.attrs = "span", {"class": "link-off"}


def _is_web(href: str) -> bool:
    return re.match(r"https?://[^/]", href, re.IGNORECASE) is not None


def _text(content: str) -> Token:
    return Token("text", "", 0, content=content)


def _bracket_math(state: StateInline, silent: bool) -> bool:
    r"""``\(…\)`` inline and ``\[…\]`` displayed, the delimiters that chat models prefer."""
    opening = state.src[state.pos : state.pos + 2]
    closing = {"\\(": "\\)", "\\[": "\\]"}.get(opening)
    if closing is None:
        return False
    start = state.pos + 2
    end = state.src.find(closing, start, min(state.posMax, start + 2_000))
    content = state.src[start:end].strip()
    if end < 0 or not content:
        return False
    if not silent:
        token = state.push("math_inline_double" if opening == "\\[" else "math_inline", "math", 0)
        token.content = content
    state.pos = end + 2
    return True


def _math(content: str, settings: dict[str, Any]) -> str:
    return mathml(content, block=settings["display_mode"])


def _displayed(_self: Any, tokens: Any, index: int, *_: Any) -> str:
    # The plugin's own rule writes a <div> into the paragraph, which a browser then splits; a span
    # that is displayed does for both.  A wide one scrolls sideways.
    return f'<span class="math display" tabindex="0">{mathml(tokens[index].content, block=True)}</span>'


def _markdown(*, breaks: bool) -> MarkdownIt:
    settings = {"html": False, "breaks": breaks, "highlight": _code, "maxNesting": DEEPEST}
    markdown = MarkdownIt("commonmark", settings).enable("table")
    dollarmath_plugin(
        markdown,
        allow_labels=False,
        allow_space=False,
        allow_digits=False,
        allow_blank_lines=False,
        double_inline=True,
        renderer=_math,
    )
    markdown.add_render_rule("math_inline_double", _displayed)
    markdown.add_render_rule("math_block", _displayed)
    markdown.inline.ruler.before("escape", "bracket_math", _bracket_math)
    markdown.core.ruler.push("tame", _tame)
    return markdown


_CHAT = _markdown(breaks=True)
_DOCUMENT = _markdown(breaks=False)
