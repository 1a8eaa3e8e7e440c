"""Options of `simulate` that say the same in two ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commands import simulate
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
