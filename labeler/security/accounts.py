"""The pages for sign-in, sign-out and invites: plain HTML forms without scripts."""

from __future__ import annotations

import re
from math import ceil
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Request
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from markupsafe import Markup

from labeler.security import browsers
from labeler.security.access import GRANTS
from labeler.security.auth import SESSION_LIFETIME, Auth, SignInRefused
from labeler.security.passwords import MAX_PASSWORD_LENGTH, MIN_PASSWORD_LENGTH, Busy
from labeler.security.readers import Reader, keep_language, reader_of
from labeler.theme import attribute
from labeler.translation import LANGUAGES, RIGHT_TO_LEFT, fill, translated
from storage.records import Annotator
from storage.tables.people import annotators

STATIC = Path(__file__).parents[1] / "static"

# `fill` translates the texts in [[…]] and escapes every value.
_PAGE = """<!doctype html>
<html lang="{language}" dir="{direction}"{theme}>
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
{languages}
</main></body>
</html>
"""
_PROBLEM = Markup('<p class="problem" role="alert">{}</p>')
_STRONG = Markup("<strong>{}</strong>")
_CONTINUE = """<p>[[You will be signed in as {who} in this browser.]]</p>
<form method="post" action="/sign-in">
<input type="hidden" name="token" value="{token}"><input type="hidden" name="next" value="{next}">
<button autofocus>[[Continue as {name}]]</button>
</form>"""
_PASSWORD = """{problem}
{other}
<form method="post" action="/sign-in">
<input type="hidden" name="next" value="{next}">
<label for="name">[[Name]]</label>
<input id="name" name="name" value="{name}" autocomplete="username" required{at_name}>
<label for="password">[[Password]]</label>
<input id="password" name="password" type="password" autocomplete="current-password" required{at_password}>
<button>[[Sign in]]</button>
</form>
<p class="hint">{hint}</p>"""
_PROVIDER = """<p><a class="button" href="/sign-in/oidc?{query}">[[Continue with {provider}]]</a></p>
<p class="hint">[[Or use a name and a password:]]</p>"""
_INVITE_PROVIDER = """<p class="hint">[[Or, without a password here:]]</p>
<p><a class="button quiet" href="/sign-in/oidc?{query}">[[Continue with {provider}]]</a></p>"""
_INVITE = """{problem}
<p>[[Choose a password for {who}: at least {shortest} characters. A few words work well.]]</p>
<form method="post" action="/invite">
<input type="hidden" name="token" value="{token}">
<input type="hidden" name="name" value="{name}" autocomplete="username">
<label for="password">[[Password]]</label>
<input id="password" name="password" type="password" minlength="{shortest}" maxlength="{longest}" autocomplete="new-password" required autofocus>
<label for="again">[[Repeat the password]]</label>
<input id="again" name="again" type="password" autocomplete="new-password" required>
<button>[[Set password and sign in]]</button>
</form>
{other}"""
_CHANGE = """{problem}
<p>[[Choose a new password for {who}: at least {shortest} characters. Other browsers and scripts that use this account must sign in again.]]</p>
<form method="post" action="/label/password">
<input type="hidden" name="name" value="{name}" autocomplete="username">
<label for="old">[[Current password]]</label>
<input id="old" name="old" type="password" autocomplete="current-password" required autofocus>
<label for="password">[[New password]]</label>
<input id="password" name="password" type="password" minlength="{shortest}" maxlength="{longest}" autocomplete="new-password" required>
<label for="again">[[Repeat the new password]]</label>
<input id="again" name="again" type="password" autocomplete="new-password" required>
<button>[[Change password]]</button>
</form>
<p class="hint">{back}</p>"""
_NO_PASSWORD = """<p>[[Your account has no password. You signed in with a link.]]</p>
{back}"""
_TO_LABELING = '<a{style} href="/label/">[[Back to labeling]]</a>'
_TO_START = '<a{style} href="/">[[Go to the start page]]</a>'
_MISSING = """<p>[[This page does not exist. The link may be incomplete or mistyped.]]</p>
<a class="button" href="/">[[Go to the start page]]</a>"""
_REFUSED = """<p>{reason}</p>
<a class="button" href="/">[[Go to the start page]]</a>
<form method="post" action="/sign-out"><button class="quiet">[[Sign in with another account]]</button></form>"""

_LOCAL_HINT = "[[On the server, {command} prints a sign-in link.]]"
_COMMAND = Markup("<code>python launch.py link</code>")
LINK_ENDED = "This sign-in link was already used, or the server has restarted since."
INVITE_ENDED = "This invite link was already used or has expired."
_INVITE_HINT = "[[Ask a researcher for a new invite link.]]"
_ACCOUNTS_HINT = (
    "[[If you have no account or forgot your password, ask a researcher for an invite link.]]"
)
DIFFERENT = "The passwords do not match."
DIFFERENT_NEW = "The new passwords do not match."


def _page(title: str, body: Markup, reader: Reader, *, address: str = "") -> str:
    """A complete HTML page.  With `address`, it links the same page in other languages."""
    language, languages = reader.language, Markup("")
    if address:
        separator = "&" if "?" in address else "?"
        links = Markup(" ").join(
            Markup('<a href="{}{}language={}" lang="{}" dir="auto"{}>{}</a>').format(
                address,
                separator,
                tag,
                tag,
                Markup(' aria-current="true"' if tag == language else ""),
                name,
            )
            for tag, name in LANGUAGES.items()
        )
        languages = fill(
            '<nav class="languages" aria-label="[[Language]]">{links}</nav>', language, links=links
        )
    return str(
        fill(
            _PAGE,
            language,
            title=translated(title, language),
            body=body,
            language=language,
            direction="rtl" if language in RIGHT_TO_LEFT else "ltr",
            languages=languages,
            theme=attribute(reader.theme),
        )
    )


def sign_in_page(
    auth: Auth,
    reader: Reader,
    *,
    landing: str = "/",
    name: str = "",
    problem: str | None = None,
    hint: str | None = None,
) -> str:
    """The form for name and password; `landing` is the page to open afterwards.

    `problem` is in the reader's language; `hint`, in English, says how to sign in without a password.
    """
    language = reader.language
    hint = hint or (_ACCOUNTS_HINT if auth.accounts_required else _LOCAL_HINT)
    body = fill(
        _PASSWORD,
        language,
        problem=_PROBLEM.format(problem) if problem else "",
        other=_provider(_PROVIDER, auth, language, next=landing),
        next=landing,
        name=name,
        # Who mistyped a password types it again.
        at_name=Markup("" if name else " autofocus"),
        at_password=Markup(" autofocus" if name else ""),
        hint=fill(hint, language, command=_COMMAND),
    )
    return _page("Sign in", body, reader, address=f"/sign-in?{urlencode({'next': landing})}")


def _provider(template: str, auth: Auth, language: str, **query: str) -> Markup:
    """The link to the OpenID provider, if the studio has one."""
    if auth.provider is None:
        return Markup("")
    return fill(template, language, provider=auth.provider, query=urlencode(query))


def missing_page(reader: Reader) -> str:
    """The page for an address that does not exist."""
    return _page("Page not found", fill(_MISSING, reader.language), reader)


def refusal_page(reason: str, reader: Reader) -> str:
    """The page for people who are signed in but have no access."""
    said = translated(reason, reader.language)
    return _page("No access", fill(_REFUSED, reader.language, reason=said), reader)


def _in_words(error: Exception, reader: Reader) -> str:
    """The sentence of a refusal in the reader's language."""
    language = reader.language
    if isinstance(error, SignInRefused):
        return translated(error.sentence, language).format(**error.values)
    return translated(str(error), language)


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
    def show_sign_in(
        request: Request, token: str = "", next: str = "/", language: str = ""
    ) -> Response:
        reader = reader_of(request.headers).speaking(language)
        # The GET only shows a button, because mail scanners and previews open links too.
        if not token:
            response = HTMLResponse(sign_in_page(auth, reader, landing=next))
            if language in LANGUAGES:
                keep_language(response, language)
            return response
        owner = auth.link_owner(token)
        if owner is None and request.state.identity is not None:
            # The link was opened again in a browser that is signed in.
            return RedirectResponse(_own_page(next), 303)
        if owner is None:
            problem = translated(LINK_ENDED, reader.language)
            ended = sign_in_page(auth, reader, landing=next, problem=problem, hint=_LOCAL_HINT)
            return HTMLResponse(ended, 401)
        who = _STRONG.format(owner.name)
        body = fill(_CONTINUE, reader.language, name=owner.name, who=who, token=token, next=next)
        return HTMLResponse(_page("Welcome", body, reader))

    @routes.post("/sign-in")
    def sign_in(
        request: Request,
        token: Annotated[str, Form()] = "",
        name: Annotated[str, Form(max_length=200)] = "",
        password: Annotated[str, Form(max_length=1000)] = "",
        next: Annotated[str, Form()] = "/",
    ) -> Response:
        reader = reader_of(request.headers)
        try:
            if token:
                found = auth.use_link(token)
                if found is None:
                    raise SignInRefused(LINK_ENDED)
            else:
                found = auth.sign_in_with_password(
                    name.strip(), password, address=_address(request), headers=request.headers
                )
        except (SignInRefused, Busy) as error:
            problem, hint = _in_words(error, reader), _LOCAL_HINT if token else None
            again = sign_in_page(auth, reader, landing=next, name=name, problem=problem, hint=hint)
            if isinstance(error, SignInRefused):
                return HTMLResponse(again, 401)
            return HTMLResponse(again, 429, headers={"Retry-After": str(ceil(error.seconds))})
        return signed_in(auth, request, found, landing=next)

    @routes.post("/sign-out")
    def sign_out(request: Request) -> Response:
        auth.end_session(auth.session_secret(request.headers))
        response = RedirectResponse("/sign-in", 303)
        response.delete_cookie(auth.cookie, path="/", secure=auth.secure, httponly=True)
        return response


def _invite_routes(routes: APIRouter, auth: Auth) -> None:
    @routes.get("/invite")
    def show_invite(request: Request, token: str = "", language: str = "") -> Response:
        # The invite was opened again in a browser that is signed in.
        if request.state.identity is not None and auth.invited(token) is None:
            return RedirectResponse("/", 303)
        reader = reader_of(request.headers).speaking(language)
        response = _invite_page(auth, token, reader)
        if language in LANGUAGES:
            keep_language(response, language)
        return response

    @routes.post("/invite")
    def accept_invite(
        request: Request,
        token: Annotated[str, Form()],
        password: Annotated[str, Form(max_length=1000)],
        again: Annotated[str, Form(max_length=1000)],
    ) -> Response:
        reader = reader_of(request.headers)
        if password != again:
            return _invite_page(auth, token, reader, problem=translated(DIFFERENT, reader.language))
        try:
            found = auth.set_password(token, password)
        except (SignInRefused, Busy, ValueError) as error:
            return _invite_page(auth, token, reader, problem=_in_words(error, reader))
        return signed_in(auth, request, found, landing="/")


def _password_routes(routes: APIRouter, auth: Auth) -> None:
    @routes.get("/label/password")
    def show_change(request: Request) -> Response:
        return _change_page(request.state.identity.annotator, reader_of(request.headers))

    @routes.post("/label/password")
    def change(
        request: Request,
        old: Annotated[str, Form(max_length=1000)],
        password: Annotated[str, Form(max_length=1000)],
        again: Annotated[str, Form(max_length=1000)],
    ) -> Response:
        person: Annotator = request.state.identity.annotator
        reader = reader_of(request.headers)
        if password != again:
            return _change_page(person, reader, translated(DIFFERENT_NEW, reader.language), 422)
        try:
            changed = auth.change_password(
                person, old, password, address=_address(request), headers=request.headers
            )
        except (Busy, SignInRefused, ValueError) as error:
            status = 403 if isinstance(error, SignInRefused) else 422
            status = 429 if isinstance(error, Busy) else status
            again_page = _change_page(person, reader, _in_words(error, reader), status)
            if isinstance(error, Busy):
                again_page.headers["Retry-After"] = str(ceil(error.seconds))
            return again_page
        landing = "/label/" if "annotator" in GRANTS[changed.role] else "/"
        return signed_in(auth, request, changed, landing=landing)


def _change_page(
    person: Annotator, reader: Reader, problem: str = "", status: int = 200
) -> HTMLResponse:
    language, labels = reader.language, "annotator" in GRANTS[person.role]
    style = Markup("" if person.password_hash else ' class="button"')
    back = fill(_TO_LABELING if labels else _TO_START, language, style=style)
    if person.password_hash is None:
        return HTMLResponse(
            _page("Change password", fill(_NO_PASSWORD, language, back=back), reader), status
        )
    body = fill(
        _CHANGE,
        language,
        problem=_PROBLEM.format(problem) if problem else "",
        name=person.name,
        who=_STRONG.format(person.name),
        shortest=MIN_PASSWORD_LENGTH,
        longest=MAX_PASSWORD_LENGTH,
        back=back,
    )
    return HTMLResponse(_page("Change password", body, reader), status)


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


def _invite_page(
    auth: Auth, token: str, reader: Reader, problem: str | None = None
) -> HTMLResponse:
    language, found = reader.language, auth.invited(token)
    if found is None:
        used = translated(INVITE_ENDED, language)
        return HTMLResponse(sign_in_page(auth, reader, problem=used, hint=_INVITE_HINT), 410)
    body = fill(
        _INVITE,
        language,
        problem=_PROBLEM.format(problem) if problem else "",
        name=found.name,
        who=_STRONG.format(found.name),
        shortest=MIN_PASSWORD_LENGTH,
        longest=MAX_PASSWORD_LENGTH,
        token=token,
        other=_provider(_INVITE_PROVIDER, auth, language, invite=token),
    )
    address = f"/invite?{urlencode({'token': token})}"
    shown = _page("Welcome to Kitestring", body, reader, address=address)
    return HTMLResponse(shown, 422 if problem else 200)


def _address(request: Request) -> str:
    """The client's address; behind a proxy, the server reads it from the proxy's header."""
    return request.client.host if request.client else ""


def _own_page(landing: str) -> str:
    """`landing` if it is a page of this site: it comes from the URL and could name any site.

    The query of the researcher's page names its tab and run.
    """
    return landing if re.fullmatch(r"/label/|/research/(\?[\w=&-]{1,200})?", landing) else "/"


def signed_in(auth: Auth, request: Request, who: Annotator, *, landing: str) -> Response:
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
    if language := annotators.language(auth.db, who.id):
        keep_language(response, language)
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
