"""The commands on adjudication: pairs that wait for a ruling, and rulings on them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from commands.app import DEFAULT, AsJson, Workspace, app, show
from commands.studio import connect

adjudicate = typer.Typer(help="Rule on pairs on which annotators disagree.", no_args_is_help=True)
app.add_typer(adjudicate, name="adjudicate")

_Name = Annotated[
    str, typer.Option("--name", help="Account of the adjudicator; without it, the operator.")
]


@adjudicate.command("list")
def list_command(name: _Name = "", workspace: Workspace = DEFAULT, as_json: AsJson = False) -> None:
    """List the pairs that wait for a ruling, and the latest rulings with the votes."""
    with connect(workspace) as target:
        found = target.call("adjudicate.list", name=name)
    show(found if as_json else _to_read(found), as_json)


def _to_read(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "waiting": [
            {"pair": each["comparison"], "prompt": _short(each["messages"][-1]["content"])}
            for each in found["waiting"]
        ],
        "total": found["total"],
        "rulings": [
            {
                "pair": each["comparison"],
                "ruling": each["outcome"],
                "votes": [f"{vote['annotator']}: {vote['outcome']}" for vote in each["votes"]],
                "adjudicator": each["adjudicator"] or "operator",
                "reason": _short(each["reason"]),
            }
            for each in found["rulings"]
        ],
    }


def _short(text: str) -> str:
    return " ".join(text.split())[:60]


@adjudicate.command("show")
def show_command(
    pair: str, name: _Name = "", workspace: Workspace = DEFAULT, as_json: AsJson = False
) -> None:
    """Show a waiting pair without models and votes; a is on the left."""
    with connect(workspace) as target:
        show(target.call("adjudicate.show", id=pair, name=name), as_json)


@adjudicate.command("rule")
def rule_command(
    pair: str,
    outcome: Annotated[str, typer.Argument(help="a, b, tie or both_bad, as `show` names them.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; it stays in the history.")],
    name: _Name = "",
    workspace: Workspace = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Store a ruling, and print it with the votes, in the stored order of the responses."""
    with connect(workspace) as target:
        found = target.call("adjudicate.rule", id=pair, outcome=outcome, reason=reason, name=name)
    show(found, as_json)


@adjudicate.command("send")
def send_command(pair: str, workspace: Workspace = DEFAULT, as_json: AsJson = False) -> None:
    """Send a pair to adjudication."""
    with connect(workspace) as target:
        show(target.call("adjudicate.send", id=pair), as_json)
