"""The commands on judgments: find them, look at them, exclude and restore them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from commands.app import DEFAULT, AsJson, Workspace, app, show
from commands.studio import connect

judgments = typer.Typer(help="Find judgments; exclude and restore them.", no_args_is_help=True)
app.add_typer(judgments, name="judgments")

_Annotator = Annotated[str | None, typer.Option("--annotator", help="Name of the annotator.")]
_Arm = Annotated[str | None, typer.Option("--arm", help="Arm of the pair, such as random.")]
_Outcome = Annotated[str | None, typer.Option("--outcome", help="first, second, tie or both_bad.")]
_Category = Annotated[str | None, typer.Option("--category", help="Category of the prompt.")]
_Iteration = Annotated[int | None, typer.Option("--iteration", help="Number of the iteration.")]
_Text = Annotated[str, typer.Option("--text", help="Text in prompt, responses or comment.")]
_Disagreement = Annotated[
    bool | None,
    typer.Option(
        "--disagreement/--no-disagreement", help="Whether annotators of the pair disagree."
    ),
]
_Surprise = Annotated[
    bool | None,
    typer.Option(
        "--surprise/--no-surprise", help="Whether the reward model prefers the other response."
    ),
]
_Flagged = Annotated[
    bool | None, typer.Option("--flagged/--no-flagged", help="Whether the pair has an open flag.")
]
_Commented = Annotated[
    bool | None, typer.Option("--commented/--no-commented", help="Whether it has a comment.")
]
_Reason = Annotated[str, typer.Option("--reason", help="Why; it stays in the history.")]
_OUTCOMES = {"first": "1 is better", "second": "2 is better", "both_bad": "both bad"}


@judgments.command("list")
def list_command(
    annotator: _Annotator = None,
    arm: _Arm = None,
    outcome: _Outcome = None,
    category: _Category = None,
    iteration: _Iteration = None,
    text: _Text = "",
    disagreement: _Disagreement = None,
    surprise: _Surprise = None,
    flagged: _Flagged = None,
    commented: _Commented = None,
    excluded: Annotated[bool | None, typer.Option(help="Whether it is excluded.")] = None,
    before: Annotated[
        str | None, typer.Option(help="The next page: the last id of this one.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Judgments per page.", min=1, max=500)] = 30,
    workspace: Workspace = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List current judgments, the newest first, and count the values of each facet."""
    with connect(workspace) as target:
        found = target.call(
            "judgments.list",
            annotator=annotator, arm=arm, outcome=outcome, category=category, iteration=iteration,
            text=text, disagreement=disagreement, surprise=surprise, flagged=flagged,
            commented=commented, excluded=excluded, before=before, limit=limit,
        )  # fmt: skip
    show(found if as_json else _to_read(found), as_json)


def _to_read(found: dict[str, Any]) -> dict[str, Any]:
    facets = {
        name: ", ".join(f"{each['label'] or '(none)'} {each['count']}" for each in values)
        for name, values in found["facets"].items()
    }
    marks = ", ".join(f"{name} {count}" for name, count in found["marks"].items())
    return {
        "judgments": [_line(row) for row in found["rows"]],
        "total": found["total"],
        **({"next page": f"--before {found['after']}"} if found["after"] else {}),
        "counts": facets | {"marks": marks},
    }


def _line(row: dict[str, Any]) -> dict[str, Any]:
    marks = ("disagreement", "surprise", "flagged", "excluded")
    return {
        "id": row["id"],
        "annotator": row["annotator_name"],
        "outcome": _OUTCOMES.get(row["outcome"], row["outcome"]),
        "iteration": row["iteration"],
        "arm": row["arm"],
        "marks": [name for name in marks if row[name]],
        "prompt": " ".join(row["prompt"].split())[:60],
    }


@judgments.command("show")
def show_command(id: str, workspace: Workspace = DEFAULT, as_json: AsJson = False) -> None:
    """Show the pair of a judgment: texts, all judgments, flags and predictions."""
    with connect(workspace) as target:
        show(target.call("judgments.show", id=id), as_json)


@judgments.command("exclude")
def exclude_command(
    id: str, reason: _Reason, workspace: Workspace = DEFAULT, as_json: AsJson = False
) -> None:
    """Exclude a judgment from training, figures and exports."""
    with connect(workspace) as target:
        show(target.call("judgments.exclude", id=id, reason=reason), as_json)


@judgments.command("restore")
def restore_command(
    id: str, reason: _Reason = "", workspace: Workspace = DEFAULT, as_json: AsJson = False
) -> None:
    """Let an excluded judgment count again."""
    with connect(workspace) as target:
        show(target.call("judgments.restore", id=id, reason=reason), as_json)


@judgments.command("exclude-all")
def exclude_all_command(
    reason: _Reason,
    annotator: _Annotator = None,
    arm: _Arm = None,
    outcome: _Outcome = None,
    category: _Category = None,
    iteration: _Iteration = None,
    text: _Text = "",
    disagreement: _Disagreement = None,
    surprise: _Surprise = None,
    flagged: _Flagged = None,
    commented: _Commented = None,
    workspace: Workspace = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Exclude all judgments that match, such as those of an annotator."""
    with connect(workspace) as target:
        found = target.call(
            "judgments.exclude_all",
            reason=reason, annotator=annotator, arm=arm, outcome=outcome, category=category,
            iteration=iteration, text=text, disagreement=disagreement, surprise=surprise,
            flagged=flagged, commented=commented,
        )  # fmt: skip
    show(found, as_json)


@judgments.command("restore-all")
def restore_all_command(
    reason: _Reason = "",
    annotator: _Annotator = None,
    arm: _Arm = None,
    outcome: _Outcome = None,
    category: _Category = None,
    iteration: _Iteration = None,
    text: _Text = "",
    disagreement: _Disagreement = None,
    surprise: _Surprise = None,
    flagged: _Flagged = None,
    commented: _Commented = None,
    workspace: Workspace = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Let all excluded judgments that match count again."""
    with connect(workspace) as target:
        found = target.call(
            "judgments.restore_all",
            reason=reason, annotator=annotator, arm=arm, outcome=outcome, category=category,
            iteration=iteration, text=text, disagreement=disagreement, surprise=surprise,
            flagged=flagged, commented=commented,
        )  # fmt: skip
    show(found, as_json)
