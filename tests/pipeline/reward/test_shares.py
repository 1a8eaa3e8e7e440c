"""Which judgments each part of the reward stage is given: none that its model has learned from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.reward.stopping import EarlyStop
from pipeline.runs.rundir import Report, RunDirectory
from pipeline.stages import reward
from tests.helpers.stage_inputs import give, make_job, make_judgments, make_prompts, tiny_models

CHOSEN = 3
"""Every third pair of a prompt was chosen by a reward model."""


def test_what_is_measured_calibrated_and_compared_with_annotators_was_not_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    given: dict[str, Any] = {}
    kept = EarlyStop(step=9, epoch=0.5, log_loss=1.0)

    def noting(name: str) -> None:
        real = getattr(reward, name)

        def wrapped(*positional: Any, **named: Any) -> Any:
            found = real(*positional, **named)
            if name == "train_members":
                found = (found[0], kept)
            given[name] = (positional, found, named)
            return found

        monkeypatch.setattr(reward, name, wrapped)

    for name in ("train_members", "calibrate", "train_audit_model", "reliability"):
        noting(name)
    rows = make_judgments(240)
    for n, row in enumerate(rows):  # ten on each of 24 prompts, in turn
        row["arm"] = "random" if n // 24 % CHOSEN else "bald"
        row["annotator"] = f"a-{n // 24 % 2}"
    job = make_job(
        "reward", tiny_models(tmp_path / "models"), reward__epochs=1, reward__members=1,
        reward__held_out_share=0.25, reward__stopping_judgments=20, reward__audit_share=0.3,
    )  # fmt: skip
    directory = RunDirectory.create(tmp_path / "run", job)
    give(directory, "judgments.parquet", rows)
    give(directory, "prompts.parquet", make_prompts(4))
    with Report(directory) as report:
        reward.run(job, report, directory)

    def names(pairs: Any) -> set[str]:
        return {pair.judgment for pair in pairs}

    arms = {row["judgment"]: row["arm"] for row in rows}
    (_, trained_on), *_ = given["train_members"]
    learned = names(trained_on)
    (proxy, measured, others), *_ = given["calibrate"]
    # Rewards are put to a scale by judgments of the random stream that nothing was learned from.
    assert {arms[name] for name in names(measured) | names(others)} == {"random"}
    assert others
    assert not (names(measured) | names(others)) & learned
    (_, split), (audit, figures), named = given["train_audit_model"]
    assert names(split.unseen) == arms.keys() - learned
    assert figures.pairs == len(split.unseen)
    assert figures.measured_pairs == sum(arms[name] == "random" for name in learned)
    assert named["epochs"] == kept.epoch  # as long as training made the reward model better
    folds = given["reliability"][0][0]
    assert [model for _, model in folds] == [proxy, audit]
    assert names(folds[0][0]) == arms.keys() - learned  # each is scored by the other's model
    assert names(folds[1][0]) == learned
