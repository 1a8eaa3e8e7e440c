"""Colors that words stand in can be read: WCAG 2.2, contrast (1.4.3 for text, 1.4.11 for borders)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

LABELER = Path(__file__).parents[2] / "labeler"
TEXT, BORDER = 4.5, 3.0
STATES = ("good", "warn", "bad")

PAGES = {
    "research": (
        "research/research.css", r"^:root body \{", r"^:root body\.dark \{", "ks-",
        [(ink, paper) for ink in ("ink", "soft", "faint", "info", *STATES)
         for paper in ("page", "card", "inset")]
        + [(state, f"{state}-bg") for state in ("info", *STATES)],
    ),
    "label": (
        "annotate/styles/page.css", r"\.desk \{", r'\.desk\[data-theme="dark"\] \{', "",
        [(ink, paper) for ink in ("ink", "soft", "accent", "warn", "a", "b")
         for paper in ("paper", "card", "sunken")]
        + [("on-accent", "accent"), ("warn", "warn-soft"), ("bad", "bad-soft")]
        + [("good", "paper"), ("busy", "paper")],
    ),
    "sign-in": (
        "static/account.css", r"^:root \{", r"^  :root:not.* \{", "",
        [("ink", "card"), ("soft", "card"), ("accent", "card"), ("soft", "paper"),
         ("on-accent", "accent"), ("bad", "bad-soft")],
    ),
}  # fmt: skip


def colors(text: str, block: str, prefix: str) -> dict[str, str]:
    body = re.split(block, text, maxsplit=1, flags=re.MULTILINE)[1].split("}")[0]
    return dict(re.findall(rf"--{prefix}([\w-]+):\s*#([0-9a-f]{{6}})", body))


def luminance(color: str) -> float:
    """WCAG's relative luminance of six hexadecimal digits."""
    linear = []
    for start in (0, 2, 4):
        share = int(color[start : start + 2], 16) / 255
        linear.append(share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4)
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def test_contrast_by_the_standards_own_figures():
    # #767676 is the lightest gray that WCAG's own techniques allow on white.
    assert contrast("000000", "ffffff") == pytest.approx(21)
    assert contrast("767676", "ffffff") == pytest.approx(4.54, abs=0.005)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_can_be_read(page: str, theme: str):
    file, light, dark, prefix, pairs = PAGES[page]
    text = (LABELER / file).read_text()
    known = colors(text, light, prefix)
    if theme == "dark":
        known |= colors(text, dark, prefix)
    found = {
        f"{ink} on {paper}": round(contrast(known[ink], known[paper]), 2) for ink, paper in pairs
    }
    assert {pair: ratio for pair, ratio in found.items() if ratio < TEXT} == {}


def test_the_dark_theme_of_the_system_and_the_chosen_one_have_the_same_colors():
    text = (LABELER / "static/account.css").read_text()
    system, chosen = (
        colors(text, block, "")
        for block in (r"^  :root:not.* \{", r'^:root\[data-theme="dark"\] \{')
    )
    assert system == chosen
    assert len(system) == 10


@pytest.mark.parametrize("block", [r"^:root \{", r"^  :root:not.* \{"], ids=["light", "dark"])
def test_a_field_that_must_be_found_has_a_border_that_can_be_seen(block: str):
    text = (LABELER / "static/account.css").read_text()
    known = colors(text, r"^:root \{", "") | colors(text, block, "")
    assert "border: 1px solid var(--edge)" in text
    assert contrast(known["edge"], known["card"]) >= BORDER
