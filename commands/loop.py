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


@app.command()
def iterate(workspace: Workspace = DEFAULT, sets: Sets = []) -> None:  # noqa: B006
    """Train on the current labels and sample the next pairs: one whole iteration without a browser."""
    load_settings(workspace, [], sets)  # an invalid one is refused before anything runs
    check_unlocked(assignments(sets), None)
    with connect(workspace) as target:
        state = follow(target.call, until="labeling", progress=log_progress)
        target.call("train", overrides=assignments(sets))
        follow(target.call, until="labeling", after=state["iteration"], progress=log_progress)
        show(target.call("iteration", number=state["iteration"])["evaluation"], as_json=True)


@app.command()
def resume(workspace: Workspace = DEFAULT, sets: Sets = []) -> None:  # noqa: B006
    """Continue the stopped stage from its last checkpoint, and the loop until it needs labels.

    `--set ppo.updates=N` makes a PPO run longer; other settings stay as they were.
    """
    load_settings(workspace, [], sets)  # an invalid one is refused before anything runs
    continue_stage(workspace, "resume", overrides=assignments(sets))


@app.command()
def retry(workspace: Workspace = DEFAULT, sets: Sets = []) -> None:  # noqa: B006
    """Run the stopped stage again from the start with the current settings, and continue the loop."""
    load_settings(workspace, [], sets)  # an invalid one is refused before anything runs
    continue_stage(workspace, "retry", overrides=assignments(sets))


@app.command("label-more")
def label_more(workspace: Workspace = DEFAULT) -> None:
    """Leave a failed or cancelled reward stage and continue labeling."""
    with connect(workspace) as target:
        target.call("label-more")
    print("the loop waits for labels; the next training takes a new snapshot of them")


def continue_stage(workspace: Path, how: str, **arguments: Any) -> None:
    with connect(workspace) as target:
        # A worker outlives its server and may have ended since: then nothing is to be resumed.
        found = target.call("status")
        phase = (found["iteration"] or {}).get("phase", "labeling")
        if how == "resume" and found["trouble"] is None and phase != "labeling":
            log_progress("no stage is stopped; the loop goes on")
        else:
            target.call(how, **arguments)
        state = follow(target.call, until="labeling", progress=log_progress)
        print(f"iteration {state['iteration']} waits for labels")
