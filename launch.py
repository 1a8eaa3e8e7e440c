"""Kitestring's command line and composition root: the only module that sees all others.

Commands run on a `Studio` (an open workspace).  While `serve` holds the workspace, the same
commands go to it over HTTP, through the address and token in WORKSPACE/server.json.
"""

# ruff: noqa: E402
from __future__ import annotations

import gc

# Importing makes a million objects and no garbage; looking for some takes a fifth of the start.
gc.disable()

import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import httpx
import typer

from labeler.addresses import Addresses
from labeler.listening import address, listen, others_may_come, public_address
from pipeline.cli import add_study_commands
from pipeline.clients import AdminClient, follow, what_stopped
from pipeline.config import CONFIGS, Config
from pipeline.context import ContextCheck
from pipeline.demo import corpus
from pipeline.form import disagreeing, require_in_time
from pipeline.loop import Loop
from pipeline.settings import assignments
from pipeline.simulate_cli import add_simulate_command
from pipeline.workspaces import load_settings, prepare
from storage import annotators, cli, iterations, prompts, runs
from storage.cli import DEFAULT, Target, Workspace, show
from storage.commands import Commands
from storage.database import Database
from storage.errors import NotFound, WorkspaceLocked, explain
from storage.records import Prompt
from storage.status import status
from storage.watch import Watch
from storage.workspace import SERVER, SETTINGS, publish_server, read_server

gc.enable()
if TYPE_CHECKING:
    from labeler import ports

WARNINGS_TOLD = 3

app = typer.Typer(
    help="Kitestring: label, train a reward model, run PPO, label again.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Sets = Annotated[
    list[str], typer.Option("--set", help="A setting, e.g. ppo.kl_weight=0.05; repeatable.")
]
ConfigFiles = Annotated[list[Path], typer.Option("--config", help="A TOML settings file.")]
Model = Annotated[
    str | None, typer.Option(help="Hugging Face id or local directory; the demo when left out.")
]


class Studio:
    """An open workspace with its loop."""

    def __init__(self, workspace: Path, config: Config) -> None:
        self.db = Database.open(workspace, create=False)
        self.loop = Loop(self.db, config)
        self.commands = Commands(self.db)
        self.commands.too_long = lambda: ContextCheck.of(config)
        # The token of these commands is the operator's, who may write config.toml as well.
        self.commands.register("train", self._train)
        self.commands.register("advance", self.advance)
        self.commands.register("resume", self._resume)
        self.commands.register("retry", self._retry)
        self.commands.register("label-more", lambda: self.loop.label_more(self.loop.stopped().id))
        self.commands.register("settings", lambda: [asdict(s) for s in self.loop.settings()])
        self.commands.register("gate", lambda: self.loop.gate())
        self.commands.register("gate.override", self.loop.override_gate)
        self.commands.register("reward.report", self.loop.reports.report)
        self.commands.register("status", self._status)

    def call(self, command: str, **arguments: Any) -> Any:
        return self.commands.call(command, arguments)

    def _resume(self, overrides: dict[str, str] | None = None) -> None:
        self.loop.resume(self.loop.stopped().id, overrides)

    def _train(self, overrides: dict[str, str]) -> None:
        self.loop.train(overrides, by_operator=True)

    def _retry(self, overrides: dict[str, str] | None = None) -> None:
        self.loop.retry(self.loop.stopped().id, overrides, by_operator=True)

    def _status(self) -> dict[str, Any]:
        """The workspace's status, with what keeps the loop from going on as a sentence."""
        try:
            self.loop.refresh()
        except Exception as error:  # the rest of the status is wanted all the more
            self.db.health.stuck = str(error)
        blocked = self.loop.state()["blocked"]
        stopped = what_stopped(blocked) if blocked else None
        trouble = self.db.health.trouble or stopped
        return status(self.db) | {"trouble": trouble}

    def advance(self) -> dict[str, Any]:
        """One step of the loop and where it stands now."""
        self.loop.advance()
        return self.loop.state() | {"trouble": self.db.health.stuck}

    def fill_demo(self, config: Config) -> None:
        """Give a workspace on the embedded model the demo's prompts, once."""
        if config.model.name == "demo" and not prompts.counts(self.db):
            shipped = corpus.prompts()
            prompts.add(
                self.db,
                [Prompt.make(m, role=r, category=c, source="demo") for r, m, c in shipped],
            )

    def close(self) -> None:
        self.loop.shut_down()
        self.db.close()


class Remote:
    """A live server that has the workspace open; a context manager."""

    def __init__(self, workspace: Path) -> None:
        server = read_server(workspace)
        self.url = server["url"]
        self.admin = AdminClient(self.url, server["token"])

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *exception: object) -> None:
        self.admin.__exit__(*exception)

    def call(self, command: str, **arguments: Any) -> Any:
        return self.admin(command, arguments)


@contextmanager
def connect(workspace: Path, sets: list[str] | None = None) -> Iterator[Target]:
    """The workspace itself, or the server that has it open."""
    try:
        studio = Studio(workspace, load_settings(workspace, [], sets or []))
    except WorkspaceLocked:
        if not (workspace / SERVER).exists():
            raise
        with Remote(workspace) as server:
            yield server
        return
    try:
        yield studio
    finally:
        studio.close()


# --- commands ----------------------------------------------------------------------------------


@app.command()
def init(
    workspace: Workspace = DEFAULT,
    model: Model = None,
    config: ConfigFiles = [],  # noqa: B006 (typer copies it)
    sets: Sets = [],  # noqa: B006
) -> None:
    """Make a workspace: its settings file and an empty database."""
    if (workspace / SETTINGS).exists():
        raise ValueError(f"{workspace} is a workspace already; edit {workspace / SETTINGS}")
    settings = prepare(workspace, model, config, sets)
    Database.open(workspace).close()
    print(f"{workspace} is ready for {settings.model.name}; its settings: {workspace}/config.toml")


@app.command()
def serve(
    workspace: Workspace = DEFAULT,
    model: Model = None,
    prompts_file: Annotated[Path | None, typer.Option("--prompts", help="Prompts (JSONL).")] = None,
    sft: Annotated[Path | None, typer.Option(help="Demonstrations for SFT (JSONL).")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 picks a free one.")] = 7860,
    public_url: Annotated[str | None, typer.Option(help="The address behind a proxy.")] = None,
    config: ConfigFiles = [],  # noqa: B006
    sets: Sets = [],  # noqa: B006
) -> None:
    """Open the studio in the browser; labels come in and the loop goes on while it runs."""
    for file in filter(None, (prompts_file, sft)):
        if not file.exists():
            raise ValueError(f"there is no file {file}")
    public_url = public_address(public_url)
    listener = listen(host, port)  # first: what cannot be served leaves no workspace behind
    try:
        settings = prepare(workspace, model, config, sets)
        Database.open(workspace).close()  # makes it; raises when another process has it
        studio = Studio(workspace, settings)
    except BaseException:
        listener.close()
        raise
    try:
        for kind, file in (("prompts", prompts_file), ("sft", sft)):
            if file:
                bring_in(studio, kind, file)
        if prompts_file is None:
            studio.fill_demo(settings)
        run_server(studio, listener, host=host, public_url=public_url)
    finally:
        studio.close()


def bring_in(studio: Studio, kind: str, file: Path) -> None:
    """Import a file, telling the first warnings the first time; after a restart nothing is new."""
    report = studio.call("import", kind=kind, file=str(file.resolve()))
    if any(report["added"].values()):
        warnings = report["warnings"]
        for odd in warnings[:WARNINGS_TOLD]:
            tell(f"{file.name}, line {odd['line']}: {odd['reason']}")
        if more := report["warnings_in_all"] - len(warnings[:WARNINGS_TOLD]):
            tell(f"{file.name}: {more} more warnings; `import --{kind} … --json` lists them")


def run_server(
    studio: Studio, listener: socket.socket, *, host: str, public_url: str | None
) -> None:
    """Serve until interrupted; a timer thread moves the loop meanwhile."""
    # uvicorn and Gradio take seconds to import; only this command needs them.
    from labeler.serving import private_cache  # noqa: PLC0415

    with private_cache(studio.db.workspace):
        _run_server(studio, listener, host=host, public_url=public_url)


def _run_server(
    studio: Studio, listener: socket.socket, *, host: str, public_url: str | None
) -> None:
    gc.disable()
    from labeler.app import create_app  # noqa: PLC0415
    from labeler.serving import server as http_server  # noqa: PLC0415

    gc.enable()
    workspace, token = studio.db.workspace, secrets.token_urlsafe(32)
    local = address(listener, host)
    web = create_app(
        studio.db,
        # The same fields under another name: neither package may import the other's class.
        loop=cast("ports.Loop", studio.loop),
        admin=studio.commands.call,
        admin_token=token,
        addresses=Addresses.of(host=host, public_url=public_url),
        accounts_required=others_may_come(host, public_url),
    )
    studio.commands.address = public_url or local
    server = http_server(web, behind_proxy=public_url is not None)
    stop = threading.Event()
    timer = threading.Thread(target=keep_going, args=(studio, stop), daemon=True)
    timer.start()
    publish_server(workspace, url=local, token=token)

    def sign_in_link() -> str:
        link = web.state.sign_in_url(annotators.owner(studio.db))
        return link if public_url else local + link

    studio.commands.register("link", sign_in_link)
    print(f"\n  Kitestring is open:\n\n    {sign_in_link()}\n", flush=True)
    try:
        with Watch(studio.db):
            server.run(sockets=[listener])
    finally:
        (workspace / SERVER).unlink(missing_ok=True)
        stop.set()
        timer.join()
        for run in (run for run in runs.listing(studio.db) if run.status == "running"):
            tell(
                f"the {runs.name(run)} stage goes on in the background; the next `serve` or `resume` follows it"
            )


@app.command()
def link(workspace: Workspace = DEFAULT) -> None:
    """Print a link that signs you in as the owner; each works once, so ask for one a browser."""
    with connect(workspace) as target:
        if not isinstance(target, Remote):
            raise ValueError(
                f"no server has {workspace} open; `serve` starts one and prints a link"
            )
        print(target.call("link"))


def keep_going(studio: Studio, stop: threading.Event, *, every: float = 1.0) -> None:
    """Advance the loop until `stop`: again at once while it gets on, else after `every` seconds.

    An unexpected error is told once and shown in the status.
    """
    before, pause = None, 0.0
    while not stop.wait(pause):
        pause = every
        try:
            studio.loop.advance()
            studio.db.health.stuck = None
            if (reached := _reached(studio.db)) != before:
                before, pause = reached, 0.0
        except Exception as error:
            if studio.db.health.stuck != str(error):
                traceback.print_exc()
            studio.db.health.stuck = str(error)


def _reached(db: Database) -> Any:
    """Where the loop stands, without how far a running stage is."""
    current = iterations.latest(db)
    if current is None:
        return None
    started = runs.listing(db, iteration=current.number)
    return current.number, current.phase, [(run.id, run.status) for run in started]


@app.command()
def iterate(workspace: Workspace = DEFAULT, sets: Sets = []) -> None:  # noqa: B006
    """Train on the labels so far and sample the next pairs: one whole iteration, no browser."""
    load_settings(workspace, [], sets)  # an invalid one is refused before anything runs
    require_in_time(assignments(sets), None)
    with connect(workspace) as target:
        state = follow(target.call, until="labeling", tell=tell)
        target.call("train", overrides=assignments(sets))
        follow(target.call, until="labeling", after=state["iteration"], tell=tell)
        show(target.call("iteration", number=state["iteration"])["evaluation"], as_json=True)


@app.command()
def resume(workspace: Workspace = DEFAULT, sets: Sets = []) -> None:  # noqa: B006
    """Go on with the stage that stopped, from its last checkpoint, until labels are wanted.

    `--set ppo.updates=N` makes a PPO run longer; other settings stay as they were.
    """
    load_settings(workspace, [], sets)  # an invalid one is refused before anything runs
    take_up(workspace, "resume", overrides=assignments(sets))


@app.command()
def retry(workspace: Workspace = DEFAULT, sets: Sets = []) -> None:  # noqa: B006
    """Run the stage that stopped again from scratch, with the settings of now, and go on."""
    load_settings(workspace, [], sets)  # an invalid one is refused before anything runs
    take_up(workspace, "retry", overrides=assignments(sets))


@app.command("label-more")
def label_more(workspace: Workspace = DEFAULT) -> None:
    """Leave a reward stage that failed or was cancelled, and label on; train again when ready."""
    with connect(workspace) as target:
        target.call("label-more")
    print("the loop waits for labels; the next training takes a new snapshot of them")


def take_up(workspace: Path, how: str, **arguments: Any) -> None:
    with connect(workspace) as target:
        # A worker outlives its server and may have ended since: then nothing is to be resumed.
        found = target.call("status")
        phase = (found["iteration"] or {}).get("phase", "labeling")
        if how == "resume" and found["trouble"] is None and phase != "labeling":
            tell("no stage is stopped; the loop goes on")
        else:
            target.call(how, **arguments)
        state = follow(target.call, until="labeling", tell=tell)
        print(f"iteration {state['iteration']} waits for labels")


def tell(line: str) -> None:
    """Progress, apart from what a command prints."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def server_for(
    workspace: Path, files: Sequence[Path], sets: Sequence[str], unasked: Sequence[str] = ()
) -> Iterator[Remote]:
    """The live server of a workspace, or one of our own for as long as it is needed.

    A live one keeps its settings: ``ValueError`` where `files` or `sets` ask for others.  What is
    `unasked` goes to a server of our own only.
    """
    sets = [*unasked, *sets]
    config = prepare(workspace, None, files, sets)
    try:
        Database.open(workspace).close()
    except WorkspaceLocked:
        with Remote(workspace) as server:
            named = assignments(sets[len(unasked) :]).keys() | {
                s.name for s in Config.load(files).settings() if s.value != s.default
            }
            if other := disagreeing(config, named, server.call("settings")):
                raise ValueError(
                    f"the server that has {workspace} open runs with {', '.join(other)}; stop it, "
                    "or leave out what it would not use"
                ) from None
            yield server
        return
    options = [f"--config={file}" for file in files] + [f"--set={item}" for item in sets]
    command = [sys.executable, __file__, "serve", f"--workspace={workspace}", "--port=0", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        while process.poll() is None and not is_up(workspace):
            time.sleep(0.1)
        if process.poll() is not None:
            raise RuntimeError(f"the server did not start (exit status {process.returncode})")
        with Remote(workspace) as server:
            yield server
    finally:
        process.terminate()  # SIGINT is ignored by what a shell script started with &
        process.wait(timeout=30)


def is_up(workspace: Path) -> bool:
    with suppress(FileNotFoundError, ValueError, httpx.TransportError):
        # Any answer: a server whose disk is full is up, and says what is wrong.
        httpx.get(f"{read_server(workspace)['url']}/healthz", timeout=2)
        return True
    return False


cli.add_data_commands(app, connect=connect, prepare=lambda where: prepare(where, None, [], []))
add_study_commands(app, connect=connect)
add_simulate_command(app, server_for=server_for, tiny_settings=CONFIGS / "tiny.toml", show=show)


def main() -> None:
    """Run the command line; what a user can mend is one sentence, not a traceback."""
    # An exception instead of a sudden end, so that what was started is stopped as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        app()
    except (ValueError, NotFound, RuntimeError, OSError) as error:
        print(f"kitestring: {explain(error)}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
