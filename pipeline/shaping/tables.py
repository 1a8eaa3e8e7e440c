"""Reads a table that a component needs: a JSONL, CSV or Parquet file with named columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def read_table(path: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of a file with `columns`; ValueError says what is missing and where."""
    # Imported here, because few runs need it.
    import pandas as pd  # noqa: PLC0415

    readers: dict[str, Any] = {
        ".jsonl": lambda: pd.DataFrame(list(map(json.loads, _lines(path)))),
        # A completion may be the text "None".
        ".csv": lambda: pd.read_csv(path, dtype=str, keep_default_na=False, na_values=[""]),
        ".parquet": lambda: pd.read_parquet(path),
    }
    if path.suffix not in readers:
        raise ValueError(f"{path} must be a file that ends in {', '.join(readers)}")
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        frame = readers[path.suffix]()
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise ValueError(f"{path} lacks the columns {', '.join(missing)}")
    empty = frame[list(columns)].isna().any(axis=1)
    if empty.any():
        raise ValueError(f"row {int(empty.to_numpy().argmax()) + 1} of {path} has an empty cell")
    if frame.empty:
        raise ValueError(f"{path} has no rows")
    return frame[list(columns)].to_dict("records")


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
