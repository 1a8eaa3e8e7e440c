"""Which account an OpenID provider's claims open.  The claims were verified before (oidc.py)."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from labeler.security.auth import INVITE_ENDED, SignInRefused
from labeler.security.oidc_settings import ANY_DOMAIN, OidcSettings
from storage.engine.database import Database
from storage.errors import Conflict
from storage.records import Annotator, AnnotatorRole
from storage.tables.people import annotators, identities
from storage.tables.people.annotators import MAX_NAME_LENGTH

NO_ACCOUNT = (
    "You have no account here. Ask a researcher for an invite link, and choose {provider} there."
)
NOT_ALLOWED = "Your account at {provider} may not sign in here. Ask a researcher."
DISABLED = "Your account here is disabled. Ask a researcher."
BELONGS_ELSEWHERE = "Your account at {provider} already opens another account here."
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """What the claims say: `email` is verified; `role` is None if the claims decide nothing."""

    subject: str
    name: str
    email: str | None
    role: AnnotatorRole | None


def account(
    db: Database, settings: OidcSettings, claims: Mapping[str, Any], *, invite: str = ""
) -> Annotator:
    """The account that these claims open, linked, created or given another role if necessary.

    `SignInRefused` if they may not sign in.
    """
    claimed = read(settings, claims)
    found = _linked(db, settings, claimed, invite)
    if found.disabled:
        raise refusal(DISABLED, settings, "the account is disabled")
    if claimed.role is None or claimed.role == found.role:
        return found
    try:
        return annotators.set_role(db, found.id, claimed.role)
    except ValueError:  # the only researcher keeps the role
        return found


def _linked(db: Database, settings: OidcSettings, claimed: Claimed, invite: str) -> Annotator:
    issuer, subject = settings.issuer, claimed.subject
    if invite:
        try:
            found = identities.accept_invite(db, invite, issuer=issuer, subject=subject)
        except Conflict:
            raise refusal(BELONGS_ELSEWHERE, settings, "linked to another account") from None
        if found is None:
            raise refusal(INVITE_ENDED, settings, "the invite has ended")
        return found
    found = identities.owner(db, issuer=issuer, subject=subject)
    if found is None and settings.match_email and claimed.email:
        found = identities.claim(db, claimed.email, issuer=issuer, subject=subject)
    if found is None and settings.unknown == "create":
        role = claimed.role or settings.default_role or "annotator"
        found = identities.create(db, claimed.name, role, issuer=issuer, subject=subject)
    if found is None:
        raise refusal(NO_ACCOUNT, settings, "no account")
    return found


def read(settings: OidcSettings, claims: Mapping[str, Any]) -> Claimed:
    """What the claims say; `SignInRefused` if the settings exclude this person."""
    verified = claims.get("email_verified") in (True, "true")
    email = claims.get("email")
    email = email.strip() if verified and isinstance(email, str) and "@" in email else None
    if settings.allowed_domains and ANY_DOMAIN not in settings.allowed_domains:
        if email is None:
            raise refusal(NOT_ALLOWED, settings, "no verified e-mail address")
        domains = {domain.lower().lstrip("@") for domain in settings.allowed_domains}
        if email.rpartition("@")[2].lower() not in domains:
            raise refusal(NOT_ALLOWED, settings, "the domain of the e-mail address")
    for name, wanted in settings.required_claims.items():
        if not _holds(claim(claims, name), wanted):
            raise refusal(NOT_ALLOWED, settings, f"the claim {name}")
    return Claimed(
        subject=claims["sub"],
        name=_name(claims, email),
        email=email,
        role=_role(settings, claims),
    )


def _role(settings: OidcSettings, claims: Mapping[str, Any]) -> AnnotatorRole | None:
    """The role with most rights of the person's groups; None if `roles` is empty."""
    if not settings.roles:
        return None
    groups = claim(claims, settings.roles_claim)
    groups = groups if isinstance(groups, list) else [groups]
    found = {
        settings.roles[group]
        for group in groups
        if isinstance(group, str) and group in settings.roles
    }
    for role in reversed(get_args(AnnotatorRole)):
        if role in found:
            return role
    if settings.default_role is None:
        raise refusal(NOT_ALLOWED, settings, f"no group in {settings.roles_claim} has a role")
    return settings.default_role


def claim(claims: Mapping[str, Any], name: str) -> Any:
    """A claim, or None; a name with dots leads into nested claims, unless a claim has that name."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _holds(value: Any, wanted: Any) -> bool:
    choices = wanted if isinstance(wanted, list) else [wanted]
    values = value if isinstance(value, list) else [value]
    # True equals 1 in Python.
    return any(type(one) is type(other) and one == other for one in values for other in choices)


def _name(claims: Mapping[str, Any], email: str | None) -> str:
    for given in (claims.get("name"), claims.get("preferred_username"), email):
        if isinstance(given, str):
            kept = "".join(
                c for c in given if not unicodedata.category(c).startswith(("C", "Zl", "Zp"))
            )
            if kept.strip():
                return kept.strip()[: MAX_NAME_LENGTH - 6]  # leaves space for a number
    return "annotator"


def refusal(sentence: str, settings: OidcSettings, reason: str) -> SignInRefused:
    """The refusal; the reason, which names nobody, goes to the log."""
    _LOG.warning("A sign-in with %s was refused: %s", settings.name, reason)
    return SignInRefused(sentence, provider=settings.name)
