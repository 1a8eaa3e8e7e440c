"""The commands on flags: problems that annotators reported, and the answers to them."""

from __future__ import annotations

from typing import Annotated

import typer

from commands.app import DEFAULT, AsJson, Workspace, app, show
from commands.studio import connect

flags = typer.Typer(help="List flags, answer them and clear them.", no_args_is_help=True)
app.add_typer(flags, name="flags")


@flags.command("list")
def list_command(
    all: Annotated[bool, typer.Option("--all", help="Cleared and undone flags too.")] = False,
    workspace: Workspace = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List open flags; with --json, with their whole prompts and answers."""
    with connect(workspace) as target:
        found = target.call("flags.list", all=all)
    if not as_json:
        found = [
            {
                "id": flag["id"],
                "annotator": flag["annotator"] or "unknown",
                "state": flag["state"],
                "comment": " ".join(flag["comment"].split())[:60],
                "answers": len(flag["answers"]),
                "prompt": " ".join(flag["prompt"].split())[:60],
            }
            for flag in found
        ]
    show(found, as_json)


@flags.command("answer")
def answer_command(
    id: str,
    text: str,
    clear: Annotated[bool, typer.Option("--clear", help="Also clear the flag.")] = False,
    workspace: Workspace = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Answer a flag; the annotator who set it reads the answer in My judgments."""
    with connect(workspace) as target:
        show(target.call("flags.answer", id=id, text=text, clear=clear), as_json)


@flags.command("clear")
def clear_command(id: str, workspace: Workspace = DEFAULT, as_json: AsJson = False) -> None:
    """Return a flagged pair to the queue."""
    with connect(workspace) as target:
        show(target.call("flags.clear", id=id), as_json)
