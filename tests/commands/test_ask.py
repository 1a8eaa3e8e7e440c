"""`launch.py ask`: replies of several models in the terminal, and a pair for the annotators."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from commands import playground
from commands.main import app
from commands.studio import Studio
from pipeline.config.sections import Config
from storage.generation_records import GenerationRefused, MeasuredToken, ReplyMeasures
from storage.records import ModelVersion
from storage.tables import models
from tests.helpers.desk_world import workspace
from tests.helpers.scripted_generation import Scripted

TOKEN = MeasuredToken(text="x", logprob=-1.0, reference_logprob=-1.5, kl=0.75)


@pytest.fixture
def studio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with workspace(tmp_path / "w") as db:
        models.add(db, ModelVersion(id="sft-1", role="sft", name="SFT", path="demo"))
        models.add(db, ModelVersion(id="policy-1", role="policy", name="P", path="demo"))
    made = Studio(tmp_path / "w", Config())
    made.generation = Scripted(measures=ReplyMeasures(reward=1.25, tokens=(TOKEN, TOKEN)))  # type: ignore[assignment]
    monkeypatch.setattr(made.generation, "shut_down", lambda: None, raising=False)
    monkeypatch.setattr(playground, "connect", lambda _: _Open(made))
    yield made
    made.close()


class _Open:
    def __init__(self, studio: Studio) -> None:
        self.studio = studio

    def __enter__(self) -> Studio:
        return self.studio

    def __exit__(self, *_: object) -> None:
        pass


def ask(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["ask", "How long?", *arguments], catch_exceptions=True)


def test_replies_with_their_figures(studio: Any) -> None:
    studio.generation.texts = ["Eight minutes.", GenerationRefused("It stopped.")]
    found = ask("--model", "sft-1", "--model", "policy-1", "--seed", "3", "--system", "Be brief.")
    assert found.exit_code == 0, found.output
    assert "sft-1: reward 1.25, KL 1.50, 14 tokens" in found.output
    assert "    Eight minutes." in found.output
    assert "policy-1: It stopped." in found.output
    assert "seed 3, rewards by no model" in found.output
    assert [m.role for m in studio.generation.asked[0].messages] == ["system", "user"]


def test_two_replies_are_sent(studio: Any) -> None:
    studio.generation.texts = ["One.", "Two."]
    found = json.loads(ask("--model", "sft-1", "--model", "policy-1", "--send", "--json").output)
    [pair] = studio.db.read("SELECT id, first, second FROM comparisons WHERE arm = 'probe'")
    assert found["sent"] == {"id": pair["id"], "learned_from": True}
    assert {each["id"] for each in found["replies"]} == {pair["first"], pair["second"]}


def test_one_reply_or_a_failed_one_is_not_sent(studio: Any) -> None:
    assert "exactly two models" in str(ask("--model", "sft-1", "--send").exception)
    studio.generation.texts = ["One.", GenerationRefused("It stopped.")]
    found = ask("--model", "sft-1", "--model", "policy-1", "--send")
    assert "policy-1: It stopped." in str(found.exception)
    assert studio.db.read("SELECT 1 FROM comparisons WHERE arm = 'probe'") == []
