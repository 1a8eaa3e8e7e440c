"""The client of an OpenID provider: authorization code with PKCE, state and nonce.

`Provider.begin` returns the address to send the browser to and the value of a cookie; `finish` takes
both back and returns verified claims.  The cookie ties the answer to the browser that asked: it holds
the state, the nonce and the code verifier, signed with a key of this process.  oidc_people.py decides
which account the claims open.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import httpx2
from authlib.integrations.httpx_client import OAuth2Client, OAuthError
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry

from labeler.security.auth import SignInRefused
from labeler.security.oidc_settings import OidcSettings, is_safe

PROVIDER_DOWN = (
    "{provider} does not answer. Try again later, or sign in with a name and a password."
)
STARTED_ELSEWHERE = (
    "This sign-in was started in another browser, more than ten minutes ago, or is already done. "
    "Start again."
)
NOT_COMPLETED = "{provider} did not sign you in. Start again, or ask a researcher."
FLOW_SECONDS = 600
"""Seconds from the start of a sign-in to its end."""
TIMEOUT = 10.0
"""Seconds for each request to the provider."""
AT_ONCE = 8
"""Requests to the provider at the same time, because strangers can cause them."""
REMEMBERED = 3600.0
"""Seconds for which the provider's addresses and keys are cached."""
PAUSE = 10.0
"""Seconds after a failure, or after new keys, until the provider is asked again."""
LEEWAY = 60
"""Seconds that the clocks may differ."""
ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA",
)  # fmt: skip
"""Signatures with the provider's private key; `none` and HS256 are not among them."""
_USED = 10_000
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Flow:
    """A sign-in that has started; `next` is the page to open afterwards, `invite` the secret of an
    invite that it accepts, or empty."""

    state: str
    nonce: str
    verifier: str
    redirect_uri: str
    next: str
    invite: str
    expires: float


class Provider:
    """One OpenID provider. Thread-safe. `clock` returns seconds since 1970."""

    def __init__(self, settings: OidcSettings, *, clock: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._slots = threading.BoundedSemaphore(AT_ONCE)
        self._lock = threading.Lock()
        self._metadata: dict[str, Any] = {}
        self._keys: KeySet | None = None
        self._fetched = self._failed = self._keys_fetched = -REMEMBERED
        self._used: OrderedDict[str, None] = OrderedDict()

    def begin(self, *, redirect_uri: str, next: str, invite: str = "") -> tuple[str, str]:
        """The address at the provider and the cookie's value; `SignInRefused` if it is down."""
        with self._asking() as client:
            endpoint = self._discovered(client)["authorization_endpoint"]
        flow = Flow(
            state=secrets.token_urlsafe(32),
            nonce=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(48),
            redirect_uri=redirect_uri,
            next=next,
            invite=invite,
            expires=self._clock() + FLOW_SECONDS,
        )
        with self._client(redirect_uri) as client:
            address, _ = client.create_authorization_url(
                endpoint, state=flow.state, code_verifier=flow.verifier, nonce=flow.nonce
            )
        return address, self._sealed(flow)

    def finish(self, query: Mapping[str, str], cookie: str) -> tuple[dict[str, Any], Flow]:
        """The verified claims and the flow that `begin` started; `SignInRefused` otherwise."""
        flow = self._opened(cookie)
        if flow is None or not hmac.compare_digest(flow.state, query.get("state", "")):
            raise self._refused(STARTED_ELSEWHERE, "the state is not the one of this browser")
        self._use(flow)
        if "error" in query or not query.get("code"):
            raise self._refused(
                NOT_COMPLETED, f"the provider answered {query.get('error', '')[:50]!r}"
            )
        if query.get("iss", self.settings.issuer) != self.settings.issuer:
            raise self._refused(NOT_COMPLETED, "another issuer answered")
        with self._asking(flow.redirect_uri) as client:
            metadata = self._discovered(client)
            token = client.fetch_token(
                metadata["token_endpoint"], code=query["code"], code_verifier=flow.verifier
            )
            claims = self._verified(client, token, flow.nonce)
            return self._completed(client, metadata, claims), flow

    @contextmanager
    def _asking(self, redirect_uri: str = "") -> Iterator[Any]:
        """A client; failures become `SignInRefused`, and their reason goes to the log."""
        if not self._slots.acquire(timeout=TIMEOUT):
            raise self._refused(PROVIDER_DOWN, "too many sign-ins at once")
        try:
            with self._client(redirect_uri) as client:
                yield client
        except (OAuthError, JoseError, KeyError, TypeError, ValueError) as error:
            raise self._refused(NOT_COMPLETED, f"{type(error).__name__}: {error}") from None
        except httpx2.HTTPError as error:
            self._failed = self._clock()
            raise self._refused(PROVIDER_DOWN, f"{type(error).__name__}: {error}") from None
        finally:
            self._slots.release()

    def _client(self, redirect_uri: str) -> Any:  # its base class has no types
        known = self._metadata.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        basic = "client_secret_basic" in known
        method = "client_secret_basic" if basic else "client_secret_post"
        settings = self.settings
        return OAuth2Client(
            client_id=settings.client_id,
            client_secret=settings.client_secret,
            token_endpoint_auth_method=method if settings.client_secret else "none",
            scope=" ".join(settings.scopes),
            redirect_uri=redirect_uri,
            code_challenge_method="S256",
            timeout=TIMEOUT,
            follow_redirects=False,
        )

    def _discovered(self, client: Any) -> dict[str, Any]:
        """The provider's metadata (OpenID Connect Discovery)."""
        with self._lock:
            moment = self._clock()
            if self._metadata and moment - self._fetched < REMEMBERED:
                return self._metadata
            if moment - self._failed < PAUSE:
                raise httpx2.ConnectError("it did not answer a moment ago")
            url = f"{self.settings.issuer.rstrip('/')}/.well-known/openid-configuration"
            found = self._json(client, url)
            if found.get("issuer") != self.settings.issuer:
                raise ValueError(f"{url} names another issuer, {str(found.get('issuer'))[:200]!r}")
            for name in _ENDPOINTS:
                if not is_safe(found[name]):
                    raise ValueError(f"{name} is not https")
            self._metadata, self._fetched = found, moment
            return found

    def _json(self, client: Any, url: str, *, token: bool = False) -> dict[str, Any]:
        response = client.request("GET", url, withhold_token=not token)
        response.raise_for_status()
        found = response.json()
        if not isinstance(found, dict):
            raise ValueError(f"{url} is not a JSON object")
        return found

    def _verified(self, client: Any, token: Mapping[str, Any], nonce: str) -> CodeIDToken:
        """The claims of the ID token, after its signature and every claim were checked."""
        registry = JWSRegistry(algorithms=list(ALGORITHMS), strict_check_header=False)
        try:
            found = jwt.decode(token["id_token"], self._key_set(client), registry=registry)
        except (InvalidKeyIdError, JoseError):
            # The provider may have new keys.
            found = jwt.decode(
                token["id_token"], self._key_set(client, new=True), registry=registry
            )
        wanted = {
            "iss": {"essential": True, "value": self.settings.issuer},
            "sub": {"essential": True},
            "aud": {"essential": True, "value": self.settings.client_id},
            "exp": {"essential": True},
        }
        params: dict[str, Any] = {"nonce": nonce, "client_id": self.settings.client_id}
        params["access_token"] = token.get("access_token")
        claims = CodeIDToken(found.claims, found.header, wanted, params)
        claims.validate(now=int(self._clock()), leeway=LEEWAY)
        if not isinstance(claims["sub"], str) or not 0 < len(claims["sub"]) <= 255:
            raise ValueError("the subject is not a text of up to 255 characters")
        return claims

    def _key_set(self, client: Any, *, new: bool = False) -> KeySet:
        moment = self._clock()
        old = moment - self._keys_fetched > (PAUSE if new else REMEMBERED)
        if self._keys is None or old:
            self._keys = KeySet.import_key_set(self._json(client, self._metadata["jwks_uri"]))  # type: ignore[arg-type]
            self._keys_fetched = moment
        return self._keys

    def _completed(
        self, client: Any, metadata: Mapping[str, Any], claims: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The claims, with those of the userinfo endpoint that the ID token lacks."""
        wanted = {"name", "email", self.settings.roles_claim.partition(".")[0]}
        wanted |= {name.partition(".")[0] for name in self.settings.required_claims}
        endpoint = metadata.get("userinfo_endpoint")
        if not endpoint or wanted <= claims.keys() or not is_safe(endpoint):
            return dict(claims)
        more = self._json(client, endpoint, token=True)
        if more.get("sub") != claims["sub"]:
            raise ValueError("the userinfo endpoint describes another person")
        return more | dict(claims)

    def _sealed(self, flow: Flow) -> str:
        # Without "=", which a cookie would have to quote.
        body = base64.urlsafe_b64encode(json.dumps(asdict(flow)).encode()).rstrip(b"=")
        return f"{body.decode()}.{self._signature(body)}"

    def _opened(self, cookie: str) -> Flow | None:
        body, _, signature = cookie.partition(".")
        if not hmac.compare_digest(self._signature(body.encode()), signature):
            return None
        flow = Flow(**json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))))
        return flow if self._clock() < flow.expires else None

    def _signature(self, body: bytes) -> str:
        return hmac.new(self._key, body, hashlib.sha256).hexdigest()

    def _use(self, flow: Flow) -> None:
        """A flow ends once: a second answer is refused."""
        with self._lock:
            if flow.state in self._used:
                raise self._refused(STARTED_ELSEWHERE, "the answer came a second time")
            self._used[flow.state] = None
            while len(self._used) > _USED:
                self._used.popitem(last=False)

    def _refused(self, sentence: str, reason: str) -> SignInRefused:
        _LOG.warning("A sign-in with %s failed: %s", self.settings.name, reason)
        return SignInRefused(sentence, provider=self.settings.name)
