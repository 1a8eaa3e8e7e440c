"""`launch.py simulate`: one simulation, or several arms and seeds."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from commands.app import DEFAULT, AsJson, Sets, Workspace, app, log_progress, show
from commands.studio import server_for
from pipeline.config.sections import CONFIGS, Config
from pipeline.loop.settings_view import written
from pipeline.loop.workspace_config import prepare
from pipeline.ppo.settings import assignments
from pipeline.runs.rundir import RunDirectory
from pipeline.simulation import trials
from pipeline.simulation.driver import simulate
from pipeline.simulation.preference import GoldReward, load_gold
from pipeline.simulation.worlds import WORLDS, World, world_named
from storage.engine.database import Database
from storage.engine.workspace import SETTINGS
from storage.errors import WorkspaceLocked
from storage.records import Prompt
from storage.reports import to_json
from storage.tables import prompts as prompt_table

TINY_LABELS, TINY_ANNOTATORS = 40, 4
"""Limits with ``--tiny``."""


@app.command("simulate")
def simulate_command(
    context: typer.Context,
    workspace: Workspace = DEFAULT,
    iterations: Annotated[int, typer.Option(help="Iterations to run.", min=1)] = 1,
    labels: Annotated[
        int,
        typer.Option(help="Judgments per iteration; labeling.labels of --set replaces it.", min=1),
    ] = 400,
    annotators: Annotated[int, typer.Option(help="Simulated annotators.", min=1)] = 8,
    bad: Annotated[
        float | None,
        typer.Option(
            help="Share of careless or biased annotators; by default the world's (plain: .25).",
            min=0,
            max=1,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of annotators and pipeline.", min=0)] = 0,
    arm: Annotated[
        list[str],
        typer.Option(
            help="full, or naive (label once, plain Bradley-Terry, ties dropped, one network); "
            "repeatable: arms are compared."
        ),
    ] = [],  # noqa: B006 (typer copies it)
    seeds: Annotated[
        int | None,
        typer.Option(help="Seeds, from --seed on; each run gets WORKSPACE/ARM-SEED.", min=1),
    ] = None,
    world: Annotated[
        str | None,
        typer.Option(
            help="Prompts, annotators and gold: plain (default), workshop (for choosing settings) or "
            "exam (for final figures only)."
        ),
    ] = None,
    gold: Annotated[
        str | None,
        typer.Option(help="module:function, (prompt, response) -> float, for the plain world."),
    ] = None,
    shuffle_labels: Annotated[bool, typer.Option(help="Control: random judgments.")] = False,
    live: Annotated[
        float,
        typer.Option(help="Share of the judgments given in live conversations.", min=0, max=1),
    ] = 0.0,
    edits: Annotated[
        float,
        typer.Option(
            help="Share of the preferences with an edit, if the response has a fault.",
            min=0,
            max=1,
        ),
    ] = 0.0,
    tiny: Annotated[
        bool,
        typer.Option(help="A smaller run for tests: one or two minutes on an idle machine."),
    ] = False,
    sets: Sets = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Run the whole loop with simulated annotators, who judge by a hidden gold reward."""
    arms = chosen_arms(arm)
    defaulted = [each for each in ("labels", "seed") if _is_default(context, each)]
    labels = _labels(labels, sets, defaulted)
    chosen, judged_by = chosen_world(world, gold)
    bad = chosen.population.bad if bad is None else bad
    if tiny:
        labels, annotators = min(labels, TINY_LABELS), min(annotators, TINY_ANNOTATORS)

    def run(arm: trials.TrialArm, seed: int, folder: Path) -> dict[str, Any]:
        return run_trial(
            arm, folder, (iterations, labels), files=[CONFIGS / "tiny.toml"] if tiny else [],
            sets=sets, defaulted=defaulted, annotators=annotators, bad=bad, seed=seed,
            world=chosen, gold=judged_by, shuffle_labels=shuffle_labels, live=live, edits=edits,
            progress=log_progress,
        )  # fmt: skip

    if seeds is None and len(arms) == 1:
        show(run(arms[0], seed, workspace), as_json)
        return
    conditions = {
        "iterations": iterations, "labels": labels, "annotators": annotators, "bad": bad,
        "gold": gold, "shuffle_labels": shuffle_labels, "tiny": tiny,
        "settings": assignments(sets),
    }  # fmt: skip
    # Files of earlier versions lack these conditions.
    conditions |= {name: share for name, share in (("live", live), ("edits", edits)) if share}
    conditions |= {} if chosen is WORLDS["plain"] else {"world": chosen.name}
    found = run_arms(run, arms, range(seed, seed + (seeds or 1)), workspace, conditions)
    typer.echo(json.dumps(asdict(found)) if as_json else trials.format_trials(found))


def run_arms(
    run: Callable[[trials.TrialArm, int, Path], dict[str, Any]],
    arms: Sequence[trials.TrialArm],
    seeds: Sequence[int],
    folder: Path,
    conditions: Mapping[str, Any],
) -> trials.TrialSummary:
    """The summary of all arms over all seeds; each run has a temporary workspace in `folder`."""
    require_folder(folder)

    def run_apart(arm: trials.TrialArm, seed: int) -> dict[str, Any]:
        place = folder / f"{arm.name}-{seed}"
        shutil.rmtree(place, ignore_errors=True)  # left by an interrupted run
        try:
            return run(arm, seed, place)
        finally:  # the loop has already started the next iteration
            stop_workers(place)
            shutil.rmtree(place, ignore_errors=True)

    results = trials.run_all(
        run_apart, arms, seeds, folder, conditions=conditions, progress=log_progress
    )
    # Compare only several arms of this call: the file may have other arms from earlier calls.
    return trials.summary(results, [arm.name for arm in arms] if len(arms) > 1 else ())


def run_trial(
    arm: trials.TrialArm,
    place: Path,
    planned: tuple[int, int],
    *,
    files: Sequence[Path],
    sets: Sequence[str],
    seed: int,
    defaulted: Sequence[str] = (),
    world: World = WORLDS["plain"],
    **population: Any,
) -> dict[str, Any]:
    """The report of one simulation by an arm as JSON, in a workspace at `place`.

    `planned` has the iterations and the labels per iteration of the full loop.  `files` and `sets`
    are settings of all arms; `sets` override those of the arm.  `defaulted` names which of labels
    and seed have their default, for which a live server keeps its own.  `population` has further
    arguments of `simulate`.
    """
    iterations, labels = arm.plan(*planned)
    own = [f"{name}={written(value)}" for name, value in arm.settings.items()]
    planned_for = {"labels": f"labeling.labels={labels}", "seed": f"seed={seed}"}
    given = [setting for name, setting in planned_for.items() if name not in defaulted]
    implied = [setting for name, setting in planned_for.items() if name in defaulted]
    if population.get("live") and not (place / SETTINGS).exists():
        implied.append("live.replies=policy")  # `sets` may choose reference
    settings = [*given, *own, *sets]
    bring_prompts(world, place, files, [*implied, *settings])
    with server_for(place, files, settings, implied) as server:
        report = simulate(
            server.url, server.admin, iterations=iterations, labels=labels, seed=seed, world=world,
            **population,
        )  # fmt: skip
    return to_json(report)


def chosen_world(name: str | None, gold: str | None) -> tuple[World, GoldReward]:
    """The world and its gold, or another gold for the plain world."""
    world = world_named(name or "plain")
    if gold is None:
        return world, world.gold
    judged_by = load_gold(gold)
    if world is not WORLDS["plain"] and judged_by is not world.gold:
        raise ValueError(
            f"the world {name} has a gold of its own ({world.gold_name}), but --gold is {gold}; "
            "leave out --gold, or leave out --world to use the plain world's annotators"
        )
    return world, judged_by


def bring_prompts(world: World, place: Path, files: Sequence[Path], sets: Sequence[str]) -> None:
    """Give a new workspace the prompts of a world that has its own.

    ``ValueError`` if the workspace has other prompts, or is open in a server.
    """
    own = [
        Prompt.make(
            each.text,
            role=each.role,
            category=each.category,
            source=f"world {world.name}",
        )
        for each in world.prompts()
    ]
    if not own:
        return
    prepare(place, None, files, sets)
    try:
        db = Database.open(place)
    except WorkspaceLocked:
        raise ValueError(
            f"a server has {place} open, and the world {world.name} needs a workspace with its own "
            "prompts; stop the server, or name another folder with --workspace"
        ) from None
    with closing(db):
        known = {prompt.id for prompt in own}
        if any(prompt.id not in known for prompt in prompt_table.listing(db)):
            raise ValueError(
                f"{place} has prompts that do not belong to the world {world.name}; name another "
                "folder with --workspace"
            )
        prompt_table.add(db, own)


def chosen_arms(names: Sequence[str]) -> list[trials.TrialArm]:
    """The arms with these names, without duplicates; by default the full arm."""
    unknown = [name for name in names if name not in trials.ARMS]
    if unknown:
        raise ValueError(f"there is no arm {unknown[0]!r}; there are {', '.join(trials.ARMS)}")
    return [trials.ARMS[name] for name in dict.fromkeys(names or ["full"])]


def _labels(labels: int, sets: Sequence[str], defaulted: Sequence[str]) -> int:
    """The judgments per iteration: --labels, or labeling.labels of --set; ValueError if they differ."""
    given = assignments(sets).get("labeling.labels")
    if given is None:
        return labels
    wanted = Config().override({"labeling.labels": given}).labeling.labels
    if "labels" not in defaulted and wanted != labels:
        raise ValueError(
            f"--labels {labels} and --set labeling.labels={given} differ; give one of them"
        )
    return wanted


def _is_default(context: typer.Context, parameter: str) -> bool:
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "DEFAULT"


def stop_workers(workspace: Path) -> None:
    """Kill the workers that are still running in a workspace whose server has stopped."""
    for path in (workspace / "runs").glob("*"):
        directory = RunDirectory(path)
        if directory.is_running():
            with suppress(ProcessLookupError, FileNotFoundError):
                os.killpg(int((path / "pid").read_text()), signal.SIGKILL)


def require_folder(folder: Path) -> None:
    """``ValueError`` if the folder for several runs is itself a workspace."""
    if (folder / "config.toml").exists():
        raise ValueError(
            f"{folder} is a workspace, and every run needs its own; name a folder for the runs "
            "with --workspace"
        )
