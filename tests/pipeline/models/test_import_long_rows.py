"""Rows that exceed the model's context are found when they are imported, by line, and can be left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import GPT2Config

from pipeline.config.sections import Config
from pipeline.models.context import ContextCheck
from pipeline.models.text import ChatTokenizer
from storage.commands import Commands
from storage.engine.database import Database
from storage.importing.files.row_notes import BadFile
from storage.records import as_messages
from tests.helpers.import_files import everything, reasons
from tests.helpers.tiny import CHAT_TEMPLATE, tiny_tokenizer

CONTEXT, ANSWER = 64, 10
LONG = "x" * 70
SHORT = {"prompt": "Hi", "response_a": "a", "response_b": "b", "annotator": "ann", "outcome": "a"}
WRITTEN = {name: SHORT[name] for name in ("prompt", "response_a", "response_b")}


def model(path: Path, *, template: str | None = CHAT_TEMPLATE) -> str:
    """What the check reads of a model: its configuration and its tokenizer, one token a byte."""
    GPT2Config(n_positions=CONTEXT).save_pretrained(path)
    tiny_tokenizer(chat_template=template).save_pretrained(path)
    return str(path)


def settings(name: str) -> Config:
    rooms = {f"{stage}.max_new_tokens": ANSWER for stage in ("sampling", "ppo")}
    return Config().override({"model.name": name} | rooms)


@pytest.fixture
def commands(db: Database, tmp_path: Path) -> Commands:
    commands, name = Commands(db), model(tmp_path / "gpt2")
    commands.too_long = lambda: ContextCheck.of(settings(name))
    return commands


CASES: list[tuple[str, dict[str, Any], dict[str, Any], int]] = [
    ("prompts", {"prompt": "Hi"}, {"prompt": "x" * (CONTEXT - ANSWER)}, CONTEXT - ANSWER),
    ("sft", {"prompt": "Hi", "response": "a"}, {"prompt": "Hi", "response": LONG}, 72),
    ("judgments", SHORT, SHORT | {"response_b": LONG}, 72),
    ("pairs", WRITTEN, WRITTEN | {"response_b": LONG}, 72),
    (
        "preferences",
        {"prompt": "Hi", "chosen": "a", "rejected": "b"},
        {"prompt": "Hi", "chosen": LONG, "rejected": "b"},
        72,
    ),
    (
        "preferences",
        {"prompt": "Hi", "completion": "a", "label": True},
        {"prompt": "Hi", "completion": LONG, "label": False},
        72,
    ),
]


@pytest.mark.parametrize(("kind", "good", "long", "tokens"), CASES)
def test_a_row_that_is_too_long_is_named_with_its_line(
    db: Database, file: Any, commands: Commands, kind: str, good: Any, long: Any, tokens: int
):
    path = file([good, long, {"nothing": 1}])
    before = everything(db)
    with pytest.raises(BadFile) as bad:
        commands.call("import", {"kind": kind, "file": str(path)})
    found = reasons(bad)
    assert {2, 3} <= found.keys()  # and the good answer that the long one was to be paired with
    assert found[2].startswith(f"{tokens} tokens ")
    assert f"{CONTEXT} tokens" in found[2]
    assert "skip long rows" in found[2]
    assert "--skip-long leaves out rows" in str(bad.value)
    assert everything(db) == before


@pytest.mark.parametrize(("kind", "good", "long", "tokens"), CASES[:-1])
def test_rows_that_are_too_long_can_be_left_out_and_other_bad_rows_cannot(
    db: Database, file: Any, commands: Commands, kind: str, good: Any, long: Any, tokens: int
):
    path = file([good, long])
    report = commands.call("import", {"kind": kind, "file": str(path), "skip_long": True})
    assert [row["line"] for row in report["skipped"]] == [2]
    assert f"{tokens} tokens" in report["skipped"][0]["reason"]
    assert report["rows"] == 2
    assert db.read("SELECT count(*) AS n FROM prompts")[0]["n"] == 1
    worse = file([good, long, {"nothing": 1}])
    with pytest.raises(BadFile) as bad:
        commands.call("import", {"kind": kind, "file": str(worse), "skip_long": True})
    assert reasons(bad).keys() == {3}


def test_the_last_row_that_fits_is_taken(db: Database, file: Any, commands: Commands):
    fits = {"prompt": "x" * (CONTEXT - ANSWER - 1)}  # one for the end of the answer
    commands.call("import", {"kind": "prompts", "file": str(file([fits]))})
    assert db.read("SELECT count(*) AS n FROM prompts")[0]["n"] == 1


def test_without_a_chat_template_a_prompt_counts_as_the_stages_will_encode_it(tmp_path: Path):
    name = model(tmp_path / "base", template=None)
    check = ContextCheck.of(settings(name))
    assert check is not None
    messages = as_messages([{"role": "system", "content": "s"}, {"role": "user", "content": LONG}])
    tokens = len(ChatTokenizer(tiny_tokenizer(chat_template=None)).prompt(messages))
    assert str(check(messages, [])).startswith(f"{tokens} tokens ")


def test_a_model_that_cannot_be_read_or_has_no_limit_refuses_nothing(tmp_path: Path):
    assert ContextCheck.of(settings(str(tmp_path / "nowhere"))) is None
    assert ContextCheck.of(settings("somebody/not-downloaded")) is None
    unlimited = model(tmp_path / "unlimited")
    (tmp_path / "unlimited" / "config.json").write_text('{"model_type": "bloom"}')
    assert ContextCheck.of(settings(unlimited)) is None


def test_a_line_of_many_megabytes_is_refused_without_encoding_it(tmp_path: Path) -> None:
    check = ContextCheck.of(settings(model(tmp_path / "gpt2")))
    assert check is not None
    longest = max(map(len, tiny_tokenizer().get_vocab()))
    size = 3_000_000
    said = check(as_messages("x" * size), [])
    assert said is not None
    assert said.startswith(f"at least {size // longest} tokens plus {ANSWER} for an answer")
    # Shorter texts are counted.
    said = check(as_messages("x" * 70), [])
    assert said is not None
    assert said.startswith("70 tokens plus")
