"""The leaderboard of all models in the judgments as HTML. Pure functions."""

from __future__ import annotations

from labeler.html import components
from labeler.html.components import Column, Markup
from storage.gate_report import GateReport, ModelBoard, ModelRank
from storage.wording import plural

MATRIX = 12
"""Models in the table of wins between models: the best ones."""


def is_needed(board: ModelBoard, report: GateReport) -> bool:
    """Whether there are models that the leaderboard of policies does not have."""
    return bool({rank.model for rank in board.ranks} - {rank.policy for rank in report.leaderboard})


def models(board: ModelBoard) -> Markup:
    """The models by rating, and the wins between each two of the best."""
    if board.anchor is None:
        return Markup("")
    columns = [
        Column("Model"),
        Column(
            f"Wins against {board.anchor}",
            help="Probability that people prefer the model, by a Bradley-Terry model of all these "
            "judgments (ties count half), with its 95% interval, clustered by prompt.",
        ),
        Column("Rating", "right", "In logits, with its standard error; the anchor has 0."),
        Column("Judgments", "right", "Judgments of this model against any other model."),
    ]
    rows = [
        (
            rank.model,
            _wins(rank, board.anchor),
            _rating(rank, board.anchor),
            components.number(rank.judgments),
        )
        for rank in board.ranks
    ]
    of = f" of the category {board.category}" if board.category else ""
    judgments = plural(board.judgments, "judgment")
    heading = components.heading(
        "All models",
        f"imported ones included: {judgments} on {plural(board.prompts, 'prompt')}{of}",
    )
    return components.stack(
        heading,
        components.table(columns, rows, caption="Leaderboard of all models"),
        _matrix(board),
    )


def _wins(rank: ModelRank, anchor: str) -> Markup:
    rate, low, high = rank.win_rate, rank.low, rank.high
    if rate is None or low is None or high is None:
        return Markup("<span>not connected by judgments</span>")
    bar = components.interval_bar(rank.model, low, rate, high)
    known = rank.model == anchor
    text = Markup("<span>anchor</span>") if known else components.with_interval(rate, low, high)
    return Markup('<div class="ks-rank">{}{}</div>').format(bar, text)


def _rating(rank: ModelRank, anchor: str) -> str:
    if rank.model == anchor:
        return "0"
    if rank.rating is None or rank.error is None:
        return components.DASH
    return f"{components.signed(rank.rating)} ± {components.decimal(rank.error)}"


def _matrix(board: ModelBoard) -> Markup:
    """The share of judgments that the model of the row won against that of the column."""
    names = [rank.model for rank in board.ranks[:MATRIX]]
    if len(names) < 3:
        return Markup("")
    met = {(each.model, each.opponent): each for each in board.meetings}

    def cell(one: str, other: str) -> str:
        found = met.get((one, other))
        if found is None:
            return components.DASH
        return f"{components.percent(found.wins / found.judgments)} of {components.number(found.judgments)}"

    columns = [Column("Model"), *(Column(name, "right") for name in names)]
    rows = [(one, *(cell(one, other) for other in names)) for one in names]
    table = components.table(columns, rows, caption="Wins of the row's model against the column's")
    which = f"the {MATRIX} best models" if len(board.ranks) > MATRIX else "each two models"
    return Markup("<details><summary>Wins between {}</summary>{}</details>").format(which, table)
