"""The dependency rules: who may import whom, and what loads no torch."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.import_graph import PACKAGES, PAGE, ROOT, cycle, drawn, imports, named_in, siblings

MAY_USE_STORAGE = (
    Path("pipeline/loop"),
    Path("pipeline/evidence"),
    Path("pipeline/runs/jobs.py"),
)
PURE = (
    "storage.records",
    "storage.analysis.annotator_fit",
    "storage.analysis.intervals",
    "storage.gate_records",
    "storage.gate_report",
    "storage.generation_records",
    "storage.reports",
    "storage.wording",
)
"""What all of `pipeline` may import of storage: records, reports and formulas, without a database."""


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


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_has_sources(package: str) -> None:
    assert len(sources(package)) > 5  # the rules below must have something to check


def test_labeler_imports_storage_only() -> None:
    for path in sources("labeler"):
        used = named_in(path)
        assert not ours(used, "pipeline") | ours(used, "launch") | ours(used, "commands"), path


def test_storage_imports_nothing_of_ours() -> None:
    for path in sources("storage"):
        used = named_in(path)
        assert not any(
            ours(used, other) for other in ("pipeline", "launch", "labeler", "commands")
        ), path


def test_pipeline_imports_only_records_and_reports_of_storage_except_around_the_loop() -> None:
    for path in sources("pipeline"):
        used = named_in(path)
        assert not ours(used, "labeler") | ours(used, "launch") | ours(used, "commands"), path
        if not any(path.relative_to(ROOT).is_relative_to(place) for place in MAY_USE_STORAGE):
            pure = set().union(*(ours(used, module) for module in PURE))
            foreign = ours(used, "storage") - pure
            assert not foreign, f"{path} imports {foreign}"


def test_the_client_imports_nothing_of_ours() -> None:
    for path in sources("kitestring"):
        used = named_in(path)
        for package in ("pipeline", "storage", "launch", "labeler", "commands"):
            assert not ours(used, package), path
    for package in ("pipeline", "storage", "labeler", "commands"):
        for path in sources(package):
            assert not ours(named_in(path), "kitestring"), path


def test_no_folder_imports_in_a_circle() -> None:
    """In every package, modules and folders that stand side by side form no cycle."""
    levels = siblings(imports())
    assert {"", "pipeline", "storage", "labeler.research"} <= levels.keys()
    assert {package: cycle(level) for package, level in levels.items() if cycle(level)} == {}


def test_a_circle_is_found() -> None:
    chain = {"a.x": {"b.y"}, "b.y": {"c.z"}, "c.z": set()}
    assert cycle(siblings(chain)[""]) == []
    # No module is in a cycle here; the folders a and b are.
    assert cycle(siblings(chain | {"b.w": {"a.v"}})[""]) == ["a", "b", "a"]
    assert cycle(siblings({"p.a.x": {"p.b"}, "p.b": {"p.a.y"}})["p"]) == ["a", "b", "a"]


def test_the_drawing_of_the_folders_is_of_today() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert drawn(page) == page, "run: python tests/import_graph.py"


def test_ppo_stands_alone() -> None:
    allowed_of_ours = "pipeline.ppo"
    for path in sources("pipeline/ppo"):
        used = named_in(path)
        for package in (
            "trl",
            "gradio",
            "duckdb",
            "storage",
            "labeler",
            "launch",
            "commands",
            "datasets",
        ):
            assert not ours(used, package), path
        for module in ours(used, "pipeline"):
            assert module.startswith(allowed_of_ours) or module == "pipeline", path


TORCHLESS = (
    "storage.engine.database",
    "storage.importing.imports",
    "storage.exporting.exports",
    "pipeline.config.sections",
    "pipeline.runs.jobs",
    "pipeline.loop.loop",
    "pipeline.loop.generation",
    "pipeline.serving.client",
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
