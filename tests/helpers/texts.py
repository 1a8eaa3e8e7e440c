"""The English texts of the annotator's page and the account pages, found in the source.

Independent of `labeler/translation.py`: what a person would see is read from the markup and the
scripts themselves.
"""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

from labeler.annotate import live, marks, page, routes, session
from labeler.html.markdown import NOTICES
from labeler.security import access, accounts, auth, oidc, oidc_people, passwords
from pipeline.serving import client
from storage.labeling import live as stored_live

_LABELER = Path(page.__file__).parents[1]
_STRING = r'"((?:[^"\\]|\\.)*)"'
_TEXT = re.compile(rf"\bt\(\s*{_STRING}")
_PLURAL = re.compile(rf"\btn\(\s*[\w.\[\]]+,\s*{_STRING},\s*{_STRING}")
# Sentences of the server that a page translates when it shows them.
_SENTENCES: dict[ModuleType, tuple[str, ...]] = {
    session: ("NEEDS_STRENGTH", "NEEDS_SAFETY", "NEEDS_RATIONALE", "PRACTICE", "DEFAULT_GUIDELINES"),
    marks: ("NOT_THERE",),
    live: ("NOT_READY", "OFF", "TRAINING", "ENDED_EARLY", "TOO_LONG"),
    client: ("STOPPED", "NOT_STARTED", "MODEL_MISSING", "CROWDED", "OWN_REPLIES"),
    stored_live: ("UNJUDGED", "LAST_TURN", "BOTH_BAD", "SET_ASIDE", "EVALUATION", "ELSEWHERE"),
    routes: ("NOT_STORED", "SIGN_IN_FIRST", "SOMEONE_ELSE"),
    access: ("FOR_ADJUDICATORS", "FOR_ANNOTATORS", "FOR_RESEARCHERS", "NOT_AVAILABLE"),
    accounts: ("LINK_ENDED", "INVITE_ENDED", "DIFFERENT", "DIFFERENT_NEW"),
    auth: (
        "INVITE_ENDED", "TOO_MANY_FAILURES", "WRONG_SIGN_IN", "BUSY_ADDRESS", "WRONG_PASSWORD",
        "ACCOUNT_CHANGED",
    ),
    oidc: ("PROVIDER_DOWN", "STARTED_ELSEWHERE", "NOT_COMPLETED"),
    oidc_people: ("NO_ACCOUNT", "NOT_ALLOWED", "DISABLED", "BELONGS_ELSEWHERE"),
    passwords: ("WRONG_LENGTH", "MANY_SIGN_INS"),
}  # fmt: skip
_LITERAL = {"A", "B", "A−", "A+", "·", "?", "Kitestring", "ID"}


class _Markup(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.texts: set[str] = set()
        self.inside: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("input", "circle", "path"):
            self.inside.append(tag)
        for name, value in attrs:
            if name in ("aria-label", "placeholder", "title") and value:
                self.texts.add(value)

    def handle_endtag(self, tag):
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data):
        text = data.strip()
        if "kbd" not in self.inside and re.search(r"[A-Za-z]{2}", text):
            self.texts.add(text)


def page_texts() -> tuple[set[str], set[str]]:
    """The texts of the annotator's page, and the English plurals of those with a number."""
    parser = _Markup()
    parser.feed(page.markup())
    scripts = "\n".join(
        path.read_text(encoding="utf-8") for path in (_LABELER / "annotate/scripts").glob("*.js")
    )
    texts = {json.loads(f'"{found}"') for found in _TEXT.findall(scripts)}
    plurals = {json.loads(f'"{other}"') for _, other in _PLURAL.findall(scripts)}
    return (parser.texts | texts | _sentences()) - _LITERAL, plurals


def _sentences() -> set[str]:
    found = {getattr(module, name) for module, names in _SENTENCES.items() for name in names}
    source = Path(accounts.__file__).read_text(encoding="utf-8")
    found |= set(re.findall(r"\[\[(?!texts\]\]|…)(.+?)\]\]", source))
    found |= set(re.findall(rf"_page\(\s*{_STRING}", source))
    return found | set(NOTICES.values())
