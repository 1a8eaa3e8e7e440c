"""How a browser wants the pages without scripts: its language and its theme, from its headers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fastapi.responses import Response

from labeler.cookies import read_cookie
from labeler.theme import Theme, theme_of
from labeler.translation import LANGUAGES, accepted

LANGUAGE_COOKIE = "kitestring_language"
"""The cookie with the language that was chosen in this browser, which may not be signed in."""
_YEAR = 365 * 24 * 3600


@dataclass(frozen=True)
class Reader:
    """The language of the pages, one of `LANGUAGES`, and the theme; None for the system's."""

    language: str
    theme: Theme | None = None

    def speaking(self, language: str) -> Reader:
        """This reader with another language, if there is such a language."""
        return replace(self, language=language) if language in LANGUAGES else self


def reader_of(headers: Mapping[str, str]) -> Reader:
    """The language and theme that were chosen in this browser, or the language that it prefers."""
    chosen = read_cookie(headers, LANGUAGE_COOKIE)
    language = chosen if chosen in LANGUAGES else accepted(headers.get("accept-language", ""))
    return Reader(language, theme_of(headers))


def keep_language(response: Response, language: str) -> None:
    """Show the account pages of this browser in this language from now on."""
    response.set_cookie(LANGUAGE_COOKIE, language, max_age=_YEAR, path="/", samesite="lax")
