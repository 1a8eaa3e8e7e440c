"""The links to the pages and their sections. ``address.js`` follows them without loading the site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from labeler.html.components import Markup, lines

_TOOLS = Markup(
    '<div class="ks-page-tools"><button type="button" data-palette aria-haspopup="dialog" '
    'title="Search pages, runs and actions">'
    '<svg viewBox="0 0 20 20" aria-hidden="true"><circle cx="8.7" cy="8.7" r="5.5"/><path d="m13 13 4.2 4.2"/></svg>'
    '<span class="ks-search">Search</span><kbd class="ks-mac">⌘ K</kbd><kbd class="ks-other">Ctrl K</kbd></button>'
    '<button type="button" data-theme-switch title="Theme: system, light or dark">{}</button></div>'
).format(
    lines(
        Markup(
            '<span data-for="{0}"><svg viewBox="0 0 20 20" aria-hidden="true">{1}</svg>'
            '<span class="ks-hidden">Theme: {0}</span></span>'
        ).format(theme, Markup(drawing))
        for theme, drawing in {
            "system": '<path class="ks-solid" d="M10 2a8 8 0 1 0 0 16Z"/><circle cx="10" cy="10" r="7.25"/>',
            "light": '<circle cx="10" cy="10" r="3.6"/><path d="M10 1.8v2.4M10 15.8v2.4M1.8 10h2.4M15.8 10h2.4'
            'M4.2 4.2l1.7 1.7M14.1 14.1l1.7 1.7M15.8 4.2l-1.7 1.7M5.9 14.1l-1.7 1.7"/>',
            "dark": '<path d="M16.8 12.2A7.2 7.2 0 0 1 7.8 3.2a7.2 7.2 0 1 0 9 9Z"/>',
        }.items()
    )
)
"""The button of the palette (``palette.js``) and the switch of the theme, which shows its state (``theme.js``)."""


def navigation(pages: Mapping[str, Sequence[str]], opened: tuple[str, str] | None = None) -> Markup:
    """A row of pages with the tools of the site, and for each page with several sections a row of these.

    Each link has its page and section in its address: ``?tab=models&section=lineage``.  Without the
    page and section that are `opened`, ``address.js`` marks them.
    """
    page_opened = opened and opened[0]
    links = [
        _link(page, sections[0], page, first=True, current=page == page_opened)
        for page, sections in pages.items()
    ]
    rows = [
        Markup('<nav class="ks-section-links" aria-label="{}" data-page="{}"{}>{}</nav>').format(
            f"Sections of {page}",
            _slug(page),
            "" if page == page_opened else Markup(" hidden"),
            lines(
                _link(
                    page, section, section, first=section == sections[0],
                    current=(page, section) == opened,
                )
                for section in sections
            ),
        )
        for page, sections in pages.items()
        if len(sections) > 1
    ]  # fmt: skip
    return Markup(
        '<div class="ks-pages"><nav class="ks-page-links" aria-label="Pages">{}</nav>{}</div>{}'
    ).format(lines(links), _TOOLS, lines(rows))


def named(pages: Mapping[str, Sequence[str]], query: Mapping[str, str]) -> tuple[str, str]:
    """Page and section that an address names, as ``address.js``.

    An unknown section stands for the first one of the page, an unknown page for the first page.
    """
    page = next((each for each in pages if _slug(each) == query.get("tab")), None)
    if page is None:
        page = next(iter(pages))
        return page, pages[page][0]
    first = pages[page][0]
    found = (each for each in pages[page] if _slug(each) == query.get("section"))
    return page, next(found, first)


def typed(pages: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Addresses below /research that people type, such as runs/compare, with that of what they mean."""
    found: dict[str, str] = {}
    for page, sections in pages.items():
        place = _slug(page)
        for section in sections:
            found[f"{place}/{_slug(section)}"] = _address(
                page, section, first=section == sections[0]
            )
        found[place] = _address(page, sections[0], first=True)
    return found


def _address(page: str, section: str, *, first: bool) -> str:
    query = {"tab": _slug(page)} | ({} if first else {"section": _slug(section)})
    return f"/research/?{urlencode(query)}"


def _link(page: str, section: str, text: str, *, first: bool, current: bool) -> Markup:
    return Markup('<a href="{}" data-tab="{}"{}>{}</a>').format(
        _address(page, section, first=first),
        f"{page}: {section}",
        Markup(' aria-current="page"') if current else "",
        text,
    )


def _slug(name: str) -> str:
    return name.lower().replace(" ", "-")
