"""Hostile Markdown → HTML that is safe and fair.

Safe: model output has no raw HTML, no images, only web links that show their target, and nothing
that leaves its box or takes unbounded time. Guidelines are rendered in the same way.

Fair: both responses of a pair are rendered alike. What cannot be done for one of them (Markdown,
formulas, colors of code) is done for neither. If Markdown or formulas are not rendered, the page
says so.

Each block has its own text direction.
"""

from __future__ import annotations

import html
import re
import sys
import unicodedata
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from mdit_py_plugins.dollarmath import dollarmath_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

from labeler.html.chunks import chunks
from labeler.html.computed_once import ComputedOnce
from labeler.html.mathml import mathml

MAX_CODE_LENGTH = 8_000
"""Characters of one code block that are colored; a longer one is shown without colors."""
MAX_BLANK_LENGTH = 500
"""Characters of consecutive white space in such a block: Python's lexer is quadratic in them."""
MAX_TOTAL_CODE = 20_000
"""Characters of code that are colored in one text."""
MAX_SLOW_CODE = 2_000
"""The same in languages whose lexers take quadratic time on some input."""
_SLOW_LANGUAGES = frozenset(["c", "cpp", "c++", "csharp", "java", "ts", "typescript"])
MAX_SQUARED_CODE = 5_000**2
"""The squared lengths of the blocks of one text in languages whose lexers take a second for the
worst 8,000 characters, and a quarter of that for half as many."""
_SQUARED_LANGUAGES = frozenset(
    ["css", "go", "html", "http", "ini", "javascript", "js", "r", "toml", "xml", "yaml"]
)
MAX_LATEX = 20_000
"""Characters of the formulas of one text that are typeset; the worst take half a second."""
MAX_CACHED_BYTES = 64_000_000
"""Bytes of texts and their HTML that are kept; a pair is rendered for each of its annotators."""
MAX_DEPTH = 30
"""Levels of nested quotes and lists; a text that nests deeper is shown as plain text."""

# Only lexers whose regular expressions are linear in practice, or bounded; others are shown uncolored.
_LANGUAGES = """
    bash sh shell c cpp c++ csharp css diff go haskell html http ini java javascript js json kotlin
    lua php python py r ruby rust scala sql swift toml typescript ts xml yaml
"""
LANGUAGES = frozenset(_LANGUAGES.split())
_NO_LANGUAGES = frozenset(["", "text", "txt", "plain", "plaintext", "output", "console", "none"])

_FORMATTER = HtmlFormatter(nowrap=True, classprefix="hl-")
_DEFINITION = re.compile(r"^ {0,3}\[[^\]\n]{1,200}\]:[ \t]*\S.*$", re.MULTILINE)
_MAX_DEFINITIONS = 500


class Style(NamedTuple):
    """How a text is rendered; what one response cannot have is switched off for both."""

    document: bool = False
    math: bool = True
    colors: bool = True


@dataclass(frozen=True)
class Rendered:
    """HTML, and which of ``math`` and ``colors`` some part of the text could not be given."""

    html: str
    lacks: frozenset[str]


NOTICES = {
    "markdown": "Both responses are shown as plain text: one of them is too long, is too deeply "
    "nested or has too many formulas to be formatted.",
    "math": "The formulas of both responses are shown as LaTeX: one of them has a formula that "
    "cannot be typeset, or too many formulas.",
}
"""The page's notice for a pair that is not rendered in full; uncolored code needs none."""


def render(text: str, *, document: bool = False) -> str:
    """`text` (Markdown) as an HTML fragment.

    Single line breaks are kept, as chat interfaces do, unless it is a `document`; TeX in ``$…$``,
    ``$$…$$``, ``\\(…\\)`` and ``\\[…\\]`` becomes MathML; fenced code is colored.  Of GitHub's Markdown
    there are tables, ``~~struck~~`` text and lists of tasks.
    """
    found = rendered(text, Style(document=document))
    return plain(text) if found is None else found.html


def render_pair(one: str, other: str) -> tuple[str, str, str]:
    """The two responses of a pair as HTML, in the same style, and a notice about it, or ""."""
    both = [rendered(text, Style()) for text in (one, other)]
    found = [each for each in both if each is not None]
    if len(found) < 2:
        return plain(one), plain(other), NOTICES["markdown"]
    lacks = found[0].lacks | found[1].lacks
    if lacks:
        style = Style(math="math" not in lacks, colors="colors" not in lacks)
        found = [each for text in (one, other) if (each := rendered(text, style)) is not None]
    return found[0].html, found[1].html, NOTICES["math"] if "math" in lacks else ""


def plain(text: str) -> str:
    """`text` exactly as written; each of its lines has a direction of its own."""
    return f'<pre class="plain">{html.escape(text)}</pre>'


def _bytes(arguments: tuple[Hashable, ...], made: Rendered | None) -> int:
    # The HTML of ASCII has a byte a character, of anything else two or four.
    return 500 + sum(map(sys.getsizeof, arguments)) + (sys.getsizeof(made.html) if made else 0)


@partial(ComputedOnce, most=MAX_CACHED_BYTES, size=_bytes)
def rendered(text: str, style: Style) -> Rendered | None:
    """`text` in this style; None where that would take too long or hide some of it."""
    pieces = chunks(text)
    if pieces is None:
        return None
    markdown = _DOCUMENT if style.document else _CHAT
    env: dict[str, Any] = {"style": style, "lacks": set(), "budgets": _budgets()}
    if len(pieces) > 1:  # a link may be defined in another piece than where it is used
        definitions = _DEFINITION.findall(text)[:_MAX_DEFINITIONS]
        markdown.parse("\n".join(definitions), env)
    made: list[str] = []
    for piece in pieces:
        tokens = markdown.parse(piece, env)
        # Beyond maxNesting the parser silently drops text; nothing may be hidden here.
        if any(token.level >= MAX_DEPTH - 1 for token in tokens):
            return None
        made.append(markdown.renderer.render(tokens, markdown.options, env))
    return Rendered("".join(made), frozenset(env["lacks"]))


def _fence(
    _self: RendererHTML, tokens: Sequence[Token], index: int, _options: Any, env: dict[str, Any]
) -> str:
    """A code block; its language never becomes a class, for classes belong to the page."""
    text = tokens[index].content
    language = (tokens[index].info.split(maxsplit=1) or [""])[0]
    colored = _colored(text, language.lower(), env)
    # tabindex: a block that scrolls sideways must be reachable with the keyboard.
    return (
        f'<pre tabindex="0" dir="ltr" data-language="{html.escape(language)}">'
        f"<code>{colored}</code></pre>\n"
    )


def _blank(text: str) -> int:
    """The length of the longest white space in a text."""
    return max(map(len, re.findall(r"\s+", text)), default=0)


def _colored(text: str, language: str, env: dict[str, Any]) -> str:
    if language in _NO_LANGUAGES:
        return html.escape(text)
    if language not in LANGUAGES or len(text) > MAX_CODE_LENGTH or _blank(text) > MAX_BLANK_LENGTH:
        env["lacks"].add("colors")
        return html.escape(text)
    costs = {"code": len(text)}
    if language in _SLOW_LANGUAGES:
        costs["slow code"] = len(text)
    if language in _SQUARED_LANGUAGES:
        costs["squared code"] = len(text) ** 2
    if not env["style"].colors:
        return html.escape(text)
    if not _spend(env, costs):
        env["lacks"].add("colors")
        return html.escape(text)
    return highlight(text, get_lexer_by_name(language, stripnl=False), _FORMATTER)


def _budgets() -> dict[str, int]:
    """What the blocks and formulas of one text may take together."""
    return {
        "code": MAX_TOTAL_CODE,
        "slow code": MAX_SLOW_CODE,
        "squared code": MAX_SQUARED_CODE,
        "latex": MAX_LATEX,
    }


def _spend(env: dict[str, Any], costs: Mapping[str, int]) -> bool:
    """Take what something costs from the budgets; False, with nothing taken, if one has too little."""
    budgets: dict[str, int] = env["budgets"]
    if any(budgets[name] < cost for name, cost in costs.items()):
        return False
    for name, cost in costs.items():
        budgets[name] -= cost
    return True


def _code_block(
    _self: RendererHTML, tokens: Sequence[Token], index: int, _options: Any, _env: Any
) -> str:
    code = html.escape(tokens[index].content)
    return f'<pre tabindex="0" dir="ltr"><code>{code}</code></pre>\n'


def _code_inline(
    _self: RendererHTML, tokens: Sequence[Token], index: int, _options: Any, _env: Any
) -> str:
    # A dir of its own also keeps it from deciding the direction of the words around it.
    return f'<code dir="ltr">{html.escape(tokens[index].content)}</code>'


def _sanitize(state: StateCore) -> None:
    """Rewrite the tokens that could mislead, reach out or break the page's outline."""
    _check_boxes(state.tokens)
    for token in state.tokens:
        if token.type in ("heading_open", "heading_close"):
            # h1 and h2 are the page's own; a response must not appear in its outline.
            if token.nesting == 1:
                token.attrSet("class", f"heading {token.tag}")
            token.tag = "div"
        elif token.type == "table_open":
            token.attrSet("tabindex", "0")  # a wide one scrolls sideways
        elif token.type == "ordered_list_open" and int(token.attrGet("start") or 1) >= 1000:
            token.attrSet("data-long", "")  # its numbers need more room than there is beside it
        if token.children:
            token.children = _sanitize_inline(token.children)
    _direct(state.tokens)


_BOX = re.compile(r"\[([ xX])\](?=\s)")
_BOXES = {" ": "\u2610", "x": "\u2611\ufe0e"}
"""Characters, because a response must not bring controls; U+FE0E keeps the second from being an emoji."""


def _check_boxes(tokens: Sequence[Token]) -> None:
    """Turn ``[ ]`` and ``[x]`` at the start of a list's items into check boxes to look at."""
    for item, paragraph, inline in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if (item.type, paragraph.type) != ("list_item_open", "paragraph_open"):
            continue
        first = (inline.children or [None])[0]
        if first is None or first.type != "text" or not (box := _BOX.match(first.content)):
            continue
        first.content = _BOXES[box[1].lower()] + first.content[box.end() :]
        item.attrSet("class", "task")


_LEAVES = frozenset(["paragraph_open", "heading_open", "th_open", "td_open"])
_CONTAINERS = frozenset(
    ["bullet_list_open", "ordered_list_open", "list_item_open", "blockquote_open", "table_open"]
)


def _direct(tokens: Sequence[Token]) -> None:
    """Give every block its direction.

    ``dir="auto"`` looks into no child that has a ``dir`` itself, so it would find nothing in a list,
    a quote or a table: theirs is that of their first letter.
    """
    waiting: list[Token] = []  # containers in which no letter has come yet
    for token in tokens:
        if token.type in _LEAVES:
            token.attrSet("dir", "auto")
        elif token.type in _CONTAINERS:
            waiting.append(token)
        elif token.children and waiting and (found := _direction(token.children)):
            for container in waiting:
                container.attrSet("dir", found)
            waiting = []
        elif token.nesting == -1 and waiting and token.level == waiting[-1].level:
            waiting.pop()


def _direction(inline: Sequence[Token]) -> str | None:
    """That of the first letter outside code and formulas."""
    letters = (letter for token in inline if token.type == "text" for letter in token.content)
    for letter in letters:
        kind = unicodedata.bidirectional(letter)
        if kind in ("L", "R", "AL"):
            return "ltr" if kind == "L" else "rtl"
    return None


def _sanitize_inline(tokens: list[Token]) -> list[Token]:
    sanitized: list[Token] = []
    link, shown = "", ""  # links do not nest, so one of each is enough
    for token in tokens:
        if token.type == "image":
            # A remote image tells its owner who is labeling what, and may show anything.
            sanitized.append(_text(f"[image: {token.content} ({token.attrGet('src') or ''})]"))
        elif token.type == "link_open":
            link, shown = str(token.attrGet("href") or ""), ""
            _open_link(token, link)
            sanitized.append(token)
        elif token.type == "link_close":
            token.tag = "a" if _is_web(link) else "span"
            sanitized.append(token)
            if shown != link:
                sanitized.append(_text(f" ({link})"))
        else:
            shown += token.content
            sanitized.append(token)
    return sanitized


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


def _math(
    _self: RendererHTML, tokens: Sequence[Token], index: int, _options: Any, env: dict[str, Any]
) -> str:
    return f'<span class="math inline" dir="ltr">{_formula(tokens[index].content, env, block=False)}</span>'


def _displayed(
    _self: RendererHTML, tokens: Sequence[Token], index: int, _options: Any, env: dict[str, Any]
) -> str:
    # The plugin's own rule writes a <div> into the paragraph, which a browser then splits; a span
    # that is displayed does for both.  A wide one scrolls sideways.
    formula = _formula(tokens[index].content, env, block=True)
    return f'<span class="math display" tabindex="0" dir="ltr">{formula}</span>'


def _formula(latex: str, env: dict[str, Any], *, block: bool) -> str:
    """MathML, or the LaTeX where that is not wanted or cannot be had."""
    latex = latex.strip()
    wanted = env["style"].math and _spend(env, {"latex": len(latex)})
    shown = mathml(latex, block=block) if wanted else None
    if shown is None:
        env["lacks"].add("math")
        return f'<code dir="ltr">{html.escape(latex)}</code>'
    return shown


def _markdown(*, breaks: bool) -> MarkdownIt:
    settings = {"html": False, "breaks": breaks, "maxNesting": MAX_DEPTH}
    markdown = MarkdownIt("commonmark", settings).enable(["table", "strikethrough"])
    dollarmath_plugin(
        markdown,
        allow_labels=False,
        allow_space=False,
        allow_digits=False,
        allow_blank_lines=False,
        double_inline=True,
    )
    for kind, rule in {
        "fence": _fence,
        "code_block": _code_block,
        "code_inline": _code_inline,
        "math_inline": _math,
        "math_inline_double": _displayed,
        "math_block": _displayed,
    }.items():
        markdown.add_render_rule(kind, rule)
    markdown.inline.ruler.before("escape", "bracket_math", _bracket_math)
    markdown.core.ruler.push("sanitize", _sanitize)
    return markdown


_CHAT = _markdown(breaks=True)
_DOCUMENT = _markdown(breaks=False)
