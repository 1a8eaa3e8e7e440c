"""The links to the pages and their sections. ``address.js`` follows them without loading the site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from labeler.html.components import Markup, lines


def navigation(pages: Mapping[str, Sequence[str]]) -> Markup:
    """A row of pages, and for each page with several sections a row of these.

    Each link has its page and section in its address: ``?tab=models&section=lineage``.
    """
    links = [_link(page, sections[0], page, first=True) for page, sections in pages.items()]
    rows = [
        Markup(
            '<nav class="ks-section-links" aria-label="{}" data-page="{}" hidden>{}</nav>'
        ).format(
            f"Sections of {page}",
            _slug(page),
            lines(
                _link(page, section, section, first=section == sections[0]) for section in sections
            ),
        )
        for page, sections in pages.items()
        if len(sections) > 1
    ]
    return Markup('<nav class="ks-page-links" aria-label="Pages">{}</nav>{}').format(
        lines(links), lines(rows)
    )


def _link(page: str, section: str, text: str, *, first: bool) -> Markup:
    query = {"tab": _slug(page)} | ({} if first else {"section": _slug(section)})
    return Markup('<a href="/research/?{}" data-tab="{}">{}</a>').format(
        urlencode(query), f"{page}: {section}", text
    )


def _slug(name: str) -> str:
    return name.lower().replace(" ", "-")
