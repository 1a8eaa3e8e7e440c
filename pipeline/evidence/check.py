"""The check of an evidence package, which a copy of this module runs for the reviewer."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any, cast

from pipeline.config.sections import Config
from pipeline.evidence.figures import figures
from pipeline.evidence.tables import Tables
from storage.engine.database import Database

SUMS = "SHA256SUMS"
_SHOWN = 20
"""Differences that are listed."""


def check(place: Path) -> tuple[list[str], bool]:
    """Check the package in this folder: lines to print, and whether everything agrees."""
    wrong = changed_files(place)
    lines = [*wrong, f"{'CHANGED' if wrong else 'ok'}: files against {SUMS}"]
    evidence = json.loads((place / "evidence.json").read_text(encoding="utf-8"))
    config = Config.from_dict({}).override(evidence["settings"])
    tables = cast("Database", Tables(place / "data"))
    found = json.loads(json.dumps(figures(tables, config, place / "reward")))
    for subject, stated in evidence["figures"].items():
        differing = differences(stated, found.get(subject), subject)
        lines += differing[:_SHOWN]
        if len(differing) > _SHOWN:
            lines.append(f"… and {len(differing) - _SHOWN} more")
        result = "DIFFERENT" if differing else "ok"
        lines.append(f"{result}: {subject} ({len(leaves(stated))} figures)")
        wrong += differing
    return [*lines, f"package: {digest_of(place / SUMS)}"], not wrong


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
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:79]}…"


def leaves(value: Any) -> list[Any]:
    """The values in nested lists and dicts."""
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for each in value for leaf in leaves(each)] if isinstance(value, list) else [value]


def write_sums(place: Path) -> None:
    """Write the digest of every file in the folder, in the format of `sha256sum`."""
    lines = [f"{digest_of(place / name)}  {name}\n" for name in _files(place)]
    (place / SUMS).write_text("".join(lines), encoding="utf-8")


def changed_files(place: Path) -> list[str]:
    """The files that differ from their digest, are missing, or have none."""
    lines = (place / SUMS).read_text(encoding="utf-8").splitlines()
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    present = set(_files(place))
    return [
        *(f"{name} is missing" for name in sorted(sums.keys() - present)),
        *(f"{name} was added" for name in sorted(present - sums.keys())),
        *(
            f"{name} was changed"
            for name in sorted(present & sums.keys())
            if digest_of(place / name) != sums[name]
        ),
    ]


def _files(place: Path) -> list[str]:
    """All files of the package but the digests; an environment beside it is none of them."""
    ours = [p for p in place.rglob("*") if p.is_file() and p.parts[len(place.parts)] not in _BESIDE]
    return sorted(str(path.relative_to(place)) for path in ours if path.name != SUMS)


_BESIDE = ("venv", ".venv")


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
