"""The commands on reward models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from commands.app import DEFAULT, AsJson, Workspace, app, log_progress
from commands.studio import connect
from pipeline.reward.report.report import format_report, make_curve
from pipeline.runs.repeat import stoppable
from storage.reports import RewardReport, from_json, to_json

reward = typer.Typer(help="Report on reward models.", no_args_is_help=True)
app.add_typer(reward, name="reward")


@reward.callback()
def reward_command() -> None:
    """Report on reward models."""  # without a callback, Typer would drop the name `report`


@reward.command("report")
@stoppable()
def report_command(
    workspace: Workspace = DEFAULT,
    model: Annotated[
        str | None, typer.Option(help="For example reward-2; the newest by default.")
    ] = None,
    curve: Annotated[
        bool,
        typer.Option(
            "--curve",
            help="First compute a learning curve: train twelve models on fewer labels, which takes "
            "about six times as long as training the model.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Report whether a reward model is good enough for PPO or for best-of-N."""
    found = _report(workspace, model)
    if curve:
        # Works beside a live server, and does not keep the workspace locked without one.
        make_curve(workspace.resolve(), found, log_progress)
        found = _report(workspace, found.model)
    typer.echo(json.dumps(to_json(found)) if as_json else format_report(found))


def _report(workspace: Path, model: str | None) -> RewardReport:
    with connect(workspace) as target:
        return from_json(RewardReport, target.call("reward.report", model=model))
