"""Options of `simulate` that say the same in two ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commands import simulate
from commands.simulate import bring_prompts, chosen_world
from pipeline.simulation.preference import longest, score
from pipeline.simulation.world_golds import exam
from pipeline.simulation.worlds import WORLDS
from storage.engine.database import Database
from storage.records import Prompt
from storage.tables import prompts
from tests.helpers.command_line import told


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the simulation would run: its iterations and labels."""
    found: list[Any] = []

    def run_trial(_arm: Any, _place: Path, planned: tuple[int, int], **_: Any) -> dict[str, Any]:
        found.append(planned)
        return {}

    monkeypatch.setattr(simulate, "run_trial", run_trial)
    return found


@pytest.mark.parametrize(
    ("options", "labels"),
    [
        ((), 400),
        (("--set", "labeling.labels=60"), 60),
        (("--labels", "60"), 60),
        (("--labels", "60", "--set", "labeling.labels=60"), 60),
        (("--tiny", "--set", "labeling.labels=60"), 40),
    ],
)
def test_the_setting_is_the_number_of_judgments(
    planned: list[Any], tmp_path: Path, options: tuple[str, ...], labels: int
) -> None:
    told("simulate", "--workspace", tmp_path / "w", *options)
    assert planned == [(1, labels)]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ("--labels", "50", "--set", "labeling.labels=60"),
            "--labels 50 and --set labeling.labels=60 differ; give one of them",
        ),
        (("--set", "labeling.labels=many"), "labeling.labels='many' must be a whole number"),
    ],
)
def test_two_numbers_of_judgments_are_refused(
    planned: list[Any], tmp_path: Path, options: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        told("simulate", "--workspace", tmp_path / "w", *options)
    assert planned == []


GOLD = "pipeline.simulation.preference:longest"


def test_only_the_plain_world_may_be_judged_by_another_gold() -> None:
    assert chosen_world(None, None) == (WORLDS["plain"], score)
    assert chosen_world("exam", None) == (WORLDS["exam"], exam)
    assert chosen_world("exam", WORLDS["exam"].gold_name) == (WORLDS["exam"], exam)
    for name in (None, "plain"):
        assert chosen_world(name, GOLD) == (WORLDS["plain"], longest)
    for name in ("workshop", "exam"):
        with pytest.raises(ValueError, match=f"the world {name} has a gold of its own"):
            chosen_world(name, GOLD)


def test_the_world_decides_the_share_of_bad_annotators_and_is_a_condition(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[tuple[Any, ...]] = []

    def run_trial(_arm: Any, _place: Path, _planned: Any, **given: Any) -> dict[str, Any]:
        made.append((given["world"].name, given["bad"], given["gold"]))
        gold = {"policy": 0.0, "sft": 0.0, "win_rate": 0.5}
        return {"iterations": [{"gold": gold, "kl": 0.0}]}

    monkeypatch.setattr(simulate, "run_trial", run_trial)
    told("simulate", "--workspace", tmp_path / "p", "--seeds", "1")
    told("simulate", "--workspace", tmp_path / "e", "--seeds", "1", "--world", "exam")
    told("simulate", "--workspace", tmp_path / "b", "--world", "exam", "--bad", "0")
    assert made == [("plain", 0.25, score), ("exam", 0.3125, exam), ("exam", 0.0, exam)]
    conditions = [
        json.loads((tmp_path / name / "seed-0.json").read_text())["conditions"] for name in "pe"
    ]
    # Files that were made before there were worlds go on being valid.
    assert "world" not in conditions[0]
    assert (conditions[1]["world"], conditions[0]["bad"]) == ("exam", 0.25)


def test_a_world_brings_its_prompts_to_a_new_workspace_only(tmp_path: Path) -> None:
    place, world = tmp_path / "w", WORLDS["workshop"]
    bring_prompts(WORLDS["plain"], place, [], [])
    assert not place.exists()  # the server adds the demo's prompts
    for _ in range(2):  # a simulation may be continued
        bring_prompts(world, place, [], ["seed=3"])
    db = Database.open(place)
    assert prompts.counts(db) == {"train": 740, "held-out": 508, "audit": 277}
    with pytest.raises(ValueError, match=r"a server has .* open, and the world workshop needs"):
        bring_prompts(world, place, [], [])
    prompts.add(db, [Prompt.make("How are you?", role="train", source="me")])
    db.close()
    with pytest.raises(ValueError, match="has prompts that do not belong to the world workshop"):
        bring_prompts(world, place, [], [])
