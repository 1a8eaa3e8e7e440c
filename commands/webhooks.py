"""The commands on webhooks: programs and e-mail addresses that receive events."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from commands.app import DEFAULT, AsJson, Workspace, app, show
from commands.studio import connect
from storage.notification_records import EVENTS

webhooks = typer.Typer(
    help="Send events to other programs and to e-mail addresses.", no_args_is_help=True
)
app.add_typer(webhooks, name="webhooks")


@webhooks.command("add")
def add_command(
    url: Annotated[str, typer.Argument(help="The URL of a program, or an e-mail address.")],
    events: Annotated[
        list[str],
        typer.Option("--event", help=f"{', '.join(EVENTS)}; repeatable. By default all."),
    ] = [],  # noqa: B006 (typer copies it)
    description: Annotated[str, typer.Option(help="A note for people.")] = "",
    workspace: Workspace = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Add a webhook and print its secret, which is not shown again, or add an e-mail address."""
    for each in events:
        if each not in EVENTS:
            raise ValueError(f"there is no event {each!r}; choose from {', '.join(EVENTS)}")
    with connect(workspace) as target:
        chosen = events or list(EVENTS)
        show(target.call("webhooks.add", url=url, events=chosen, description=description), as_json)


@webhooks.command("list")
def list_command(workspace: Workspace = DEFAULT, as_json: AsJson = False) -> None:
    """List the webhooks with their state and the numbers of their deliveries."""
    with connect(workspace) as target:
        found = target.call("webhooks.list")
    if not as_json:
        found = [
            {
                "id": each["id"],
                "url": each["url"],
                "events": each["events"],
                "state": "active" if each["active"] else "disabled",
                "delivered": each["delivered"],
                "pending": each["pending"],
                "failed": each["failed"],
                "why disabled": each["reason"],
            }
            for each in found
        ]
    show(found, as_json)


@webhooks.command("test")
def ping_command(id: str, workspace: Workspace = DEFAULT, as_json: AsJson = False) -> None:
    """Send a `ping` to a webhook and print the answer; exit status 1 if it was not accepted."""
    found = _call(workspace, "webhooks.test", id=id)
    show(found, as_json)
    if found["status"] != "delivered":
        raise typer.Exit(1)


@webhooks.command("enable")
def enable_command(id: str, workspace: Workspace = DEFAULT, as_json: AsJson = False) -> None:
    """Send events to a disabled webhook again; its pending deliveries continue."""
    show(_call(workspace, "webhooks.enable", id=id), as_json)


@webhooks.command("disable")
def disable_command(id: str, workspace: Workspace = DEFAULT, as_json: AsJson = False) -> None:
    """Send nothing to a webhook until it is enabled."""
    show(_call(workspace, "webhooks.disable", id=id), as_json)


@webhooks.command("remove")
def remove_command(id: str, workspace: Workspace = DEFAULT, as_json: AsJson = False) -> None:
    """Remove a webhook; its pending deliveries are not sent."""
    show(_call(workspace, "webhooks.remove", id=id), as_json)


@webhooks.command("rotate")
def rotate_command(id: str, workspace: Workspace = DEFAULT, as_json: AsJson = False) -> None:
    """Replace the secret and print the new one; for a day, both secrets sign."""
    show(_call(workspace, "webhooks.rotate", id=id), as_json)


@webhooks.command("deliveries")
def deliveries_command(
    webhook: Annotated[str | None, typer.Option(help="Only those of this webhook.")] = None,
    status: Annotated[str | None, typer.Option(help="pending, delivered or failed.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1, max=1000)] = 50,
    workspace: Workspace = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List deliveries, those with the newest attempt first."""
    found = _call(workspace, "webhooks.deliveries", webhook=webhook, status=status, limit=limit)
    if not as_json:
        columns = ("id", "type", "status", "attempts", "code", "next_at", "error")
        found = [{name: each[name] for name in columns} for each in found]
    show(found, as_json)


@webhooks.command("resend")
def resend_command(id: str, workspace: Workspace = DEFAULT, as_json: AsJson = False) -> None:
    """Send the event of a delivery again, with the same id."""
    show(_call(workspace, "webhooks.resend", id=id), as_json)


def _call(workspace: Any, command: str, **arguments: Any) -> Any:
    with connect(workspace) as target:
        return target.call(command, **arguments)
