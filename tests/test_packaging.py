"""The wheel: what is in it, and that it runs where there is no checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = sysconfig.get_path("purelib")

# Every process of the installed program writes down what it opens of the checkout.
WATCH = """
import os, sys
def _watch(event, arguments):
    if event != "open" or not isinstance(arguments[0], (str, bytes)):
        return
    path = os.path.realpath(os.fsdecode(arguments[0]))
    if path.startswith({root!r} + os.sep) and not path.startswith({shared!r}):
        os.write(_log, (path + chr(10)).encode())
_log = os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
sys.addaudithook(_watch)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the checkout, built without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    left_out = shutil.ignore_patterns(".*", "tests", "benchmarks", "*.egg-info", "build", "dist")
    shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=left_out)
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation",
         "--quiet", "--wheel-dir", folder, folder / "source"],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    (found,) = folder.glob("kitestring-*.whl")
    return found


@pytest.mark.slow
def test_every_file_that_the_program_reads_is_in_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        (about,) = (name for name in held if name.endswith("dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(about).decode())
        (licence,) = (name for name in held if name.endswith("licenses/LICENSE"))
        assert "Apache License" in archive.read(licence).decode()
    assert metadata["License-Expression"] == "Apache-2.0"
    listed = subprocess.run(
        ["git", "ls-files", "launch.py", "commands", "labeler", "pipeline", "storage"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert set(listed) - held == set()
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in held)


@pytest.mark.slow
@pytest.mark.timeout(1200)  # a minute or two where nothing else runs
def test_installed_it_runs_the_whole_loop_in_an_empty_directory(wheel, tmp_path):
    place, log = tmp_path / "venv", tmp_path / "opened"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True, timeout=120)
    python = place / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps",
         "--no-index", wheel],
        check=True, timeout=240,
    )  # fmt: skip
    (site,) = place.glob("lib/python*/site-packages")
    # The dependencies as they are installed here.  A .pth file within is not read, so an editable
    # install of the checkout stays out.
    (site / "dependencies.pth").write_text(f"{SHARED}\n")
    (site / "sitecustomize.py").write_text(
        WATCH.format(root=str(ROOT), shared=os.path.realpath(SHARED), log=str(log))
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [place / "bin" / "kitestring", "simulate", "--tiny", "--json"],
        cwd=empty, env=environment, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert len(report["iterations"]) == 1
    assert (empty / "workspace" / "journal.jsonl").exists()
    opened = set(log.read_text().splitlines())
    assert opened == set()
    # The watch itself works: reading a file of the checkout is noticed.
    subprocess.run([python, "-c", f"open({str(ROOT / 'README.md')!r})"], check=True, cwd=empty)
    assert log.read_text().splitlines() == [str(ROOT / "README.md")]
