"""Formulas are typeset by Temml in a browser: what comes out, what is refused, and how long it takes."""

from __future__ import annotations

import pytest

from labeler.html import formulas
from labeler.html.markdown import render
from labeler.security.accounts import STATIC
from tests.helpers.browser import chromium, new_page
from tests.helpers.specimens import FORMULAS

SETUP = """
window.asked = [];
new PerformanceObserver((list) => asked.push(...list.getEntries().map((each) => each.name)))
  .observe({ type: "resource", buffered: true });
window.show = (...latex) => {
  document.body.replaceChildren(...latex.map((each) => {
    const text = document.createElement("div");
    text.className = "text";
    text.innerHTML = '<span class="math display"><code></code></span>';
    text.querySelector("code").textContent = each;
    return text;
  }));
  return [...document.body.children];
};
window.typesetAll = typesetAll;
window.typesetEach = typesetEach;
"""

# What may stand in a page, listed again here and not read from the script.
_ELEMENTS = """
    math mrow mi mn mo ms mtext mspace mfrac msqrt mroot msub msup msubsup munder mover munderover
    mmultiscripts mprescripts mtable mtr mtd mstyle mpadded mphantom menclose span
"""
_ATTRIBUTES = """
    dir display displaystyle scriptlevel mathvariant stretchy fence separator accent accentunder
    largeop movablelimits symmetric form linebreak columnalign rowspacing linethickness lspace
    rspace width height depth voffset minsize maxsize mathsize class style
"""
ELEMENTS = frozenset(_ELEMENTS.split())
ATTRIBUTES = frozenset(_ATTRIBUTES.split())

SOURCE = {
    "unknown command": r"\unknown{x}",
    "unknown environment": r"\begin{unknown} x \end{unknown}",
    "link": r"\href{javascript:alert(1)}{x}",
    "address": r"\url{https://evil.example}",
    "image": r"\includegraphics{https://evil.example/pixel.png}",
    "class": r"\class{verdict}{x}",
    "style": r"\style{position:fixed;inset:0}{x}",
    "id": r"\id{kite-guidelines}{x}",
    "data": r"\data{do=skip}{x}",
    "reference": r"\eqref{kite-guidelines}",
    "toggle": r"\toggle{a}{b}\endtoggle",
    "macro": r"\def\a{1}\a",
    "macro bomb": r"\def\a{\b\b}\def\b{\a\a}\a",
    "global macro": r"\gdef\a{1}\a",
    "new command": r"\newcommand{\a}{\a\a}\a",
    "let": r"\let\a=\alpha\a",
    "far to the left": r"x\hspace{-99em}y",
    "far below": r"\raisebox{-99em}{x}",
    "markup in a table": r"\begin{array}{@{<b>}c}x\end{array}",
    "too long": "x+" * 2_001,
    "long chemistry": r"\ce{" + "A->[" * 300 + "}",
    "long unit": r"\pu{" + "1 m/" * 60 + "}",
    "unclosed": "{" * 900,
    "too deep": r"\sqrt{" * 90 + "x" + "}" * 90,
    "too many cells": r"\begin{matrix}" + "&" * 44 + r"\\" * 44 + r"\end{matrix}",
    "sizes within sizes": r"{\Huge x {\Huge y}}",
    "entity": r"\text{&lt;script&gt;}",
    "control character": "x\x01y",
    "exchanged scripts": r"\prescript{14}{2}{C}",
    "numbered twice": r"\begin{multline} a \\ b \end{multline}",
}

TYPESET = {
    "markup": r"\text{<img src=x onerror=alert(1)>}",
    "huge rule": r"\rule{999em}{999em}",
    "wide space": r"x\hspace{999em}y",
    "white on white": r"\color{white}{x}",
    "background": r"\colorbox{black}{x}",
    "label": r"\begin{equation} \label{kite-guidelines} x \end{equation}",
    "thick line": r"\genfrac{}{}{99em}{}{a}{b}",
    "long": "x + " * 999 + "y",
}


@pytest.fixture(scope="module")
def page():
    with chromium() as browser, new_page(browser, width=800) as opened:
        opened.set_content("<!doctype html><title>Formulas</title>")
        opened.add_style_tag(content=".text { contain: content; overflow: auto }")
        for name in ("temml.min.js", "temml-mhchem.min.js"):
            opened.add_script_tag(path=STATIC / name)
        opened.add_script_tag(content=formulas.SCRIPT + SETUP)
        yield opened


def typeset(page, *latex):
    """Whether all could be typeset."""
    return page.evaluate("latex => typesetAll(...show(...latex))", list(latex))


@pytest.mark.parametrize("latex", FORMULAS)
def test_common_formulas_are_typeset(page, latex):
    assert typeset(page, latex)
    assert page.locator(".math > math").count() == 1
    assert page.locator("code").count() == 0


@pytest.mark.parametrize("latex", SOURCE.values(), ids=SOURCE)
def test_what_cannot_be_typeset_stays_source(page, latex):
    assert not typeset(page, "x^2", latex)
    assert page.locator("math").count() == 0  # nor the other one
    assert page.locator("code").all_text_contents() == ["x^2", latex]
    assert page.evaluate("asked") == []


@pytest.mark.parametrize("latex", [*TYPESET.values(), *FORMULAS], ids=lambda text: text[:20])
def test_only_elements_and_attributes_of_the_list_are_inserted(page, latex):
    assert typeset(page, latex)

    found = page.evaluate("""() => {
      const nodes = [...document.querySelectorAll(".math *")];
      return {
        elements: nodes.map((node) => node.localName),
        attributes: nodes.flatMap((node) => node.getAttributeNames()),
        styles: nodes.map((node) => node.getAttribute("style") || "").join(";"),
        tallest: Math.max(...nodes.map((node) => node.getBoundingClientRect().height)),
      };
    }""")
    assert set(found["elements"]) <= ELEMENTS
    assert set(found["attributes"]) <= ATTRIBUTES
    assert not any(word in found["styles"] for word in ("color", "url", "fixed", "display"))
    assert found["tallest"] < 300  # 10 em are 160 pixels
    assert page.evaluate("asked") == []


def test_each_formula_of_a_text_without_counterpart_stands_for_itself(page):
    page.evaluate("show('x^2', '\\\\unknown', 'y').forEach(typesetEach)")

    assert page.locator(".math > math").count() == 2
    assert page.locator(".math > code").all_text_contents() == [r"\unknown"]


def test_the_text_of_a_formula_is_text(page):
    assert typeset(page, TYPESET["markup"])
    assert (page.locator("mtext").text_content() or "").replace(
        "\xa0", " "
    ) == "<img src=x onerror=alert(1)>"


BOMBS = {
    "letters": ["a" * 4_000] * 5,
    "sums": [r"\sum_{i}^{n}" * 330] * 5,
    "accents": ["é" * 4_000] * 5,
    "chemistry": [r"\ce{" + "A->[" * 248 + "}"] * 20,
    "parentheses": [r"\ce{" + "(" * 990 + "}"] * 20,
    "dollars": [r"\ce{" + "$" * 990 + "}"] * 20,
    "units": [r"\pu{" + "1 m/" * 48 + "}"] * 100,
    "fractions": [r"\frac{" * 40 + "1" + "}{2}" * 40] * 50,
    "tables": [r"\begin{matrix}" * 15 + "x" + r"\end{matrix}" * 15] * 40,
    "cells": [r"\begin{matrix}" + "&" * 40 + r"\\" * 40 + r"\end{matrix}"] * 130,
    "rows": [r"\begin{matrix}" + r"a\\" * 1_300 + r"\end{matrix}"] * 5,
    "brackets": [r"\left(" * 60 + "x" + r"\right)" * 60] * 20,
    "primes": ["x" + "'" * 3_999] * 5,
    "subscripts": ["x_{" * 70 + "x" + "}" * 70] * 60,
}


@pytest.mark.parametrize("latex", BOMBS.values(), ids=BOMBS)
def test_no_formulas_take_long(page, latex):
    """20,000 characters, the limit of one text (`MAX_LATEX`), with layout."""
    assert sum(map(len, latex)) <= 20_100

    seconds = page.evaluate(
        """latex => {
          const start = performance.now();
          typesetAll(...show(...latex));
          document.body.getBoundingClientRect();
          return (performance.now() - start) / 1000;
        }""",
        latex,
    )
    assert seconds < 10  # on a busy core; without the limits some take minutes


def test_a_page_without_temml_shows_source(page):
    page.evaluate("window.kept = temml; window.temml = undefined")
    try:
        assert not typeset(page, "x")
        assert page.locator("code").text_content() == "x"
    finally:
        page.evaluate("window.temml = kept")


def test_the_server_writes_what_the_script_reads(page):
    html = render("$x^2$ and\n\n$$y$$\n\nand \\[z\\]")
    page.evaluate("html => { document.body.innerHTML = html; typesetEach(document.body) }", html)

    assert page.locator(".math.inline > math:not([display])").count() == 1
    assert page.locator(".math.display > math[display=block]").count() == 2
