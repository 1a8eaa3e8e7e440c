"""The check of an evidence package, which a copy of this module runs for the reviewer."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, cast

from pipeline.config.sections import Config
from pipeline.evidence.figures import figures
from pipeline.evidence.sums import SUMS, changed_files, digest_of
from pipeline.evidence.tables import Tables
from storage.engine.database import Database
from storage.wording import shortened

_SHOWN = 20
"""Differences that are listed."""


def check(place: Path) -> tuple[list[str], bool]:
    """Check the package in this folder: lines to print, and whether everything agrees."""
    wrong = changed_files(place)
    lines = [*wrong, f"{'CHANGED' if wrong else 'ok'}: files against {SUMS}"]
    if not (place / SUMS).is_file():
        return lines, False
    try:
        evidence = json.loads((place / "evidence.json").read_text(encoding="utf-8"))
        found = _computed(place, evidence["settings"])
        stated_figures = evidence["figures"].items()
    except Exception as error:  # a damaged file can cause any
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return [
            *lines,
            f"DIFFERENT: the figures cannot be computed: {shortened(reason, 300)}",
        ], False
    for subject, stated in stated_figures:
        differing = differences(stated, found.get(subject), subject)
        lines += differing[:_SHOWN]
        if len(differing) > _SHOWN:
            lines.append(f"… and {len(differing) - _SHOWN} more")
        result = "DIFFERENT" if differing else "ok"
        lines.append(f"{result}: {subject} ({len(leaves(stated))} figures)")
        wrong += differing
    return [*lines, f"package: {digest_of(place / SUMS)}"], not wrong


def _computed(place: Path, settings: Any) -> dict[str, Any]:
    """The figures of the package's records."""
    config = Config.from_dict({}).override(settings)
    tables = cast("Database", Tables(place / "data"))
    return json.loads(json.dumps(figures(tables, config, place / "reward")))


def differences(stated: Any, found: Any, where: str = "figures") -> list[str]:
    """What differs between two JSON values, a sentence each.

    Numbers may differ by 1e-9 of their size, because processors round sums differently.
    """
    if isinstance(stated, dict) and isinstance(found, dict):
        names = sorted(stated.keys() | found.keys())
        return [
            line
            for name in names
            for line in differences(stated.get(name), found.get(name), f"{where} › {name}")
        ]
    if isinstance(stated, list) and isinstance(found, list) and len(stated) == len(found):
        return [
            line
            for n, (one, other) in enumerate(zip(stated, found, strict=True))
            for line in differences(one, other, f"{where} › {n}")
        ]
    same = stated == found
    if isinstance(stated, float) and isinstance(found, float):
        same = math.isclose(stated, found, rel_tol=1e-9)
    return [] if same else [f"{where}: stated {_short(stated)}, computed {_short(found)}"]


def _short(value: Any) -> str:
    return shortened(json.dumps(value, ensure_ascii=False), 80)


def leaves(value: Any) -> list[Any]:
    """The values in nested lists and dicts."""
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for each in value for leaf in leaves(each)] if isinstance(value, list) else [value]
