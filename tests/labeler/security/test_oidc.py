"""Sign-in by OpenID Connect, against a real provider on loopback: who gets in, and what is refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey
from starlette.testclient import TestClient

from labeler.security import oidc
from labeler.security.addresses import Addresses
from labeler.security.oidc import Provider
from labeler.security.oidc_settings import OidcSettings, read
from labeler.security.passwords import hash_password
from storage.engine.database import Database
from storage.tables.people import annotators, identities, tokens
from tests.helpers.browser import chromium, new_page, wait_for_pair
from tests.helpers.desk_world import add_person, make_app, serving, workspace
from tests.helpers.openid import CLIENT, SECRET, OpenId, provider

ORIGIN = {"origin": "http://testserver"}


@pytest.fixture(scope="module")
def openid() -> Iterator[OpenId]:
    with provider() as found:
        yield found


@pytest.fixture(autouse=True)
def honest(openid: OpenId) -> Iterator[None]:
    yield
    openid.forge, openid.down = None, False


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with workspace(tmp_path_factory.mktemp("oidc")) as found:
        add_person(found, "Owner", "researcher")
        yield found


def settings(openid: OpenId, **more: Any) -> OidcSettings:
    given = {
        "name": "Example",
        "issuer": openid.issuer,
        "client_id": CLIENT,
        "client_secret": SECRET,
    }
    return OidcSettings(**(given | more))


@pytest.fixture(scope="module")
def app(db: Database, openid: OpenId) -> Any:
    """The application; `use` gives it other settings."""
    return make_app(db, oidc=settings(openid))


@pytest.fixture
def use(app, openid, monkeypatch):
    """Give the application's provider other settings, such as `unknown="create"`."""
    [kept] = {id(o): o for o in _providers(app)}.values()

    def change(**more: Any) -> Provider:
        monkeypatch.setattr(kept, "settings", settings(openid, **more))
        kept._keys = None
        return kept

    change(unknown="create", allowed_domains=["*"])
    return change


def _providers(app: Any) -> Iterator[Provider]:
    for route in app.routes:
        inner = getattr(getattr(route, "original_router", None), "routes", [route])
        for each in inner:
            for cell in getattr(getattr(each, "endpoint", None), "__closure__", None) or ():
                if isinstance(cell.cell_contents, Provider):
                    yield cell.cell_contents


@pytest.fixture
def browser(app) -> TestClient:
    return TestClient(app, headers=ORIGIN, follow_redirects=False)


@pytest.fixture
def subject() -> str:
    return f"sub-{uuid.uuid4().hex[:8]}"


def started(browser: TestClient, **query: str) -> str:
    """The address at the provider that the browser is sent to."""
    answer = browser.get("/sign-in/oidc", params=query)
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def consented(address: str, subject: str) -> str:
    """The callback's path and query after this person signed in at the provider."""
    answer = httpx.post(address, data={"sub": subject})
    assert answer.status_code == 302, answer.text
    parts = urlsplit(answer.headers["location"])
    assert parts.path == "/sign-in/oidc/callback"
    return f"{parts.path}?{parts.query}"


def sign_in(browser: TestClient, subject: str, **query: str) -> Any:
    return browser.get(consented(started(browser, **query), subject))


def who(browser: TestClient) -> str | None:
    answer = browser.get("/label/api/progress")
    return answer.json()["annotator"]["name"] if answer.status_code == 200 else None


def refused(answer: Any, sentence: str, status: int = 403) -> None:
    assert (answer.status_code, sentence in answer.text) == (status, True), answer.text[-900:]
    assert '<form method="post" action="/sign-in">' in answer.text
    assert not any("kitestring-" in c and "sign-in" not in c for c in _cookies(answer))


def _cookies(answer: Any) -> list[str]:
    return [c.split("=")[0] for c in answer.headers.get_list("set-cookie")]


def unsealed(cookie: str) -> dict[str, Any]:
    body = cookie.partition(".")[0]
    return json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))


# Getting in


def test_a_new_person_gets_an_account_and_keeps_it(browser, openid, subject, use, db, app):
    use(unknown="create", allowed_domains=["example.org"])
    openid.person(subject, name="Ana Díaz", email="ana@example.org", email_verified=True)
    answer = sign_in(browser, subject, next="/label/")
    assert (answer.status_code, answer.headers["location"]) == (303, "/label/")
    assert who(browser) == "Ana Díaz"
    person = annotators.by_name(db, "Ana Díaz")
    assert person is not None
    assert (person.role, person.password_hash) == ("annotator", None)
    # Another name and address there: the same account here.
    openid.person(subject, name="Ana López", email="lopez@example.org", email_verified=True)
    again = TestClient(app, headers=ORIGIN, follow_redirects=False)
    assert sign_in(again, subject).status_code == 303
    assert who(again) == "Ana Díaz"
    assert browser.post("/sign-out").status_code == 303
    assert who(browser) is None
    assert who(again) == "Ana Díaz"


def test_the_request_has_state_nonce_and_a_challenge_and_the_secret_is_not_in_it(
    browser, openid, subject, use
):
    use(unknown="create", allowed_domains=["*"])
    address = started(browser)
    asked = {k: v[0] for k, v in parse_qs(urlsplit(address).query).items()}
    assert asked["response_type"] == "code"
    assert (asked["client_id"], asked["scope"]) == (CLIENT, "openid profile email")
    assert asked["redirect_uri"] == "http://testserver/sign-in/oidc/callback"
    assert asked["code_challenge_method"] == "S256"
    assert min(len(asked[name]) for name in ("state", "nonce", "code_challenge")) >= 43
    assert SECRET not in address
    assert started(browser) != address
    openid.asked.clear()
    assert sign_in(browser, subject).status_code == 303
    [(_, body, headers)] = [each for each in openid.asked if each[0] == "/oauth2/token"]
    assert len(body["code_verifier"]) >= 43
    assert "client_secret" not in body
    basic = base64.b64decode(headers["authorization"].removeprefix("Basic ")).decode()
    assert basic == f"{CLIENT}:{SECRET}"


def test_a_taken_name_is_never_taken_over(browser, openid, subject, use, db):
    taken = add_person(db, "Taken", "researcher")
    use(unknown="create", allowed_domains=["*"], match_email=True)
    openid.person(subject, name="Taken", email="Taken", email_verified=True)
    assert sign_in(browser, subject).status_code == 303
    assert who(browser) == "Taken (2)"
    made = annotators.by_name(db, "Taken (2)")
    assert made is not None
    assert (made.role, made.id != taken.id) == ("annotator", True)


def test_an_invite_links_the_account(browser, openid, subject, use, db, app):
    use()  # unknown people are refused
    openid.person(subject, name="Somebody", email="x@example.org")
    refused(sign_in(browser, subject), "You have no account here.")
    ines = add_person(db, "Ines")
    script = tokens.issue(db, ines.id, "api", lifetime=None)
    invite = tokens.issue_invite(db, ines.id, address="").partition("token=")[2]
    page = browser.get(f"/invite?token={invite}").text
    assert f"/sign-in/oidc?invite={invite}" in page
    assert "Continue with Example" in page
    assert sign_in(browser, subject, invite=invite).status_code == 303
    assert who(browser) == "Ines"
    assert tokens.check(db, script, ("api",)) is None
    again = TestClient(app, headers=ORIGIN, follow_redirects=False)
    refused(sign_in(again, f"{subject}-2", invite=invite), "already used or has expired")
    assert sign_in(again, subject).status_code == 303
    assert who(again) == "Ines"
    # The account there opens no second one here.
    other = add_person(db, "Other than Ines")
    invite = tokens.issue_invite(db, other.id, address="").partition("token=")[2]
    refused(sign_in(again, subject, invite=invite), "already opens another account")
    assert tokens.check(db, invite, ("invite",)) == other


def test_an_unused_account_with_the_verified_address_as_its_name(
    browser, openid, subject, use, db, app
):
    add_person(db, "mia@example.org", "viewer")
    for verified, more, name in (
        (True, {}, None),  # not switched on
        (False, {"match_email": True}, None),
        (None, {"match_email": True}, None),
        (True, {"match_email": True}, "mia@example.org"),
    ):
        use(**more)
        client = TestClient(app, headers=ORIGIN, follow_redirects=False)
        openid.person(subject, email="Mia@example.org", email_verified=verified)
        answer = sign_in(client, subject)
        assert answer.status_code == (303 if name else 403)
    assert client.get("/").headers["location"] == "/research/"
    openid.person(f"{subject}-2", email="mia@example.org", email_verified=True)
    refused(sign_in(browser, f"{subject}-2"), "You have no account here.")  # it is in use now


def test_an_account_with_a_password_is_not_matched_by_address(browser, openid, subject, use, db):
    use(match_email=True)
    person = add_person(db, "lea@example.org")
    invite = tokens.issue(db, person.id, "invite", lifetime=None)
    annotators.accept_invite(db, invite, password_hash="h")
    openid.person(subject, email="lea@example.org", email_verified=True)
    refused(sign_in(browser, subject), "You have no account here.")


def test_groups_give_roles_at_every_sign_in(browser, openid, subject, use, db):
    roles = {"lab": "researcher", "guests": "viewer"}
    use(unknown="create", roles=roles, roles_claim="realm_access.roles")
    for groups, role in (
        (["x", "guests"], "viewer"),
        (["guests", "lab"], "researcher"),
        (["guests"], "viewer"),
    ):
        openid.person(subject, name=subject, realm_access={"roles": groups})
        assert sign_in(browser, subject).status_code == 303
        found = annotators.by_name(db, subject)
        assert found is not None
        assert found.role == role
    openid.person(subject, name=subject, realm_access={"roles": ["x"]})
    refused(sign_in(browser, subject), "may not sign in here")
    use(unknown="create", roles=roles, default_role="annotator")
    openid.person(f"{subject}-2", name=f"{subject}-2")
    assert sign_in(browser, f"{subject}-2").status_code == 303
    assert who(browser) == f"{subject}-2"


def test_the_only_researcher_keeps_the_role(tmp_path, openid, subject):
    with workspace(tmp_path) as db:
        app = make_app(
            db, oidc=settings(openid, unknown="create", roles={"lab": "researcher", "g": "viewer"})
        )
        browser = TestClient(app, headers=ORIGIN, follow_redirects=False)
        for groups in (["lab"], ["g"]):
            openid.person(subject, name="Only", groups=groups)
            assert sign_in(browser, subject).status_code == 303
        found = annotators.by_name(db, "Only")
        assert found is not None
        assert found.role == "researcher"


# Being refused


@pytest.mark.parametrize(
    "claims",
    [
        {"email": "a@evil.example", "email_verified": True},
        {"email": "a@sub.example.org", "email_verified": True},
        {"email": "a@example.org@evil.example", "email_verified": True},
        {"email": "a@example.org", "email_verified": False},
        {"email": "a@example.org", "email_verified": "false"},
        {"email": "a@example.org", "email_verified": 1.5},
        {"email": "a@example.org"},
        {"email": ["a@example.org"], "email_verified": True},
        {},
    ],
)
def test_domains_that_are_not_allowed_and_addresses_that_are_not_verified(
    browser, openid, subject, use, claims, db
):
    use(unknown="create", allowed_domains=["example.org"])
    openid.person(subject, name="Eve", **claims)
    refused(sign_in(browser, subject), "Your account at Example may not sign in here.")
    assert (
        identities.owner(
            db,
            issuer=openid.issuer,
            subject=subject,
        )
        is None
    )


def test_a_claim_that_is_required(browser, openid, subject, use):
    use(unknown="create", required_claims={"hd": "example.org", "level": 1})
    for claims, status in (
        ({"hd": "example.org", "level": True}, 403),
        ({"hd": "gmail.com", "level": 1}, 403),
        ({"hd": "example.org"}, 403),
        ({"hd": ["x", "example.org"], "level": 1}, 303),
    ):
        openid.person(subject, name=subject, **claims)
        assert sign_in(browser, subject).status_code == status


def test_a_disabled_account(browser, openid, subject, use, db):
    use(unknown="create", allowed_domains=["*"])
    openid.person(subject, name=subject)
    assert sign_in(browser, subject).status_code == 303
    person = annotators.by_name(db, subject)
    assert person is not None
    annotators.set_disabled(db, person.id, disabled=True)
    assert who(browser) is None
    refused(sign_in(browser, subject), "Your account here is disabled.")


def test_another_state_another_browser_and_a_second_time(browser, openid, subject, app, use):
    use(unknown="create", allowed_domains=["*"])
    sentence = "This sign-in was started in another browser"
    callback = consented(started(browser), subject)
    stranger = TestClient(app, headers=ORIGIN, follow_redirects=False)
    refused(stranger.get(callback), sentence)
    state = parse_qs(urlsplit(callback).query)["state"][0]
    for wrong in ("", "x", state[:-1], state + "x"):
        trying = TestClient(app, headers=ORIGIN, follow_redirects=False, cookies=browser.cookies)
        refused(trying.get(callback.replace(state, wrong)), sentence)
    cookies = dict(browser.cookies)
    assert browser.get(callback).status_code == 303
    copied = TestClient(app, headers=ORIGIN, follow_redirects=False, cookies=cookies)
    openid.asked.clear()
    refused(copied.get(callback), sentence)
    assert not [path for path, *_ in openid.asked if path == "/oauth2/token"]


def test_a_cookie_that_was_changed_or_is_old(browser, subject, app, use, monkeypatch):
    kept = use(unknown="create", allowed_domains=["*"])
    callback = consented(started(browser), subject)
    [name] = browser.cookies
    value = browser.cookies[name]
    body, _, signature = value.partition(".")
    flow = unsealed(value)
    longer = (
        base64.urlsafe_b64encode(json.dumps(flow | {"expires": 1e12}).encode()).decode().rstrip("=")
    )
    for wrong in ("", "x", f"{longer}.{signature}", f"{body}.", body):
        trying = TestClient(app, headers=ORIGIN, follow_redirects=False, cookies={name: wrong})
        refused(trying.get(callback), "more than ten minutes ago")
    monkeypatch.setattr(kept, "_clock", lambda: time.time() + oidc.FLOW_SECONDS + 1)
    refused(browser.get(callback), "more than ten minutes ago")


def test_a_code_that_was_used(browser, subject, use):
    use(unknown="create", allowed_domains=["*"])
    first = consented(started(browser), subject)
    code = parse_qs(urlsplit(first).query)["code"][0]
    assert browser.get(first).status_code == 303
    browser.post("/sign-out")
    second = consented(started(browser), subject)
    own = parse_qs(urlsplit(second).query)["code"][0]
    refused(browser.get(second.replace(own, code)), "Example did not sign you in.")
    assert who(browser) is None


def test_a_code_of_another_browser(browser, subject, app, use):
    """PKCE: whoever catches a code has not its verifier."""
    use(unknown="create", allowed_domains=["*"])
    theirs = TestClient(app, headers=ORIGIN, follow_redirects=False)
    code = parse_qs(urlsplit(consented(started(theirs), subject)).query)["code"][0]
    callback = consented(started(browser), f"{subject}-mine")
    own = parse_qs(urlsplit(callback).query)["code"][0]
    refused(browser.get(callback.replace(own, code)), "Example did not sign you in.")


STRANGE = RSAKey.generate_key(2048)


def unsigned(_header, claims):
    return (part({"alg": "none", "typ": "JWT"}) + b"." + part(claims) + b".").decode()


def by_hand(claims, secret):
    """HS256 with a public key as the secret, which joserfc refuses to sign."""
    head = b".".join(part(p) for p in ({"alg": "HS256", "kid": "second"}, claims))
    made = hmac.new(secret, head, hashlib.sha256).digest()
    return (head + b"." + base64.urlsafe_b64encode(made).rstrip(b"=")).decode()


def part(value):
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")


FORGED = {
    "nonce": lambda o: lambda _, c: o.signed(c | {"nonce": "another"}),
    "no nonce": lambda o: lambda _, c: o.signed({k: v for k, v in c.items() if k != "nonce"}),
    "audience": lambda o: lambda _, c: o.signed(c | {"aud": "another"}),
    "audience, with our azp": lambda o: lambda _, c: o.signed(c | {"aud": "another", "azp": CLIENT}),
    "audiences": lambda o: lambda _, c: o.signed(c | {"aud": [CLIENT, "another"]}),
    "audiences, with their azp": lambda o: lambda _, c: o.signed(c | {"aud": [CLIENT, "x"], "azp": "x"}),
    "no audience": lambda o: lambda _, c: o.signed({k: v for k, v in c.items() if k != "aud"}),
    "expired": lambda o: lambda _, c: o.signed(c | {"exp": int(time.time()) - 120}),
    "no expiry": lambda o: lambda _, c: o.signed({k: v for k, v in c.items() if k != "exp"}),
    "from the future": lambda o: lambda _, c: o.signed(c | {"iat": int(time.time()) + 600}),
    "issuer": lambda o: lambda _, c: o.signed(c | {"iss": "https://evil.example"}),
    "no subject": lambda o: lambda _, c: o.signed({k: v for k, v in c.items() if k != "sub"}),
    "empty subject": lambda o: lambda _, c: o.signed(c | {"sub": ""}),
    "subject is no text": lambda o: lambda _, c: o.signed(c | {"sub": 7}),
    "alg none": lambda _: unsigned,
    "HS256 with the secret": lambda _: lambda _h, c: jwt.encode(
        {"alg": "HS256", "kid": "second"}, c, OctKey.import_key(SECRET.ljust(32, "0")), algorithms=["HS256"]
    ),
    "HS256 with the public key": lambda o: lambda _h, c: by_hand(c, o.key.as_pem(private=False)),
    "key of somebody else": lambda _: lambda _h, c: jwt.encode({"alg": "RS256", "kid": "second"}, c, STRANGE),
    "key inside the token": lambda _: lambda _h, c: jwt.encode(
        {"alg": "RS256", "kid": "second", "jwk": STRANGE.as_dict(private=False)}, c, STRANGE
    ),
    "no token": lambda _: lambda _h, _c: "x.y",
}  # fmt: skip


@pytest.mark.parametrize("forgery", FORGED)
def test_forged_tokens(browser, openid, subject, use, forgery, caplog):
    kept = use(unknown="create", allowed_domains=["*"])
    kept._keys = None
    openid.forge = FORGED[forgery](openid)
    refused(sign_in(browser, subject), "Example did not sign you in.")
    assert who(browser) is None
    assert "A sign-in with Example failed" in caplog.text
    # The control: the same way without the forgery.
    openid.forge = lambda _, claims: openid.signed(claims)
    assert sign_in(browser, subject).status_code == 303


def test_a_new_key_of_the_provider_is_found(browser, openid, subject, use, monkeypatch):
    kept = use(unknown="create", allowed_domains=["*"])
    assert sign_in(browser, subject).status_code == 303
    openid.key = RSAKey.generate_key(2048, {"kid": "third"})
    openid.forge = lambda _, claims: openid.signed(claims, kid="third")
    monkeypatch.setattr(kept, "_keys_fetched", kept._keys_fetched - oidc.PAUSE - 1)
    assert sign_in(browser, subject).status_code == 303
    openid.key = RSAKey.generate_key(2048, {"kid": "second"})


def test_the_person_says_no_at_the_provider(browser, use):
    use(unknown="create", allowed_domains=["*"])
    answer = httpx.post(started(browser), data={"action": "deny"})
    location = urlsplit(answer.headers["location"])
    query = location.query
    if "state=" not in query:  # the provider of the tests leaves it out
        flow = unsealed(next(iter(browser.cookies.values())))
        query += f"&state={flow['state']}"
    assert "error=access_denied" in query
    refused(browser.get(f"{location.path}?{query}"), "Example did not sign you in.")


def test_another_issuer_in_the_answer(browser, subject, use):
    """RFC 9207: the answer of another provider, mixed up with ours."""
    use(unknown="create", allowed_domains=["*"])
    callback = consented(started(browser), subject)
    refused(browser.get(f"{callback}&iss=https://evil.example"), "Example did not sign you in.")


def test_a_provider_that_is_down_says_one_sentence_and_passwords_still_work(tmp_path, openid):
    with workspace(tmp_path) as db:
        app = make_app(db, oidc=settings(openid, unknown="create", allowed_domains=["*"]))
        browser = TestClient(app, headers=ORIGIN, follow_redirects=False)
        openid.down = True
        sentence = (
            "Example does not answer. Try again later, or sign in with a name and a password."
        )
        refused(browser.get("/sign-in/oidc"), sentence, 503)
        asked = len(openid.asked)
        refused(browser.get("/sign-in/oidc"), sentence, 503)
        assert len(openid.asked) == asked  # it is not asked again at once
        person = add_person(db, "Paul")
        invite = tokens.issue(db, person.id, "invite", lifetime=None)
        annotators.accept_invite(db, invite, password_hash=hash_password("four words that fit"))
        form = {"name": "Paul", "password": "four words that fit"}
        assert browser.post("/sign-in", data=form).status_code == 303
        assert who(browser) == "Paul"


def test_a_provider_that_nobody_reaches(tmp_path, openid):
    with workspace(tmp_path) as db:
        gone = replace(settings(openid), issuer="http://127.0.0.1:9")
        browser = TestClient(make_app(db, oidc=gone), headers=ORIGIN, follow_redirects=False)
        refused(browser.get("/sign-in/oidc"), "Example does not answer.", 503)
        assert browser.get("/sign-in").status_code == 200
        other = replace(settings(openid), issuer=openid.issuer + "/")
        browser = TestClient(make_app(db, oidc=other), headers=ORIGIN, follow_redirects=False)
        refused(
            browser.get("/sign-in/oidc"), "Example did not sign you in."
        )  # it names another issuer


# Addresses


def test_behind_a_proxy_the_public_url_counts(tmp_path, openid, subject):
    with workspace(tmp_path) as db:
        url = "https://studio.example"
        app = make_app(
            db,
            accounts_required=True,
            addresses=Addresses.of(public_url=url, more=["testserver"]),
            oidc=settings(openid, unknown="create", allowed_domains=["*"]),
        )
        browser = TestClient(app, base_url=url, headers={"origin": url}, follow_redirects=False)
        address = started(browser, next="/research/?tab=Team")
        asked = parse_qs(urlsplit(address).query)
        assert asked["redirect_uri"] == [f"{url}/sign-in/oidc/callback"]
        [cookie] = browser.get("/sign-in/oidc").headers.get_list("set-cookie")
        assert cookie.startswith("__Host-")
        assert {"Secure", "HttpOnly", "SameSite=lax", "Path=/"} <= set(cookie.split("; "))
        answer = browser.get(consented(started(browser, next="/research/?tab=Team"), subject))
        assert answer.headers["location"] == "/research/?tab=Team"
        for elsewhere in ("https://evil.example/", "//evil.example", "/sign-out"):
            answer = browser.get(consented(started(browser, next=elsewhere), subject))
            assert answer.headers["location"] == "/"


def test_only_get_and_only_with_a_provider(db, browser):
    for method in ("POST", "HEAD", "PUT"):
        assert browser.request(method, "/sign-in/oidc").status_code in (404, 405)
    without = TestClient(make_app(db), headers=ORIGIN, follow_redirects=False)
    assert without.get("/sign-in/oidc").status_code == 404
    assert "Continue with" not in without.get("/sign-in").text
    page = browser.get("/sign-in?next=/research/")
    assert 'href="/sign-in/oidc?next=%2Fresearch%2F"' in page.text
    assert "form-action 'self'" in page.headers["content-security-policy"]


# Settings


def test_settings_come_from_a_file_and_the_secret_from_elsewhere(tmp_path, monkeypatch):
    file = tmp_path / "sign-in.toml"
    base = 'name = "Ex"\nissuer = "https://id.example"\nclient_id = "kite"\n'
    file.write_text(f'[oidc]\n{base}unknown = "create"\nallowed_domains = ["example.org"]\n'
                    '[oidc.roles]\nlab = "researcher"\n')  # fmt: skip
    monkeypatch.delenv("KITESTRING_OIDC_SECRET", raising=False)
    found = read(file)
    assert (found.name, found.roles, found.client_secret) == ("Ex", {"lab": "researcher"}, None)
    monkeypatch.setenv("KITESTRING_OIDC_SECRET", "from the environment")
    assert read(file).client_secret == "from the environment"
    assert "environment" not in repr(read(file))
    (tmp_path / "secret").write_text("from a file\n")
    file.write_text(f'[oidc]\n{base}client_secret_file = "secret"\n')
    assert read(file).client_secret == "from a file"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[oidc", "is not TOML"),
        ("", "has no section"),
        (
            "[oidc]\n{base}client_secret = 'x'",
            "put the client's secret into KITESTRING_OIDC_SECRET",
        ),
        (
            "[oidc]\n{base}client_secret_file = 'none'",
            "client_secret_file cannot be read: No such file",
        ),
        ("[oidc]\nname = 'x'\nissuer = 'https://x'", "client_id is missing"),
        ("[oidc]\n{base}colour = 1", "unknown setting 'colour'"),
        ("[oidc]\nname='x'\nclient_id='k'\nissuer='http://id.example'", "must start with https://"),
        ("[oidc]\n{base}scopes = ['email']", "scopes must contain openid"),
        ("[oidc]\n{base}scopes = 'openid'", "scopes must be a list of texts"),
        ("[oidc]\n{base}unknown = 'ask'", "unknown must be refuse or create"),
        ("[oidc]\n{base}unknown = 'create'", "lets in everybody"),
        ("[oidc]\n{base}default_role = 'admin'", "'admin' must be one of annotator"),
        ("[oidc]\n{base}[oidc.roles]\nx = 'root'", "'root' must be one of annotator"),
    ],
)
def test_wrong_settings_are_one_sentence(tmp_path, text, says):
    file = tmp_path / "sign-in.toml"
    base = 'name = "Ex"\nissuer = "https://id.example"\nclient_id = "kite"\n'
    file.write_text(text.replace("{base}", base))
    with pytest.raises(ValueError, match=says) as error:
        read(file)
    assert str(file) in str(error.value)


def test_nothing_secret_is_in_the_journal(browser, openid, subject, use, db):
    use(unknown="create", allowed_domains=["*"])
    openid.person(subject, name=subject, email="j@example.org", email_verified=True)
    assert sign_in(browser, subject).status_code == 303
    journal = (db.workspace / "journal.jsonl").read_text()
    assert subject in journal
    assert SECRET not in journal
    assert "j@example.org" not in journal


def test_the_way_through_a_browser(tmp_path, openid, subject):
    """From the sign-in page to the provider's form and back, under the studio's content policy."""
    openid.person(subject, name="Bea Browser")
    with workspace(tmp_path) as db:
        app = make_app(db, oidc=settings(openid, unknown="create", allowed_domains=["*"]))
        with serving(app) as server, chromium() as running, new_page(running) as page:
            page.goto(f"{server.url}/label/")
            page.get_by_role("link", name="Continue with Example").click()
            page.wait_for_url(f"{openid.issuer}/**")
            page.locator("input[name=sub]").fill(subject)
            page.get_by_role("button", name="Authorize", exact=True).click()
            page.wait_for_url(f"{server.url}/label/")
            wait_for_pair(page)
            fetched = "fetch('/label/api/progress').then(answer => answer.json())"
            assert page.evaluate(fetched)["annotator"]["name"] == "Bea Browser"
            assert "code=" not in page.url
