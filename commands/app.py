"""The `app` with which every command is registered, and shared options."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

app = typer.Typer(
    help="Kitestring: label, train a reward model, run PPO, label again.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Workspace = Annotated[Path, typer.Option("--workspace", help="Directory of the project's data.")]
DEFAULT = Path("workspace")
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Sets = Annotated[
    list[str], typer.Option("--set", help="A setting, e.g. ppo.kl_weight=0.05; repeatable.")
]
ConfigFiles = Annotated[list[Path], typer.Option("--config", help="A TOML settings file.")]
Model = Annotated[
    str | None, typer.Option(help="Hugging Face id or local directory; by default the demo.")
]


def log_progress(line: str) -> None:
    """Print progress to standard error, separate from the command's output."""
    print(line, file=sys.stderr, flush=True)


def show(result: Any, as_json: bool) -> None:
    """Print one JSON object, or indented lines and tables to read."""
    text = (
        json.dumps(result, indent=2, default=str, allow_nan=False)
        if as_json
        else "\n".join(_lines(result))
    )
    typer.echo(text)


def _lines(value: Any, indent: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(item, (Mapping, list)) and item and not _is_interval(item):
                yield f"{indent}{key}:"
                yield from _lines(item, indent + "  ")
            else:
                yield f"{indent}{key}: {_word(item)}"
    elif isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
        if any(isinstance(cell, Mapping) for row in value for cell in row.values()):
            for row in value:
                first, *more = _lines(row)
                yield f"{indent}- {first}"
                yield from (f"{indent}  {line}" for line in more)
        else:
            yield from (indent + line for line in table_lines(value))
    elif isinstance(value, list):
        for item in value:
            yield from _lines(item, indent)
    else:
        yield f"{indent}{value}"


def _is_interval(value: Any) -> bool:
    return isinstance(value, list) and [type(bound) for bound in value] == [float, float]


def table_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A table: ruled and fitted to a terminal; otherwise plain and as wide as its cells."""
    console = Console()
    if sys.stdout.isatty():
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    else:
        console = Console(width=1_000_000)
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    columns = list(dict.fromkeys(key for row in rows for key in row))
    for column in columns:
        table.add_column(Text(column), overflow="fold")
    for row in rows:
        table.add_row(*(Text(_word(row.get(column))) for column in columns))
    with console.capture() as capture:
        console.print(table)
    yield from (line.rstrip() for line in capture.get().splitlines() if line.strip())


def _word(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if _is_interval(value):
        return f"{value[0]:.4g} to {value[1]:.4g}"
    if value and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return "–" if value in ({}, [], None, "") else str(value)
