"""Code shared by benchmarks: the repository root, `launch.py` as a process, tables."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".bench"
"""Folder for results that take long to compute."""


def launch(*words: str | Path, timeout: float | None = None) -> str:
    """The output of a `launch.py` command; its log goes to this process's standard error."""
    command = [sys.executable, str(ROOT / "launch.py"), *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=timeout)
    if done.returncode:
        sys.exit(f"launch.py {' '.join(map(str, words))} ended with status {done.returncode}")
    return done.stdout


def launch_json(*words: str | Path, timeout: float | None = None) -> dict[str, Any]:
    """The result of a `launch.py` command that supports --json."""
    return json.loads(launch(*words, "--json", timeout=timeout))


def markdown(header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [row_of(header), "|---" * len(header) + "|", *map(row_of, rows)]
    return "\n".join(lines)


def row_of(cells: Iterable[Any]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def percentiles(times: Iterable[float], shares: Sequence[int] = (50, 95)) -> dict[str, float]:
    """``{"p50": …, "p95": …}`` of the times, rounded to one digit; empty without times."""
    ordered = sorted(times)
    return {
        f"p{share}": round(ordered[min(len(ordered) - 1, len(ordered) * share // 100)], 1)
        for share in shares
        if ordered
    }


def exit_status(missed: Sequence[str]) -> int:
    """Print each missed expectation; return 1 if there is one."""
    for sentence in missed:
        print(f"FAILED: {sentence}", file=sys.stderr)
    return int(bool(missed))
