"""Build the documentation as a site: ``python docs/site/build.py``, or ``make docs``.

The pages link to each other as they lie in the repository, README.md and SECURITY.md outside
docs/ included.  So they are copied, with the same paths, to one folder that Zensical reads.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parents[2]
ABOUT = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
_LINK = re.compile(r"\]\(([^)#\s]+)")
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def copy_sources(target: Path) -> None:
    """Fill `target` with the pages, and with every other file of the repository they link to."""
    shutil.rmtree(target, ignore_errors=True)
    for page in [*(ROOT / name for name in ABOUT), *sorted((ROOT / "docs").rglob("*.md"))]:
        for file in (page, *_linked(page)):
            if file.is_file() and file.is_relative_to(ROOT):
                copy = target / file.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)


def _linked(page: Path) -> list[Path]:
    """The files that a page's relative links name, whether they are there or not."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    links = (unquote(link) for link in _LINK.findall(text) if "://" not in link)
    return [Path(os.path.normpath(page.parent / link)) for link in links]


def build(folder: Path = ROOT) -> int:
    """Build `folder`/build/site from `folder`/build/docs and mkdocs.yml; returns the exit status.

    A warning is an error.  Zensical checks the links to pages, with their anchors; those to other
    files are checked here.
    """
    sources = folder / "build" / "docs"
    missing = [
        f"{page.relative_to(sources)} links to {os.path.relpath(file, sources)}, which does not exist"
        for page in sources.rglob("*.md")
        for file in _linked(page)
        if file.suffix != ".md" and not file.is_file()
    ]
    print(*missing, sep="\n", end="\n" * bool(missing), file=sys.stderr, flush=True)
    here = str(Path(__file__).parent)  # where `formulas` is
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean"],
        cwd=folder, env=os.environ | {"PYTHONPATH": path}, check=False,
    )  # fmt: skip
    return done.returncode or bool(missing)


if __name__ == "__main__":
    copy_sources(ROOT / "build" / "docs")
    sys.exit(build())
