"""Settings of sign-in by OpenID Connect: a TOML file of the operator, and the client's secret.

They are in a file of their own, because `config.toml` is shown to researchers.  Nothing of it is
stored in the journal.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from labeler.security.addresses import LOOPBACK
from storage.records import AnnotatorRole

FILE = "sign-in.toml"
"""The name of the file in the workspace."""
SECRET = "KITESTRING_OIDC_SECRET"
"""The environment variable with the client's secret."""
ANY_DOMAIN = "*"
Unknown = Literal["refuse", "create"]


@dataclass(frozen=True, kw_only=True)
class OidcSettings:
    """One OpenID provider, and who may sign in with it.

    `unknown` says what happens to people without an account: they are refused, or get one with their
    mapped role, or `default_role`.  `match_email` links an account that nobody has used yet to the
    person whose verified e-mail address is the account's name.  `roles_claim` is the claim with the
    person's groups, with dots between levels; `roles` maps a group to a role.
    """

    name: str
    issuer: str
    client_id: str
    client_secret: str | None = field(default=None, repr=False)
    scopes: Sequence[str] = ("openid", "profile", "email")
    allowed_domains: Sequence[str] = ()
    required_claims: Mapping[str, Any] = field(default_factory=dict)
    unknown: Unknown = "refuse"
    default_role: AnnotatorRole | None = None
    match_email: bool = False
    roles_claim: str = "groups"
    roles: Mapping[str, AnnotatorRole] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in ("name", "issuer", "client_id", "roles_claim"):
            _require(
                isinstance(getattr(self, key), str) and getattr(self, key), f"{key} is missing"
            )
        for key in ("scopes", "allowed_domains"):
            listed = getattr(self, key)
            right = isinstance(listed, list | tuple) and all(isinstance(x, str) for x in listed)
            _require(right, f"{key} must be a list of texts")
        _require(is_safe(self.issuer), f"issuer must start with https:// ({self.issuer!r})")
        _require("openid" in self.scopes, "scopes must contain openid")
        _require(isinstance(self.match_email, bool), "match_email must be true or false")
        _require(self.unknown in get_args(Unknown), "unknown must be refuse or create")
        for role in (*self.roles.values(), self.default_role or "annotator"):
            choices = ", ".join(get_args(AnnotatorRole))
            _require(role in get_args(AnnotatorRole), f"{role!r} must be one of {choices}")
        limited = self.allowed_domains or self.required_claims or self.roles
        _require(
            self.unknown == "refuse" or limited,
            'unknown = "create" lets in everybody who has an account there; name allowed_domains '
            f'(["{ANY_DOMAIN}"] for all), required_claims or roles',
        )


def read(file: Path) -> OidcSettings:
    """The settings in this file; ValueError with a sentence if they are wrong."""
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8")).get("oidc")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not TOML: {error}") from None
    if not isinstance(table, dict):
        raise ValueError(f"{file} has no section [oidc]")
    given = dict(table)
    if "client_secret" in given:
        raise ValueError(f"{file}: put the client's secret into {SECRET} or client_secret_file")
    secret = _secret(file, given.pop("client_secret_file", None))
    known = {each.name for each in fields(OidcSettings)} - {"client_secret"}
    if unknown := sorted(given.keys() - known):
        raise ValueError(
            f"{file}: unknown setting {unknown[0]!r}; known: {', '.join(sorted(known))}"
        )
    if missing := sorted({"name", "issuer", "client_id"} - given.keys()):
        raise ValueError(f"{file}: {missing[0]} is missing")
    try:
        return OidcSettings(**given, client_secret=secret)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def is_safe(url: str) -> bool:
    """Whether a URL is https, or http on this machine."""
    parts = urlsplit(url)
    return bool(parts.hostname) and (
        parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)
    )


def _secret(file: Path, named: object) -> str | None:
    if named is None:
        return os.environ.get(SECRET) or None
    path = file.parent / str(named)
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ValueError(f"{file}: client_secret_file cannot be read: {error.strerror}") from None


def _require(right: object, sentence: str) -> None:
    if not right:
        raise ValueError(sentence)
