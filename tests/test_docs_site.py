"""The documentation builds as a site, with every link checked."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from docs.site.build import ABOUT, ROOT, build, copy_sources

UNREAD = {"code", "head", "math", "pre", "script", "style"}
SOURCE = re.compile(r"\$|\*\*|^\s*[*-] |^\|", re.MULTILINE)


class Article(HTMLParser):
    """The text of an article outside code and formulas, and how often each element is in it."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, str | None]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "article" or self.open:
            self.elements.append((tag, dict(attrs).get("class")))
            if tag not in ("br", "hr", "img", "input", "path"):
                self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            while self.open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if self.open and not UNREAD & set(self.open):
            self.text.append(data)


def read(page: Path) -> Article:
    article = Article()
    article.feed(page.read_text(encoding="utf-8"))
    return article


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the sources of the site, to be changed and built."""
    copy_sources(tmp_path / "build" / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    return tmp_path


def pages() -> list[str]:
    return sorted([*ABOUT, *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))])


def test_every_page_is_in_the_navigation_once():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:")[1]
    listed = yaml.safe_load(f"nav:{text}")["nav"]
    found = [name for entry in listed for value in entry.values() for name in names(value)]
    assert sorted(found) == pages()
    sections = [next(iter(entry)) for entry in listed]
    assert sections == [
        "Home",
        "Tutorial",
        "How-to guides",
        "Reference",
        "Explanation",
        "Design",
    ]


def names(value: str | list[dict[str, str]]) -> list[str]:
    return [value] if isinstance(value, str) else [name for page in value for name in page.values()]


def test_the_site_builds_without_a_warning_and_nothing_is_left_as_source(project, capfd):
    assert build(project) == 0, capfd.readouterr()
    formulas = diagrams = 0
    for name in pages():
        file = "index.html" if name == "README.md" else f"{name.removesuffix('.md')}.html"
        article = read(project / "build" / "site" / file)
        assert [text for text in article.text if SOURCE.search(text)] == [], name
        formulas += sum(tag == "math" for tag, _ in article.elements)
        diagrams += article.elements.count(("pre", "mermaid"))
    sources = [(ROOT / name).read_text(encoding="utf-8") for name in pages()]
    assert formulas > 100
    assert diagrams == sum(text.count("```mermaid") for text in sources) > 0


@pytest.mark.parametrize(
    "link", ["docs/nowhere.md", "docs/reward.md#nowhere", "#nowhere", "docs/images/nowhere.png"]
)
def test_a_broken_link_stops_the_build(project, link, capfd):
    with (project / "build" / "docs" / "README.md").open("a", encoding="utf-8") as page:
        page.write(f"\n\n[broken]({link})\n")
    assert build(project) != 0
    assert "README.md" in capfd.readouterr().err
