"""The command on the audit log: who did what on the research side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commands.app import DEFAULT, AsJson, Workspace, app, show
from commands.studio import connect


@app.command("audit")
def audit_command(
    actor: Annotated[
        str | None, typer.Option(help="A person's name, or `operator` for the command line.")
    ] = None,
    action: Annotated[
        str | None, typer.Option(help="An action, e.g. account.added, or its group: account.")
    ] = None,
    since: Annotated[str | None, typer.Option(help="A date or time in UTC: 2026-11-25.")] = None,
    until: Annotated[str | None, typer.Option(help="The same; entries before it.")] = None,
    search: Annotated[str | None, typer.Option(help="Text in any part.")] = None,
    limit: Annotated[
        int | None, typer.Option(help="At most so many; 50, or all with --out.", min=1)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write FILE.jsonl or FILE.csv.")] = None,
    workspace: Workspace = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List who did what on the research side, the newest first."""
    filters = {"actor": actor, "action": action, "since": since, "until": until, "search": search}
    with connect(workspace) as target:
        if out is not None:
            file = str(out.absolute())
            show(target.call("audit.write", out=file, limit=limit, **filters), as_json)
            return
        found = target.call("audit.list", limit=limit or 50, **filters)
    if not as_json:
        found = [each | {"details": _words(each["details"])} for each in found]
    show(found, as_json)


def _words(details: dict[str, object]) -> str:
    # Control characters would reach the terminal.
    text = ", ".join(f"{name}: {value}" for name, value in details.items())
    return "".join(c if c.isprintable() else " " for c in text)
