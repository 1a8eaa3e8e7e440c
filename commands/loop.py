"""`iterate`, `resume`, `retry` and `label-more`: the loop from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from commands.app import DEFAULT, Sets, Workspace, app, log_progress, show
from commands.studio import connect
from pipeline.loop.settings_view import check_unlocked
from pipeline.loop.workspace_config import load_settings
from pipeline.ppo.settings import assignments
from pipeline.simulation.clients import follow
from storage.reports import from_json
from storage.status import Status


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
