"""The command `settings`: list settings, search them, and change a workspace's config.toml."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from commands.app import DEFAULT, AsJson, app
from commands.studio import connect
from pipeline.config.sections import Config
from pipeline.loop.settings_view import as_lines, changed, listing, matches
from pipeline.ppo.settings import assignments
from storage.reports import SettingView, WorkspaceSettings, from_json


@app.command("settings")
def settings_command(
    workspace: Annotated[
        Path | None,
        typer.Option(help="The workspace; without it, list the general defaults."),
    ] = None,
    only_changed: Annotated[
        bool, typer.Option("--changed", help="Only settings that differ from the preset.")
    ] = False,
    search: Annotated[
        str, typer.Option(help="Only settings with these words in name, label or help.")
    ] = "",
    sets: Annotated[
        list[str],
        typer.Option("--set", help="Save a setting in config.toml, e.g. ppo.lr=1e-6; repeatable."),
    ] = [],  # noqa: B006 (typer copies it)
    as_json: AsJson = False,
) -> None:
    """List every setting with its value, its default and its meaning, or change some."""
    if workspace is None and not (sets or only_changed):
        found = listing(Config())
    else:
        with connect(workspace or DEFAULT) as target:
            answer = (
                target.call("settings.save", changes=assignments(sets))
                if sets
                else target.call("settings.list")
            )
        found = list(from_json(WorkspaceSettings, answer).settings)
    named = assignments(sets)
    chosen = [
        each
        for each in found
        if (not named or each.name in named)
        and (not only_changed or changed(each))
        and matches(each, search)
    ]
    typer.echo(json.dumps([asdict(each) for each in chosen]) if as_json else _text(chosen))


def _text(found: list[SettingView]) -> str:
    if not found:
        return "No setting matches."
    blocks = [
        "\n".join([f"# {group}", *map(as_lines, members)])
        for group, members in groupby(found, key=lambda each: each.group)
    ]
    return "\n\n".join(blocks)
