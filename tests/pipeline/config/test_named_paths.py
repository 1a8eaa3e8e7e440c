"""Files that settings name: a researcher may name those of the workspace, and learns of no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config import paths
from pipeline.config.sections import Config
from pipeline.loop.loop import Loop
from pipeline.loop.settings_view import OPERATOR_SETTINGS
from storage.engine.database import Database
from storage.tables import iterations
from tests.pipeline.config.test_plugins import failed_ppo, unchanged

pytestmark = pytest.mark.usefixtures("dying_workers")

ASKED = {
    "references": ("contrast", "shaping.references"),
    "classifier": ("sycophancy_classifier", "shaping.classifier"),
    "model": (None, "shaping.extra_reward_models"),
}


def settings(kind: str, path: str | Path) -> dict[str, str]:
    component, name = ASKED[kind]
    value = f'["{path}"]' if component is None else str(path)
    weights = {} if component is None else {"shaping.weights": f"{{{component} = 1.0}}"}
    return weights | {name: value}


@pytest.mark.parametrize("kind", ASKED)
def test_a_researcher_is_told_the_same_of_files_that_exist_and_of_others(
    loop: Loop, world: Database, tmp_path: Path, kind: str
):
    there = tmp_path / "there"
    there.mkdir() if kind != "references" else there.write_text("{}")
    said = []
    for path in (there, tmp_path / "nowhere", "/etc/passwd", world.workspace / "journal.jsonl"):
        with pytest.raises(ValueError, match="researchers may name files in") as refused:
            loop.train(settings(kind, path))
        said.append(str(refused.value).replace(str(path), "PATH"))
    assert len(set(said)) == 1
    assert unchanged(world)
    run = failed_ppo(loop, world)
    with pytest.raises(ValueError, match="researchers may name files in"):
        loop.retry(run, settings(kind, there))
    assert iterations.get(world, 2).settings == {}


def test_a_link_leads_no_further_than_the_folder(loop: Loop, world: Database, tmp_path: Path):
    secret = tmp_path / "secret.jsonl"
    secret.write_text("{}")
    folder = world.workspace / "files"
    folder.mkdir()
    (folder / "link.jsonl").symlink_to(secret)
    for path in (folder / "link.jsonl", f"{folder}/../journal.jsonl", f"{folder}/../../secret"):
        with pytest.raises(ValueError, match="researchers may name files in"):
            loop.train(settings("references", path))
    assert unchanged(world)


def test_files_of_the_workspace_may_be_named(loop: Loop, world: Database):
    folder = world.workspace / "files"
    folder.mkdir()
    with pytest.raises(ValueError, match="there is no such file"):
        loop.train(settings("references", folder / "nowhere.jsonl"))
    (folder / "answers.jsonl").write_text('{"prompt": "p", "honest": "h", "sycophantic": "s"}\n')
    loop.train(settings("references", folder / "answers.jsonl"))
    assert iterations.get(world, 2).phase == "reward"


def test_what_the_operator_names_may_be_named(world: Database, tmp_path: Path):
    file = tmp_path / "answers.jsonl"
    file.write_text('{"prompt": "p", "honest": "h", "sycophantic": "s"}\n')
    loop = Loop(world, Config().override({"shaping.references": str(file)}))
    loop.train(settings("references", file))
    assert iterations.get(world, 2).phase == "reward"
    loop.advance()
    loop.shut_down()


def test_the_operators_command_line_may_name_any(loop: Loop, world: Database, tmp_path: Path):
    file = tmp_path / "answers.jsonl"
    file.write_text('{"prompt": "p", "honest": "h", "sycophantic": "s"}\n')
    loop.train(settings("references", file), by_operator=True)
    assert iterations.get(world, 2).phase == "reward"


@pytest.mark.parametrize(
    ("setting", "name", "open_"),
    [
        ("shaping.extra_reward_models", '["reward-1"]', True),
        ("shaping.extra_reward_models", '["owner/reward.model-7b"]', True),
        ("shaping.extra_reward_models", '["a/b/c"]', False),
        ("shaping.extra_reward_models", '["~/model"]', False),
        ("shaping.extra_reward_models", '["../model"]', False),
        ("shaping.extra_reward_models", '["model/.."]', False),
        ("shaping.extra_reward_models", '["taken/here"]', False),
        ("shaping.extra_reward_models", '["taken"]', False),
        ("model.name", "owner/model", True),
        ("model.name", "demo", True),
        ("model.name", "/srv/model", False),
        ("model.name", "./model", False),
    ],
)
def test_a_model_of_the_hub_is_no_file_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, name: str, open_: bool
):
    (tmp_path / "taken" / "here").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    asked = Config().override({setting: name})
    options = {"workspace": tmp_path / "w", "models": ["reward-1"], "operator_configs": [Config()]}
    if open_:
        paths.require_open(asked, **options)
    else:
        with pytest.raises(ValueError, match="researchers may name"):
            paths.require_open(asked, **options)


def test_every_setting_that_looks_for_a_file_is_asked_about():
    """Whoever adds a setting that names a file has to say who may name which."""
    looks = {
        s.name
        for s in Config().settings()
        if any(word in s.help for word in ("irector", "older", "file", "path", "Hugging Face"))
    }
    assert looks >= {name for name, _ in paths.named(Config())}
    asked = {"model.name", *(name for _, name in ASKED.values())}
    assert looks - asked - {*OPERATOR_SETTINGS} == set()
