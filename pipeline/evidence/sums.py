"""The digests of an evidence package's files.  Only the standard library: a reviewer's Python reads it
before it trusts, and imports, the other modules of the package."""

from __future__ import annotations

import hashlib
from pathlib import Path

SUMS = "SHA256SUMS"
CODE = "code/"


def write_sums(place: Path) -> None:
    """Write the digest of every file in the folder, in the format of `sha256sum`."""
    lines = [f"{digest_of(place / name)}  {name}\n" for name in _files(place)]
    (place / SUMS).write_text("".join(lines), encoding="utf-8")


def changed_files(place: Path) -> list[str]:
    """The files that differ from their digest, are missing, or have none."""
    try:
        lines = (place / SUMS).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return [f"{SUMS} is missing or cannot be read"]
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
