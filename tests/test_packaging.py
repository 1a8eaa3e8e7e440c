"""The wheel: what is in it, and that it runs where there is no checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("commands", "kitestring", "labeler", "pipeline", "storage")
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
        (license,) = (name for name in held if name.endswith("licenses/LICENSE"))
        assert "Apache License" in archive.read(license).decode()
    assert metadata["License-Expression"] == "Apache-2.0"
    listed = subprocess.run(
        ["git", "ls-files", "launch.py", *PACKAGES],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    # The client can be installed alone, from its own folder.
    assert set(listed) - held == {"kitestring/README.md", "kitestring/pyproject.toml"}
    assert {f"{package}/py.typed" for package in PACKAGES} <= held
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in held)


def test_the_client_alone_needs_httpx_only(tmp_path):
    """It is installed from its own folder, without the studio."""
    source = shutil.copytree(ROOT / "kitestring", tmp_path / "source" / "kitestring")
    place = tmp_path / "place"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
         "--no-build-isolation", "--target", place, source],
        check=True, timeout=240, capture_output=True,
    )  # fmt: skip
    (about,) = place.glob("kitestring_client-*.dist-info/METADATA")
    metadata = Parser().parsestr(about.read_text())
    assert [each for each in metadata.get_all("Requires-Dist", []) if "extra" not in each] == [
        "httpx>=0.27"
    ]
    code = (
        "import sys, kitestring; names = {m.split('.')[0] for m in sys.modules};"
        f"print(kitestring.__file__.startswith({str(place)!r}),"
        "sorted(names & {'torch', 'gradio', 'duckdb', 'pandas', 'storage', 'labeler', 'pipeline'}))"
    )
    environment = {**os.environ, "PYTHONPATH": str(place)}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert run.stdout.strip() == "True []", run.stderr
    assert (place / "kitestring" / "py.typed").exists()


@dataclass(frozen=True)
class Installed:
    """A fresh environment that holds the wheel and, by reference, the dependencies."""

    bin: Path
    opened: Path  # the files of the checkout that its processes opened, one per line
    environment: dict[str, str]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("installed")
    place, log = folder / "venv", folder / "opened"
    # With the checkout on PYTHONPATH, pip takes its egg-info for an installed Kitestring.
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True, timeout=120)
    python = place / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps",
         "--no-index", wheel],
        check=True, timeout=240, env=environment,
    )  # fmt: skip
    (site,) = place.glob("lib/python*/site-packages")
    # The dependencies as they are installed here.  A .pth file within is not read, so an editable
    # install of the checkout stays out.
    (site / "dependencies.pth").write_text(f"{SHARED}\n")
    (site / "sitecustomize.py").write_text(
        WATCH.format(root=str(ROOT), shared=os.path.realpath(SHARED), log=str(log))
    )
    return Installed(place / "bin", log, environment)


@pytest.mark.slow
@pytest.mark.timeout(1200)  # a minute or two where nothing else runs
def test_installed_it_runs_the_whole_loop_in_an_empty_directory(installed, tmp_path):
    done = subprocess.run(
        [installed.bin / "kitestring", "simulate", "--tiny", "--json"],
        cwd=tmp_path, env=installed.environment, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert len(report["iterations"]) == 1
    assert (tmp_path / "workspace" / "journal.jsonl").exists()
    assert installed.opened.read_text() == ""


@pytest.mark.slow
def test_installed_it_serves_both_pages_from_an_empty_directory(installed, tmp_path):
    server = subprocess.Popen(
        [installed.bin / "kitestring", "serve", "--port", "0"],
        cwd=tmp_path, env=installed.environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdout is not None
    try:
        link = next(line.strip() for line in server.stdout if "http://" in line)
        address, token = link.split("/sign-in?token=")
        with httpx.Client(base_url=address, headers={"origin": address}, timeout=60) as browser:
            assert browser.get("/healthz").json() == {"status": "ok"}
            form = {"token": token.split("&")[0], "next": "/label/"}
            assert browser.post("/sign-in", data=form).status_code == 303
            for page in ("/label/", "/research/"):
                assert "gradio" in browser.get(page).text
                assert browser.get(f"{page}config").json()["components"]
    finally:
        server.terminate()
        server.wait(timeout=60)
        server.stdout.close()
    assert installed.opened.read_text() == ""


@pytest.mark.slow
def test_the_watch_notices_a_file_of_the_checkout(installed, tmp_path):
    read = f"open({str(ROOT / 'README.md')!r})"
    before = installed.opened.read_text() if installed.opened.exists() else ""
    subprocess.run([installed.bin / "python", "-c", read], check=True, cwd=tmp_path)
    assert installed.opened.read_text() == f"{before}{ROOT / 'README.md'}\n"
    installed.opened.write_text(before)
