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
from pipeline.runs.study_folder import MAX_CONTROLS, Spec
from pipeline.studies import study
from pipeline.studies.retrain.findings import format_retraining
from storage.reports import RewardReport, from_json, to_json

reward = typer.Typer(
    help="Report on reward models; train one again without some judgments.", no_args_is_help=True
)
app.add_typer(reward, name="reward")


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


@reward.command("retrain")
@stoppable()
def retrain_command(
    without: Annotated[
        list[str] | None,
        typer.Option("--without", help="Name of an annotator to do without; repeatable."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            help="Keep only judgments by this kind of annotators: person, simulated or model; "
            "repeatable.",
        ),
    ] = None,
    guidelines: Annotated[
        list[str] | None,
        typer.Option(
            "--guidelines",
            help="Keep only judgments under this version (digest) of the guidelines; repeatable.",
        ),
    ] = None,
    before: Annotated[
        str | None,
        typer.Option("--before", help="Keep only judgments before this date in ISO 8601 (UTC)."),
    ] = None,
    iteration: Annotated[
        int | None,
        typer.Option("--iteration", help="Whose reward model; by default the newest that has one."),
    ] = None,
    control: Annotated[
        int,
        typer.Option(
            "--control",
            min=0,
            max=MAX_CONTROLS,
            help="Also train so many models without as many random judgments, to see what chance "
            "gives. Each takes as long as the retraining: one doubles the time.",
        ),
    ] = 0,
    name: Annotated[
        str, typer.Option(help="Folder under WORKSPACE/retrain; by default the criteria.")
    ] = "",
    workspace: Workspace = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Train the reward model again without some judgments, and report what that changes.

    Criteria combine: a judgment is kept if it meets all of them. Models and verdicts in use stay.
    """
    with connect(workspace) as target:
        planned = target.call(
            "reward.retrain",
            without=without or [], only=only or [], guidelines=guidelines or [], before=before,
            iteration=iteration, controls=control, name=name,
        )  # fmt: skip
    found, plot = study.run_retraining(workspace.resolve(), Spec(**planned), log_progress)
    if as_json:
        typer.echo(json.dumps(to_json(found) | {"plot": str(plot)}))
    else:
        typer.echo(format_retraining(found, plot))


def _report(workspace: Path, model: str | None) -> RewardReport:
    with connect(workspace) as target:
        return from_json(RewardReport, target.call("reward.report", model=model))
