"""The commands on reward models."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.reward.report import make_curve, readable
from pipeline.studies import stoppable


def add_reward_commands(
    app: typer.Typer, connect: Callable[[Path], AbstractContextManager[Any]]
) -> None:
    """Add `reward report`; `connect` reaches a workspace."""
    reward = typer.Typer(help="Reward models.", no_args_is_help=True)
    app.add_typer(reward, name="reward")

    @reward.callback()
    def reward_command() -> None:
        """Reward models."""  # makes `report` a command of its own and not the only one

    @reward.command("report")
    @stoppable()
    def report_command(
        workspace: Annotated[Path, typer.Option(help="The workspace.")] = Path("workspace"),
        model: Annotated[
            str | None, typer.Option(help="As in reward-2; the newest if left out.")
        ] = None,
        curve: Annotated[
            bool,
            typer.Option(
                "--curve",
                help="Train it again on fewer labels first, for a learning curve: twelve models, "
                "as long as training it six times takes.",
            ),
        ] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ) -> None:
        """Is the reward model good enough for PPO, for best-of-N, or not yet?"""
        found = _report(connect, workspace, model)
        if curve:
            if found["model"] is None:
                raise ValueError("there is no reward model yet; train once (`launch.py iterate`)")
            # Beside a live server, and without holding the workspace where there is none.
            make_curve(workspace.resolve(), found, lambda line: typer.echo(line, err=True))
            found = _report(connect, workspace, found["model"])
        typer.echo(json.dumps(found) if as_json else readable(found))


def _report(
    connect: Callable[[Path], AbstractContextManager[Any]], workspace: Path, model: str | None
) -> Any:
    with connect(workspace) as target:
        return target.call("reward.report", model=model)
