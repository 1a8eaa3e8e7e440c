"""Texts of the annotator's page and the account pages in other languages.

A text is written in English where it is used, and its English form is its key in the catalogs,
``locales/LANGUAGE.json``.  A text with a number has one form per plural category of the language
(Unicode CLDR) under the key of its English plural; only the page uses these (``texts.js``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from markupsafe import Markup, escape

from storage.records import digest

_LOCALES = Path(__file__).parent / "locales"
_TEXT = re.compile(r"\[\[(.+?)\]\]", re.DOTALL)

Language = Literal["en", "de", "es", "fr", "pt", "zh", "ja", "ar", "hi"]
LANGUAGES: dict[str, str] = {
    "en": "English",
    "de": "Deutsch",
    "es": "Español",
    "fr": "Français",
    "pt": "Português",
    "zh": "中文",
    "ja": "日本語",
    "ar": "العربية",
    "hi": "हिन्दी",
}
"""The languages of the pages, with their own names."""
RIGHT_TO_LEFT = frozenset(["ar"])


@cache
def catalog(language: str) -> Mapping[str, Any]:
    """The translations into one of `LANGUAGES`, by English text; those into English are empty."""
    if language == "en":
        return {}
    return json.loads((_LOCALES / f"{language}.json").read_text(encoding="utf-8"))


def versions() -> dict[str, str]:
    """A digest of each catalog, which tells a browser whether its copy is current."""
    others = [language for language in LANGUAGES if language != "en"]
    return {
        language: digest(json.dumps(catalog(language), ensure_ascii=False)) for language in others
    }


def translated(text: str, language: str) -> str:
    """`text` in this language, or as it is if the catalog does not have it."""
    return catalog(language).get(text, text)


def fill(template: str, language: str, /, **values: object) -> Markup:
    """HTML from a template whose ``[[texts]]`` are translated; values are escaped."""
    inserted = _TEXT.sub(lambda found: str(escape(translated(found[1], language))), template)
    return Markup(inserted).format(**values)


def accepted(header: str) -> str:
    """The first language of an Accept-Language header that the pages have, or English."""
    ranked: list[tuple[float, str]] = []
    for part in header[:1000].split(","):
        tag, _, quality = part.partition(";q=")
        weight = float(quality) if re.fullmatch(r"[01](\.\d{0,3})?", quality) else 1.0
        ranked.append((-weight, tag.strip().lower().partition("-")[0]))
    known = [
        tag
        for weight, tag in sorted(ranked, key=lambda each: each[0])
        if tag in LANGUAGES and weight
    ]
    return known[0] if known else "en"
