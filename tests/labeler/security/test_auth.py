"""Signing in: links, passwords, invites, sessions that end, and requests from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from labeler.security.auth import Auth, SignInRefused
from labeler.security.passwords import (
    Allowance,
    Busy,
    Lockout,
    check_password,
    hash_password,
    needs_rehash,
)
from storage.tables.people import annotators, tokens
from tests.helpers.desk_world import (
    ADMIN_TOKEN,
    add_person,
    bearer,
    make_app,
    session_cookie,
    workspace,
)

ORIGIN = {"origin": "http://testserver"}
GOOD = "correct horse battery"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with workspace(tmp_path_factory.mktemp("auth")) as db:
        yield db, make_app(db)


@pytest.fixture(scope="module")
def hashed():
    """GOOD, hashed once: Argon2 is slow on purpose."""
    return hash_password(GOOD)


@pytest.fixture
def person(world, request):
    """Somebody of the test's own."""
    return add_person(world[0], request.node.name)


@pytest.fixture
def browser(world):
    """A browser of our own pages that follows no redirect."""
    return TestClient(world[1], headers=ORIGIN, follow_redirects=False)


def signed_in(browser):
    return browser.get("/label/api/progress").status_code == 200


def have_password(db, person, hashed):
    invite = tokens.issue(db, person.id, "invite", lifetime=None)
    return annotators.accept_invite(db, invite, password_hash=hashed)


def link_token(world, person):
    """The secret of a new sign-in link."""
    return world[1].state.sign_in_url(person).partition("token=")[2].partition("&")[0]


def invite_token(world, person):
    return world[1].state.auth.invite_url(person).partition("token=")[2]


def test_the_link_shows_a_button_and_only_the_button_signs_in(world, browser, person):
    link = world[1].state.sign_in_url(person)

    shown = browser.get(link)
    assert shown.status_code == 200
    assert f"Continue as {person.name}" in shown.text
    assert "set-cookie" not in shown.headers  # a mail scanner that opens the link gets nothing
    token = re.search(r'name="token" value="([^"]+)"', shown.text)[1]
    pressed = browser.post("/sign-in", data={"token": token, "next": "/label/"})

    assert (pressed.status_code, pressed.headers["location"]) == (303, "/label/")
    assert signed_in(browser)


def test_the_cookie_is_hidden_from_scripts_and_from_other_sites(world, browser, person):
    token = link_token(world, person)
    cookie = browser.post("/sign-in", data={"token": token}).headers["set-cookie"]

    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Secure" not in cookie  # http://testserver
    token = link_token(world, person)
    behind_tls = TestClient(
        world[1], base_url="https://testserver", headers={"origin": "https://testserver"}
    )
    cookie = behind_tls.post("/sign-in", data={"token": token}, follow_redirects=False).headers
    assert "Secure" in cookie["set-cookie"]


@pytest.mark.parametrize(
    "foreign", ['prefs={"x": 1}', "name=Zoë".encode(), "said=two words", "foo", "=", "a[1]=2", ""]
)
def test_cookies_of_another_program_at_this_host_sign_nobody_out(world, person, foreign):
    foreign = foreign if isinstance(foreign, bytes) else foreign.encode()
    ours = session_cookie(world[1], world[0], person)["cookie"].encode()

    for cookies in (foreign + b"; " + ours, ours + b"; " + foreign):
        client = TestClient(world[1], headers={"cookie": cookies})
        assert client.get("/label/api/progress").status_code == 200, cookies
    assert not signed_in(TestClient(world[1], headers={"cookie": foreign}))


def test_a_link_signs_in_once(world, browser, person):
    link = world[1].state.sign_in_url(person)
    form = {"token": link.partition("token=")[2].partition("&")[0], "next": "/label/"}
    assert browser.post("/sign-in", data=form).status_code == 303

    stranger = TestClient(world[1], headers=ORIGIN, follow_redirects=False)
    assert stranger.get(link).status_code == 401
    again = stranger.post("/sign-in", data=form)
    assert (again.status_code, "launch.py link" in again.text) == (401, True)
    assert not signed_in(stranger)
    # Whoever opens it again in the browser that it signed in goes where it leads.
    assert browser.get(link).headers["location"] == "/label/"

    fresh = world[1].state.sign_in_url(person)
    token = fresh.partition("token=")[2].partition("&")[0]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(world[1].state.auth.use_link, [token] * 8))
    assert [who.id for who in found if who] == [person.id]


def test_a_wrong_link_signs_nobody_in(browser):
    assert browser.get("/sign-in?token=wrong").status_code == 401
    assert browser.post("/sign-in", data={"token": "wrong"}).status_code == 401
    assert not signed_in(browser)


def test_an_invite_sets_a_password_once(world, browser, person):
    token = invite_token(world, person)
    form = {"token": token, "password": GOOD, "again": GOOD}
    assert person.name in browser.get(f"/invite?token={token}").text

    short = browser.post("/invite", data={**form, "password": "short", "again": "short"})
    assert (short.status_code, "at least" in short.text) == (422, True)
    differ = browser.post("/invite", data={**form, "again": "something else"})
    assert (differ.status_code, "do not match" in differ.text) == (422, True)
    assert not signed_in(browser)
    assert browser.post("/invite", data=form).status_code == 303
    assert signed_in(browser)
    assert browser.post("/invite", data=form).status_code == 410


NEW = "a new pass phrase"


def test_a_person_changes_their_own_password(world, browser, person, hashed):
    db, app = world
    have_password(db, person, hashed)
    script = bearer(db, person)
    elsewhere = TestClient(app, headers=ORIGIN, follow_redirects=False)
    for each in (browser, elsewhere):
        each.post("/sign-in", data={"name": person.name, "password": GOOD})
    form = {"old": GOOD, "password": NEW, "again": NEW}
    assert person.name in browser.get("/label/password").text

    refused = {
        "do not match": {**form, "again": "another one"},
        "current password is wrong": {**form, "old": "not the old one"},
        "at least": {**form, "password": "short", "again": "short"},
    }
    for sentence, bad in refused.items():
        assert sentence in browser.post("/label/password", data=bad).text
    assert signed_in(elsewhere)

    assert browser.post("/label/password", data=form).headers["location"] == "/label/"
    assert signed_in(browser)
    assert not signed_in(elsewhere)
    assert elsewhere.get("/label/api/progress", headers=script).status_code == 401
    for password, status in {GOOD: 401, NEW: 303}.items():
        again = elsewhere.post("/sign-in", data={"name": person.name, "password": password})
        assert again.status_code == status


def test_guessing_the_current_password_is_limited(world, browser, person, hashed):
    have_password(world[0], person, hashed)
    browser.cookies.set(*next(iter(session_cookie(world[1], world[0], person).values())).split("="))
    form = {"old": "wrong", "password": NEW, "again": NEW}
    answers = [browser.post("/label/password", data=form).text for _ in range(6)]
    assert "current password is wrong" in answers[0]
    assert "Too many failed attempts" in answers[5]
    assert annotators.get(world[0], person.id).password_hash == hashed


def test_an_account_without_a_password_has_none_to_change(world, browser, person):
    browser.post("/sign-in", data={"token": link_token(world, person)})
    assert "has no password" in browser.get("/label/password").text
    form = {"old": "", "password": NEW, "again": NEW}
    browser.post("/label/password", data=form)
    assert annotators.get(world[0], person.id).password_hash is None


def test_a_used_invite_sends_its_owner_on_and_tells_strangers_whom_to_ask(
    world, browser, person, hashed
):
    db, app = world
    token = invite_token(world, person)
    other = add_person(db, f"Ben {uuid.uuid4()}")
    theirs = TestClient(app, headers=session_cookie(app, db, other), follow_redirects=False)
    assert person.name in theirs.get(f"/invite?token={token}").text  # unused: whoever opens it
    assert annotators.accept_invite(db, token, password_hash=hashed)

    stranger = browser.get(f"/invite?token={token}")
    assert stranger.status_code == 410
    assert "already used or has expired" in stranger.text
    assert "Ask a researcher for a new invite link." in stranger.text
    assert "launch.py" not in stranger.text

    sent_on = theirs.get(f"/invite?token={token}")
    assert (sent_on.status_code, sent_on.headers["location"]) == (303, "/")
    assert "set-cookie" not in sent_on.headers
    assert theirs.get("/label/api/progress").json()["annotator"]["id"] == other.id


def test_a_mistyped_address_gets_a_page_in_a_browser_and_json_elsewhere(browser):
    shown = browser.get("/lable", headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert shown.status_code == 404
    assert shown.headers["content-type"].startswith("text/html")
    assert 'href="/"' in shown.text
    assert "This page does not exist." in shown.text
    assert "lable" not in shown.text
    assert "default-src 'none'" in shown.headers["content-security-policy"]
    for headers in ({"accept": "application/json"}, {"accept": "*/*"}):
        told = browser.get("/lable", headers=headers)
        assert (told.status_code, told.json()) == (404, {"error": "This address does not exist."})


def test_a_password_signs_in_and_another_does_not(world, browser, person, hashed):
    have_password(world[0], person, hashed)

    wrong = browser.post("/sign-in", data={"name": person.name, "password": GOOD + " "})
    assert (wrong.status_code, "password is wrong" in wrong.text) == (401, True)
    nobody = browser.post("/sign-in", data={"name": "nobody at all", "password": GOOD})
    assert (nobody.status_code, "password is wrong" in nobody.text) == (401, True)
    assert not signed_in(browser)

    assert browser.post("/sign-in", data={"name": person.name, "password": GOOD}).status_code == 303
    assert signed_in(browser)


def test_five_failures_lock_the_name_even_for_the_right_password(world, browser, person, hashed):
    have_password(world[0], person, hashed)
    for _ in range(4):
        world[1].state.auth.lockout.attempt(person.name)
    browser.post("/sign-in", data={"name": person.name, "password": "wrong"})

    locked = browser.post("/sign-in", data={"name": person.name, "password": GOOD})
    assert (locked.status_code, "Too many" in locked.text) == (401, True)

    # A new invite (a reset) opens it again.
    form = {"token": invite_token(world, person), "password": GOOD, "again": GOOD}
    assert browser.post("/invite", data=form).status_code == 303


def client_at(world, address, headers=ORIGIN):
    """A browser at an address of its own."""
    return TestClient(world[1], client=(address, 50_000), headers=headers, follow_redirects=False)


def sign_in(browser, name, password=GOOD):
    return browser.post("/sign-in", data={"name": name, "password": password})


def test_strangers_cannot_keep_the_owner_of_a_name_out(world, person, hashed):
    have_password(world[0], person, hashed)
    own = client_at(world, "192.0.2.1")
    assert sign_in(own, person.name).status_code == 303
    own.post("/sign-out")
    told = [
        sign_in(client_at(world, f"198.51.100.{i}"), person.name, "wrong").text for i in range(9)
    ]
    # Many addresses make no more guesses at one name than one does.
    assert ["password is wrong" in text for text in told] == [True] * 5 + [False] * 4
    assert "Too many" in sign_in(client_at(world, "203.0.113.9"), person.name).text

    assert sign_in(own, person.name).status_code == 303

    # The browser that is known has a lock of its own, so a stolen cookie is no way around.
    own.post("/sign-out")
    told = [sign_in(own, person.name, "wrong").text for _ in range(6)]
    assert ["password is wrong" in text for text in told] == [True] * 5 + [False]


def test_the_cookie_of_a_known_browser_is_one_names_and_one_passwords(world, person, hashed):
    db, app = world
    known = have_password(db, person, hashed)
    other = have_password(db, add_person(db, "Somebody with another name"), hashed)
    browsers = app.state.auth.browsers
    value = browsers.mark(known)
    assert browsers.recognize(known, value) == value.partition(".")[0]
    for wrong in ("", ".", "x", value + "0", "x" + value, value.partition(".")[0] + "."):
        assert browsers.recognize(known, wrong) is None
    assert browsers.recognize(other, value) is None
    changed = have_password(db, known, hash_password(GOOD))
    assert browsers.recognize(changed, value) is None

    answer = sign_in(client_at(world, "192.0.2.2"), person.name)
    [cookie] = [c for c in answer.headers.get_list("set-cookie") if "-known-" in c]
    assert all(part in cookie for part in ("HttpOnly", "SameSite=strict", "Path=/sign-in"))


def test_a_flood_of_wrong_passwords_keeps_out_neither_a_known_browser_nor_another_address(
    world, person, hashed
):
    have_password(world[0], person, hashed)
    known = client_at(world, "192.0.2.3")
    assert sign_in(known, person.name).status_code == 303
    known.post("/sign-out")
    stop = threading.Event()

    def flood(number):
        stranger = client_at(world, "203.0.113.66")
        for i in itertools.count():
            if stop.is_set():
                return
            sign_in(stranger, f"nobody {number} {i}", "wrong")

    strangers = [threading.Thread(target=flood, args=(i,)) for i in range(12)]
    for thread in strangers:
        thread.start()
    try:
        statuses = []
        for _ in range(4):
            statuses.append(sign_in(known, person.name).status_code)
            known.post("/sign-out")
        # Once the flood has used up what its address may send:
        while sign_in(client_at(world, "203.0.113.66"), "n", "w").status_code != 429:
            time.sleep(0.1)
        time.sleep(2)
        new = [sign_in(client_at(world, f"192.0.2.{i}"), person.name) for i in range(10, 14)]
    finally:
        stop.set()
        for thread in strangers:
            thread.join()
    assert statuses == [303] * 4
    assert [answer.status_code for answer in new] == [303] * 4
    # The address has gained an attempt every six seconds while the others stopped: these go first.
    while sign_in(client_at(world, "203.0.113.66"), "n", "w").status_code != 429:
        pass
    refused = sign_in(client_at(world, "203.0.113.66"), person.name)
    assert (refused.status_code, int(refused.headers["retry-after"]) > 0) == (429, True)


def test_an_address_has_twenty_wrong_passwords_then_one_in_six_seconds():
    seconds = [0.0]
    allowance = Allowance(clock=lambda: seconds[0])
    assert [allowance.take("192.0.2.1") for _ in range(20)] == [0] * 20
    assert allowance.take("192.0.2.1") == 6
    assert allowance.take("::ffff:192.0.2.1") == 6  # the same, written as IPv6
    assert allowance.take("192.0.2.2") == 0
    seconds[0] = 6
    assert allowance.take("192.0.2.1") == 0
    assert allowance.take("192.0.2.1") == 6
    allowance.give_back("192.0.2.1")  # a right one
    assert allowance.take("192.0.2.1") == 0
    # Whoever has an IPv6 address has 2^64 of them.
    assert [allowance.take(f"2001:db8::{i:x}") for i in range(21)] == [0] * 20 + [6]
    assert allowance.take("2001:db8:0:1::1") == 0


def test_a_flood_of_addresses_is_remembered_in_bounds():
    allowance = Allowance(clock=lambda: 0.0)
    for i in range(allowance.ADDRESSES + 100):
        allowance.take(f"stranger {i}")
    assert len(allowance._full_at) == allowance.ADDRESSES


def test_the_pause_doubles_and_ends():
    seconds = [0.0]
    lockout = Lockout(clock=lambda: seconds[0])
    assert [lockout.attempt("ann") for _ in range(5)] == [0] * 5
    assert lockout.attempt("ann") == 60
    assert lockout.attempt("ben") == 0
    seconds[0] = 61
    assert lockout.attempt("ann") == 0  # the sixth
    assert lockout.attempt("ann") == 120
    lockout.succeeded("ann")
    assert lockout.attempt("ann") == 0


def test_a_flood_of_names_does_not_free_one_that_waits():
    lockout = Lockout(clock=lambda: 0.0)
    for _ in range(5):
        lockout.attempt("ann")
    for stranger in range(Lockout.NAMES):
        assert lockout.attempt(f"name {stranger}") == 0
    assert lockout.attempt("ann") == 60
    assert len(lockout._failures) == Lockout.NAMES


def test_in_a_table_full_of_failures_a_new_name_still_counts():
    lockout = Lockout(clock=lambda: 0.0)
    for stranger in range(Lockout.NAMES):
        for _ in range(2):
            lockout.attempt(f"name {stranger}")
    # Two names in turn: neither may push the other out.
    waits = [(lockout.attempt("ann"), lockout.attempt("ben")) for _ in range(6)]
    assert waits == [(0, 0)] * 5 + [(60, 60)]


def test_an_attempt_without_an_answer_changes_nothing():
    seconds = [0.0]
    lockout = Lockout(clock=lambda: seconds[0])
    lockout.attempt("ann")
    lockout.forgive("ann")
    assert not lockout._failures
    for _ in range(5):
        lockout.attempt("ann")
    seconds[0] = 61  # the pause has ended
    assert lockout.attempt("ann") == 0
    lockout.forgive("ann")
    assert lockout.attempt("ann") == 0


def test_the_pause_never_grows_beyond_an_hour():
    seconds = [0.0]
    lockout = Lockout(clock=lambda: seconds[0])
    for _ in range(2000):
        assert lockout.attempt("ann") == 0
        seconds[0] += 3600
    seconds[0] -= 3599
    assert lockout.attempt("ann") == 3599


def test_guesses_at_once_are_no_more_than_guesses_one_by_one():
    lockout = Lockout(clock=lambda: 0.0)
    with ThreadPoolExecutor(20) as pool:
        waits = list(pool.map(lambda _: lockout.attempt("ann"), range(40)))
    assert waits.count(0) == 5


def test_a_crowd_at_the_door_is_turned_away_at_once(hashed):
    with ThreadPoolExecutor(30) as pool:
        tries = [pool.submit(check_password, GOOD, hashed) for _ in range(30)]
    turned_away = [t for t in tries if isinstance(t.exception(), Busy)]
    assert turned_away
    assert all(t.result() for t in tries if t not in turned_away)


def test_an_origin_that_is_no_address_is_refused(browser):
    headers = {"Origin": "http://[::1"}
    answer = browser.post("/sign-in", data={"name": "x", "password": "y"}, headers=headers)
    assert answer.status_code == 403


def test_a_reset_ends_every_session_and_token(world, person):
    db, app = world
    cookie, script = session_cookie(app, db, person), bearer(db, person)
    for headers in (cookie, script):
        assert TestClient(app, headers=headers).get("/label/api/progress").status_code == 200

    app.state.auth.set_password(invite_token(world, person), GOOD)

    for headers in (cookie, script):
        assert TestClient(app, headers=headers).get("/label/api/progress").status_code == 401


def test_an_account_that_is_disabled_while_an_invite_is_accepted_stays_disabled(
    world, person, monkeypatch
):
    db, app = world

    def disabled_meanwhile(password):
        annotators.set_disabled(db, person.id, disabled=True)
        return hash_password(password)

    monkeypatch.setattr("labeler.security.auth.hash_password", disabled_meanwhile)
    with pytest.raises(SignInRefused, match="already used or has expired"):
        app.state.auth.set_password(invite_token(world, person), GOOD)
    found = annotators.get(db, person.id)
    assert (found.disabled, found.password_hash) == (True, None)


def test_sign_out_makes_the_cookie_worthless(world, person):
    db, app = world
    headers = {**session_cookie(app, db, person), **ORIGIN}
    browser = TestClient(app, headers=headers, follow_redirects=False)
    assert signed_in(browser)
    assert browser.post("/sign-out").headers["location"] == "/sign-in"
    assert not signed_in(browser)


def test_a_disabled_person_is_out_everywhere(world, person, hashed):
    db, app = world
    have_password(db, person, hashed)
    clients = [
        TestClient(app, headers=bearer(db, person)),
        TestClient(app, headers=session_cookie(app, db, person)),
    ]
    # Without the end of their secrets, which would be enough by itself.
    db.write(lambda tx: tx.store(replace(annotators.get(db, person.id), disabled=True)))
    for client in clients:
        assert client.get("/label/api/progress").status_code == 401
    browser = TestClient(app, headers=ORIGIN)
    assert browser.post("/sign-in", data={"name": person.name, "password": GOOD}).status_code == 401


def test_kinds_of_secrets_are_not_interchangeable(world, person):
    db, app = world
    cookie_name = app.state.auth.cookie
    api = tokens.issue(db, person.id, "api", lifetime=None)
    session = tokens.issue(db, person.id, "session", lifetime=None)
    invite = tokens.issue(db, person.id, "invite", lifetime=None)

    for wrong in (session, invite, "", "x"):
        headers = {"authorization": f"Bearer {wrong}"}
        assert TestClient(app, headers=headers).get("/label/api/progress").status_code == 401
    for wrong in (api, invite, ""):
        headers = {"cookie": f"{cookie_name}={wrong}"}
        assert TestClient(app, headers=headers).get("/label/api/progress").status_code == 401
    # A wrong bearer token is not rescued by a good cookie.
    both = {"authorization": "Bearer x", "cookie": f"{cookie_name}={session}"}
    assert TestClient(app, headers=both).get("/label/api/progress").status_code == 401


def test_a_proxy_that_asks_for_a_password_of_its_own_signs_nobody_out(world, person):
    db, app = world
    cookie = session_cookie(app, db, person)
    for authorization in ("Basic dXNlcjpwYXNz", "Negotiate abc", ""):
        headers = cookie | {"authorization": authorization}
        assert TestClient(app, headers=headers).get("/label/api/progress").status_code == 200
        alone = {"authorization": authorization}
        assert TestClient(app, headers=alone).get("/label/api/progress").status_code == 401
    # A token without a value is a wrong one.
    for authorization in ("Bearer", "Bearer "):
        headers = cookie | {"authorization": authorization}
        assert TestClient(app, headers=headers).get("/label/api/progress").status_code == 401


@pytest.mark.parametrize(
    "origin", [None, "null", "https://evil.example", "http://testserver.evil.example", "http://x@"]
)
def test_a_post_from_elsewhere_is_not_carried_out(world, person, origin):
    db, app = world
    headers = session_cookie(app, db, person) | ({"origin": origin} if origin else {})
    client = TestClient(app, headers=headers, follow_redirects=False)
    pair = client.get("/label/api/next", params={"n": 1}).json()["pairs"][0]
    act = {"id": "6a6c3d4e-0c5b-4c8e-9b1a-5f0f4e2d1c3b", "comparison": pair["id"]}

    assert client.post("/label/api/skip", json=act).status_code == 403
    assert client.post("/sign-out").status_code == 403
    assert signed_in(client)


def test_with_accounts_a_link_is_an_invite_and_later_the_sign_in_page(world, person, hashed):
    db, _ = world
    auth = Auth(db, accounts_required=True, public_url="https://label.example")

    assert auth.sign_in_url(person).startswith("https://label.example/invite?token=")
    known = have_password(db, person, hashed)
    assert auth.sign_in_url(known) == "https://label.example/sign-in?next=/label/"


def test_no_redirect_leaves_the_site(world, browser, person):
    for target in (
        "https://evil.example", "//evil.example", "/\\evil.example", "/sign-out",
        "/research/?next=//evil.example", "/research/?a=1\r\nSet-Cookie: a=b", "/research/x?tab=data",
    ):  # fmt: skip
        form = {"token": link_token(world, person), "next": target}
        answer = browser.post("/sign-in", data=form)
        assert answer.headers["location"] == "/"


def test_a_signed_out_researcher_comes_back_to_the_tab_and_run(world, browser, person):
    wanted = "/research/?tab=runs&run=run-1"
    asked = browser.get(wanted, headers={"Accept": "text/html"})
    assert asked.status_code == 401
    assert 'name="next" value="/research/?tab=runs&amp;run=run-1"' in asked.text
    form = {"token": link_token(world, person), "next": wanted}
    assert browser.post("/sign-in", data=form).headers["location"] == wanted


def test_names_are_text_not_markup(world, browser):
    person = add_person(world[0], "<b onmouseover=alert(1)>Eve</b>")

    shown = browser.get(world[1].state.sign_in_url(person)).text

    assert "<b onmouseover" not in shown
    assert "&lt;b onmouseover=alert(1)&gt;Eve" in shown
    failed = browser.post("/sign-in", data={"name": '"><script>', "password": "x"}).text
    assert "<script>" not in failed


def test_hashes_are_salted_and_say_how_they_were_made(hashed):
    one, other = hashed, hash_password(GOOD)

    assert one != other
    assert one.startswith("$argon2id$v=19$m=65536,t=3,p=1$")
    assert not needs_rehash(one)
    assert check_password(GOOD, one)
    assert not check_password(GOOD + "x", other)
    assert not check_password("", None)
    assert not check_password("\ud800" * 12, one)  # no UTF-8, and a browser can send it


def scrypt_hash(password: str) -> str:
    """A hash as earlier versions stored it."""
    salt = bytes(range(16))
    derived = hashlib.scrypt(password.encode(), salt=salt, n=2**15, r=8, p=3, maxmem=2**27)
    salt_text, text = (base64.b64encode(each).decode() for each in (salt, derived))
    return f"scrypt$32768$8$3${salt_text}${text}"


@pytest.mark.parametrize("password", [GOOD, "ten-chars!"])  # both lengths were allowed once
def test_a_scrypt_hash_is_replaced_at_sign_in_and_sessions_stay(world, person, browser, password):
    db, app = world
    old = scrypt_hash(password)
    have_password(db, person, old)
    session = session_cookie(app, db, person)
    form = {"name": person.name, "password": password}

    assert browser.post("/sign-in", data=form | {"password": "wrong one here"}).status_code == 401
    assert annotators.get(db, person.id).password_hash == old
    assert browser.post("/sign-in", data=form).status_code == 303

    renewed = annotators.get(db, person.id).password_hash
    assert renewed.startswith("$argon2id$")
    assert check_password(password, renewed)
    assert signed_in(TestClient(app, headers=session))
    assert browser.post("/sign-in", data=form).status_code == 303
    assert annotators.get(db, person.id).password_hash == renewed


def test_a_scrypt_hash_stays_when_the_password_changed_meanwhile(world, person, hashed):
    db, _ = world
    before = have_password(db, person, scrypt_hash(GOOD))
    changed = have_password(db, person, hashed)
    assert annotators.replace_password_hash(db, before, "$argon2id$other") == before
    assert annotators.get(db, person.id) == changed


def test_home_leads_each_to_his_page(world):
    db, app = world
    boss = add_person(db, "boss", "researcher")
    worker = add_person(db, "worker")
    for headers, target in (
        ({}, "/sign-in"),
        (session_cookie(app, db, worker), "/label/"),
        (session_cookie(app, db, boss), "/research/"),
    ):
        client = TestClient(app, headers=headers, follow_redirects=False)
        assert client.get("/").headers["location"] == target


def test_a_secret_in_use_ends_at_once_through_the_admin_route(tmp_path):
    def disable(_command, arguments):
        annotators.set_disabled(db, arguments["id"], disabled=True)

    with workspace(tmp_path) as db:
        app = make_app(db, admin=disable)
        ben = add_person(db, "Ben")
        script = TestClient(app, headers=bearer(db, ben))
        assert script.get("/label/api/progress").status_code == 200  # from now on remembered

        call = {"command": "users disable", "arguments": {"id": ben.id}}
        admin = {"authorization": f"Bearer {ADMIN_TOKEN}"}
        assert TestClient(app).post("/admin/api/call", json=call, headers=admin).status_code == 200

        assert script.get("/label/api/progress").status_code == 401


def test_a_good_secret_is_looked_up_once_and_a_change_to_a_person_counts_at_once(
    world, browser, person, monkeypatch
):
    db, _ = world
    browser.headers |= bearer(db, person)
    looks = []
    check = tokens.check
    monkeypatch.setattr(tokens, "check", lambda *a: looks.append(a) or check(*a))
    assert [signed_in(browser) for _ in range(3)] == [True] * 3
    assert len(looks) == 1
    # By whatever way it comes: here by none of the application's.
    annotators.set_disabled(db, person.id, disabled=True)
    assert not signed_in(browser)
