"""`import --from`, `--map` and `--dry-run` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from commands.main import app
from storage.importing.files.row_notes import lines_in_words
from tests.helpers.command_line import told
from tests.helpers.tiny import save_tiny

RECORD = {
    "id": "r1",
    "fields": {"task": "Name a fruit.", "old": "Pear", "new": "Apple"},
    "responses": {"choice": [{"value": "new", "user_id": "u-1"}]},
}
NAMES = ("--map", "prompt=task", "--map", "a=old", "--map", "b=new")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    save_tiny(tmp_path / "model")
    place = tmp_path / "place"
    CliRunner().invoke(app, ["init", "--workspace", str(place), "--model", str(tmp_path / "model")])
    return place


def test_another_tools_file_is_tried_and_imported(workspace: Path, tmp_path: Path) -> None:
    file = tmp_path / "records.json"
    file.write_text(json.dumps([RECORD]))
    where = ("--workspace", workspace, "--json")
    command = ("import", "--judgments", file, "--from", "argilla", *NAMES)
    tried = told(*command, "--dry-run", *where)
    assert tried["added"]["judgments"] == 1
    assert tried["preview"][0]["outcome"] == "b"
    # The same is still missing, so the dry run stored nothing.
    assert told(*command, *where)["added"] == tried["added"]
    assert told(*command, *where)["known"] == 1


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--judgments", "x.json", "--map", "a=b"), "--map names fields of another tool; say which with --from"),
        (("--judgments", "x.json", "--from", "arena", "--map", "a"), "--map a must be NAME=FIELD"),
        (("--pairs", "x.json", "--from", "arena"), "are read with --judgments, not --pairs"),
        (("--judgments", "hf://datasets/x", "--from", "arena"), "must be hf://datasets/OWNER/NAME"),
    ],
)  # fmt: skip
def test_wrong_options_are_told(workspace: Path, more: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        CliRunner().invoke(
            app, ["import", "--workspace", str(workspace), *more], catch_exceptions=False
        )


def test_a_reason_that_many_rows_share_is_told_once(workspace: Path, tmp_path: Path) -> None:
    file = tmp_path / "demonstrations.jsonl"
    rows = [{"prompt": f"{i}?"} for i in range(3)] + [{"prompt": "a?", "response": "b"}]
    rows += [{"response": "c"}, {"prompt": "d?"}, {"prompt": "e?"}]
    file.write_text("\n".join(map(json.dumps, rows)))
    where = ("--workspace", workspace)
    with pytest.raises(ValueError, match="which has 6 bad rows") as refused:
        told("import", "--sft", file, *where)
    _, *reasons = str(refused.value).splitlines()
    assert [reason.partition(": ")[0] for reason in reasons] == [
        "  lines 1, 2, 3 and 2 more", "  line 5",
    ]  # fmt: skip
    shown = told("import", "--sft", file, "--skip-bad", *where)
    assert shown.count("the answer is missing") == 1
    assert "  5     lines 1, 2, 3 and 2 more  the answer is missing" in shown
    report = told("import", "--sft", file, "--skip-bad", *where, "--json")
    assert [row["line"] for row in report["skipped"]] == [1, 2, 3, 5, 6, 7]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([4], "line 4"), ([4, 5], "lines 4 and 5"), ([4, 5, 6, 7], "lines 4 to 7"),
        ([4, 6], "lines 4, 6"), ([1, 2, 4], "lines 1, 2, 4"), ([1, 2, 4, 8, 9], "lines 1, 2, 4 and 2 more"),
    ],
)  # fmt: skip
def test_lines_in_words(lines: list[int], words: str) -> None:
    assert lines_in_words(lines) == words


def test_init_says_what_to_do_next(tmp_path: Path) -> None:
    save_tiny(tmp_path / "model")
    model = ("--model", tmp_path / "model")
    own = told("init", "--workspace", tmp_path / "a b", *model).splitlines()
    assert own[1:] == [
        f"Next, add prompts: python launch.py import --prompts FILE.jsonl --workspace '{tmp_path}/a b'",
        f"Then start the studio: python launch.py serve --workspace '{tmp_path}/a b'",
    ]
    demo = told("init", "--workspace", tmp_path / "demo").splitlines()
    assert demo[1:] == [
        f"Next, start the studio: python launch.py serve --workspace {tmp_path}/demo",
        "The first start adds the demo's prompts, unless prompts, judgments or pairs are imported before.",
    ]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Hi?", "role": "train"}\n')
    place = tmp_path / "full"
    filled = told("init", "--workspace", place, *model, "--prompts", prompts).splitlines()
    assert filled[1:] == [
        "Added 1 prompt.", f"Next, start the studio: python launch.py serve --workspace {place}",
    ]  # fmt: skip
    assert told("status", "--workspace", place, "--json")["prompts"] == {"train": 1}
    with pytest.raises(ValueError, match="there is no file"):
        told("init", "--workspace", tmp_path / "none", *model, "--prompts", tmp_path / "none.jsonl")
    assert not (tmp_path / "none").exists()
