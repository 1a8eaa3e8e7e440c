"""The notebooks of the documentation run, cell by cell, against a real studio."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest

from kitestring.client.connection import TOKEN
from storage.engine.database import Database
from storage.tables import iterations
from tests.helpers.research_seed import Seeding
from tests.helpers.served_studio import ServedStudio, label, served_studio, tiny_study
from tests.import_graph import ROOT

FOLDER = ROOT / "docs" / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def cells(name: str, kind: str = "code") -> list[str]:
    notebook = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


def run(name: str) -> dict[str, Any]:
    """Execute the code cells in order, and show the last value of each as Jupyter would."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, source in enumerate(cells(name)):
        tree = ast.parse(source, f"{name}, cell {number}")
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"{name}, cell {number}", "exec"), namespace)
        if isinstance(last, ast.Expr):
            shown = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
            assert getattr(shown, "_repr_html_", shown.__repr__)()
    return namespace


@pytest.fixture(autouse=True)
def no_windows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415 (it reads the environment)

    plt.switch_backend("Agg")
    yield
    plt.close("all")


def at(served: ServedStudio, monkeypatch: pytest.MonkeyPatch, role: Any) -> None:
    """What the notebooks read from the environment."""
    monkeypatch.setenv("KITESTRING_URL", served.url)
    monkeypatch.setenv(TOKEN, served.token(f"The {role}", role))


def test_there_are_notebooks_and_the_guide_links_them():
    guide = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
    assert NOTEBOOKS == ["analyze_a_study.ipynb", "run_an_iteration.ipynb"]
    for name in NOTEBOOKS:
        assert f"(notebooks/{name})" in guide


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_has_no_outputs_and_its_links_lead_somewhere(name):
    notebook = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    for cell in notebook["cells"]:
        assert not cell.get("outputs"), "strip the outputs before you commit"
        assert cell.get("execution_count") is None
    text = "\n".join(cells(name, "markdown"))
    for link in text.split("](")[1:]:
        assert (FOLDER / link.split(")")[0]).exists(), link


def test_a_study_is_analyzed_by_a_viewer(tmp_path, monkeypatch):
    workspace = tmp_path / "study"
    with Database.open(workspace) as db:
        seeding = Seeding(db)
        seeding.history(finished=2, labels=60)
        seeding.judge_policies(1, wins=0.8, judgments=30)
    with served_studio(workspace) as served:
        at(served, monkeypatch, "viewer")
        found = run("analyze_a_study.ipynb")
        found["studio"].close()
        stored = served.db.read("SELECT comparison, outcome FROM current_judgments")
    assert len(found["judgments"]) == len(stored) > 150
    assert found["outcomes"].sum(axis=1).round(6).eq(1).all()
    by_pair: dict[str, list[str]] = {}
    for row in stored:
        by_pair.setdefault(row["comparison"], []).append(row["outcome"])
    equal = [a == b for each in by_pair.values() for a, b in combinations(each, 2)]
    assert found["by_hand"] == pytest.approx(sum(equal) / len(equal))
    assert set(found["wide"]["run"]) == {"run-1-policy", "run-2-policy"}
    assert found["board"]["model"].iloc[0] == "policy-1"
    assert found["verdicts"]["policy-1"][0] in ("promoted", "provisional", "blocked")


def test_an_iteration_runs_from_python(tmp_path, monkeypatch, capsys):
    with tiny_study(tmp_path) as served:
        at(served, monkeypatch, "researcher")
        import kitestring  # noqa: PLC0415 (as the notebook does)

        with kitestring.Studio(served.url) as studio:
            assert studio.wait(every=0.2, timeout=120).iteration.phase == "labeling"
            assert label(served) >= 12
            with pytest.raises(kitestring.StudioError, match="has not reached the phase 'done'"):
                studio.wait("done", timeout=0.3, every=0.2)
        found = run("run_an_iteration.ipynb")
        settings = found["studio"].run(found["policy_run"]).settings
        found["studio"].close()
        done = iterations.get(served.db, 1)
    assert (found["after"].iteration.number, found["after"].iteration.phase) == (2, "labeling")
    assert "iteration 1: reward" in capsys.readouterr().out
    assert done.policy_produced == "policy-1"
    assert list(found["trained"]["status"].unique()) == ["succeeded"]
    assert sorted(found["points"].groupby("metric").size()) == [3, 3]  # ppo.updates
    assert list(found["rewards"]["count"]) == [4, 4]  # held-out prompts
    assert settings["ppo.kl_weight"] == 0.1
