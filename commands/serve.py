"""`init`, `serve` and `link`: create a workspace and open it in the browser."""

from __future__ import annotations

import gc
import secrets
import shlex
import socket
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from commands.app import DEFAULT, ConfigFiles, Model, Sets, Workspace, app, log_progress
from commands.studio import PRIVATE_WEBHOOKS, Remote, Studio, connect
from labeler.security import oidc_settings
from labeler.security.addresses import Addresses
from labeler.security.listening import address, is_exposed, listen, public_address
from labeler.security.oidc_settings import OidcSettings
from labeler.webhooks import mail_settings
from pipeline.loop.settings_store import Layers
from pipeline.loop.workspace_config import prepare
from pipeline.runs.launchers.choose import require_answer
from storage.engine.database import Database
from storage.engine.watch import Watch
from storage.engine.workspace import SERVER, SETTINGS, publish_server
from storage.tables import iterations
from storage.tables.people import annotators
from storage.tables.runs import runs, studies
from storage.wording import plural

if TYPE_CHECKING:
    from labeler import ports

WARNINGS_SHOWN = 3
PromptsFile = Annotated[Path | None, typer.Option("--prompts", help="Prompts (JSONL).")]


@app.command()
def init(
    workspace: Workspace = DEFAULT,
    model: Model = None,
    prompts_file: PromptsFile = None,
    config: ConfigFiles = [],  # noqa: B006 (typer copies it)
    sets: Sets = [],  # noqa: B006
) -> None:
    """Create a workspace: a settings file and an empty database. Prints the next step.

    Without --prompts, a workspace of the demo gets the demo's prompts at its first start.
    """
    if (workspace / SETTINGS).exists():
        raise ValueError(f"{workspace} is already a workspace; edit {workspace / SETTINGS}")
    if prompts_file and not prompts_file.exists():
        raise ValueError(f"there is no file {prompts_file}")
    settings = prepare(workspace, model, config, sets)
    Database.open(workspace).close()
    print(f"{workspace} is ready for {settings.model.name}; its settings: {workspace}/config.toml")
    place = "" if workspace == DEFAULT else f" --workspace {shlex.quote(str(workspace))}"
    added = _add_prompts(workspace, prompts_file) if prompts_file else 0
    if added:
        print(f"Added {plural(added, 'prompt')}.")
    elif settings.model.name != "demo":
        print(f"Next, add prompts: python launch.py import --prompts FILE.jsonl{place}")
        print(f"Then start the studio: python launch.py serve{place}")
        return
    print(f"Next, start the studio: python launch.py serve{place}")
    if not added:
        print(
            "The first start adds the demo's prompts, unless prompts, judgments or pairs are imported before."
        )


def _add_prompts(workspace: Path, file: Path) -> int:
    """Import prompts; returns how many are new."""
    with connect(workspace) as target:
        report = target.call("import", kind="prompts", file=str(file.resolve()))
    return report["added"]["prompts"]


@app.command()
def serve(
    workspace: Workspace = DEFAULT,
    model: Model = None,
    prompts_file: PromptsFile = None,
    sft: Annotated[Path | None, typer.Option(help="Demonstrations for SFT (JSONL).")] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on.", envvar="KITESTRING_HOST")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 picks a free one.")] = 7860,
    public_url: Annotated[
        str | None,
        typer.Option(
            help="The studio's public address behind a proxy.", envvar="KITESTRING_PUBLIC_URL"
        ),
    ] = None,
    allow_private_webhooks: Annotated[
        bool,
        typer.Option(
            "--allow-private-webhooks",
            help="Send webhooks to private addresses too.",
            envvar=PRIVATE_WEBHOOKS,
        ),
    ] = False,
    sign_in: Annotated[
        Path | None,
        typer.Option(help="Sign-in by OpenID Connect (TOML); WORKSPACE/sign-in.toml by default."),
    ] = None,
    config: ConfigFiles = [],  # noqa: B006
    sets: Sets = [],  # noqa: B006
) -> None:
    """Start the studio: the web server, and the loop behind it."""
    for file in filter(None, (prompts_file, sft)):
        if not file.exists():
            raise ValueError(f"there is no file {file}")
    public_url = public_address(public_url)
    oidc = sign_in_settings(sign_in, workspace)
    listener = listen(host, port)  # first, so that a failure does not leave a new workspace
    try:
        if workspace.is_dir():
            mail_settings.read(workspace)  # wrong settings stop the start
        settings = prepare(workspace, model, config, sets)
        require_answer(settings.worker, workspace)
        Database.open(workspace).close()  # creates it; raises if another process has it open
        layers = Layers(files=config, sets=sets)
        studio = Studio(workspace, settings, layers, allow_private_webhooks=allow_private_webhooks)
    except BaseException:
        listener.close()
        raise
    try:
        for kind, file in (("prompts", prompts_file), ("sft", sft)):
            if file:
                import_at_startup(studio, kind, file)
        if prompts_file is None:
            studio.fill_demo(settings)
        run_server(studio, listener, host=host, public_url=public_url, oidc=oidc)
    finally:
        studio.close()


def sign_in_settings(file: Path | None, workspace: Path) -> OidcSettings | None:
    """The settings of the OpenID provider; None if there is no file."""
    if file is not None and not file.exists():
        raise ValueError(f"there is no file {file}")
    file = file or workspace / oidc_settings.FILE
    return oidc_settings.read(file) if file.exists() else None


def import_at_startup(studio: Studio, kind: str, file: Path) -> None:
    """Import a file and print its first warnings, unless an earlier start has imported it."""
    report = studio.call("import", kind=kind, file=str(file.resolve()))
    if any(report["added"].values()):
        warnings = report["warnings"]
        for warning in warnings[:WARNINGS_SHOWN]:
            log_progress(f"{file.name}, line {warning['line']}: {warning['reason']}")
        if more := report["warnings_in_all"] - len(warnings[:WARNINGS_SHOWN]):
            log_progress(
                f"{file.name}: {more} more warnings; `import --{kind} … --json` lists them"
            )


def run_server(
    studio: Studio,
    listener: socket.socket,
    *,
    host: str,
    public_url: str | None,
    oidc: OidcSettings | None = None,
) -> None:
    """Serve until interrupted, while a timer thread advances the loop."""
    # uvicorn and Gradio take seconds to import; only this command needs them.
    from labeler.serving import private_cache  # noqa: PLC0415

    with private_cache(studio.db.workspace):
        _run_server(studio, listener, host=host, public_url=public_url, oidc=oidc)


def _run_server(
    studio: Studio,
    listener: socket.socket,
    *,
    host: str,
    public_url: str | None,
    oidc: OidcSettings | None,
) -> None:
    gc.disable()
    from labeler.app import create_app  # noqa: PLC0415
    from labeler.serving import return_freed_memory  # noqa: PLC0415
    from labeler.serving import server as http_server  # noqa: PLC0415

    gc.enable()
    return_freed_memory()
    workspace, token = studio.db.workspace, secrets.token_urlsafe(32)
    local = address(listener, host)
    web = create_app(
        studio.db,
        # Structurally the same: neither package may import the other's class.
        loop=cast("ports.Loop", studio.loop),
        generation=studio.generation,
        webhooks=studio.webhooks,
        too_long=studio.commands.too_long,
        admin=studio.commands.call,
        admin_token=token,
        addresses=Addresses.of(host=host, public_url=public_url),
        accounts_required=is_exposed(host, public_url),
        oidc=oidc,
    )
    studio.commands.address = public_url or local
    studio.commands.serving = True
    studio.webhooks.dispatcher.address = public_url or local
    server = http_server(web, behind_proxy=public_url is not None)
    stop = threading.Event()
    timer = threading.Thread(target=advance_periodically, args=(studio, stop), daemon=True)
    timer.start()

    def sign_in_link() -> str:
        link = web.state.sign_in_url(annotators.owner(studio.db))
        return link if public_url else local + link

    studio.commands.register("link", sign_in_link)
    try:
        publish_server(workspace, url=local, token=token)
        print(f"\n  Kitestring is open:\n\n    {sign_in_link()}\n", flush=True)
        with Watch(studio.db), studio.webhooks.dispatcher:
            server.run(sockets=[listener])
    finally:
        (workspace / SERVER).unlink(missing_ok=True)
        stop.set()
        timer.join()
        for run in (run for run in runs.listing(studio.db) if run.status == "running"):
            log_progress(
                f"the {runs.name(run)} stage continues in the background; the next `serve` or "
                "`resume` follows it"
            )
        if study := studies.running(studio.db):
            log_progress(
                f"the study {study.name} continues in the background; the next `serve` follows it"
            )


@app.command()
def link(workspace: Workspace = DEFAULT) -> None:
    """Print a link that signs you in as the owner; each link works once."""
    with connect(workspace) as target:
        if not isinstance(target, Remote):
            raise ValueError(
                f"no server has {workspace} open; `serve` starts one and prints a link"
            )
        print(target.call("link"))


def advance_periodically(studio: Studio, stop: threading.Event, *, every: float = 1.0) -> None:
    """Advance the loop until `stop`: immediately after a change, otherwise every `every` seconds.

    A stage that starts stops the generation service, if both use the same device.

    An unexpected error is printed once and shown in the status.
    """
    before, pause = None, 0.0
    while not stop.wait(pause):
        pause = every
        try:
            studio.loop.advance()
            studio.generation.tick()
            studio.db.health.loop_error = None
            if (position := _loop_position(studio.db)) != before:
                before, pause = position, 0.0
        except Exception as error:
            if studio.db.health.loop_error != str(error):
                traceback.print_exc()
            studio.db.health.loop_error = str(error)


def _loop_position(db: Database) -> Any:
    """The state of the loop, without the progress of a running stage."""
    current = iterations.latest(db)
    if current is None:
        return None
    started = runs.listing(db, iteration=current.number)
    return current.number, current.phase, [(run.id, run.status) for run in started]
