"""The evidence package: what is in it, and that the check notices every change."""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.config.sections import Config
from pipeline.evidence.figures import figures
from pipeline.evidence.package import write_package
from pipeline.evidence.sums import write_sums
from pipeline.promotion import gate
from storage.analysis.agreement import agreement
from storage.engine.database import Database
from storage.errors import StorageUnavailable
from storage.reports import to_json
from storage.tables import models, policy_judgments
from storage.tables.people.pseudonyms import key_of
from tests.helpers.held_out_rows import row
from tests.helpers.research_seed import PEOPLE, Seeding


@pytest.fixture
def studied(db: Database) -> Database:
    """Two finished iterations; the second reward model has predictions for 24 judgments, of which it
    is right about 18."""
    seeding = Seeding(db)
    seeding.history()
    seeding.judge_policies(2, wins=0.7)
    seeding.canary(2, lost=8, gained=3)
    policy_judgments.override(db, "policy-1", "block", reason="Too long.", researcher="Rosa")
    [model] = [each for each in models.reward_models(db) if "quality" in each.summary]
    learned = db.read(
        "SELECT j.id, j.annotator, c.prompt FROM snapshot_judgments AS n "
        "JOIN judgments AS j ON j.id = n.judgment JOIN comparisons AS c ON c.id = j.comparison "
        "WHERE n.snapshot LIKE 's-2-%' ORDER BY j.id LIMIT 24"
    )
    rows = [
        row(1.5 if n % 4 else -1.5, "first", name=each["id"], prompt=each["prompt"])
        | {"annotator": each["annotator"]}
        for n, each in enumerate(learned)
    ]
    outputs = db.workspace / str(model.directory) / "outputs"
    outputs.mkdir(parents=True)
    pd.DataFrame(rows).to_parquet(outputs / "held_out.parquet")
    return db


@pytest.fixture
def package(studied: Database, tmp_path: Path) -> Path:
    write_package(studied, Config(), tmp_path / "study.zip")
    with zipfile.ZipFile(tmp_path / "study.zip") as archive:
        archive.extractall(tmp_path)
    return tmp_path / "study"


def verify(package: Path) -> tuple[int, str]:
    """What a reviewer sees: the package's own script, away from this repository."""
    ran = subprocess.run(
        [sys.executable, "verify.py"], cwd=package, capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin"},
    )  # fmt: skip
    return ran.returncode, ran.stdout + ran.stderr


def change(file: Path, edit: Any) -> None:
    """Edit a parquet file as a forger does, who also writes the digests again."""
    rows = pd.read_parquet(file)
    edit(rows)
    rows.to_parquet(file, index=False)


def test_a_reviewer_gets_the_same_figures(studied: Database, package: Path) -> None:
    code, told = verify(package)
    assert code == 0, told
    assert told.count("ok: ") == 7
    stated = json.loads((package / "evidence.json").read_text())["figures"]
    # What the pages show.
    shown = json.loads(
        json.dumps(to_json(gate.report(policy_judgments.evidence(studied), Config())))
    )
    held = next(each for each in shown["policies"] if each["policy"] == "policy-2")
    assert (held["verdict"], held["sequential"]["decision"]) == ("provisional", "better")
    assert held["canary"]["loss"] == 0.05
    text = json.dumps(shown["policies"], ensure_ascii=False)
    assert "Rosa ruled “block”" in text
    text = text.replace("Rosa ruled", "A researcher ruled").replace('"Rosa"', '""')
    assert stated["gate"] == shown | {"policies": json.loads(text)}
    agreed = agreement(studied)
    assert stated["agreement"]["alpha"] == agreed.alpha
    assert len(stated["agreement"]["kappas"]) == len(agreed.kappas) > 0
    accuracy = stated["reward models"]["reward-2"]["quality"]["accuracy"]
    assert (accuracy["win_rate"], accuracy["comparisons"]) == (18 / 24, 24)
    assert sum(row["judgments"] for row in stated["judgments"]) == len(
        studied.read("SELECT id FROM current_judgments")
    )


def test_a_tie_that_counts_as_half_a_win_has_a_log_loss(studied: Database, tmp_path: Path) -> None:
    model = models.get(studied, "reward-2")
    halves = replace(model, summary=model.summary | {"tie_model": "half"})
    studied.write(lambda tx: tx.store(halves))
    measured = pd.read_parquet(next(studied.workspace.glob("**/held_out.parquet")))["judgment"]
    rows = [row(0.0, "first", name=measured[0]), row(math.log(3), "tie", name=measured[1])]
    (tmp_path / "reward-2").mkdir()
    pd.DataFrame(rows).to_parquet(tmp_path / "reward-2" / "held_out.parquet")
    found = figures(studied, Config(), tmp_path)["reward models"]["reward-2"]["quality"]
    # ln 2, and the mean of -ln(3/4) and -ln(1/4).
    assert found["log_loss"] == pytest.approx((math.log(2) - math.log(3 / 16) / 2) / 2)


def test_one_changed_vote_is_noticed(package: Path) -> None:
    def flip(rows: pd.DataFrame) -> None:
        chosen = rows.index[rows["outcome"] == "first"][0]
        rows.loc[chosen, "outcome"] = "second"

    change(package / "data" / "judgments.parquet", flip)
    code, told = verify(package)
    assert code == 1
    assert "data/judgments.parquet was changed" in told
    write_sums(package)  # a careful forger
    code, told = verify(package)
    assert code == 1
    assert "ok: files" in told
    assert "DIFFERENT: judgments" in told


def test_a_canary_that_lost_less_is_noticed(package: Path) -> None:
    """Who passes one prompt more makes the policy a promoted one."""

    def pass_one(rows: pd.DataFrame) -> None:
        last = rows.index[rows["number"] == 2][0]
        evaluation = json.loads(rows.loc[last, "evaluation"])
        check = evaluation["canary"]["checks"][0]
        check["policy"] = "1" + check["policy"][1:]
        rows.loc[last, "evaluation"] = json.dumps(evaluation)

    change(package / "data" / "iterations.parquet", pass_one)
    write_sums(package)
    code, told = verify(package)
    assert code == 1
    assert 'verdict: stated "provisional", computed "promoted"' in told
    assert "canary › loss: stated 0.05, computed 0.04" in told


@pytest.mark.parametrize(
    ("file", "edit", "subject"),
    [
        ("reward/reward-2/held_out.parquet", {"d": -1.5}, "reward models"),
        ("data/predictions.parquet", {"first": 0.99}, "gate"),
    ],
)
def test_changed_predictions_are_noticed(
    package: Path, file: str, edit: dict[str, float], subject: str
) -> None:
    change(package / file, lambda rows: rows.__setitem__(*next(iter(edit.items()))))
    write_sums(package)
    code, told = verify(package)
    assert code == 1
    assert f"DIFFERENT: {subject}" in told


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("evidence.json", b"{", "evidence.json was changed"),
        ("data/flags.parquet", None, "data/flags.parquet is missing"),
        ("data/judgments.parquet", b"PAR1", "data/judgments.parquet was changed"),
        ("code/storage/records.py", b"def (", "code/storage/records.py was changed"),
        ("code/numpy.py", b"raise SystemExit(0)", "code/numpy.py was added"),
        ("SHA256SUMS", None, "SHA256SUMS is missing or cannot be read"),
        ("SHA256SUMS", b"\xff\xfe", "SHA256SUMS is missing or cannot be read"),
    ],
)
def test_a_damaged_file_is_named_whatever_its_damage(
    package: Path, file: str, content: bytes | None, told: str
) -> None:
    place = package / file
    place.unlink() if content is None else place.write_bytes(content)
    code, said = verify(package)
    assert code == 1
    assert said.splitlines()[0] == told
    assert "Traceback" not in said
    if file != "SHA256SUMS" and not file.startswith("code/"):
        write_sums(package)
        code, said = verify(package)
        assert code == 1
        assert "DIFFERENT: the figures cannot be computed: " in said


def test_a_changed_figure_is_noticed(package: Path) -> None:
    evidence = json.loads((package / "evidence.json").read_text())
    evidence["figures"]["reward models"]["reward-2"]["quality"]["accuracy"]["win_rate"] = 0.9
    (package / "evidence.json").write_text(json.dumps(evidence))
    write_sums(package)
    code, told = verify(package)
    assert code == 1
    assert "accuracy › win_rate: stated 0.9, computed 0.75" in told


def test_added_and_missing_files_are_noticed(package: Path) -> None:
    (package / "data" / "more.parquet").write_bytes(b"")
    (package / "guidelines").mkdir(exist_ok=True)
    (package / "README.md").unlink()
    code, told = verify(package)
    assert code == 1
    assert "data/more.parquet was added" in told
    assert "README.md is missing" in told


def test_a_package_has_pseudonyms_and_no_secrets(studied: Database, package: Path) -> None:
    people = pd.read_parquet(package / "data" / "annotators.parquet")
    assert people["name"].str.startswith("annotator-").all()
    assert people["password_hash"].isna().all()
    # The researcher's id is also the name of a role.
    ids = [r["id"] for r in studied.read("SELECT id FROM annotators WHERE id <> 'researcher'")]
    ids += [row["id"] for row in studied.read("SELECT id FROM judgments")]
    for file in package.rglob("*.parquet"):
        text = pd.read_parquet(file).to_csv()
        # Completions are texts of models, and may contain any word.
        for name in [*ids, *(PEOPLE if file.stem not in ("completions", "prompts") else ())]:
            assert f",{name}," not in text, (file.name, name)
    assert not (package / "data" / "tokens.parquet").exists()
    assert not (package / "data" / "settings.parquet").exists()


def test_the_same_workspace_gives_the_same_digest_but_for_the_time(
    studied: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = studied.read("SELECT max(created_at) AS at FROM judgments")[0]["at"]
    monkeypatch.setattr("pipeline.evidence.package.now", lambda: moment)
    made = [write_package(studied, Config(), tmp_path / f"{n}.zip") for n in range(2)]
    assert made[0].digest == made[1].digest
    assert (made[0].judgments, made[0].figures > 100) == (made[1].judgments, True)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("study.tar", "study.tar must end in .zip"),
        ("taken.zip", "exists; choose another name"),
        ("workspace/study.zip", "is in the workspace"),
        ("none/study.zip", "choose another place for --out"),
    ],
)
def test_wrong_places_are_refused(db: Database, tmp_path: Path, name: str, sentence: str) -> None:
    (tmp_path / "taken.zip").touch()
    place = db.workspace / "study.zip" if name.startswith("workspace") else tmp_path / name
    with pytest.raises(ValueError, match=sentence):
        write_package(db, Config(), place)


def test_an_empty_workspace_has_a_package(db: Database, tmp_path: Path) -> None:
    write_package(db, Config(), tmp_path / "empty.zip")
    with zipfile.ZipFile(tmp_path / "empty.zip") as archive:
        archive.extractall(tmp_path)
    assert verify(tmp_path / "empty")[0] == 0


def test_the_check_needs_no_torch() -> None:
    code = "import sys, pipeline.evidence.check; print(sorted({'torch', 'transformers', 'gradio'} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A limit that fails a write as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_package_that_does_not_fit_on_the_disk_is_not_left_half_written(
    studied: Database, tmp_path: Path
) -> None:
    out = tmp_path / "study.zip"
    key_of(studied)
    with files_of_at_most(150_000), pytest.raises(OSError, match="File too large"):
        write_package(studied, Config(), out)
    assert list(tmp_path.glob("*study*")) == list(tmp_path.glob(".partial*")) == []
    write_package(studied, Config(), out)
    assert zipfile.ZipFile(out).testzip() is None


def test_a_full_temporary_folder_is_said_in_a_sentence(studied: Database, tmp_path: Path) -> None:
    key_of(studied)
    with files_of_at_most(1_000), pytest.raises(StorageUnavailable, match="size limit"):
        write_package(studied, Config(), tmp_path / "study.zip")
