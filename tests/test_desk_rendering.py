"""Markdown of strangers: nothing leaves its box, nothing is hidden, nothing takes for ever."""

from __future__ import annotations

import time
from html.parser import HTMLParser

import pytest

from labeler.rendering import DEEPEST, LONGEST_CODE, LONGEST_MARKDOWN, MOST_BARS, render

_TAGS = """
    p br hr ul ol li em strong code pre blockquote table thead tbody tr th td div span a
    math mrow mi mn mo mtext mspace mfrac msqrt mroot msub msup msubsup mtable mtr mtd mstyle
    munder mover munderover
"""
_ATTRIBUTES = """
    class href target rel start tabindex data-language display width stretchy fence separator form
    columnalign mathvariant displaystyle scriptlevel linethickness movablelimits
"""
HARMLESS_TAGS = frozenset(_TAGS.split())
HARMLESS_ATTRIBUTES = frozenset(_ATTRIBUTES.split())
HARMLESS_CLASSES = ("hl-", "heading", "math", "link-off", "plain", "h1", "h2", "inline", "block")


class Audit(HTMLParser):
    """Reads HTML as a browser would and collects what it contains."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.classes: set[str] = set()
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        self.classes |= {c for name, value in attrs if name == "class" for c in value.split()}

    def handle_data(self, data: str) -> None:
        self.text += data


ATTACKS = [
    '<div style="position:fixed;inset:0;z-index:9999">Press 1</div>',
    '<form action="https://evil.example"><input name="password"><button>Sign in</button></form>',
    '<img src="https://evil.example/pixel.png" onerror="alert(1)">',
    "<script>alert(1)</script><style>.verdict{display:none}</style><iframe srcdoc='x'></iframe>",
    "![pixel](https://evil.example/pixel.png)",
    "[![x](https://evil.example/a.png)](javascript:alert(1))",
    "[click](javascript:alert(1)) [click](JaVaScRiPt:alert(1)) [click](data:text/html,hi)",
    "[click](vbscript:x) <javascript:alert(1)> [x](/research/) [y](//evil.example/x)",
    "[ref]\n\n[ref]: javascript:alert(1) 'title\" onmouseover=\"alert(1)'",
    '[a](https://ok.example/"onmouseover="alert(1))',
    '```" onmouseover="alert(1)\ncode\n```',
    "```choice a\n<button>A is better</button>\n```",
    "```python\n</code></pre><script>alert(1)</script>\n```",
    "`</code><script>alert(1)</script>`",
    r"$\text{<img/src=x/onerror=alert(1)>}$ \(\text{&lt;script&gt;}\)",
    r"$\href{javascript:alert(1)}{x}$ $\style{position:fixed;inset:0}{x}$ $\class{verdict}{x}$",
    r"$\hspace{-999em}A$ $\rule{999em}{999em}$ $\hspace{999em}$ $\color{red}{x}$",
    r"$\unknown<script>$ $\begin{array}{<script>}x\end{array}$",
    "# <h1 onclick=alert(1)>\n\n| <script> | b |\n|---|---|\n| <img src=x> | [x](javascript:1) |",
    "&lt;script&gt;alert(1)&lt;/script&gt; &#x3c;script>",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_but_harmless_markup_comes_out(attack):
    found = Audit(render(attack))

    assert found.tags <= HARMLESS_TAGS
    assert found.attributes <= HARMLESS_ATTRIBUTES
    assert all(link.startswith(("https://", "http://")) for link in found.links)
    assert all(name.startswith(HARMLESS_CLASSES) or name == "display" for name in found.classes)


def test_an_image_is_shown_as_its_address():
    assert render("![a cat](https://evil.example/c.png)") == (
        "<p>[image: a cat (https://evil.example/c.png)]</p>\n"
    )


def test_a_link_shows_where_it_goes():
    assert render("[your bank](https://evil.example)") == (
        '<p><a href="https://evil.example" target="_blank" rel="nofollow noopener noreferrer">'
        "your bank</a> (https://evil.example)</p>\n"
    )
    # An address that stands for itself is not repeated.
    assert Audit(render("<https://ok.example>")).text.strip() == "https://ok.example"


def test_a_link_that_is_no_web_address_is_inert():
    html = render("[settings](/research/)")

    assert html == '<p><span class="link-off">settings</span> (/research/)</p>\n'


def test_formulas_become_mathml_and_prices_do_not():
    html = render(r"$x^2$ costs $5 or $10, \(\frac12\) and \[a=b\]")

    assert html.count("<math") == 3
    assert "costs $5 or $10," in html
    assert "<msup><mi>x</mi><mn>2</mn></msup>" in html


def test_code_is_coloured_and_keeps_every_character():
    html = render("```python\ndef f(x):\n\n    return x < 1\n```")

    assert '<span class="hl-k">def</span>' in html
    assert Audit(html).text.strip("\n") == "def f(x):\n\n    return x < 1"


def test_line_breaks_of_the_author_are_kept():
    assert render("one\ntwo") == "<p>one<br />\ntwo</p>\n"


@pytest.mark.parametrize("levels", [1, 10, DEEPEST - 2, DEEPEST, DEEPEST + 5, 2000])
def test_no_depth_hides_text(levels):
    assert "important" in Audit(render("> " * levels + "important")).text
    assert (
        "important"
        in Audit(render("".join("  " * i + "- x\n" for i in range(levels)) + "important")).text
    )


def test_what_is_too_long_is_shown_in_full_as_plain_text():
    text = "**word** " * (LONGEST_MARKDOWN // 9 + 1)

    assert Audit(render(text)).text == text
    code = "x = 1\n" * (LONGEST_CODE // 6 + 1)
    assert Audit(render(f"```python\n{code}```")).text.strip() == code.strip()


@pytest.mark.parametrize(
    "text",
    [
        "> " * 10_000,
        "[" * 20_000,
        "![" * 10_000,
        "*a " * 6_600,
        "`" * 20_000,
        "$a" * 10_000,
        "\\(" * 10_000,
        "\\" * 19_999 + "$",
        "<a href=" * 2_500,
        "|" * 100 + "\n" + "|-" * 100 + "\n" + "|a\n" * 5_000,
        "```python\n" + "(" * 7_900 + "\n```",
        "$" + "{" * 900 + "$",
        r"$\def\a{\a\a}\a$ " * 500,
    ],
    ids=lambda text: text[:12].strip(),
)
def test_no_text_takes_long(text):
    start = time.process_time()
    render.__wrapped__(text)

    # The worst takes 0.4 s on a quiet core; without the bounds some take minutes.
    assert time.process_time() - start < 5


def test_a_wrapped_line_is_a_break_in_a_chat_and_a_space_in_a_document():
    assert render("one\ntwo") == "<p>one<br />\ntwo</p>\n"
    assert render("one\ntwo", document=True) == "<p>one\ntwo</p>\n"


def test_a_table_with_thousands_of_cells_is_plain_text():
    row = "|" * (MOST_BARS // 2 + 1)
    assert render(f"{row}\n{'|-' * 500}|\n{row}").startswith('<pre class="plain">')
    # What scrolls sideways is reached with the keyboard.
    assert '<table tabindex="0">' in render("|a|b|\n|-|-|\n|c|d|")
    for formula in ("$$a + b$$", "so $$a + b$$ holds", "\\[a + b\\]"):
        assert '<span class="math display" tabindex="0">' in render(formula)
