"""Writing an evidence package: a zip file with which a reviewer recomputes every figure.

::

    evidence.json     digest of the journal, versions, settings, and all figures
    data/             the records as parquet files, with pseudonyms
    reward/MODEL/     a reward model's predictions for held-out judgments, and its learning curve
    guidelines/       every version of the guidelines
    code/             the source files that compute the figures
    verify.py         recomputes the figures and compares them
    SHA256SUMS        the digest of every other file
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import duckdb
import pandas as pd

from pipeline.config.sections import Config
from pipeline.evidence.check import differences, leaves
from pipeline.evidence.figures import CURVE, figures
from pipeline.evidence.sums import SUMS, digest_of, write_sums
from pipeline.evidence.tables import Tables, aliases, judgment_aliases, write_tables
from pipeline.reward.report.report import curve_place
from storage.engine.database import Database
from storage.engine.workspace import JOURNAL
from storage.errors import StorageUnavailable, cause_of, explain, writing_to
from storage.records import HELD_OUT_FILE, TrainedRewardModel, now
from storage.tables import guidelines, models
from storage.tables.people.pseudonyms import key_of

VERSION = metadata.version("kitestring")
_ROOT = Path(__file__).parents[2]
_NEEDED = ("duckdb", "numpy", "pandas", "pyarrow", "pydantic", "pytz", "scipy")
_IMPORTED = "import json, sys, pipeline.evidence.check; json.dump(sorted(sys.modules), sys.stdout)"
_README = """\
# Evidence package

Made by Kitestring {version} on {made}. It holds the judgments of a workspace and everything else from
which its figures are computed. Annotators have pseudonyms. Comments are free text: read them before
you publish this package.

To recompute every figure, in an empty environment with Python {python}:

```
python -m venv venv && venv/bin/pip install -r requirements.txt
venv/bin/python verify.py
```

`verify.py` first compares every file with `SHA256SUMS`, then computes all figures of `evidence.json`
again from `data/` and `reward/`, with the source files in `code/`. It ends with exit code 0 only if
all agree. The digest that it prints identifies the package: compare it with the one that the
authors published, because whoever changes a file can also change `SHA256SUMS`.

A few figures need the weights of a model and are taken from its training: the log-loss baseline, the
agreement that fitted annotators would have, and the reward model's predictions in `reward/`.
"""


@dataclass(frozen=True, kw_only=True)
class Package:
    """A written package: its `digest` identifies it; `figures` were computed, in `judgments`."""

    out: str
    digest: str
    judgments: int
    figures: int


def write_package(db: Database, config: Config, out: Path) -> Package:
    """Write the package; ValueError if `out` exists, is in the workspace or is no .zip file.

    The figures are computed from the package's own files and from the database.  RuntimeError if
    these differ, because the package would then not explain what the pages show.
    """
    if out.suffix != ".zip":
        raise ValueError(f"{out.name} must end in .zip")
    if out.exists():
        raise ValueError(f"{out} exists; choose another name")
    if out.resolve().is_relative_to(db.workspace.resolve()):
        raise ValueError(f"{out} is in the workspace; choose a place outside {db.workspace}")
    key = key_of(db)  # before the snapshot: it may have to be stored
    with _full_disk_said(), tempfile.TemporaryDirectory(prefix="kitestring-evidence-") as folder:
        place = Path(folder)
        with db.snapshot():
            evidence = _write_data(db, config, place, key)
        _write_rest(place, evidence)
        with writing_to(out, "choose another place for --out"):
            _zip(place, out)
        counted = sum(row["judgments"] for row in evidence["figures"]["judgments"])
        return Package(
            out=str(out),
            digest=digest_of(place / SUMS),
            judgments=counted,
            figures=len(leaves(evidence["figures"])),
        )


def _write_data(db: Database, config: Config, place: Path, key: bytes) -> dict[str, Any]:
    """Write data/, reward/ and guidelines/; returns what goes into evidence.json."""
    (place / "data").mkdir()
    write_tables(db, place / "data", key)
    named = aliases(db, key)
    for version in guidelines.versions(db):
        if version.text is not None:
            (place / "guidelines").mkdir(exist_ok=True)
            file = place / "guidelines" / f"{version.version}.md"
            file.write_text(version.text, encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        stored = Path(folder)
        for model in models.reward_models(db):
            _copy_reward_model(db, model, stored / model.model)
            _with_pseudonyms(db, stored / model.model, place / "reward" / model.model, key, named)
        shown = figures(db, config, stored, names=named)
    found = figures(cast("Database", Tables(place / "data")), config, place / "reward")
    if differing := differences(shown, found):
        raise RuntimeError(f"the package does not give the workspace's figures: {differing[0]}")
    return {
        "made": now().isoformat(timespec="seconds"),
        "version": VERSION,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "journal": _journal(db.workspace / JOURNAL),
        "settings": {setting.name: setting.value for setting in config.settings()},
        "figures": found,
    }


def _copy_reward_model(db: Database, model: TrainedRewardModel, target: Path) -> None:
    """Copy its predictions for held-out judgments, and its learning curve so far."""
    held_out = db.workspace / (model.directory or "") / "outputs" / HELD_OUT_FILE
    if model.directory is None or not held_out.exists():
        return  # trained by a version that stored none
    (target / CURVE).mkdir(parents=True)
    shutil.copy(held_out, target / HELD_OUT_FILE)
    for file in curve_place(db.workspace, model.model, model.directory).outputs.glob("*.parquet"):
        shutil.copy(file, target / CURVE / file.name)


def _with_pseudonyms(
    db: Database, source: Path, target: Path, key: bytes, named: Mapping[str, str]
) -> None:
    for file in source.rglob("*.parquet"):
        rows = pd.read_parquet(file)
        if "annotator" in rows:
            rows["annotator"] = [named[id] for id in rows["annotator"]]
        if "judgment" in rows:
            rows["judgment"] = judgment_aliases(db, rows["judgment"].tolist(), key)
        copy = target / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        rows.to_parquet(copy, index=False)


def _journal(path: Path) -> dict[str, Any]:
    """The digest of the journal's bytes so far; labeling may go on."""
    left = size = path.stat().st_size
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while left:
            part = file.read(min(left, 2**20))
            digest.update(part)
            left -= len(part)
    return {"bytes": size, "sha256": digest.hexdigest()}


def _write_rest(place: Path, evidence: Mapping[str, Any]) -> None:
    """Write evidence.json, the code, the instructions and, last, the digests."""
    text = json.dumps(evidence, indent=1, ensure_ascii=False, allow_nan=False)
    (place / "evidence.json").write_text(f"{text}\n", encoding="utf-8")
    for module in _modules():
        copy = place / "code" / module.relative_to(_ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(module, copy)
    shutil.copy(Path(__file__).with_name("verify.py"), place / "verify.py")
    (place / "README.md").write_text(_README.format(**evidence), encoding="utf-8")
    needed = "".join(f"{name}=={metadata.version(name)}\n" for name in _NEEDED)
    (place / "requirements.txt").write_text(needed, encoding="utf-8")
    write_sums(place)


def _modules() -> list[Path]:
    """The source files of this project that the check imports."""
    ran = subprocess.run(
        [sys.executable, "-c", _IMPORTED], cwd=_ROOT, capture_output=True, text=True, check=True
    )
    files: list[Path] = []
    for name in json.loads(ran.stdout):
        if name.split(".")[0] in ("storage", "pipeline"):
            path = _ROOT / Path(*name.split("."))
            files.append(path / "__init__.py" if path.is_dir() else path.with_suffix(".py"))
    return files


@contextmanager
def _full_disk_said() -> Iterator[None]:
    """Raise DuckDB's errors of a full disk, which the temporary folder may be on, as a sentence."""
    try:
        yield
    except duckdb.Error as error:
        if cause_of(error) is None:
            raise
        raise StorageUnavailable(explain(error)) from error


def _zip(place: Path, out: Path) -> None:
    """The same files give the same bytes; a package that cannot be completed is removed."""
    partial = out.with_name(f".partial-{out.name}")
    try:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(place.rglob("*")):
                if file.is_file():
                    entry = zipfile.ZipInfo(
                        f"{out.stem}/{file.relative_to(place)}", (1980, 1, 1, 0, 0, 0)
                    )
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    archive.writestr(entry, file.read_bytes())
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
