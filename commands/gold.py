"""The commands on gold pairs: pairs with a known answer, which measure annotators."""

from __future__ import annotations

from typing import Annotated

import typer

from commands.app import DEFAULT, AsJson, Workspace, app, show
from commands.studio import connect

gold = typer.Typer(help="Manage gold pairs, which check annotators.", no_args_is_help=True)
app.add_typer(gold, name="gold")


@gold.command("make")
def make_command(
    count: Annotated[int, typer.Option(help="At most so many pairs.", min=1)] = 20,
    workspace: Workspace = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Make gold pairs from pairs on which all annotators prefer the same response."""
    with connect(workspace) as target:
        show(target.call("gold.make", count=count), as_json)


@gold.command("list")
def list_command(workspace: Workspace = DEFAULT, as_json: AsJson = False) -> None:
    """List gold pairs, with how many annotators answered each as expected."""
    with connect(workspace) as target:
        pairs = target.call("gold.list")
    if not as_json:
        pairs = [
            {
                "id": pair["id"],
                "in use": pair["active"],
                "answered": pair["answered"],
                "as expected": pair["matched"],
                "prompt": " ".join(pair["messages"][-1]["content"].split())[:60],
            }
            for pair in pairs
        ]
    show(pairs, as_json)


@gold.command("retire")
def retire_command(id: str, workspace: Workspace = DEFAULT, as_json: AsJson = False) -> None:
    """Stop using a gold pair; its judgments no longer count."""
    with connect(workspace) as target:
        show(target.call("gold.retire", id=id), as_json)


@gold.command("restore")
def restore_command(id: str, workspace: Workspace = DEFAULT, as_json: AsJson = False) -> None:
    """Use a retired gold pair again."""
    with connect(workspace) as target:
        show(target.call("gold.restore", id=id), as_json)
