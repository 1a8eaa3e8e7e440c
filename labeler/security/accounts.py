"""The pages for sign-in, sign-out and invites: plain HTML forms without scripts."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from markupsafe import Markup

from labeler.security import browsers
from labeler.security.auth import SESSION_LIFETIME, Auth, SignInRefused
from labeler.security.passwords import MAX_PASSWORD_LENGTH, MIN_PASSWORD_LENGTH, Busy
from storage.records import Annotator

STATIC = Path(__file__).parents[1] / "static"

# The HTML below goes through Markup.format, which escapes every value put into it.
_PAGE = Markup("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · Kitestring</title>
<link rel="icon" href="/static/kite.svg">
<link rel="stylesheet" href="/static/account.css">
</head>
<body><main>
<div class="brand"><img src="/static/kite.svg" alt="">Kitestring</div>
<h1>{title}</h1>
{body}
</main></body>
</html>
""")
_PROBLEM = Markup('<p class="problem" role="alert">{}</p>')
_CONTINUE = Markup("""<p>You will be signed in as <strong>{name}</strong> in this browser.</p>
<form method="post" action="/sign-in">
<input type="hidden" name="token" value="{token}"><input type="hidden" name="next" value="{next}">
<button autofocus>Continue as {name}</button>
</form>""")
_PASSWORD = Markup("""{problem}
<form method="post" action="/sign-in">
<input type="hidden" name="next" value="{next}">
<label for="name">Name</label>
<input id="name" name="name" value="{name}" autocomplete="username" required autofocus>
<label for="password">Password</label>
<input id="password" name="password" type="password" autocomplete="current-password" required>
<button>Sign in</button>
</form>
<p class="hint">{hint}</p>""")
_INVITE = Markup("""{problem}
<p>Choose a password for <strong>{name}</strong>: at least {shortest} characters. A few words work well.</p>
<form method="post" action="/invite">
<input type="hidden" name="token" value="{token}">
<input type="hidden" name="name" value="{name}" autocomplete="username">
<label for="password">Password</label>
<input id="password" name="password" type="password" minlength="{shortest}" maxlength="{longest}" autocomplete="new-password" required autofocus>
<label for="again">Repeat the password</label>
<input id="again" name="again" type="password" autocomplete="new-password" required>
<button>Set password and sign in</button>
</form>""")
_CHANGE = Markup("""{problem}
<p>Choose a new password for <strong>{name}</strong>: at least {shortest} characters. Other browsers
and scripts that use this account must sign in again.</p>
<form method="post" action="/label/password">
<input type="hidden" name="name" value="{name}" autocomplete="username">
<label for="old">Current password</label>
<input id="old" name="old" type="password" autocomplete="current-password" required autofocus>
<label for="password">New password</label>
<input id="password" name="password" type="password" minlength="{shortest}" maxlength="{longest}" autocomplete="new-password" required>
<label for="again">Repeat the new password</label>
<input id="again" name="again" type="password" autocomplete="new-password" required>
<button>Change password</button>
</form>
<p class="hint"><a href="/label/">Back to labeling</a></p>""")
_NO_PASSWORD = Markup("""<p>Your account has no password. You signed in with a link.</p>
<a class="button" href="/label/">Back to labeling</a>""")
_MISSING = Markup("""<p>This page does not exist. The link may be incomplete or mistyped.</p>
<a class="button" href="/">Go to the start page</a>""")
_REFUSED = Markup("""<p>{reason}</p>
<a class="button" href="/label/">Go to labeling</a>
<form method="post" action="/sign-out"><button>Sign in with another account</button></form>""")

_LOCAL_HINT = Markup("On the server, <code>python launch.py link</code> prints a sign-in link.")
_LINK_ENDED = "This sign-in link was already used, or the server has restarted since."
_INVITE_HINT = "Ask a researcher for a new invite link."
_ACCOUNTS_HINT = (
    "If you have no account or forgot your password, ask a researcher for an invite link."
)


def page(title: str, body: Markup) -> str:
    """A complete HTML page."""
    return str(_PAGE.format(title=title, body=body))


def sign_in_page(
    auth: Auth,
    *,
    landing: str = "/",
    name: str = "",
    problem: str | None = None,
    hint: str | None = None,
) -> str:
    """The form for name and password; `landing` is the page to open afterwards.

    `hint` says how to sign in without a password.
    """
    body = _PASSWORD.format(
        problem=_PROBLEM.format(problem) if problem else "",
        next=landing,
        name=name,
        hint=hint or (_ACCOUNTS_HINT if auth.accounts_required else _LOCAL_HINT),
    )
    return page("Sign in", body)


def missing_page() -> str:
    """The page for an address that does not exist."""
    return page("Page not found", _MISSING)


def refusal_page(reason: str) -> str:
    """The page for people who are signed in but have no access."""
    return page("No access", _REFUSED.format(reason=reason))


def account_routes(auth: Auth) -> APIRouter:
    """``/sign-in``, ``/sign-out``, ``/invite``, ``/label/password`` and ``/static``."""
    routes = APIRouter()
    _sign_in_routes(routes, auth)
    _invite_routes(routes, auth)
    _password_routes(routes, auth)

    @routes.get("/static/{name}")
    def static(name: str) -> Response:
        return _static(name)

    @routes.get("/favicon.ico")
    def icon() -> Response:
        return _static("kite.svg")

    return routes


def _sign_in_routes(routes: APIRouter, auth: Auth) -> None:

    @routes.get("/sign-in")
    def show_sign_in(request: Request, token: str = "", next: str = "/") -> Response:
        # The GET only shows a button, because mail scanners and previews open links too.
        if not token:
            return HTMLResponse(sign_in_page(auth, landing=next))
        owner = auth.link_owner(token)
        if owner is None and request.state.identity is not None:
            # The link was opened again in a browser that is signed in.
            return RedirectResponse(_own_page(next), 303)
        if owner is None:
            ended = sign_in_page(auth, landing=next, problem=_LINK_ENDED, hint=_LOCAL_HINT)
            return HTMLResponse(ended, 401)
        body = _CONTINUE.format(name=owner.name, token=token, next=next)
        return HTMLResponse(page("Welcome", body))

    @routes.post("/sign-in")
    def sign_in(
        request: Request,
        token: Annotated[str, Form()] = "",
        name: Annotated[str, Form(max_length=200)] = "",
        password: Annotated[str, Form(max_length=1000)] = "",
        next: Annotated[str, Form()] = "/",
    ) -> Response:
        try:
            if token:
                found = auth.use_link(token)
                if found is None:
                    raise SignInRefused(_LINK_ENDED)
            else:
                found = auth.sign_in_with_password(
                    name.strip(), password, address=_address(request), headers=request.headers
                )
        except SignInRefused as refused:
            hint = _LOCAL_HINT if token else None
            again = sign_in_page(auth, landing=next, name=name, problem=str(refused), hint=hint)
            return HTMLResponse(again, 401)
        except Busy as busy:
            again = sign_in_page(auth, landing=next, name=name, problem=str(busy))
            return HTMLResponse(again, 429, headers={"Retry-After": str(ceil(busy.seconds))})
        return _signed_in(auth, request, found, landing=next)

    @routes.post("/sign-out")
    def sign_out(request: Request) -> Response:
        auth.end_session(auth.session_secret(request.headers))
        response = RedirectResponse("/sign-in", 303)
        response.delete_cookie(auth.cookie, path="/", secure=auth.secure, httponly=True)
        return response


def _invite_routes(routes: APIRouter, auth: Auth) -> None:
    @routes.get("/invite")
    def show_invite(request: Request, token: str = "") -> Response:
        # The invite was opened again in a browser that is signed in.
        if request.state.identity is not None and auth.invited(token) is None:
            return RedirectResponse("/label/", 303)
        return _invite_page(auth, token)

    @routes.post("/invite")
    def accept_invite(
        request: Request,
        token: Annotated[str, Form()],
        password: Annotated[str, Form(max_length=1000)],
        again: Annotated[str, Form(max_length=1000)],
    ) -> Response:
        if password != again:
            return _invite_page(auth, token, problem="The passwords do not match.")
        try:
            found = auth.set_password(token, password)
        except (SignInRefused, Busy, ValueError) as error:
            return _invite_page(auth, token, problem=str(error))
        return _signed_in(auth, request, found, landing="/")


def _password_routes(routes: APIRouter, auth: Auth) -> None:
    @routes.get("/label/password")
    def show_change(request: Request) -> Response:
        return _change_page(request.state.identity.annotator)

    @routes.post("/label/password")
    def change(
        request: Request,
        old: Annotated[str, Form(max_length=1000)],
        password: Annotated[str, Form(max_length=1000)],
        again: Annotated[str, Form(max_length=1000)],
    ) -> Response:
        person: Annotator = request.state.identity.annotator
        if password != again:
            return _change_page(person, "The new passwords do not match.", 422)
        try:
            changed = auth.change_password(
                person, old, password, address=_address(request), headers=request.headers
            )
        except Busy as busy:
            busy_page = _change_page(person, str(busy), 429)
            busy_page.headers["Retry-After"] = str(ceil(busy.seconds))
            return busy_page
        except SignInRefused as refused:
            return _change_page(person, str(refused), 403)
        except ValueError as unsuitable:
            return _change_page(person, str(unsuitable), 422)
        return _signed_in(auth, request, changed, landing="/label/")


def _change_page(person: Annotator, problem: str = "", status: int = 200) -> HTMLResponse:
    if person.password_hash is None:
        return HTMLResponse(page("Change password", _NO_PASSWORD), status)
    body = _CHANGE.format(
        problem=_PROBLEM.format(problem) if problem else "",
        name=person.name,
        shortest=MIN_PASSWORD_LENGTH,
        longest=MAX_PASSWORD_LENGTH,
    )
    return HTMLResponse(page("Change password", body), status)


_MEDIA_TYPES = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}


def _static(name: str) -> Response:
    files = {file.name: file for file in STATIC.iterdir() if file.suffix in _MEDIA_TYPES}
    if name not in files:
        return Response(status_code=404)
    file = files[name]
    headers = {"Cache-Control": "max-age=3600"}
    return FileResponse(file, media_type=_MEDIA_TYPES[file.suffix], headers=headers)


def _invite_page(auth: Auth, token: str, problem: str | None = None) -> HTMLResponse:
    found = auth.invited(token)
    if found is None:
        used = "This invite link was already used or has expired."
        return HTMLResponse(sign_in_page(auth, problem=used, hint=_INVITE_HINT), 410)
    body = _INVITE.format(
        problem=_PROBLEM.format(problem) if problem else "",
        name=found.name,
        shortest=MIN_PASSWORD_LENGTH,
        longest=MAX_PASSWORD_LENGTH,
        token=token,
    )
    return HTMLResponse(page("Welcome to Kitestring", body), 422 if problem else 200)


def _address(request: Request) -> str:
    """The client's address; behind a proxy, the server reads it from the proxy's header."""
    return request.client.host if request.client else ""


def _own_page(landing: str) -> str:
    """`landing` if it is a page of this site: it comes from the URL and could name any site."""
    return landing if landing in ("/label/", "/research/") else "/"


def _signed_in(auth: Auth, request: Request, who: Annotator, *, landing: str) -> Response:
    response = RedirectResponse(_own_page(landing), 303)
    secure = auth.secure or request.url.scheme == "https"
    response.set_cookie(
        auth.cookie,
        auth.start_session(who),
        max_age=int(SESSION_LIFETIME.total_seconds()),
        path="/",
        httponly=True,
        # With "strict", the browser would omit the cookie when a link in a mail opens the page.
        samesite="lax",
        secure=secure,
    )
    if who.password_hash:
        response.set_cookie(
            auth.browsers.cookie(who),
            auth.browsers.mark(who),
            max_age=int(browsers.LIFETIME.total_seconds()),
            path=browsers.PATH,
            httponly=True,
            samesite="strict",
            secure=secure,
        )
    return response
