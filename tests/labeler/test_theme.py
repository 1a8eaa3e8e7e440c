"""The theme's cookie: every page is rendered with it, and no value of it can do harm."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from labeler.app import create_app
from labeler.theme import theme_of
from storage.engine.database import Database
from storage.tables.people import tokens
from tests.helpers.browsed import fill
from tests.helpers.recording_loop import RecordingLoop, in_a_loop

PUBLIC = (
    "/sign-in",
    "/sign-in?language=ar",
    "/sign-in?token=used",
    "/invite?token=used",
    "/nothing",
)
GUARDED = ("/label/", "/research/", "/adjudicate", "/label/password", "/label/nothing")
HOSTILE = (
    'dark" onload="alert(1)', 'dark"><script>alert(1)</script>', "DARK", "system", "dark%22", "",
    "dark light", "d" * 4000, "'", "\\u0022", "dark\x0bx",
)  # fmt: skip


@pytest.fixture(scope="module")
def client(tmp_path_factory) -> Iterator[TestClient]:
    with Database.open(tmp_path_factory.mktemp("theme") / "w") as db:
        fill(db)
        app = in_a_loop(
            lambda: create_app(
                db, loop=RecordingLoop(db=db), admin=lambda *_: None, admin_token="t",
                accounts_required=True,
            )
        )  # fmt: skip
        secret = tokens.issue(db, "rosa", "session", lifetime=None)
        session = f"{app.state.auth.cookie}={secret}"
        yield TestClient(app, base_url="http://127.0.0.1", headers={"x-session": session})


def page(client: TestClient, path: str, theme: str | None, *, signed_in: bool = True) -> str:
    cookies = [client.headers["x-session"]] if signed_in else []
    cookies += [] if theme is None else [f"kitestring_theme={theme}"]
    headers = {"accept": "text/html", "cookie": "; ".join(cookies)}
    client.cookies.clear()
    found = client.get(path, headers=headers, follow_redirects=False)
    assert found.headers["content-type"].startswith("text/html")
    return found.text


def tag(html: str) -> str:
    """The tag of the root element."""
    found = re.search(r"<html\b[^>]*>", html)
    assert found
    return found[0]


PAGES = [(path, signed_in) for path in (*PUBLIC, *GUARDED) for signed_in in (True, False)
         if not (signed_in and "token=" in path)]  # fmt: skip
"""Who is signed in and opens a link that was used is sent on."""


@pytest.mark.parametrize(("path", "signed_in"), PAGES)
def test_every_page_has_the_theme_of_the_cookie_and_ignores_any_other_value(
    client, path, signed_in
):
    for theme in ("light", "dark"):
        themed = tag(page(client, path, theme, signed_in=signed_in))
        assert themed.count(f'data-theme="{theme}"') == themed.count("data-theme") == 1
    plain = tag(page(client, path, None, signed_in=signed_in))
    assert "data-theme" not in plain
    for value in HOSTILE:
        shown = page(client, path, value, signed_in=signed_in)
        assert tag(shown) == plain, value
        assert not value or len(value) < 8 or value not in shown


def test_a_length_matches_the_themed_document(client):
    found = client.get(
        "/research/",
        headers={"cookie": f"{client.headers['x-session']}; kitestring_theme=dark",
                 "accept": "text/html", "accept-encoding": "identity"},
    )  # fmt: skip
    assert int(found.headers["content-length"]) == len(found.content)


def test_the_first_cookie_of_the_name_counts():
    """As in theme.js: otherwise the server and the page could show two themes."""
    assert theme_of({"cookie": "a=b; kitestring_theme=dark; kitestring_theme=light"}) == "dark"
    assert theme_of({"cookie": "kitestring_theme=x; kitestring_theme=light"}) is None
    assert theme_of({"cookie": 'odd="; kitestring_theme=light'}) == "light"
    assert theme_of({"cookie": "my_kitestring_theme=dark"}) is None
    assert theme_of({}) is None
