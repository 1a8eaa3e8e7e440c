"""What is sent to a node, and that nothing in it names the studio's machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.config.sections import Config
from pipeline.runs.rundir import Job, RunDirectory
from pipeline.runs.staging.inputs import node_files

HERE = {"inputs/prompts.parquet": "prompts", "checkpoint/step-1/state.pt": "state",
        "checkpoint/.step-2.tmp/state.pt": "a draft", "model/weights": "unfinished",
        "log.txt": "log", "events.jsonl": "events", "lock": ""}  # fmt: skip


def placed(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_models_and_files_have_their_places_on_the_node(tmp_path: Path) -> None:
    workspace, other = tmp_path / "workspace", tmp_path / "disk"
    demo = Path(__file__).parents[4] / "pipeline" / "demo" / "model"
    placed(workspace, {"models/policy-1/config.json": "p", "models/policy-1/sub/x": "x",
                       "files/refs.parquet": "r"})  # fmt: skip
    placed(other, {"base/weights": "base", "classifier/weights": "c"})
    config = Config().override(
        {
            "shaping.references": str(workspace / "files" / "refs.parquet"),
            "shaping.classifier": str(other / "classifier"),
            "model.name": str(other / "base"),
        }
    )
    models: dict[str, Any] = {
        "policy": str(workspace / "models" / "policy-1"), "reference": str(other / "base"),
        "previous": "owner/name", "reward": str(demo), "candidate": None,
    }  # fmt: skip
    job = Job(run="run-1", stage="policy", iteration=1, config=config, models=models)
    directory = RunDirectory.create(workspace / "runs" / "run-1", job)
    placed(directory.path, HERE)
    found = node_files(directory)
    assert {name: file.read_text() for name, file in found.models.items()} == {
        "models/policy-1/config.json": "p",
        "models/policy-1/sub/x": "x",
        "files/refs.parquet": "r",
        "elsewhere/1/base/weights": "base",
        "elsewhere/2/classifier/weights": "c",
    }
    assert {name: file.read_text() for name, file in found.own.items()} == {
        "runs/run-1/inputs/prompts.parquet": "prompts",
        "runs/run-1/checkpoint/step-1/state.pt": "state",
        "runs/run-1/events.jsonl": "events",
    }
    assert str(tmp_path) not in found.job

    node = tmp_path / "node" / "workspace"
    placed(node, {"runs/run-1/job.json": found.job})
    seen = RunDirectory(node / "runs" / "run-1").job()
    assert seen.models == models | {
        "policy": str(node / "models" / "policy-1"),
        "reference": str(node / "elsewhere" / "1" / "base"),
    }
    shaping = seen.config.shaping
    assert shaping.references == str(node / "files" / "refs.parquet")
    assert shaping.classifier == str(node / "elsewhere" / "2" / "classifier")
    assert seen.config.model.name == str(node / "elsewhere" / "1" / "base")
