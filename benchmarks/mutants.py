"""Mutation testing: changes one operator, number or condition of a central module and runs its
tests.

    python -m benchmarks mutants [--each 30] [--seed 0] [--only storage/engine/journal.py] [--out mutants.json]

cosmic-ray generates the mutants; a sample of them, one per source line if possible, runs in a copy
of the checkout.  A mutant is *caught* if a test fails or exceeds the time limit.  Survivors are
printed with the line they change: a test is missing, or the change is equivalent.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

ROOT = Path(__file__).parent.parent
T = "tests"
MODULES = {
    "pipeline/ppo/algorithm.py": [f"{T}/pipeline/ppo/test_algorithm.py", f"{T}/pipeline/ppo/test_losses.py"],
    "pipeline/ppo/batch.py": [f"{T}/pipeline/ppo/test_batch.py", f"{T}/pipeline/ppo/rollouts/test_rollout.py"],
    "pipeline/statistics/sequential_test.py": [f"{T}/pipeline/statistics"],
    "pipeline/promotion/gate.py": [f"{T}/pipeline/promotion/test_gate_report.py", f"{T}/pipeline/promotion"],
    "pipeline/sampling/acquisition.py": [f"{T}/pipeline/sampling"],
    "storage/engine/journal.py": [f"{T}/storage/engine/test_journal.py", f"{T}/storage/engine/test_database.py", f"{T}/storage/engine/test_health.py"],
    "storage/labeling/queue_cache.py": [f"{T}/storage/labeling/test_queue_cache.py", f"{T}/storage/labeling"],
    "storage/labeling/judgments.py": [f"{T}/storage/labeling/test_acts.py", f"{T}/storage/labeling/test_judgments.py"],
    "storage/importing/planning/plan.py": [
        f"{T}/storage/importing/test_{name}.py"
        for name in ("plan", "importing", "importing_again", "importing_files", "kept_apart", "written_pairs")
    ],
    "labeler/security/access.py": [
        f"{T}/labeler/security/test_access{name}.py" for name in ("_answers", "", "_files")
    ],
}  # fmt: skip
"""The central modules, and the tests that should detect a change in each, the fastest first."""

PRELOADED = ("torch", "transformers", "duckdb", "pandas", "gradio", "fastapi", "pytest", "httpx")
SKIPPED = ("RemoveDecorator", "NoOp", "VariableInserter", "VariableReplacer")


@dataclass(frozen=True)
class Mutant:
    """One changed line: its location, the operator, the old and the new text."""

    module: str
    operator: str
    line: int
    before: str
    after: str
    source: str


@dataclass(frozen=True)
class Outcome:
    """The result of a mutant's tests; `seconds` is wall-clock time."""

    module: str
    operator: str
    line: int
    before: str
    after: str
    caught: bool
    seconds: float


def places(code: str) -> dict[int, list[tuple[str, int]]]:
    """Line → (operator, occurrence) of every change that cosmic-ray can make there."""
    nodes, found = list(ast_nodes(get_ast(code))), defaultdict(list)
    for name in plugins.operator_names():
        if any(part in name for part in SKIPPED):
            continue
        operator = plugins.get_operator(name)()
        starts = (start for n in nodes for start, _ in operator.mutation_positions(n))
        for occurrence, (line, _column) in enumerate(starts):
            found[line].append((name, occurrence))
    return dict(found)


def sample(module: str, count: int, seed: int) -> list[Mutant]:
    """At most `count` mutants that change the executed code, on different lines if possible."""
    chance, code = random.Random(f"{module} {seed}"), (ROOT / module).read_text()
    original, by_line = _executed(code), places(code)
    for operators in by_line.values():
        chance.shuffle(operators)
    chosen: list[Mutant] = []
    while len(chosen) < count and by_line:
        for line in chance.sample(sorted(by_line), len(by_line)):
            name, occurrence = by_line[line].pop()
            if not by_line[line]:
                del by_line[line]
            changed = mutate_code(code, plugins.get_operator(name)(), occurrence)
            with contextlib.suppress(SyntaxError):
                if changed is not None and _executed(changed) != original:
                    chosen.append(_described(module, name.split("/")[-1], code, changed))
            if len(chosen) == count:
                break
    return chosen


def _executed(code: str) -> str:
    """The syntax tree without code that has no effect in a correct program.

    Drops annotations, docstrings, dataclass options, and `strict` where zip checks lengths again.
    """
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
            arguments = node.args  # callers pass valid arguments, whatever kinds are allowed
            arguments.args = arguments.posonlyargs + arguments.args + arguments.kwonlyargs
            arguments.defaults += [default for default in arguments.kw_defaults if default]
            arguments.posonlyargs, arguments.kwonlyargs, arguments.kw_defaults = [], [], []
        elif isinstance(node, ast.ClassDef):
            node.decorator_list = []
        elif isinstance(node, ast.Call):
            node.keywords = [word for word in node.keywords if word.arg != "strict"]
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant("")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""
    return ast.dump(tree)


def _described(module: str, operator: str, code: str, changed: str) -> Mutant:
    before, after = code.splitlines(), changed.splitlines()
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    _, i1, i2, j1, j2 = next(op for op in matcher.get_opcodes() if op[0] != "equal")
    old, new = "\n".join(before[i1:i2]), "\n".join(after[j1:j2])
    return Mutant(module, operator, i1 + 1, old.strip(), new.strip(), changed)


def fails(checkout: Path, tests: list[str], limit: float) -> bool:
    """Whether the tests fail in a process forked from this one, which has loaded the libraries."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(_run_tests(checkout, tests))
        finally:  # skip the parent's cleanup
            traceback.print_exc()
            os._exit(70)
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status) != 0
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def _run_tests(checkout: Path, tests: list[str]) -> int:
    """pytest's exit status for these tests, with the modules of the copy."""
    os.setpgid(0, 0)
    os.chdir(checkout)
    sys.path[:] = [str(checkout), *(p for p in sys.path if p not in ("", str(ROOT)))]
    os.environ["PYTHONPATH"] = str(checkout)
    output = os.open(checkout / "output", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    return int(
        pytest.main(
            ["-x", "-q", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
        )
    )


def copy_checkout(folder: Path) -> Path:
    """Copy the tracked files in their current state, without the repository."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def check(module: str, checkout: Path, *, each: int, seed: int) -> Iterator[Outcome]:
    """Run a sample of one module's mutants; RuntimeError if its tests fail without a mutation."""
    tests, path = MODULES[module], checkout / module
    whole = path.read_text()
    begun = time.monotonic()
    if fails(checkout, tests, 1200):
        output = (checkout / "output").read_text()
        raise RuntimeError(
            f"the tests of {module} fail without any change: {' '.join(tests)}\n{output}"
        )
    limit = 20 + 3 * (time.monotonic() - begun)
    for mutant in sample(module, each, seed):
        path.write_text(mutant.source)
        begun = time.monotonic()
        caught = fails(checkout, tests, limit)
        seconds = round(time.monotonic() - begun, 1)
        yield Outcome(
            module, mutant.operator, mutant.line, mutant.before, mutant.after, caught, seconds
        )
    path.write_text(whole)


def main() -> int:
    """Print a table of generated and caught mutants by module, then the survivors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=30, help="mutants per module")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=list(MODULES), default=list(MODULES))
    parser.add_argument("--out", type=Path, help="write every outcome to this JSON file")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in PRELOADED:
        importlib.import_module(name)
    outcomes: list[Outcome] = []
    print("| module | mutants | caught |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        checkout = copy_checkout(Path(folder))
        for module in given.only:
            found: list[Outcome] = []
            for outcome in check(module, checkout, each=given.each, seed=given.seed):
                found.append(outcome)
                if given.out:  # a long run that is stopped leaves what it found
                    every = [asdict(o) for o in (*outcomes, *found)]
                    given.out.write_text(json.dumps(every, indent=1))
            caught = sum(outcome.caught for outcome in found)
            print(
                f"| `{module}` | {len(found)} | {caught} ({caught / len(found):.0%}) |", flush=True
            )
            outcomes += found
    print("\nSurvivors:")
    for o in outcomes:
        if not o.caught:
            print(f"{o.module}:{o.line} {o.operator}\n  - {o.before}\n  + {o.after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
