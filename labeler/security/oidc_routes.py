"""``/sign-in/oidc``, which sends a browser to the OpenID provider, and ``…/callback``, where it returns."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from labeler.cookies import read_cookie
from labeler.security.accounts import sign_in_page, signed_in
from labeler.security.auth import Auth, SignInRefused
from labeler.security.oidc import FLOW_SECONDS, PROVIDER_DOWN, Provider
from labeler.security.oidc_people import account
from labeler.security.readers import reader_of
from labeler.translation import translated

START = "/sign-in/oidc"
CALLBACK = "/sign-in/oidc/callback"


def oidc_routes(auth: Auth, provider: Provider) -> APIRouter:
    """The routes of one provider."""
    routes = APIRouter()
    cookie = f"{auth.cookie}-sign-in"

    @routes.get(START)
    def start(request: Request, next: str = "/", invite: str = "") -> Response:
        base = auth.public_url or str(request.base_url).rstrip("/")
        try:
            address, value = provider.begin(
                redirect_uri=base + CALLBACK, next=next[:300], invite=invite[:100]
            )
        except SignInRefused as refused:
            return _refusal(auth, request, refused, landing=next)
        response = RedirectResponse(address, 303)
        # Lax, because the provider's page opens the callback.
        response.set_cookie(
            cookie, value, max_age=FLOW_SECONDS, path="/", httponly=True, samesite="lax",
            secure=auth.secure,
        )  # fmt: skip
        return response

    @routes.get(CALLBACK)
    def callback(request: Request) -> Response:
        landing = "/"
        try:
            kept = read_cookie(request.headers, cookie)
            claims, flow = provider.finish(request.query_params, kept)
            landing = flow.next
            found = account(auth.db, provider.settings, claims, invite=flow.invite)
            auth.accounts_changed()
            response = signed_in(auth, request, found, landing=landing)
        except SignInRefused as refused:
            response = _refusal(auth, request, refused, landing=landing)
        response.delete_cookie(cookie, path="/", secure=auth.secure, httponly=True)
        return response

    return routes


def _refusal(auth: Auth, request: Request, refused: SignInRefused, *, landing: str) -> Response:
    reader = reader_of(request.headers)
    problem = translated(refused.sentence, reader.language).format(**refused.values)
    status = 503 if refused.sentence == PROVIDER_DOWN else 403
    return HTMLResponse(sign_in_page(auth, reader, landing=landing, problem=problem), status)
