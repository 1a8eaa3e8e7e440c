"""`iterate`, `cancel`, `resume`, `retry`, `label-more` and `runs`: the loop from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from commands.app import DEFAULT, AsJson, Sets, Workspace, app, log_progress, show
from commands.studio import connect
from pipeline.loop.settings_view import check_unlocked
from pipeline.loop.workspace_config import load_settings
from pipeline.ppo.settings import assignments
from pipeline.simulation.clients import follow
from storage.reports import from_json
from storage.status import Status


def rounded(value: float | None) -> float | None:
    """A figure of a list, with four decimals; noise around 0 is 0."""
    return value if value is None else round(value, 4) + 0.0  # without the sign of -0.0


@app.command()
def iterate(workspace: Workspace = DEFAULT, sets: Sets = []) -> None:  # noqa: B006
    """Run one iteration without a browser: train on the current labels, sample the next pairs."""
    load_settings(workspace, [], sets)  # refuses invalid settings before anything runs
    check_unlocked(assignments(sets), None)
    with connect(workspace) as target:
        state = follow(target.call, workspace, until="labeling", progress=log_progress)
        target.call("train", overrides=assignments(sets))
        follow(
            target.call,
            workspace,
            until="labeling",
            after=state.iteration or 0,
            progress=log_progress,
        )
        show(target.call("iteration", number=state.iteration)["evaluation"], as_json=True)


@app.command()
def resume(workspace: Workspace = DEFAULT, sets: Sets = []) -> None:  # noqa: B006
    """Continue the stopped stage from its last checkpoint, and the loop until it needs labels.

    `--set ppo.updates=N` makes a PPO run longer; other settings cannot be changed.
    """
    load_settings(workspace, [], sets)  # refuses invalid settings before anything runs
    continue_stage(workspace, "resume", overrides=assignments(sets))


@app.command()
def retry(workspace: Workspace = DEFAULT, sets: Sets = []) -> None:  # noqa: B006
    """Restart the stopped stage with the current settings, and continue the loop."""
    load_settings(workspace, [], sets)  # refuses invalid settings before anything runs
    continue_stage(workspace, "retry", overrides=assignments(sets))


@app.command("label-more")
def label_more(workspace: Workspace = DEFAULT) -> None:
    """Leave a failed or cancelled reward stage and continue labeling."""
    with connect(workspace) as target:
        target.call("label-more")
    print("the loop is waiting for labels; the next training uses a new snapshot of them")


@app.command()
def cancel(workspace: Workspace = DEFAULT, as_json: AsJson = False) -> None:
    """Stop the running stage after its current step; `resume` or `retry` continues."""
    with connect(workspace) as target:
        stopped = target.call("cancel")
    if as_json:
        show(stopped, as_json)
    else:
        print(f"the {stopped['stage']} stage stops after its current step ({stopped['run']})")


@app.command("runs")
def runs_command(
    run: Annotated[str | None, typer.Argument(help="One run, with its settings.")] = None,
    workspace: Workspace = DEFAULT,
    iteration: Annotated[int | None, typer.Option(help="Only the runs of this iteration.")] = None,
    compare: Annotated[
        list[str], typer.Option(help="Curves of this run; repeat it for up to ten runs.")
    ] = [],  # noqa: B006
    metric: Annotated[
        list[str], typer.Option(help="With --compare: a metric, by default reward and KL.")
    ] = [],  # noqa: B006
    search: Annotated[
        str, typer.Option(help="Words of a name, note, method, status or changed setting.")
    ] = "",
    status: Annotated[
        str | None, typer.Option(help="running, succeeded, failed or cancelled.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="Policies by this method, as dpo.")] = None,
    name: Annotated[str | None, typer.Option(help='Name the run; "" removes the name.')] = None,
    note: Annotated[str | None, typer.Option(help='Note on the run; "" removes it.')] = None,
    log: Annotated[
        int | None, typer.Option(help="The last lines of the log of one run.", min=1, max=10_000)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the runs and the settings that changed from run to run, show one run, or compare runs.

    --name and --note describe one run.
    """
    filters = {"iteration": iteration, "search": search, "status": status, "method": method}
    if (
        sum([run is not None, any(v not in (None, "") for v in filters.values()), bool(compare)])
        > 1
    ):
        raise ValueError(
            "give a run, filters such as --iteration, or --compare, not several of them"
        )
    if run is None and (name is not None or note is not None or log is not None):
        raise ValueError("--name, --note and --log belong to one run: give its id")
    if compare:
        _compare(workspace, compare, metric, as_json=as_json)
        return
    with connect(workspace) as target:
        if name is not None or note is not None:
            target.call("runs.describe", id=run, name=name, note=note)
        if log is not None:
            print(target.call("runs.log", id=run, tail=log)["log"])
            return
        found = (
            target.call("runs.list", **filters) if run is None else target.call("runs.get", id=run)
        )
    if run is None and not as_json:
        for each in found:
            changed = [f"{name}={value}" for name, value in each["changed"].items()]
            each |= {"progress": f"{each['progress']:.0%}", "changed": ", ".join(changed)}
            each |= {column: rounded(each[column]) for column in ("reward", "KL")}
    show(found, as_json)


def _compare(workspace: Path, ids: list[str], metrics: list[str], *, as_json: bool) -> None:
    """Print a row for each step of each run, or everything as JSON."""
    with connect(workspace) as target:
        found = target.call("runs.compare", ids=ids, metrics=metrics or None)
    if as_json:
        show(found, as_json)
        return
    rows = []
    for run in found["runs"]:
        steps = sorted({step for curve in run["curves"].values() for step in curve["steps"]})
        values = {
            name: dict(zip(curve["steps"], curve["values"], strict=True))
            for name, curve in run["curves"].items()
        }
        rows += [
            {"run": run["run"], "step": step}
            | {name: each.get(step) for name, each in values.items()}
            for step in steps
        ]
    show(rows, as_json)


def continue_stage(workspace: Path, how: str, **arguments: Any) -> None:
    with connect(workspace) as target:
        # A worker outlives its server and may have finished since; then there is nothing to resume.
        found = from_json(Status, target.call("status"))
        phase = found.iteration.phase if found.iteration else "labeling"
        if how == "resume" and found.trouble is None and phase != "labeling":
            log_progress("no stage is stopped; the loop continues")
        else:
            target.call(how, **arguments)
        state = follow(target.call, workspace, until="labeling", progress=log_progress)
        print(f"iteration {state.iteration} is waiting for labels")
