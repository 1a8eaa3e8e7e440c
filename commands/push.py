"""The command that uploads a model to the Hugging Face hub."""

from __future__ import annotations

from typing import Annotated

import typer

from commands.app import DEFAULT, AsJson, Workspace, app, show
from commands.studio import connect
from storage.exporting.hub_calls import check_repository


@app.command("push")
def push_command(
    model: Annotated[str, typer.Argument(help="A trained model, such as policy-3.")],
    repository: Annotated[str | None, typer.Argument(help="OWNER/NAME.")] = None,
    public: Annotated[bool, typer.Option("--public", help="Everybody can download it.")] = False,
    dry_run: Annotated[
        bool, typer.Option(help="Show the files and the model card; upload nothing.")
    ] = False,
    workspace: Workspace = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Upload a trained model to the Hugging Face hub, with a model card.

    The token is that of HF_TOKEN (of the server, if one is running) or of WORKSPACE/hub-token.
    """
    if repository is not None:
        check_repository(repository)
    with connect(workspace) as target:
        if dry_run:
            found = target.call("push.plan", model=model)
            if not as_json:
                typer.echo(found.pop("card"))
            show(found, as_json)
            return
        if repository is None:
            raise ValueError("name a repository: push MODEL OWNER/NAME")
        show(target.call("push", model=model, repository=repository, private=not public), as_json)
