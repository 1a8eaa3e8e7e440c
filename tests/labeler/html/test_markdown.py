"""Untrusted Markdown: nothing leaves its box, nothing is hidden, and rendering time is bounded."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from typing import Any

import pytest

from labeler.html.chunks import (
    MAX_BRACKETS,
    MAX_FORMULAS,
    MAX_PIECE_LENGTH,
    MAX_TEXT_LENGTH,
    chunks,
)
from labeler.html.computed_once import ComputedOnce
from labeler.html.markdown import (
    MAX_CODE_LENGTH,
    MAX_DEPTH,
    MAX_SLOW_CODE,
    MAX_TOTAL_CODE,
    NOTICES,
    Style,
    render,
    render_pair,
    rendered,
)

_TAGS = """
    p br hr ul ol li em strong s sup code pre blockquote table thead tbody tr th td div span a
"""
_ATTRIBUTES = """
    class href target rel start tabindex data-language dir data-long
"""
HARMLESS_TAGS = frozenset(_TAGS.split())
HARMLESS_ATTRIBUTES = frozenset(_ATTRIBUTES.split())
HARMLESS_CLASSES = (
    "hl-",
    "heading",
    "math",
    "link-off",
    "plain",
    "h1",
    "h2",
    "inline",
    "block",
    "task",
    "note",
)


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
    'https://ok.example/"onmouseover=alert(1) javascript:alert(1) //evil.example data:text/html,x',
    'x[^<b>][^"onclick=alert(1)]\n\n[^<b>]: <script>alert(1)</script>\n[^"onclick=alert(1)]: [x](javascript:1)',
    "~~<script>alert(1)</script>~~ ~~[x](javascript:alert(1))~~",
    "- [x] <input type=checkbox onclick=alert(1)>\n- [ ] <img src=x onerror=alert(1)>",
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
        '<p dir="auto">[image: a cat (https://evil.example/c.png)]</p>\n'
    )


def test_a_link_shows_where_it_goes():
    assert render("[your bank](https://evil.example)") == (
        '<p dir="auto"><a href="https://evil.example" target="_blank" rel="nofollow noopener noreferrer">'
        "your bank</a> (https://evil.example)</p>\n"
    )
    # An address that stands for itself is not repeated.
    assert Audit(render("<https://ok.example>")).text.strip() == "https://ok.example"


def test_a_link_that_is_no_web_address_is_inert():
    html = render("[settings](/research/)")

    assert html == '<p dir="auto"><span class="link-off">settings</span> (/research/)</p>\n'


def test_a_bare_address_is_a_link():
    html = render("See https://ok.example/a?b=1&c=2. And (http://x.example), `https://no.example`")

    assert Audit(html).links == ["https://ok.example/a?b=1&c=2", "http://x.example"]
    assert Audit(html).text.strip() == (
        "See https://ok.example/a?b=1&c=2. And (http://x.example), https://no.example"
    )
    assert html.count('target="_blank" rel="nofollow noopener noreferrer"') == 2
    # A name that only looks like another site shows what it really is.
    assert "(https://xn--80ak6aa92e.example)" in render("https://аррӏе.example")


@pytest.mark.parametrize(
    "text",
    ["www.x.example", "setup.py", "a@b.example", "ftp://x.example", "//x.example", "http://"],
)
def test_what_is_no_web_address_stays_text(text):
    assert render(text) == f'<p dir="auto">{text}</p>\n'


def test_footnotes_are_numbered_and_stand_at_the_end():
    html = render(
        "One[^1], two[^b], again[^1].\n\n[^b]: Second\n[^1]: **First**\n\n    more\n\nEnd."
    )

    assert html == (
        '<p dir="auto">One<sup class="note" dir="ltr">[1]</sup>, two<sup class="note" dir="ltr">[2]'
        '</sup>, again<sup class="note" dir="ltr">[1]</sup>.</p>\n<p dir="auto">End.</p>\n<hr />\n'
        '<ol class="notes">\n<li dir="ltr"><p dir="auto"><strong>First</strong></p>\n'
        '<p dir="auto">more</p>\n</li>\n<li dir="ltr"><p dir="auto">Second</p>\n</li>\n</ol>\n'
    )
    assert "id=" not in html
    assert "href" not in html
    assert '<li dir="rtl">' in render("a[^1]\n\n[^1]: שלום")


@pytest.mark.parametrize(
    "text",
    [
        "[^x]: hidden\n\nshown",
        "a[^1]\n\n[^1]: one\n[^1]: two",
        "a[^1]\n\n" + "word word\n\n" * (MAX_PIECE_LENGTH // 10) + "[^1]: one",
    ],
    ids=["without a mark", "twice", "in another piece"],
)
def test_footnotes_that_would_be_lost_stay_as_they_are_written_in_both(text):
    good = "b[^1]\n\n[^1]: good"

    first, second, notice = render_pair(text, good)

    assert "<sup" not in first + second
    assert Audit(second).text == "b[^1]\n[^1]: good\n"
    shown = Audit(first).text
    assert all(line in shown for line in ("[^", "]: ", text.splitlines()[-1]))
    assert Audit(render(text)).text == shown
    assert not notice
    assert "<sup" in render_pair(good, good)[0]


def test_formulas_are_marked_and_prices_are_not():
    html = render(r"$x^2$ costs $5 or $10, \(\frac12\) and \[a<b\]")

    assert html == (
        '<p dir="auto"><span class="math inline" dir="ltr"><code dir="ltr">x^2</code></span> '
        'costs $5 or $10, <span class="math inline" dir="ltr"><code dir="ltr">\\frac12</code></span> '
        'and <span class="math display" tabindex="0" dir="ltr"><code dir="ltr">a&lt;b</code></span></p>\n'
    )


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("So\n\\[\na\n= b\n- c\n+ d\n\\]\nthen", "a\n= b\n- c\n+ d"),
        ("> \\[\n> a\n> - b\n> \\]", "a\n- b"),
        ("1. one\n   \\[\n   1. a\n   \\]", "1. a"),
        ("\\[ # a \\]", "# a"),
    ],
    ids=["paragraph", "quote", "item", "one line"],
)
def test_the_lines_of_a_formula_are_no_lists_or_headings(text, source):
    shown = f'<span class="math display" tabindex="0" dir="ltr"><code dir="ltr">{source}</code>'

    assert shown in render(text)


def test_brackets_around_two_paragraphs_are_no_formula():
    assert Audit(render("\\[ a\n\nb \\]")).text == "[ a\nb ]\n"


def test_code_is_colored_and_keeps_every_character():
    html = render("```python\ndef f(x):\n\n    return x < 1\n```")

    assert '<span class="hl-k">def</span>' in html
    assert Audit(html).text.strip("\n") == "def f(x):\n\n    return x < 1"


def test_struck_text_is_struck_in_both_responses():
    first, second, notice = render_pair("~~old~~ new ~5 ~~ 6~", "`~~code~~` ~~both~~")

    assert first == '<p dir="auto"><s>old</s> new ~5 ~~ 6~</p>\n'
    assert second == '<p dir="auto"><code dir="ltr">~~code~~</code> <s>both</s></p>\n'
    assert not notice


def test_a_list_of_tasks_has_boxes_that_nobody_can_tick():
    html = render(
        "- [ ] open\n- [x] done\n\n  [x] not this\n- [X]o\n- a [ ] b\n- [ ](/x)\n\n[ ] nor this"
    )

    lines = [line for line in Audit(html).text.splitlines() if line]
    assert lines == [
        "\u2610 open",
        "\u2611\ufe0e done",
        "[x] not this",
        "[X]o",
        "a [ ] b",
        "  (/x)",  # a link without words, which says where it leads
        "[ ] nor this",
    ]
    assert html.count('<li class="task" dir="ltr">') == 2
    assert '<li class="task" dir="rtl">' in render("1. [x] \u0634\u0627\u064a")  # not by its x


def test_line_breaks_of_the_author_are_kept():
    assert render("one\ntwo") == '<p dir="auto">one<br />\ntwo</p>\n'


@pytest.mark.parametrize("levels", [1, 10, MAX_DEPTH - 2, MAX_DEPTH, MAX_DEPTH + 5, 2000])
def test_no_depth_hides_text(levels):
    assert "important" in Audit(render("> " * levels + "important")).text
    assert (
        "important"
        in Audit(render("".join("  " * i + "- x\n" for i in range(levels)) + "important")).text
    )


def test_what_is_too_long_is_shown_in_full_as_plain_text():
    text = "**word** " * (MAX_PIECE_LENGTH // 9 + 1)  # one line

    assert Audit(render(text)).text == text
    code = "x = 1\n" * (MAX_CODE_LENGTH // 6 + 1)
    assert Audit(render(f"```python\n{code}```")).text.strip() == code.strip()


@pytest.mark.parametrize(
    ("language", "most"),
    [("python", MAX_TOTAL_CODE), ("csharp", MAX_SLOW_CODE), ("c", MAX_SLOW_CODE)],
)
def test_colors_of_many_blocks_end_with_their_text(language, most):
    """Some lexers take seconds for a block of blank lines; a text can have many blocks."""
    block = f"```{language}\n" + "int x = 1;\n" * 90 + "```\n\n"
    fits = rendered(block * (most // 990), Style())
    assert fits is not None
    assert "colors" not in fits.lacks
    beyond = rendered(block * (most // 990 + 1), Style())
    assert beyond is not None
    assert "colors" in beyond.lacks
    assert Audit(beyond.html).text.count("int x = 1;") == 90 * (most // 990 + 1)


@pytest.mark.parametrize("language", ["css", "HTML", "r"])
def test_long_blocks_of_languages_with_quadratic_lexers_use_the_colors_up(language):
    """Some lexers take a second for 8,000 characters: 4,000 twice are a quarter of that each."""

    def lacks(*sizes: int) -> frozenset[str]:
        blocks = [f"```{language}\n" + "a" * (size - 1) + "\n```\n\n" for size in sizes]
        found = rendered("".join(blocks), Style())
        assert found is not None
        return found.lacks

    assert not lacks(5_000)  # 25 million, all that there is
    assert not lacks(3_000, 4_000)
    assert not lacks(*[1_000] * 20)
    assert lacks(5_001) == {"colors"}
    assert lacks(4_000, 4_000) == {"colors"}  # 32 million


def test_the_characters_of_all_formulas_together_are_bounded():
    formula = "$" + "a" * 1_000 + "$\n\n"

    fits, beyond = rendered(formula * 20, Style()), rendered(formula * 21, Style())
    assert fits is not None
    assert beyond is not None
    assert (fits.lacks, beyond.lacks) == (set(), {"math"})
    assert render_pair(formula * 21, "$a$")[1:] == (
        '<p dir="auto"><span class="latex inline" dir="ltr"><code dir="ltr">a</code></span></p>\n',
        NOTICES["math"],
    )


def test_code_with_long_white_space_is_shown_without_colors():
    """Python's lexer looks from each blank line of it to its end."""
    assert "<span" in render("```python\nx = 1" + " \n" * 200 + "y = 2\n```")
    assert "<span" not in render("```python\nx = 1" + " \n" * 300 + "y = 2\n```")


@pytest.mark.parametrize(
    "text",
    [
        "> " * 10_000,
        "[" * 20_000,
        "![" * 10_000,
        "*a " * 6_600,
        "~~a" * 6_600,
        "- [x] ~~a~~ *\n" * 1_400,
        "`" * 20_000,
        "$a" * 10_000,
        "\\(" * 10_000,
        "http://" * 2_800,
        "https://a.b/" * 1_600,
        "https://a.example/(" * 1_000,
        "https://" + "a." * 9_900,
        "http://a.b " * 1_800,
        "[^a]" * 4_900 + "\n\n[^a]: b",
        "[^a]: b[^a]\n" * 1_600,
        "".join(f"[^{i}]: [^{i + 1}]\n" for i in range(1_000)) + "[^0]",
        "[^a]: " * 3_000,
        "\\[\n" * 500 + "x\n" * 9_000,
        "\\" * 19_999 + "$",
        "<a href=" * 2_500,
        "|" * 100 + "\n" + "|-" * 100 + "\n" + "|a\n" * 5_000,
        ("|a" * 40 + "\n" + "|-" * 40 + "\n" + "|b\n" * 190 + "\n") * 14,
        # To the splitter the rest is code; to the parser it is a table.
        "$$\n```\n$$\n" + "|a" * 100 + "\n" + "|-" * 100 + "\n" + "|a\n" * 5_000,
        "\n" * 150_000,
        "\n \t" * 60_000,
        ("[" * 999 + "\n\n") * 200,
        ("$a" * 3_900 + "\n\n") * 25,
        ("a **bold** `code` [l](https://x.example) $x^2$\n" * 90 + "\n") * 45,
        "```python\n" + "(" * 7_900 + "\n```",
        ("```ini\na<" + "\t" * 3_200 + "\n```\n\n") * 2,
        ("```r\n\\" + '"\t' * 1_600 + "\n```\n\n") * 2,
        ("```python\n" + " \n" * 3_300 + "\n```\n\n") * 3,
        ("```css\n${" + "_" * 4_900 + "\n```\n\n") * 2,
        ("$" + "a^'" * 333 + "$\n\n") * 90,
        "$" + "{" * 900 + "$",
        r"$\def\a{\a\a}\a$ " * 500,
    ],
    ids=lambda text: text[:12].strip(),
)
def test_no_text_takes_long(text):
    start = time.process_time()
    rendered.__wrapped__(text, Style())

    # The worst takes 0.5 s on a quiet core; without the bounds some take minutes.
    assert time.process_time() - start < 5


def test_a_wrapped_line_is_a_break_in_a_chat_and_a_space_in_a_document():
    assert render("one\ntwo") == '<p dir="auto">one<br />\ntwo</p>\n'
    assert render("one\ntwo", document=True) == '<p dir="auto">one\ntwo</p>\n'


def test_a_table_with_thousands_of_cells_is_plain_text():
    table = "|a" * 100 + "\n" + "|-" * 100 + "\n" + "|a\n" * 160
    assert render(table).startswith('<pre class="plain">')
    small = "|a" * 40 + "\n" + "|-" * 40 + "\n" + "|a\n" * 190 + "\n"
    assert render(small * 14).startswith('<pre class="plain">')
    # What scrolls sideways is reached with the keyboard.
    assert '<table tabindex="0" dir="ltr">' in render("|a|b|\n|-|-|\n|c|d|")
    for formula in ("$$a + b$$", "so $$a + b$$ holds", "\\[a + b\\]"):
        assert '<span class="math display" tabindex="0" dir="ltr">' in render(formula)


# Two responses are rendered alike, whatever they are.

WORDS = "**word** and `code`\n\n"


def is_formatted(html):
    return "<strong>" in html


@pytest.mark.parametrize(
    "odd",
    [
        "word " * (MAX_PIECE_LENGTH // 5 + 1),  # one line that is too long to be parsed
        "[" * (MAX_BRACKETS + 1),
        "> " * (MAX_DEPTH + 5) + "deep",
        "|a" * 200 + "\n" + "|-" * 200 + "\n" + "|a\n" * 200,
        WORDS * (MAX_TEXT_LENGTH // len(WORDS) + 1),
        "$a$ " * (MAX_FORMULAS + 1),
        ("\\(a\\) " * 300 + "\n\n") * 2,
        "\\[a\\]\n\n" * (MAX_FORMULAS + 1),
    ],
    ids=["long line", "brackets", "depth", "cells", "length", "formulas", "in (", "in ["],
)
def test_what_cannot_be_formatted_takes_the_other_response_with_it(odd):
    for left, right in ((WORDS, odd), (odd, WORDS)):
        first, second, notice = render_pair(left, right)

        assert [Audit(html).tags for html in (first, second)] == [{"pre"}, {"pre"}]
        assert (Audit(first).text, Audit(second).text) == (left, right)
        assert notice == NOTICES["markdown"]


def test_the_formulas_of_one_text_are_bounded_but_not_the_dollars_of_code():
    most = "$a$ " * MAX_FORMULAS
    assert render(most).count('class="math') == MAX_FORMULAS
    code = "```bash\n" + "echo $HOME $PATH\n" * MAX_FORMULAS + "```\n\n"
    html = render(most + "\n\n" + code)
    assert html.count('class="math') == MAX_FORMULAS
    assert "<code" in html


def test_what_is_rendered_is_kept_up_to_a_number_of_bytes():
    asked = []
    kept = ComputedOnce(
        lambda n: asked.append(n) or "x" * n, most=100, size=lambda _, made: len(made)
    )

    for n in (40, 41, 40, 42, 41):
        assert kept(n) == "x" * n
        assert kept.bytes <= 100

    # 42 took the place of 41, which was asked for before the second 40.
    assert asked == [40, 41, 42, 41]
    assert kept(1_000) == "x" * 1_000  # larger than all that may be kept
    assert kept.bytes <= 100


def ask_at_once(
    kept: ComputedOnce, threads: int, begun: threading.Event, go_on: threading.Event
) -> list:
    """What so many threads get that ask for 7 while the first of them computes it."""
    with ThreadPoolExecutor(threads) as pool:
        first = pool.submit(kept, 7)
        assert begun.wait(20)
        others = [pool.submit(kept, 7) for _ in range(threads - 1)]
        waiting: Any = vars(kept._making[7,]._condition)["_waiters"]
        until = time.monotonic() + 20
        while len(waiting) < threads - 1 and time.monotonic() < until:
            time.sleep(0.01)
        go_on.set()
        return [each.exception(20) or each.result() for each in (first, *others)]


@pytest.mark.parametrize("most", [100, 1], ids=["kept", "too large to keep"])
def test_threads_that_ask_for_the_same_wait_for_the_one_that_computes_it(most):
    begun, go_on = threading.Event(), threading.Event()
    computed: list[int] = []

    def slow(n: int) -> str:
        computed.append(n)
        begun.set()
        assert go_on.wait(20)
        return "x" * n

    kept = ComputedOnce(slow, most=most, size=lambda _, made: len(made))
    assert ask_at_once(kept, 8, begun, go_on) == ["x" * 7] * 8
    assert computed == [7]
    assert kept.bytes == (7 if most == 100 else 0)


def test_threads_that_wait_get_the_error_and_a_later_call_tries_again():
    begun, go_on = threading.Event(), threading.Event()
    computed: list[int] = []

    def failing(n: int) -> str:
        computed.append(n)
        begun.set()
        assert go_on.wait(20)
        if len(computed) == 1:
            raise ValueError("not now")
        return "x" * n

    kept = ComputedOnce(failing, most=100, size=lambda _, made: len(made))
    assert list(map(str, ask_at_once(kept, 4, begun, go_on))) == ["not now"] * 4
    assert computed == [7]
    assert kept(7) == "x" * 7


def test_the_size_of_html_is_what_is_counted():
    before = rendered.bytes
    text = "```python\n" + "a(b)\n" * 1_500 + "```\n\nonly here"
    html = render(text)
    grown = rendered.bytes - before
    assert grown > len(html) > 10 * len(text)
    render(text)
    assert rendered.bytes - before == grown


def test_code_is_colored_in_both_responses_or_in_neither():
    short, long = "```python\ndef f(): 1\n```", "```python\n" + "x = 1\n" * 2_000 + "```"
    unknown, none = "```cobol\nMOVE 1 TO X\n```", "```\nplain\n```"

    for other in (long, unknown):
        assert "hl-" not in "".join(render_pair(short, other)[:2])
    assert "hl-" in render_pair(short, none)[0]
    assert "hl-" in render_pair(short, short)[1]


# Long texts come in pieces.


def test_a_long_text_is_formatted_to_its_end():
    code = "```python\n" + "x = [1]\n\n" * 5_000 + "```\n\n"
    text = (
        WORDS * 800
        + code
        + "1. one\n2. two\n\n"
        + WORDS * 800
        + "[last][ref]\n\n[ref]: https://x.example"
    )

    first, second, notice = render_pair(text, WORDS)

    assert len(text) > 3 * MAX_PIECE_LENGTH
    assert not notice
    assert first.count("<strong>word</strong>") == 1_600
    assert first.count("<pre") == 1  # the code was not cut at its blank lines
    assert '<a href="https://x.example"' in first
    assert is_formatted(second)


@pytest.mark.parametrize(
    "text",
    [
        WORDS * 2_000,
        "- item\n\n  more of it\n\n" * 1_500,
        "> quote\n> goes on\n\n" * 1_500,
        "* a\n\n      ```\n\ncode\n\n      ```\n\n" * 900,
        "line\nafter line\n" * 2_000,
    ],
    ids=["paragraphs", "items", "quotes", "code in items", "one paragraph"],
)
def test_pieces_are_the_text_and_end_where_blocks_end(text):
    pieces = chunks(text)

    assert pieces is not None
    assert "".join(pieces) == text
    assert 1 < len(pieces) < 40
    assert all(piece[0] not in " \n" for piece in pieces)
    assert max(map(len, pieces)) <= MAX_PIECE_LENGTH


def test_code_after_an_unclosed_formula_gets_no_more_than_its_limits():
    # To the splitter the rest is code; to the parser it may be anything.
    text = "$$\n```\n$$\n" + "[" * 150_000

    start = time.process_time()
    rendered.__wrapped__(text, Style())
    assert time.process_time() - start < 5


# Directions.


def test_every_block_has_a_direction():
    html = render(
        "שלום\n\n# כותרת\n\n> ציטוט\n\n| א | b |\n|---|---|\n| ג | d |\n\n1. אחד\n2. two\n\n* x"
    )

    for piece in (
        '<p dir="auto">שלום',
        '<div class="heading h1" dir="auto">',
        '<blockquote dir="rtl">',
        '<table tabindex="0" dir="rtl">',
        '<th dir="auto">א',
        '<td dir="auto">d',
        '<ol dir="rtl">\n<li dir="rtl">אחד',
        '<li dir="ltr">two',
        '<ul dir="ltr">\n<li dir="ltr">x',
    ):
        assert piece in html


def test_code_and_formulas_do_not_decide_the_direction_of_the_words_around_them():
    html = render("* `ls -l` مرحبا $x$\n\n`x` مرحبا\n\n```\ncode\n```\n\n    indented")

    assert '<ul dir="rtl">\n<li dir="rtl"><code dir="ltr">' in html
    assert html.count('<pre tabindex="0" dir="ltr"') == 2
    assert '<span class="math inline" dir="ltr">' in html
    assert '<p dir="auto"><code dir="ltr">x</code>' in html


def test_a_list_without_letters_is_left_to_what_is_around_it():
    assert "<ol>\n<li>" in render("1. 2026\n2. `x`")


def test_numbers_with_more_than_three_digits_stand_inside_their_list():
    assert 'start="1998" data-long' in render("1998. a good year")
