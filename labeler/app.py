"""The web application: routes, two Gradio mounts, and the access check in front of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_thread
import gradio as gr
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response
from pydantic import BaseModel
from starlette.middleware import Middleware

from labeler.adjudicating import adjudication_routes
from labeler.annotate import page as annotate
from labeler.annotate.routes import explain_errors, label_routes
from labeler.annotate.worker import worker_routes
from labeler.documents import Documents, Edit
from labeler.downloads import download_routes
from labeler.open_pages import keep_little
from labeler.ports import Generation, Loop
from labeler.queries import WithoutTakenQueries
from labeler.research import pages as research
from labeler.research.api.routes import api_routes, openapi_routes
from labeler.research.data.importing.jobs import Imports
from labeler.research.data.importing.routes import import_routes
from labeler.research.first_view.document import FirstViewed
from labeler.research.models.playground.routes import playground_routes
from labeler.research.models.publishing.jobs import Pushes
from labeler.research.models.publishing.routes import push_routes
from labeler.research.runs.routes import run_routes
from labeler.security.access import GRANTS, AccessMiddleware, rules
from labeler.security.accounts import (
    account_routes,
    missing_page,
    refusal_page,
    sign_in_page,
)
from labeler.security.addresses import Addresses
from labeler.security.auth import Auth
from labeler.security.oidc import Provider
from labeler.security.oidc_routes import oidc_routes
from labeler.security.oidc_settings import OidcSettings
from labeler.theme import Themed
from labeler.uploads import Uploads, upload_routes
from labeler.webhooks.service import Webhooks
from storage.engine.database import Database
from storage.errors import StorageDamaged, StorageUnavailable, explain
from storage.exporting.model_push import Verdicts
from storage.importing.files.long_rows import TooLong

THREADS = 64
"""Requests handled in parallel; each waits for the database or for a group commit."""

Admin = Callable[[str, dict[str, Any]], Any]


def create_app(
    db: Database,
    *,
    loop: Loop,
    generation: Generation | None = None,
    webhooks: Webhooks | None = None,
    too_long: Callable[[], TooLong | None] = lambda: None,
    admin: Admin,
    admin_token: str,
    addresses: Addresses = Addresses(),
    accounts_required: bool,
    oidc: OidcSettings | None = None,
) -> FastAPI:
    """The whole application over an open workspace.

    `admin(command, arguments)` runs commands of the command line, which sends `admin_token`.
    With `oidc`, people can also sign in with an OpenID provider. Without `generation` there are no
    live conversations and no playground, and without `webhooks` events are not sent.  `too_long`
    returns the check for imported rows that are too long for the model.
    ``app.state.sign_in_url(annotator)`` is `Auth.sign_in_url`. Close `db` only after the server has
    stopped.
    """
    auth = Auth(
        db,
        accounts_required=accounts_required,
        public_url=addresses.public_url,
        provider=oidc.name if oidc else None,
    )
    app = FastAPI(
        title="Kitestring", openapi_url=None, docs_url=None, redoc_url=None, lifespan=_lifespan
    )
    app.state.auth = auth
    app.state.sign_in_url = auth.sign_in_url
    explain_errors(app)
    app.include_router(_home_routes(db))
    app.include_router(account_routes(auth))
    if oidc:
        app.include_router(oidc_routes(auth, Provider(oidc)))
    app.include_router(label_routes(db, generation))
    app.include_router(worker_routes())
    app.include_router(adjudication_routes(db))
    uploads = Uploads(db.workspace)
    for_researchers = [
        download_routes(db, loop),
        upload_routes(db, uploads, too_long),
        import_routes(Imports(db, uploads, too_long)),
        push_routes(Pushes(db, Verdicts(loop.gate, loop.reports.report))),
        run_routes(db, loop),
        playground_routes(db, generation),
        *api_routes(
            db,
            loop,
            webhooks=webhooks,
            accounts_changed=auth.accounts_changed,
            public_url=addresses.public_url,
        ),
    ]
    for router in (*for_researchers, openapi_routes(for_researchers)):
        app.include_router(router)
    app.include_router(_admin_routes(admin, done=auth.accounts_changed))

    pages = research.build(db, loop, accounts_changed=auth.accounts_changed, webhooks=webhooks)
    app.include_router(_typed_routes(pages.typed))
    _mount(
        app,
        annotate.build(),
        "/label",
        css=annotate.SHELL_CSS,
        head=annotate.HEAD,
        edits=[Themed(light="#f5f5f2", dark="#11141b")],
    )
    _mount(
        app,
        pages,
        "/research",
        css=research.CSS,
        head=research.HEAD,
        edits=[Themed(light="#f6f6f4", dark="#12151c"), FirstViewed(pages.first_view)],
    )
    app.add_middleware(
        AccessMiddleware,  # pyright: ignore[reportArgumentType]  (an ASGI class, as Starlette's own are)
        auth=auth,
        addresses=addresses,
        admin_token=admin_token,
        rules=rules([*(route for route, *_ in pages.pages if route), *pages.typed]),
        functions=pages.callable_by,
        sign_in_page=lambda path, reader: sign_in_page(auth, reader, landing=path),
        refusal_page=refusal_page,
        missing_page=missing_page,
    )
    return app


@asynccontextmanager
async def _lifespan(_app: FastAPI) -> AsyncIterator[None]:
    anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
    yield


def _mount(
    app: FastAPI,
    blocks: gr.Blocks,
    path: str,
    *,
    css: str,
    head: str,
    edits: Sequence[Edit],
) -> None:
    # Named fonts are local; Gradio's own themes load fonts from Google.
    theme = gr.themes.Base(
        font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif"],
        font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"],
        primary_hue="indigo",
        neutral_hue="slate",
    )
    gr.mount_gradio_app(
        app,
        blocks,
        path=path,
        theme=theme,
        css=css,
        head=head,
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        mcp_server=False,
        enable_monitoring=False,
        show_error=True,
        app_kwargs={
            "openapi_url": None,
            "docs_url": None,
            "redoc_url": None,
            "middleware": [Middleware(WithoutTakenQueries), Middleware(Documents, edits=edits)],
        },
    )
    keep_little(app, blocks)
    # Except on Windows, Gradio's two watchers wake up 1,000 and 100 times a second, which costs 10%
    # of a core per mount. These are its values for Windows.
    blocks._queue.sleep_when_free = 0.05
    blocks._queue.progress_update_sleep_when_free = 0.1


def _typed_routes(typed: Mapping[str, str]) -> APIRouter:
    """The addresses of pages that people type lead to the pages."""
    routes = APIRouter()
    for path, address in typed.items():
        for each in (f"/research/{path}", f"/research/{path}/"):
            routes.add_route(each, _leading_to(address), methods=["GET"])  # and HEAD
    return routes


def _leading_to(address: str) -> Callable[[Request], Response]:
    return lambda _request: RedirectResponse(address, 303)


def _home_routes(db: Database) -> APIRouter:
    routes = APIRouter()

    @routes.get("/")
    def home(request: Request) -> Response:
        identity = request.state.identity
        if identity is None:
            return RedirectResponse("/sign-in", 303)
        reads = "viewer" in GRANTS[identity.annotator.role]
        return RedirectResponse("/research/" if reads else "/label/", 303)

    @routes.get("/healthz")
    def healthz() -> Response:
        word, status = db.health.public()
        return JSONResponse({"status": word}, status)

    return routes


class AdminCall(BaseModel):
    """``POST /admin/api/call``."""

    command: str
    arguments: dict[str, Any] = {}


def _admin_routes(admin: Admin, *, done: Callable[[], None]) -> APIRouter:
    """Routes for programs with the admin token, which the access check has verified.

    `done` is called after each command, because a command can sign a user out.
    """
    routes = APIRouter()

    @routes.post("/admin/api/call")
    def call(body: AdminCall) -> Response:
        # These are errors of the caller; any other error is a bug and gives 500.
        try:
            return JSONResponse({"result": admin(body.command, body.arguments)})
        except (ValueError, LookupError, OSError, StorageDamaged) as error:
            return JSONResponse({"error": explain(error)}, 400)
        except StorageUnavailable as error:
            return JSONResponse({"error": str(error)}, 503, {"Retry-After": "5"})
        finally:
            done()

    return routes
