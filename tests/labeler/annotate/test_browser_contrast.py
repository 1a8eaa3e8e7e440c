"""The annotator's page in high contrast, and in windows as low as zoom makes them."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from labeler.annotate import page as annotator_page
from tests.helpers.desk_browser import desk_page


def test_high_contrast_shows_what_is_pressed(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        page.emulate_media(forced_colors="active")
        page.keyboard.press("i")
        pressed, other = (page.locator(f"[data-strength='{n}']") for n in (2, 1))
        expect(pressed).to_have_attribute("aria-pressed", "true")
        colors = [
            button.evaluate("n => getComputedStyle(n).backgroundColor")
            for button in (pressed, other)
        ]
        assert colors[0] != colors[1]
        mark = "n => getComputedStyle(n, '::before').content"
        assert "\u2713" in pressed.evaluate(mark)
        assert other.evaluate(mark) == "none"


@pytest.mark.parametrize(("width", "height"), [(640, 430), (320, 215)])  # 1280 x 860 at 200%, 400%
def test_zoom_leaves_the_pair_its_window(browser, world, server, who, width, height):
    with desk_page(browser, world, server, who, width=width, height=height) as page:
        page.locator(".response.b .text").evaluate("n => { n.textContent = 'word '.repeat(600) }")
        page.locator(".response.b").evaluate("n => n.scrollIntoView({ block: 'start' })")
        free = page.evaluate(
            """() => [...Array(innerHeight).keys()].filter(
                (y) => document.elementFromPoint(innerWidth / 2, y).closest(".response")).length"""
        )
        assert free > 0.9 * height
        cut = page.evaluate(
            """() => [...document.querySelectorAll(".verdict button")].filter((n) => {
                const { left, right } = n.getBoundingClientRect();
                return left < 0 || right > innerWidth || n.scrollWidth > n.clientWidth;
            }).map((n) => n.textContent)"""
        )
        assert cut == []
        wide = page.evaluate(
            """() => [...document.querySelectorAll(".desk *")].filter(
                (n) => n.getBoundingClientRect().right > innerWidth).map((n) => n.outerHTML.slice(0, 80))"""
        )
        assert wide == []


@pytest.mark.parametrize("forbidden", ["\\", "`", "${", "{{"])
def test_the_styles_survive_gradios_template(forbidden):
    assert forbidden not in annotator_page.styles()
