"""An export on the hub: one private dataset repository; against a local hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.exporting.hub import push
from tests.helpers.model_hub import ModelHub, model_hub

ROW = b'{"prompt": "a", "chosen": "b", "rejected": "c"}\n'


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelHub]:
    with model_hub(monkeypatch) as found:
        yield found


@pytest.fixture
def export(tmp_path: Path) -> Path:
    (tmp_path / "README.md").write_bytes(b"# Judgments\n")
    (tmp_path / "train.jsonl").write_bytes(ROW)
    return tmp_path


def test_all_files_of_an_export_are_in_a_private_dataset(export: Path, hub: ModelHub) -> None:
    push(export, "me/prefs", private=True)
    repository = hub.folder / "datasets" / "me" / "prefs"
    assert {path.name: path.read_bytes() for path in repository.iterdir()} == {
        "README.md": b"# Judgments\n", "train.jsonl": ROW,
    }  # fmt: skip
    assert [each["visibility"] for each in hub.created] == ["private"]


def test_a_private_export_does_not_go_to_a_public_dataset(export: Path, hub: ModelHub) -> None:
    push(export, "me/prefs", private=False)
    (export / "train.jsonl").write_bytes(ROW * 2)
    with pytest.raises(ValueError, match="already a public dataset, and this export is private"):
        push(export, "me/prefs", private=True)
    stored = hub.folder / "datasets" / "me" / "prefs" / "train.jsonl"
    assert stored.read_bytes() == ROW


def test_a_refusal_names_the_repository_and_the_token_to_check(export: Path, hub: ModelHub) -> None:
    hub.refuses = True
    with pytest.raises(ValueError, match=r"the hub refused me/prefs: .* HF_TOKEN is set"):
        push(export, "me/prefs", private=True)
