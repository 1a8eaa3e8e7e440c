"""The commands on what annotators are given: guidelines, the form, and practice."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from commands.app import DEFAULT, AsJson, Workspace, app, show
from commands.studio import connect

guidelines = typer.Typer(help="Show and save guidelines.", no_args_is_help=True)
form = typer.Typer(help="Show and change what annotators are asked.", no_args_is_help=True)
app.add_typer(guidelines, name="guidelines")
app.add_typer(form, name="form")
Language = Annotated[
    str | None, typer.Option(help="Only for annotators who chose this language, such as de.")
]


@guidelines.command("show")
def show_command(
    language: Language = None, workspace: Workspace = DEFAULT, as_json: AsJson = False
) -> None:
    """Print the guidelines that annotators see; --json also prints all saved texts."""
    with connect(workspace) as target:
        found = target.call("guidelines.show", **_given(language=language))
    if as_json:
        show(found, as_json)
    else:
        typer.echo(found["text"])


@guidelines.command("save")
def save_command(
    file: Annotated[Path, typer.Argument(help="The guidelines in Markdown.")],
    language: Language = None,
    workspace: Workspace = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show new guidelines to annotators; every saved text for all languages is kept as a version."""
    text = file.read_text(encoding="utf-8")
    with connect(workspace) as target:
        show(target.call("guidelines.save", text=text, **_given(language=language)), as_json)


@form.command("show")
def show_form_command(workspace: Workspace = DEFAULT, as_json: AsJson = False) -> None:
    """Print what annotators are asked about a pair."""
    with connect(workspace) as target:
        show(target.call("form.show"), as_json)


@form.command("set")
def set_form_command(
    scale: Annotated[str | None, typer.Option(help="two-step or one-press.")] = None,
    strength: Annotated[str | None, typer.Option(help="optional or required.")] = None,
    criterion: Annotated[
        list[str] | None, typer.Option(help="A criterion to ask for; repeatable. 'none' asks none.")
    ] = None,
    reason: Annotated[
        list[str] | None, typer.Option(help="A reason tag; repeatable. 'none' removes all.")
    ] = None,
    rationale: Annotated[str | None, typer.Option(help="off, optional or required.")] = None,
    safety: Annotated[str | None, typer.Option(help="off, optional or required.")] = None,
    marks: Annotated[bool | None, typer.Option(help="Whether passages can be marked.")] = None,
    workspace: Workspace = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Change what annotators are asked; options that are left out stay as they are."""
    given = _given(
        scale=scale, strength=strength, criteria=_several(criterion), reasons=_several(reason),
        rationale=rationale, safety=safety, marks=marks,
    )  # fmt: skip
    if not given:
        raise ValueError("name what to change, such as --safety required")
    with connect(workspace) as target:
        show(target.call("form.set", **given), as_json)


@app.command("practice")
def practice_command(
    ask: Annotated[
        bool | None, typer.Option("--ask/--no-ask", help="Ask annotators for practice, or not.")
    ] = None,
    workspace: Workspace = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show whether annotators first judge the practice pairs; change it with --ask or --no-ask."""
    with connect(workspace) as target:
        found = (
            target.call("practice.show") if ask is None else target.call("practice.ask", asked=ask)
        )
        show(found, as_json)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _several(values: list[str] | None) -> list[str] | None:
    return [] if values == ["none"] else values or None
