"""A real OpenID provider on loopback (oidc-provider-mock), which tests can make misbehave."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import httpx
import oidc_provider_mock
import werkzeug.serving
from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT, SECRET = "kitestring-tests", "s3cret:/%"

Forge = Callable[[dict[str, Any], dict[str, Any]], str]
"""Makes another ID token of the header and the claims of the right one."""


@dataclass
class OpenId:
    """The provider: its address and what it was asked; `forge` replaces the ID tokens."""

    issuer: str = ""
    forge: Forge | None = None
    down: bool = False
    asked: list[tuple[str, dict[str, str], dict[str, str]]] = field(default_factory=list)
    """Path, parameters and headers of each request."""
    key: RSAKey = field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": "second"}))
    """A key of the provider besides its own, with which `signed` signs."""

    def person(self, subject: str, **claims: Any) -> None:
        """Somebody who has an account there."""
        httpx.put(f"{self.issuer}/users/{subject}", json=claims).raise_for_status()

    def signed(self, claims: dict[str, Any], **header: Any) -> str:
        return jwt.encode({"alg": "RS256", "kid": "second", **header}, claims, self.key)


@contextmanager
def provider() -> Iterator[OpenId]:
    """The provider in a thread."""
    found = OpenId()
    inner = oidc_provider_mock.app(require_nonce=True)
    inner.debug = False
    server = werkzeug.serving.make_server("127.0.0.1", 0, _around(inner, found), threaded=True)
    found.issuer = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def _around(inner: Any, found: OpenId) -> Any:
    """The provider's WSGI application: noted, PKCE enforced, and its ID tokens forged if asked."""
    challenges: dict[str, str] = {}

    def app(environ: dict[str, Any], start: Any) -> Any:
        path = environ["PATH_INFO"]
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(length)
        environ["wsgi.input"] = _Input(body)
        query = _flat(environ["QUERY_STRING"]) | (
            _flat(body.decode()) if path == "/oauth2/token" else {}
        )
        headers = {"authorization": environ.get("HTTP_AUTHORIZATION", "")}
        found.asked.append((path, query, headers))
        if found.down:
            start("503 Service Unavailable", [("Content-Type", "text/plain")])
            return [b"down"]
        if path == "/oauth2/token" and not _proven(query, challenges):
            start("400 Bad Request", [("Content-Type", "application/json")])
            return [b'{"error": "invalid_grant"}']
        status, given, answer = _answer(inner, environ)
        location = dict(given).get("Location", "")
        if path == "/oauth2/authorize" and "code=" in location:
            code = _flat(location.partition("?")[2])["code"]
            challenges[code] = query["code_challenge"]
            assert query["code_challenge_method"] == "S256"
        if path == "/jwks" and found.forge:
            keys = json.loads(answer)
            keys["keys"].append(found.key.as_dict(private=False))
            answer = json.dumps(keys).encode()
        if path == "/oauth2/token" and status.startswith("200") and found.forge:
            token = json.loads(answer)
            header, claims = (_part(token["id_token"], i) for i in (0, 1))
            token["id_token"] = found.forge(header, claims)
            answer = json.dumps(token).encode()
        given = [(k, v) for k, v in given if k.lower() != "content-length"]
        start(status, [*given, ("Content-Length", str(len(answer)))])
        return [answer]

    return app


class _Input:
    def __init__(self, body: bytes) -> None:
        self.body = body

    def read(self, size: int = -1) -> bytes:
        taken = self.body if size < 0 else self.body[:size]
        self.body = self.body[len(taken) :]
        return taken

    def readline(self, *_: Any) -> bytes:
        return self.read()


def _proven(query: dict[str, str], challenges: dict[str, str]) -> bool:
    """Whether the code verifier fits (RFC 7636); oidc-provider-mock does not check it."""
    hashed = hashlib.sha256(query.get("code_verifier", "").encode()).digest()
    made = base64.urlsafe_b64encode(hashed).rstrip(b"=").decode()
    return challenges.get(query.get("code", "")) == made


def _answer(inner: Any, environ: dict[str, Any]) -> tuple[str, list[tuple[str, str]], bytes]:
    kept: list[Any] = []

    def start(status: str, headers: list[tuple[str, str]], _error: Any = None) -> None:
        kept[:] = [status, headers]

    body = b"".join(inner(environ, start))
    return kept[0], kept[1], body


def _flat(query: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(query).items()}


def _part(token: str, index: int) -> dict[str, Any]:
    part = token.split(".")[index]
    return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
