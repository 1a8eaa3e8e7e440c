"""Commands, run in the process of the test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from launch import app


def run(*arguments: str | Path) -> str:
    """What a command prints; what it raises is raised."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def told(*arguments: str | Path) -> Any:
    """What a command prints, as JSON where it is JSON."""
    printed = run(*arguments)
    try:
        return json.loads(printed)
    except json.JSONDecodeError:
        return printed
