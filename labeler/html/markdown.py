"""Untrusted Markdown → HTML that is safe and fair.

Safe: model output has no raw HTML, no images, only web links that show their target, and nothing
that leaves its box or takes unbounded time. Guidelines are rendered in the same way.

Fair: both responses of a pair are rendered alike. A feature (Markdown, formulas, syntax colors or
footnotes) that cannot be rendered for one of them is switched off for both. The page says so if it
is Markdown or formulas. Formulas are typeset in the browser (`formulas.js`), with the same rule.

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
from markdown_it.rules_block import StateBlock, reference
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.footnote import footnote_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

from labeler.html.chunks import chunks
from labeler.html.computed_once import ComputedOnce

MAX_CODE_LENGTH = 8_000
"""Characters of one code block that are colored; a longer one is shown without colors."""
MAX_BLANK_LENGTH = 500
"""Consecutive white space characters in such a block: Python's lexer is quadratic in them."""
MAX_TOTAL_CODE = 20_000
"""Characters of code that are colored in one text."""
MAX_SLOW_CODE = 2_000
"""Like `MAX_TOTAL_CODE`, for languages whose lexers take quadratic time on some input."""
_SLOW_LANGUAGES = frozenset(["c", "cpp", "c++", "csharp", "java", "ts", "typescript"])
MAX_SQUARED_CODE = 5_000**2
"""Sum of the squared lengths of one text's blocks, for languages whose lexers take one second for
the worst 8,000 characters, and quadratic time."""
_SQUARED_LANGUAGES = frozenset(
    ["css", "go", "html", "http", "ini", "javascript", "js", "r", "toml", "xml", "yaml"]
)
MAX_LATEX = 20_000
"""Characters of formulas that are typeset in one text."""
MAX_FORMULA_LINES = 100
"""Lines of a formula in ``\\[…\\]``."""
MAX_CACHED_BYTES = 64_000_000
"""Bytes of texts and their HTML in the cache; a pair is rendered for each of its annotators."""
MAX_DEPTH = 30
"""Levels of nested quotes and lists; a text that nests deeper is shown as plain text."""

# Only lexers that take linear or bounded time in practice; other languages are not colored.
_LANGUAGES = """
    bash sh shell c cpp c++ csharp css diff go haskell html http ini java javascript js json kotlin
    lua php python py r ruby rust scala sql swift toml typescript ts xml yaml
"""
LANGUAGES = frozenset(_LANGUAGES.split())
_NO_LANGUAGES = frozenset(["", "text", "txt", "plain", "plaintext", "output", "console", "none"])

_FORMATTER = HtmlFormatter(nowrap=True, classprefix="hl-")
_DEFINITION = re.compile(r"^ {0,3}\[[^\]\n]{1,200}\]:[ \t]*\S.*$", re.MULTILINE)
_MAX_DEFINITIONS = 500
_NOTE = re.compile(r"^ {0,3}\[\^[^\]\s]+\]:", re.MULTILINE)


class Style(NamedTuple):
    """How a text is rendered; a feature that fails for one response is switched off for both."""

    document: bool = False
    math: bool = True
    colors: bool = True
    notes: bool = True


@dataclass(frozen=True)
class Rendered:
    """HTML, and which of ``math``, ``colors`` and ``notes`` failed for some part of the text."""

    html: str
    lacks: frozenset[str]


NOTICES = {
    "markdown": "Both responses are shown as plain text: one of them is too long, is too deeply "
    "nested or has too many formulas to be formatted.",
    "math": "The formulas of both responses are shown as LaTeX: one of them has a formula that "
    "cannot be typeset, or too many formulas.",
}
"""The page's notices for pairs that are not fully formatted; uncolored code needs none."""


def render(text: str, *, document: bool = False) -> str:
    """`text` (Markdown) as an HTML fragment.

    Single line breaks are kept, as in chat interfaces, unless it is a `document`.  LaTeX in
    ``$…$``, ``$$…$$``, ``\\(…\\)`` and ``\\[…\\]`` stays source, which the page typesets
    (`formulas.js`); fenced code is colored.  GitHub's tables, ``~~strikethrough~~``, task lists,
    bare addresses and footnotes are supported.
    """
    found = rendered(text, Style(document=document))
    return plain(text) if found is None else found.html


def render_pair(one: str, other: str) -> tuple[str, str, str]:
    """The two responses of a pair as HTML, in the same style, and a notice about it, or ""."""
    (first, second), lacks = render_together(one, other)
    return first, second, NOTICES.get(lacks, "")


def render_together(*texts: str) -> tuple[list[str], str]:
    """Texts that are compared, as HTML in the same style, and what all of them lack: "markdown",
    "math", or ""."""
    found = [each for text in texts if (each := rendered(text, Style())) is not None]
    if len(found) < len(texts):
        return [plain(text) for text in texts], "markdown"
    lacks = frozenset[str]().union(*(each.lacks for each in found))
    if lacks:
        style = Style(**dict.fromkeys(lacks, False))
        found = [each for text in texts if (each := rendered(text, style)) is not None]
    return [each.html for each in found], "math" if "math" in lacks else ""


def plain(text: str) -> str:
    """`text` exactly as written; each line has its own direction."""
    return f'<pre class="plain">{html.escape(text)}</pre>'


def _bytes(arguments: tuple[Hashable, ...], made: Rendered | None) -> int:
    # getsizeof, because Python stores a character in one, two or four bytes.
    return 500 + sum(map(sys.getsizeof, arguments)) + (sys.getsizeof(made.html) if made else 0)


@partial(ComputedOnce, most=MAX_CACHED_BYTES, size=_bytes)
def rendered(text: str, style: Style) -> Rendered | None:
    """`text` in this style; None if that would take too long or hide some of it."""
    pieces = chunks(text)
    if pieces is None:
        return None
    markdown = _PARSERS[style.document, style.notes]
    env: dict[str, Any] = {"style": style, "lacks": set(), "budgets": _budgets()}
    if len(pieces) > 1 and style.notes and _NOTE.search(text):
        return _without_notes(text, style)  # their marks may be in other pieces
    if len(pieces) > 1:  # a link may be used in one piece and defined in another
        definitions = _DEFINITION.findall(text)[:_MAX_DEFINITIONS]
        markdown.parse("\n".join(definitions), env)
    made: list[str] = []
    for piece in pieces:
        tokens = markdown.parse(piece, env)
        # Beyond maxNesting the parser silently drops text, which must not happen.
        if any(token.level >= MAX_DEPTH - 1 for token in tokens):
            return None
        if "notes" in env["lacks"]:
            return _without_notes(text, style)
        made.append(markdown.renderer.render(tokens, markdown.options, env))
    return Rendered("".join(made), frozenset(env["lacks"]))


def _without_notes(text: str, style: Style) -> Rendered | None:
    """`text` with its footnotes as they are written."""
    found = rendered(text, style._replace(notes=False))
    return found and Rendered(found.html, found.lacks | {"notes"})


def _fence(
    _self: RendererHTML, tokens: Sequence[Token], index: int, _options: Any, env: dict[str, Any]
) -> str:
    """A code block; its language never becomes a class, because classes belong to the page."""
    text = tokens[index].content
    language = (tokens[index].info.split(maxsplit=1) or [""])[0]
    colored = _colored(text, language.lower(), env)
    # tabindex: a block that scrolls sideways must be reachable with the keyboard.
    return (
        f'<pre tabindex="0" dir="ltr" data-language="{html.escape(language)}">'
        f"<code>{colored}</code></pre>\n"
    )


def _blank(text: str) -> int:
    """The length of the longest run of white space."""
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
    """The limits for all blocks and formulas of one text."""
    return {
        "code": MAX_TOTAL_CODE,
        "slow code": MAX_SLOW_CODE,
        "squared code": MAX_SQUARED_CODE,
        "latex": MAX_LATEX,
    }


def _spend(env: dict[str, Any], costs: Mapping[str, int]) -> bool:
    """Subtract costs from the budgets; False, with nothing subtracted, if one is too small."""
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
    # Its own dir also prevents it from changing the direction of the surrounding words.
    return f'<code dir="ltr">{html.escape(tokens[index].content)}</code>'


def _check_notes(state: StateCore) -> None:
    """Refuse footnotes of which the parser would drop some: without a mark, or defined twice."""
    labels = [
        token.meta["label"] for token in state.tokens if token.type == "footnote_reference_open"
    ]
    numbers = state.env.get("footnotes", {}).get("refs", {})
    if len(set(labels)) < len(labels) or any(number < 0 for number in numbers.values()):
        state.env["lacks"].add("notes")


def _note_mark(
    _self: RendererHTML, tokens: Sequence[Token], index: int, _options: Any, _env: Any
) -> str:
    # No link and no id: two responses are on one page, and their numbers are the same.
    return f'<sup class="note" dir="ltr">[{tokens[index].meta["id"] + 1}]</sup>'


_NOTE_TAGS = {
    "footnote_block_open": '<hr />\n<ol class="notes">\n',
    "footnote_block_close": "</ol>\n",
    "footnote_close": "</li>\n",
    "footnote_anchor": "",
}


def _note_tag(
    _self: RendererHTML, tokens: Sequence[Token], index: int, _options: Any, _env: Any
) -> str:
    return _NOTE_TAGS[tokens[index].type]


def _note_open(
    self: RendererHTML, tokens: Sequence[Token], index: int, _options: Any, _env: Any
) -> str:
    return f"<li{self.renderAttrs(tokens[index])}>"


def _sanitize(state: StateCore) -> None:
    """Rewrite tokens that could mislead, load remote content or break the page's outline."""
    _check_boxes(state.tokens)
    for token in state.tokens:
        if token.type in ("heading_open", "heading_close"):
            # h1 and h2 are the page's own; a response must not appear in its outline.
            if token.nesting == 1:
                token.attrSet("class", f"heading {token.tag}")
            token.tag = "div"
        elif token.type == "table_open":
            token.attrSet("tabindex", "0")  # a wide table scrolls sideways
        elif token.type == "ordered_list_open" and int(token.attrGet("start") or 1) >= 1000:
            token.attrSet("data-long", "")  # its numbers need a wider margin
        if token.children:
            token.children = _sanitize_inline(token.children)
    _direct(state.tokens)


_BOX = re.compile(r"\[([ xX])\](?=\s)")
_BOXES = {" ": "\u2610", "x": "\u2611\ufe0e"}
"""Characters instead of form controls; U+FE0E prevents the second from becoming an emoji."""


def _check_boxes(tokens: Sequence[Token]) -> None:
    """Turn ``[ ]`` and ``[x]`` at the start of list items into check box characters."""
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
    [
        "bullet_list_open",
        "ordered_list_open",
        "list_item_open",
        "blockquote_open",
        "table_open",
        "footnote_open",
    ]
)


def _direct(tokens: Sequence[Token]) -> None:
    """Set the direction of every block.

    ``dir="auto"`` ignores children that have their own ``dir``, so lists, quotes and tables get the
    direction of their first letter.
    """
    waiting: list[Token] = []  # containers without a letter so far
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
    """The direction of the first letter outside code and formulas."""
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
            # A remote image would reveal to its owner who is labeling what, and can change.
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
    end = state.src.find(closing, start, min(state.posMax, start + 4_000))
    content = state.src[start:end].strip()
    if end < 0 or not content:
        return False
    if not silent:
        token = state.push("math_inline_double" if opening == "\\[" else "math_inline", "math", 0)
        token.content = content
    state.pos = end + 2
    return True


def _bracket_block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    r"""``\[…\]`` on lines of its own; its lines are not lists or headings."""
    first, last = state.bMarks[start] + state.tShift[start], state.eMarks[start]
    if state.is_code_block(start) or state.src[first : first + 2] != "\\[":
        return False
    line = start
    while "\\]" not in state.src[first + 2 : last]:
        line += 1
        if (
            line >= min(end, start + MAX_FORMULA_LINES)
            or state.isEmpty(line)
            or state.sCount[line] < state.blkIndent
        ):
            return False
        last = state.eMarks[line]
    content, _, rest = (
        state.getLines(start, line + 1, state.blkIndent, False).strip()[2:].partition("\\]")
    )
    if rest.strip() or not content.strip():
        return False
    if not silent:
        token = state.push("math_block", "math", 0)
        token.block = True
        token.content = content
        token.map = [start, line + 1]
        state.line = line + 1
    return True


def _math(
    _self: RendererHTML, tokens: Sequence[Token], index: int, _options: Any, env: dict[str, Any]
) -> str:
    kind, source = _formula(tokens[index].content, env)
    return f'<span class="{kind} inline" dir="ltr">{source}</span>'


def _displayed(
    _self: RendererHTML, tokens: Sequence[Token], index: int, _options: Any, env: dict[str, Any]
) -> str:
    # The plugin's own rule writes a <div> into the paragraph, which a browser then splits.  A wide
    # formula scrolls sideways.
    kind, source = _formula(tokens[index].content, env)
    return f'<span class="{kind} display" tabindex="0" dir="ltr">{source}</span>'


def _formula(latex: str, env: dict[str, Any]) -> tuple[str, str]:
    """The class of a formula and its source; only the class ``math`` is typeset by the page."""
    latex = latex.strip()
    wanted = env["style"].math and _spend(env, {"latex": len(latex)})
    if not wanted:
        env["lacks"].add("math")
    return "math" if wanted else "latex", f'<code dir="ltr">{html.escape(latex)}</code>'


def _markdown(*, document: bool, notes: bool) -> MarkdownIt:
    settings = {
        "html": False,
        "breaks": not document,
        "maxNesting": MAX_DEPTH,
        "linkify": True,
    }
    markdown = MarkdownIt("commonmark", settings)
    markdown.enable(["table", "strikethrough", "linkify"])
    _only_web_addresses(markdown)
    markdown.block.ruler.at("reference", _definition)
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
    markdown.block.ruler.before(
        "fence", "bracket_block", _bracket_block, {"alt": ["paragraph", "blockquote"]}
    )
    if notes:
        _add_notes(markdown)
    markdown.core.ruler.push("sanitize", _sanitize)
    return markdown


def _definition(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """The parser's rule for link definitions, which would take a footnote for one and drop it."""
    first = state.bMarks[start] + state.tShift[start]
    return not state.src.startswith("[^", first) and reference(state, start, end, silent)


def _only_web_addresses(markdown: MarkdownIt) -> None:
    """Bare addresses begin with http:// or https://; a file such as ``setup.py`` is no site."""
    assert markdown.linkify is not None
    markdown.linkify.set({"fuzzy_link": False, "fuzzy_email": False, "fuzzy_ip": False})
    for scheme in ("ftp:", "mailto:", "//"):
        markdown.linkify.add(scheme, None)
    # Its own test for texts without links takes a third of the time of a short text.
    markdown.linkify.pretest = lambda text: "://" in text


def _add_notes(markdown: MarkdownIt) -> None:
    footnote_plugin(markdown, inline=False)
    markdown.core.ruler.before("footnote_tail", "check_notes", _check_notes)
    markdown.add_render_rule("footnote_ref", _note_mark)
    markdown.add_render_rule("footnote_open", _note_open)
    for kind in _NOTE_TAGS:
        markdown.add_render_rule(kind, _note_tag)


_PARSERS = {
    (document, notes): _markdown(document=document, notes=notes)
    for document in (True, False)
    for notes in (True, False)
}
