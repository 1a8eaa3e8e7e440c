"""The commands on data: import, export, status, lineage, backup, rebuild, restore, users."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from commands import status_text
from commands.app import DEFAULT, AsJson, Workspace, app, show
from commands.studio import connect
from pipeline.loop.workspace_config import prepare
from storage.engine import backup
from storage.engine.database import Database
from storage.engine.replacing import refuse_pending_replacement
from storage.engine.workspace import SETTINGS, require_data
from storage.errors import WorkspaceLocked
from storage.exporting.formats import Format, Ties
from storage.importing.files.row_notes import lines_in_words
from storage.records import AnnotatorRole
from storage.reports import from_json
from storage.status import Status
from storage.tables import models

File = str | None
_WARNINGS_SHOWN = 10


def _shorten(report: dict[str, Any]) -> dict[str, Any]:
    """An import's report with a line for each reason, and only the first reasons of warnings."""
    brief = {name: value for name, value in report.items() if not name.endswith("_in_all")}
    if not brief["preview"]:
        del brief["preview"]
    kept = {
        "skipped": _by_reason(report["skipped"]),
        "warnings": _by_reason(report["warnings"])[:_WARNINGS_SHOWN],
    }
    hidden = [
        f"{more} more {what}; --json lists {_how_many(report, kind)}"
        for kind, what in (("skipped", "bad rows left out"), ("warnings", "warnings"))
        if (more := report[f"{kind}_in_all"] - sum(each["rows"] for each in kept[kind]))
    ]
    return brief | kept | ({"not shown": ", ".join(hidden)} if hidden else {})


def _by_reason(notes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The notes with the same reason as one, with the number of rows."""
    lines: dict[tuple[str, str], list[int]] = {}
    for note in notes:
        lines.setdefault((note["reason"], note["why"]), []).append(note["line"])
    return [
        {"rows": len(found), "where": lines_in_words(found), "reason": reason}
        | ({} if why == "bad" else {"why": why})
        for (reason, why), found in lines.items()
    ]


def _how_many(report: dict[str, Any], kind: str) -> str:
    listed = len(report[kind])
    return "them all" if listed == report[f"{kind}_in_all"] else f"the first {listed:,}"


@app.command("import")
def import_command(
    workspace: Workspace = DEFAULT,
    prompts: Annotated[File, typer.Option(help="Prompts: text or chat messages.")] = None,
    sft: Annotated[File, typer.Option(help="Demonstrations: prompt and response.")] = None,
    judgments: Annotated[File, typer.Option(help="Judgments of two responses.")] = None,
    preferences: Annotated[File, typer.Option(help="A TRL preference dataset.")] = None,
    pairs: Annotated[File, typer.Option(help="Pairs of responses to be judged here.")] = None,
    gold: Annotated[
        File, typer.Option(help="Pairs with a known answer, to check annotators.")
    ] = None,
    practice: Annotated[
        File, typer.Option(help="Pairs with an answer and an explanation, for practice.")
    ] = None,
    role: Annotated[str | None, typer.Option(help="One role for all new prompts.")] = None,
    skip_bad: Annotated[
        bool, typer.Option(help="Import the good rows, and list the bad ones.")
    ] = False,
    skip_long: Annotated[
        bool, typer.Option(help="Leave out rows that exceed the model's context, and list them.")
    ] = False,
    source: Annotated[
        Literal["argilla", "label-studio", "arena", "helpsteer3"] | None,
        typer.Option(
            "--from", help="The tool or dataset that the judgments, pairs or gold pairs are from."
        ),
    ] = None,
    map: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FIELD: which field of the other tool is meant. See docs/data.md."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option(help="Show the first rows and what would be added; store nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Import prompts, demonstrations, judgments, pairs or gold pairs; each file in full or not at all."""
    given = {"prompts": prompts, "sft": sft, "judgments": judgments}
    given |= {"preferences": preferences, "pairs": pairs, "gold": gold, "practice": practice}
    chosen = {kind: file for kind, file in given.items() if file}
    if not chosen:
        raise ValueError(
            "name a file: --prompts, --sft, --judgments, --preferences, --pairs, --gold or --practice FILE"
        )
    if map and not source:
        raise ValueError("--map names fields of another tool; say which with --from")
    if role and sft:
        raise ValueError("demonstrations have the role sft; import them without --role")
    _create_database(workspace)
    with connect(workspace) as target:
        for kind, file in chosen.items():
            options: dict[str, Any] = {"kind": kind, "file": _absolute(file)}
            if role:
                options["role"] = role
            if dry_run:
                options["dry_run"] = True
            if source:
                options |= {"source": source, "names": _names(map or [])}
            report = target.call("import", skip_bad=skip_bad, skip_long=skip_long, **options)
            show(report if as_json else _shorten(report), as_json)


def _absolute(file: str) -> str:
    return file if "://" in file else str(Path(file).resolve())


def _names(given: list[str]) -> dict[str, str]:
    """The fields that `--map` names."""
    pairs = [each.partition("=") for each in given]
    if wrong := [
        each for each, (name, sign, field) in zip(given, pairs, strict=True) if not (name and field)
    ]:
        raise ValueError(f"--map {wrong[0]} must be NAME=FIELD, such as --map prompt=instruction")
    return {name: field for name, _, field in pairs}


@app.command("export")
def export_command(
    workspace: Workspace = DEFAULT,
    format: Annotated[Format, typer.Option(help="See docs/data.md.")] = "trl",
    ties: Annotated[Ties, typer.Option(help="How ties are exported.")] = "drop",
    out: Annotated[
        str, typer.Option(help="FILE.jsonl, .parquet or .csv, a directory, or hf://…")
    ] = "export.jsonl",
    history: Annotated[
        bool, typer.Option(help="Include revised and withdrawn judgments (raw only).")
    ] = False,
    names: Annotated[bool, typer.Option(help="Real names instead of pseudonyms.")] = False,
    public: Annotated[bool, typer.Option(help="Make a pushed dataset public.")] = False,
    csv_safe: Annotated[
        bool, typer.Option(help="Put ' before cells that a spreadsheet would run (CSV only).")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Export judgments as a preference dataset, with a dataset card beside it."""
    if public and "://" not in out:
        raise ValueError(f"--public is for hub datasets; {out} is on this machine")
    where = out if "://" in out else str(Path(out).resolve())
    options = {"format": format, "ties": ties, "names": names, "history": history}
    options |= {"private": not public, "csv_safe": csv_safe}
    with connect(workspace) as target:
        show(target.call("export", out=where, **options), as_json)


@app.command("status")
def status_command(workspace: Workspace = DEFAULT, as_json: AsJson = False) -> None:
    """Show labels, agreement, models and the phase of the loop; --json has every field."""
    with connect(workspace) as target:
        found = target.call("status")
    if as_json:
        show(found, as_json)
    else:
        typer.echo("\n".join(status_text.lines(from_json(Status, found))))


@app.command("lineage")
def lineage_command(
    policy: Annotated[str | None, typer.Argument(help="By default all models.")] = None,
    workspace: Workspace = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show which judgments a policy was trained on, and whose responses they compare.

    Without a policy, show what shaped each model, with --json as nodes and edges.
    """
    with connect(workspace) as target:
        if policy is None:
            found, what = target.call("lineage.graph"), "graph"
        else:
            found, what = target.call("lineage", policy=policy), "lineage"
    typer.echo(json.dumps(found[what], indent=2) if as_json else found["text"])


@app.command("backup")
def backup_command(
    target: Annotated[Path, typer.Argument(help="Directory to create.")],
    workspace: Workspace = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Copy the database, the journal and the settings; labeling continues meanwhile."""
    with connect(workspace) as studio:
        show(studio.call("backup", target=str(target.resolve())), as_json)


@app.command("rebuild")
def rebuild_command(workspace: Workspace = DEFAULT, as_json: AsJson = False) -> None:
    """Rebuild the database from the journal; the old database is kept.

    While a server has the workspace open, the rebuilt tables are only compared with the server's.
    """
    try:
        show(asdict(backup.rebuild(workspace)), as_json)
    except WorkspaceLocked:
        with connect(workspace) as target:
            show(target.call("verify"), as_json)


@app.command("restore")
def restore_command(
    source: Annotated[
        Path | None, typer.Argument(help="A directory that `backup` created.")
    ] = None,
    workspace: Workspace = DEFAULT,
    finish: Annotated[
        bool, typer.Option("--finish", help="Complete a restore that was interrupted.")
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Put back the files from before an interrupted restore.")
    ] = False,
) -> None:
    """Replace database, journal and settings with those of a backup; the old files are kept."""
    if (source is not None) + finish + undo != 1:
        raise ValueError("name one of: the directory of a backup, --finish, --undo")
    if source is None:
        (backup.finish_restore if finish else backup.undo_restore)(workspace)
        typer.echo(f"{workspace} has its {'new' if finish else 'old'} files")
        return
    backup.restore(source, workspace)
    typer.echo(f"{workspace} is as it was when {source} was made")
    with Database.open(workspace, create=False) as db:
        gone = [model.path for model in models.missing(db)]
    if gone:
        typer.echo(
            f"backups do not include models; to continue the loop, copy {', '.join(gone)} from the "
            "workspace that was backed up",
            err=True,
        )
    if not (workspace / SETTINGS).exists():
        typer.echo(f"{SETTINGS} was not in the backup; `init --model` creates one", err=True)


users = typer.Typer(help="Manage accounts of annotators and researchers.", no_args_is_help=True)
app.add_typer(users, name="users")


@users.command("add")
def add(
    name: str,
    role: Annotated[AnnotatorRole, typer.Option()] = "annotator",
    token: Annotated[bool, typer.Option(help="An API token for scripts.")] = False,
    workspace: Workspace = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Add an account; prints an invite link for a browser, or an API token with --token.

    Without a running server, the link is only a path; put the studio's address before it.
    """
    _create_database(workspace)
    with connect(workspace) as target:
        show(target.call("users.add", name=name, role=role, token=token), as_json)


@users.command("list")
def list_(workspace: Workspace = DEFAULT, as_json: AsJson = False) -> None:
    """List all accounts."""
    with connect(workspace) as target:
        show(target.call("users.list"), as_json)


@users.command("disable")
def disable(name: str, workspace: Workspace = DEFAULT, as_json: AsJson = False) -> None:
    """Disable an account immediately; its judgments are kept."""
    with connect(workspace) as target:
        show(target.call("users.disable", name=name), as_json)


@users.command("enable")
def enable(name: str, workspace: Workspace = DEFAULT, as_json: AsJson = False) -> None:
    """Enable a disabled account; `users add` prints a new invite link for it."""
    with connect(workspace) as target:
        show(target.call("users.enable", name=name), as_json)


@users.command("role")
def role_(
    name: str, role: AnnotatorRole, workspace: Workspace = DEFAULT, as_json: AsJson = False
) -> None:
    """Give a person another role, which applies immediately."""
    with connect(workspace) as target:
        show(target.call("users.role", name=name, role=role), as_json)


@users.command("revoke")
def revoke(name: str, workspace: Workspace = DEFAULT, as_json: AsJson = False) -> None:
    """Revoke a person's invites and API tokens; browsers stay signed in."""
    with connect(workspace) as target:
        show(target.call("users.revoke", name=name), as_json)


def _create_database(workspace: Path) -> None:
    """Create the database of a workspace that has only settings; NotFound if it has neither.

    A mistyped --workspace must not create a new workspace.
    """
    refuse_pending_replacement(workspace)
    if not (workspace / SETTINGS).exists():
        require_data(workspace)
    prepare(workspace, None, [], [])
    with suppress(WorkspaceLocked):
        Database.open(workspace).close()
