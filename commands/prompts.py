"""The commands on prompts: list them, add one, retire and restore it, set its category."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from commands.app import DEFAULT, AsJson, Workspace, app, show
from commands.studio import connect

prompts = typer.Typer(help="List, add and retire prompts.", no_args_is_help=True)
app.add_typer(prompts, name="prompts")


@prompts.command("list")
def list_command(
    role: Annotated[str | None, typer.Option(help="sft, train, held-out, audit or live.")] = None,
    category: Annotated[str | None, typer.Option(help="Category of the prompt.")] = None,
    retired: Annotated[bool | None, typer.Option(help="Whether it is retired.")] = None,
    text: Annotated[str, typer.Option(help="Text in any message.")] = "",
    before: Annotated[
        str | None, typer.Option(help="The next page: the last id of this one.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Prompts per page.", min=1, max=500)] = 30,
    workspace: Workspace = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List prompts, the newest first, and count roles and categories."""
    with connect(workspace) as target:
        found = target.call(
            "prompts.list",
            role=role, category=category, retired=retired, text=text, before=before, limit=limit,
        )  # fmt: skip
    show(found if as_json else _to_read(found), as_json)


def _to_read(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "prompts": [
            {
                "id": row["id"],
                "role": row["role"],
                "category": row["category"],
                "retired": "retired" if row["retired"] else "",
                "pairs": row["pairs"],
                "judgments": row["judgments"],
                "text": " ".join(row["text"].split())[:60],
            }
            for row in found["rows"]
        ],
        "total": found["total"],
        **({"next page": f"--before {found['after']}"} if found["after"] else {}),
        "roles": _counted(found["roles"]),
        "categories": _counted(found["categories"]),
        "retired": found["retired"],
    }


def _counted(values: list[dict[str, Any]]) -> str:
    return ", ".join(f"{each['label'] or '(none)'} {each['count']}" for each in values)


@prompts.command("add")
def add_command(
    text: str,
    role: Annotated[
        str | None,
        typer.Option(help="train, held-out or audit; without it, as an import would choose."),
    ] = None,
    category: Annotated[str, typer.Option(help="Category of the prompt.")] = "",
    workspace: Workspace = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Add one prompt of a single message."""
    with connect(workspace) as target:
        show(target.call("prompts.add", text=text, role=role, category=category), as_json)


@prompts.command("retire")
def retire_command(id: str, workspace: Workspace = DEFAULT, as_json: AsJson = False) -> None:
    """Sample no more responses to a prompt and take its pairs out of the queue."""
    with connect(workspace) as target:
        show(target.call("prompts.edit", id=id, retired=True), as_json)


@prompts.command("restore")
def restore_command(id: str, workspace: Workspace = DEFAULT, as_json: AsJson = False) -> None:
    """Use a retired prompt again."""
    with connect(workspace) as target:
        show(target.call("prompts.edit", id=id, retired=False), as_json)


@prompts.command("category")
def category_command(
    id: str, category: str, workspace: Workspace = DEFAULT, as_json: AsJson = False
) -> None:
    """Set the category of a prompt; "" removes it."""
    with connect(workspace) as target:
        show(target.call("prompts.edit", id=id, category=category), as_json)
