"""The dependency rules: who may import whom, and what loads no torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("commands", "labeler", "pipeline", "storage")
MAY_USE_STORAGE = (Path("pipeline/loop"), Path("pipeline/runs/jobs.py"))


def imports(path: Path) -> set[str]:
    """Every module named in an import statement of the file, wherever it stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from storage import queue` names the module storage.labeling.queue
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def ours(modules: set[str], package: str) -> set[str]:
    return {m for m in modules if m == package or m.startswith(package + ".")}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def test_the_command_line_loads_nothing_that_takes_long_and_only_some_commands_need() -> None:
    code = "import sys, launch; print([m for m in ('scipy.stats', 'gradio') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert found.stdout.strip() == "[]", found.stderr


def test_gradio_is_imported_without_writing_its_type_stubs() -> None:
    code = """
import ast, sys
parsed = []
parse = ast.parse
ast.parse = lambda source, *a, **k: parsed.append(source) or parse(source, *a, **k)
import labeler.app, gradio
stubs = [source for source in parsed if isinstance(source, str) and "(FormComponent)" in source]
print(len(stubs), gradio.Textbox(label="still works").get_config()["label"])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert found.stdout.strip() == "0 still works", found.stderr


@pytest.mark.parametrize("package", ["labeler", "pipeline", "storage"])
def test_every_package_has_sources(package: str) -> None:
    assert len(sources(package)) > 5  # the rules below must have something to check


def test_labeler_imports_storage_only() -> None:
    for path in sources("labeler"):
        used = imports(path)
        assert not ours(used, "pipeline") | ours(used, "launch"), path


def test_storage_imports_nothing_of_ours() -> None:
    for path in sources("storage"):
        used = imports(path)
        assert not ours(used, "pipeline") | ours(used, "launch") | ours(used, "labeler"), path


def test_pipeline_reaches_storage_through_records_except_around_the_loop() -> None:
    for path in sources("pipeline"):
        used = imports(path)
        assert not ours(used, "labeler") | ours(used, "launch"), path
        if not any(path.relative_to(ROOT).is_relative_to(place) for place in MAY_USE_STORAGE):
            foreign = {
                m
                for m in ours(used, "storage")
                if m != "storage.records" and not m.startswith("storage.records.")
            }
            assert not foreign, f"{path} imports {foreign}"


def test_ppo_stands_alone() -> None:
    allowed_of_ours = "pipeline.ppo"
    for path in sources("pipeline/ppo"):
        used = imports(path)
        for package in ("trl", "gradio", "duckdb", "storage", "labeler", "launch", "datasets"):
            assert not ours(used, package), path
        for module in ours(used, "pipeline"):
            assert module.startswith(allowed_of_ours) or module == "pipeline", path


TORCHLESS = (
    "storage.engine.database",
    "storage.importing.imports",
    "storage.exporting.exports",
    "pipeline.config.studio",
    "pipeline.runs.jobs",
    "pipeline.loop.loop",
    "pipeline.simulation.driver",
    "pipeline.demo.corpus",
    "labeler.app",
    "labeler.research.pages",
    "launch",
)


def test_importing_these_loads_no_torch() -> None:
    code = (
        "import importlib, sys\n"
        "for module in sys.argv[1:]:\n"
        "    importlib.import_module(module)\n"
        "    if 'torch' in sys.modules:\n"
        "        sys.exit(f'{module} loads torch')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *TORCHLESS],
        cwd=ROOT,
        timeout=240,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
