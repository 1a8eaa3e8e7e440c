"""Topics: what the demo knows, one hand-written table each."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent
FILES = tuple(sorted(_FOLDER.glob("*.toml")))
"""Every data file of the corpus, in a fixed order."""

# Sentences may follow "I am not sure, but …"; these first words keep their capital.
_PROPER = {"I", "Pluto", "Venus", "LED", "Jupiter"}


@dataclass(frozen=True, kw_only=True)
class Topic:
    """One everyday subject: how people ask about it, and sentences for answers.

    `answer`, `curt`, `detail`, `tip` and `wrong` are whole sentences.  Training rows use `ask`
    (plain questions, which the templates contain) and `situations` (indirect questions), but not
    `unseen`: its first phrasing is held out, its second is for audits.  A response is on topic if
    it contains one of `keywords` (the beginning of a word; with a trailing space, the whole word).
    """

    name: str
    category: str
    ask: tuple[str, ...]
    situations: tuple[str, ...]
    unseen: tuple[str, str]
    answer: str
    curt: str
    detail: str
    tip: str
    wrong: str
    keywords: tuple[str, ...]

    def __post_init__(self) -> None:
        for part in ("answer", "curt", "detail", "tip", "wrong"):
            if not re.fullmatch(r"[A-Z].*[.!?]", getattr(self, part)):
                raise ValueError(f"topic {self.name!r}: write {part} as a whole sentence")
        for part in ("answer", "curt", "wrong"):
            if not self.mentioned_in(getattr(self, part)):
                raise ValueError(f"topic {self.name!r}: {part} needs one of its keywords")

    @property
    def trained(self) -> tuple[str, ...]:
        """Every phrasing that training rows use."""
        return self.ask + self.situations

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        words = (re.escape(k.strip()) + (r"\b" if k.endswith(" ") else "") for k in self.keywords)
        return re.compile(r"\b(?:" + "|".join(words) + ")", re.IGNORECASE)

    def mentioned_in(self, text: str) -> bool:
        """Whether `text` contains a keyword of this topic."""
        return self._pattern.search(text) is not None


@lru_cache(maxsize=1)
def topics() -> tuple[Topic, ...]:
    """All topics, in the order of their files."""
    found = []
    for path in sorted(_FOLDER.glob("topics_*.toml")):
        category = path.stem.removeprefix("topics_")
        found += [_topic(table, category=category) for table in read_toml(path.name)["topics"]]
    names = [topic.name for topic in found]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"topic names must differ; repeated: {', '.join(sorted(repeated))}")
    return tuple(found)


def _topic(table: dict[str, Any], *, category: str) -> Topic:
    wanted = {f.name for f in fields(Topic)} - {"category"}
    if set(table) != wanted:
        different = ", ".join(sorted(set(table) ^ wanted))
        raise ValueError(f"topic {table.get('name')!r}: missing or unknown fields: {different}")
    if len(table["unseen"]) != 2:
        raise ValueError(f"topic {table['name']!r}: unseen must contain two paraphrases")
    lists = {key: tuple(table[key]) for key in ("ask", "situations", "unseen", "keywords")}
    return Topic(**{**table, **lists}, category=category)


def read_toml(name: str) -> dict[str, Any]:
    """A data file of the corpus, parsed."""
    return tomllib.loads((_FOLDER / name).read_text(encoding="utf-8"))


def uncapitalized(sentence: str) -> str:
    """`sentence` as it reads after "I am not sure, but …"."""
    first = sentence.split(maxsplit=1)[0].rstrip(",.:")
    return sentence if first in _PROPER else sentence[0].lower() + sentence[1:]
