"""By which names the studio answers, and which pages may send it requests."""

from __future__ import annotations

import socket

import pytest
from starlette.testclient import TestClient

from labeler.security.addresses import Addresses
from tests.helpers.desk_world import add_person, make_app, session_cookie, workspace

LOCAL = Addresses.of(host="127.0.0.1")
LAN = Addresses.of(host="0.0.0.0")
PUBLIC = Addresses.of(public_url="https://label.example/")
MACHINE = socket.gethostname().lower()


@pytest.mark.parametrize(
    ("addresses", "host", "known"),
    [
        (LOCAL, "127.0.0.1:7860", True),
        (LOCAL, "LocalHost:7860", True),
        (LOCAL, "[::1]:7860", True),
        (LOCAL, "localhost", True),  # a tunnel may have any port
        (LOCAL, "evil.example:7860", False),
        (LOCAL, "localhost.evil.example", False),
        (LOCAL, "evil.example@localhost", False),
        (LOCAL, "localhost:x", False),
        (LOCAL, "localhost:7860:7860", False),
        (LOCAL, "192.0.2.7:7860", False),
        (LOCAL, "", False),
        (LOCAL, "[::1", False),
        (LAN, "192.0.2.7:7860", True),  # no name service is asked for a number
        (LAN, "[2001:db8::1]:7860", True),
        (LAN, f"{MACHINE}:7860", True),
        (LAN, f"{MACHINE}.local:7860", True),
        (LAN, "evil.example:7860", False),
        (Addresses.of(host="studio.lan"), "studio.lan:7860", True),
        (PUBLIC, "label.example", True),
        (PUBLIC, "127.0.0.1:7860", True),
        (PUBLIC, "other.example", False),
        (PUBLIC, "192.0.2.7", False),
    ],
)
def test_a_host_is_known_by_its_name(addresses, host, known):
    assert addresses.knows(host) is known


@pytest.mark.parametrize(
    ("addresses", "origin", "host", "ours"),
    [
        (LOCAL, "http://127.0.0.1:7860", "127.0.0.1:7860", True),
        (
            LOCAL,
            "http://127.0.0.1:7861",
            "127.0.0.1:7860",
            False,
        ),  # another program of this machine
        (LOCAL, "http://localhost:7860", "127.0.0.1:7860", False),
        (LOCAL, "null", "127.0.0.1:7860", False),
        (LOCAL, "", "127.0.0.1:7860", False),
        (LOCAL, "file://", "127.0.0.1:7860", False),
        (LOCAL, "http://[::1", "[::1]:7860", False),
        (LOCAL, "https://127.0.0.1:7860", "127.0.0.1:7860", True),  # a proxy ends TLS
        (PUBLIC, "https://label.example", "127.0.0.1:7860", True),
        (PUBLIC, "https://label.example", "label.example", True),
        (PUBLIC, "http://label.example", "label.example", False),
        (PUBLIC, "http://label.example:443", "label.example:443", False),
        (PUBLIC, "https://other.example", "127.0.0.1:7860", False),
        (PUBLIC, "http://127.0.0.1:7860", "127.0.0.1:7860", True),
        (Addresses.of(public_url="https://x.example:443"), "https://x.example", "x.example", True),
        (Addresses.of(public_url="http://lab:8000"), "http://lab:8000", "127.0.0.1:7860", True),
    ],
)
def test_an_origin_is_ours_with_its_scheme_and_port(addresses, origin, host, ours):
    assert addresses.same_origin(origin, host) is ours


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with workspace(tmp_path_factory.mktemp("addresses")) as db:
        local = make_app(db, addresses=LOCAL)
        public = make_app(db, addresses=PUBLIC, accounts_required=True)
        yield db, add_person(db, "Ann"), local, public


def test_a_page_whose_name_was_led_here_gets_a_sentence_and_nothing_else(world):
    db, ann, local, _ = world
    cookie = session_cookie(local, db, ann)
    fine = TestClient(local, base_url="http://127.0.0.1:7860", headers=cookie)
    assert fine.get("/label/api/progress").status_code == 200
    rebound = TestClient(local, base_url="http://evil.example:7860", headers=cookie)
    for path in ("/", "/label/", "/label/api/progress", "/sign-in", "/healthz", "/static/kite.svg"):
        answer = rebound.get(path, headers={"accept": "text/html"})
        assert answer.status_code == 400, path
        assert "evil.example:7860" in answer.json()["error"]
        assert "--public-url" in answer.json()["error"]


def test_over_tls_browsers_are_told_to_stay_with_it_and_the_cookie_is_this_hosts_alone(world):
    db, ann, local, public = world
    browser = TestClient(public, base_url="https://label.example")
    assert "max-age=" in browser.get("/sign-in").headers["strict-transport-security"]
    plain = TestClient(local, base_url="http://127.0.0.1:7860").get("/sign-in")
    assert "strict-transport-security" not in plain.headers

    cookie = session_cookie(public, db, ann)
    assert cookie["cookie"].startswith("__Host-")
    browser = TestClient(public, base_url="https://label.example", headers=cookie)
    assert browser.get("/label/api/progress").status_code == 200
    by_http = browser.post("/sign-out", headers={"origin": "http://label.example"})
    assert by_http.status_code == 403
    gone = browser.post("/sign-out", headers={"origin": "https://label.example"})
    # A browser heeds no cookie of that name without these.
    assert "Secure" in gone.history[0].headers["set-cookie"]
    assert "Path=/" in gone.history[0].headers["set-cookie"]


def test_nobody_else_says_where_gradio_lives(world):
    db, ann, local, _ = world
    cookie = session_cookie(local, db, ann)
    browser = TestClient(local, base_url="http://127.0.0.1:7860", headers=cookie)
    tricks = {"x-forwarded-host": "evil.example", "x-gradio-server": "http://evil.example"}
    for path in ("/label/", "/label/config"):
        assert "evil.example" not in browser.get(path, headers=tricks).text


def test_a_proxy_may_say_where_gradio_lives_if_that_is_the_public_address(world):
    db, ann, _, public = world
    browser = TestClient(
        public, base_url="http://127.0.0.1:7860", headers=session_cookie(public, db, ann)
    )
    forwarded = {"x-forwarded-host": "label.example", "x-forwarded-proto": "https"}
    assert browser.get("/label/config", headers=forwarded).json()["root"] == (
        "https://label.example/label"
    )
