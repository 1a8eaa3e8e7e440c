"""config.toml changed from the page: what is written, what is refused, and what the loop then uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.config.labels import GROUPS, LABELS
from pipeline.config.sections import Config
from pipeline.loop import settings_file
from pipeline.loop.loop import Loop
from pipeline.loop.settings_store import Layers
from pipeline.loop.settings_view import applies, applies_text, shown
from pipeline.loop.workspace_config import load_settings
from storage.audit_records import Actor, acting
from storage.engine.database import Database
from storage.errors import Conflict
from storage.records import ModelVersion
from storage.reports import InvalidSettings
from storage.tables import audit, models
from storage.tables.settings import check_plan_of, judgment_form
from tests.helpers.policy_world import add_iteration

MINE = """# Our study, May.
[ppo]  # the engine
lr = 1e-5  # half of what diverged
# agreed with Ada
kl_weight = 0.1

[labeling]
labels = 150
"""


def written(tmp_path: Path, text: str, changes: dict[str, str]) -> str:
    """The file after a change, as bytes that were there before."""
    path = tmp_path / "config.toml"
    path.write_bytes(text.encode())
    file = settings_file.read(tmp_path)
    config = Config.load([path]).override(changes)
    settings_file.write(file, settings_file.changed(file, config, changes), config)
    assert Config.load([path]) == config
    return path.read_bytes().decode()


def test_comments_order_and_how_a_number_was_typed_stay(tmp_path: Path):
    changes = {"ppo.lr": "2e-6", "ppo.updates": "1_000", "reward.lr": "3e-5", "seed": "7"}
    assert (
        written(tmp_path, MINE, changes)
        == """# Our study, May.
seed = 7

[ppo]  # the engine
lr = 2e-6  # half of what diverged
# agreed with Ada
kl_weight = 0.1
updates = 1_000

[labeling]
labels = 150

[reward]
lr = 3e-5
"""
    )


@pytest.mark.parametrize(
    ("text", "changes", "after"),
    [
        ("", {"ppo.clip": "0.3"}, "[ppo]\nclip = 0.3\n"),
        ("ppo.lr = 1e-5 # c\n", {"ppo.lr": "1e-4"}, "ppo.lr = 1e-4 # c\n"),
        ("ppo = {lr = 1e-5}\n", {"ppo.lr": "1e-4"}, "ppo = {lr = 1e-4}\n"),
        ("[evaluate]\ntemperature = 0.7\nbeams = 1\n", {"evaluate.temperature": "none"}, "[evaluate]\nbeams = 1\n"),
        ("\ufeff[ppo]\r\nlr = 1e-5\r\n", {"ppo.lr": "1e-4"}, "\ufeff[ppo]\r\nlr = 1e-4\r\n"),
        ("[ppo]\nlr = 1e-5\n", {"ppo.lr": ".5"}, "[ppo]\nlr = 0.5\n"),
        ("[ppo]\nlr = 1e-5\n", {"ppo.lr": "3e-6"}, "[ppo]\nlr = 3e-6\n"),  # the default stays written
        ("[sft]\nedits = false\n", {"sft.edits": "true"}, "[sft]\nedits = true\n"),
        ('[labeling]\nreasons = ["a"] # two\n', {"labeling.reasons": '["b", "c"]'}, '[labeling]\nreasons = ["b", "c"] # two\n'),
    ],
)  # fmt: skip
def test_files_as_people_write_them(tmp_path: Path, text: str, changes: Any, after: str):
    assert written(tmp_path, text, changes) == after


def test_a_linked_file_stays_a_link_and_keeps_its_mode(tmp_path: Path):
    real = tmp_path / "shared.toml"
    real.write_text(MINE)
    real.chmod(0o640)
    place = tmp_path / "workspace"
    place.mkdir()
    (place / "config.toml").symlink_to(real)
    file = settings_file.read(place)
    config = Config.load([real]).override({"seed": "1"})
    settings_file.write(file, settings_file.changed(file, config, {"seed": "1"}), config)
    assert (place / "config.toml").is_symlink()
    assert "seed = 1" in real.read_text()
    assert real.stat().st_mode & 0o777 == 0o640
    assert [each.name for each in tmp_path.iterdir() if each.suffix == ".tmp"] == []


@pytest.fixture
def loop(db: Database):
    """A workspace with a config.toml that people wrote, served with --set ppo.clip=0.3."""
    (db.workspace / "config.toml").write_text(MINE)
    sets = ["ppo.clip=0.3"]
    made = Loop(db, load_settings(db.workspace, [], sets), Layers(sets=sets))
    yield made
    made.shut_down()


def row(loop: Loop, name: str):
    return next(each for each in loop.workspace_settings().settings if each.name == name)


def save(loop: Loop, changes: dict[str, str], **options: bool):
    return loop.save_settings(changes, loop.workspace_settings().version, **options)


def test_every_setting_has_a_label_and_a_default_of_the_preset(loop: Loop):
    names = [s.name for s in Config().settings()]
    assert list(LABELS) == names
    assert len(set(LABELS.values())) == len(names)
    assert not [label for label in LABELS.values() if "_" in label or "." in label]
    assert set(GROUPS) == {name.rpartition(".")[0] for name in names}
    found = loop.workspace_settings()
    assert [each.name for each in found.settings] == names
    assert found.preset == "demo"
    rate = row(loop, "ppo.lr")  # demo.toml has 2e-4, and the class 3e-6
    assert (rate.value, rate.preset, rate.default) == (1e-5, 2e-4, 3e-6)


def test_a_saved_setting_is_in_the_file_in_use_and_in_the_audit_log(loop: Loop, db: Database):
    with acting(Actor("", "command line")):
        found = save(
            loop, {"ppo.lr": "2e-5", "labeling.gold_share": "0.1", "labeling.safety": "optional"}
        )
    text = (db.workspace / "config.toml").read_text()
    assert "lr = 2e-5  # half of what diverged" in text
    assert found.version == loop.workspace_settings().version != ""
    assert check_plan_of(db).gold_share == 0.1  # applies now
    assert judgment_form(db).safety == "optional"
    in_use = {each.name: each.value for each in loop.settings()}
    assert (in_use["ppo.lr"], in_use["ppo.clip"]) == (2e-5, 0.3)
    (entry,) = audit.listing(db, action="settings.saved")
    assert entry.entry.details["settings"] == {
        "ppo.lr": "1e-05 → 2e-05", "labeling.gold_share": "0.02 → 0.1", "labeling.safety": "off → optional",
    }  # fmt: skip


def test_all_wrong_values_are_named_and_nothing_is_written(loop: Loop, db: Database):
    wrong = {"ppo.lr": "fast", "ppo.epochs": "0", "ppo.rollouts": "70", "nope": "1", "seed": "3"}
    with pytest.raises(InvalidSettings) as refused:
        save(loop, wrong)
    assert refused.value.problems.keys() == {"ppo.lr", "ppo.epochs", "ppo.rollouts", "nope"}
    assert refused.value.problems["ppo.lr"] == "ppo.lr='fast' must be a number"
    assert refused.value.problems["ppo.rollouts"] == "ppo.minibatch=16 must divide ppo.rollouts=70"
    assert (db.workspace / "config.toml").read_text() == MINE


def test_a_file_that_changed_meanwhile_is_not_overwritten(loop: Loop, db: Database):
    seen = loop.workspace_settings().version
    edited = MINE.replace("0.1", "0.2")
    (db.workspace / "config.toml").write_text(edited)
    with pytest.raises(Conflict, match="changed on disk after it was read"):
        loop.save_settings({"seed": "3"}, seen)
    assert (db.workspace / "config.toml").read_text() == edited
    assert row(loop, "ppo.kl_weight").note == (
        "The studio runs with 0.1: config.toml was edited after it started. Save to apply."
    )
    save(loop, {"seed": "3"})
    assert row(loop, "ppo.kl_weight").note == ""


def test_the_page_says_which_other_value_is_in_use(loop: Loop, db: Database):
    assert row(loop, "ppo.clip").note == (
        "The studio was started with 0.3, which takes precedence over config.toml."
    )
    add_iteration(db, 1, phase="labeling", settings={"ppo.kl_weight": "0.4"})
    assert row(loop, "ppo.kl_weight").note == "Iteration 1 uses 0.4, set when it was trained."
    save(loop, {"live.turns": "9", "labeling.labels": "77"})
    assert row(loop, "live.turns").note == "The studio runs with 5 until it is restarted."
    assert row(loop, "labeling.labels").note == ""


def test_settings_with_which_the_iteration_could_not_go_on_are_refused(loop: Loop, db: Database):
    add_iteration(db, 1, phase="labeling", settings={"ppo.minibatch": "64"})
    with pytest.raises(InvalidSettings, match=r"ppo.minibatch=64 must divide ppo.rollouts=32"):
        save(loop, {"ppo.rollouts": "32"})
    assert (db.workspace / "config.toml").read_text() == MINE


def test_a_researcher_cannot_change_what_runs_code_or_names_files(loop: Loop, db: Database):
    secret = db.workspace.parent / "secret.csv"
    secret.write_text("prompt,honest,sycophantic\n")
    for changes in (
        {"plugins.allowed": '["os:system"]'},
        {"serving.engine": "url", "serving.url": "http://elsewhere.example/v1"},
        {"sampling.url": "http://elsewhere.example/v1"},
        {"shaping.weights": '{"os:system" = 1.0}'},
        {"gate.canary": "os:system"},
        {"shaping.references": str(secret)},
        {"model.name": "/etc"},
    ):
        with pytest.raises(InvalidSettings) as refused:
            save(loop, changes)
        assert refused.value.problems.keys() == changes.keys()
        if name := next((n for n in changes if n in ("shaping.weights", "gate.canary")), None):
            assert str(refused.value).startswith(f"{name} names os:system, which would run as code")
    assert (db.workspace / "config.toml").read_text() == MINE
    save(loop, {"shaping.references": str(secret)}, by_operator=True)
    assert row(loop, "shaping.references").value == str(secret)
    save(loop, {"plugins.allowed": '["os:system"]'}, by_operator=True)
    with pytest.raises(ValueError, match=r"plugins\.allowed"):  # until a restart
        save(loop, {"shaping.weights": '{"os:path" = 1.0}'})


def test_sft_is_fixed_once_it_has_run(loop: Loop, db: Database):
    assert row(loop, "sft.lr").applies_text == "Applies from the next SFT stage"
    save(loop, {"sft.lr": "1e-4"})
    models.add(db, ModelVersion(id="sft-1", role="sft", name="SFT"))
    assert row(loop, "sft.lr").applies_text == "Applies to new workspaces"
    with pytest.raises(InvalidSettings, match=r"sft.lr cannot be changed: the SFT model"):
        save(loop, {"sft.lr": "1e-5"})


@pytest.mark.parametrize(
    ("name", "when", "says"),
    [
        ("labeling.scale", "now", "Applies now"),
        ("labeling.auto_train", "now", "Applies now"),
        ("labeling.labels", "iteration", "Applies from the next iteration"),
        ("sampling.top_p", "iteration", "Applies from the next iteration"),
        ("gate.kl_raise", "stage", "Applies from the next policy stage"),
        ("reward.lr", "stage", "Applies from the next reward model stage"),
        ("ppo.temperature", "stage", "Applies from the next reward model, policy or evaluation stage"),
        ("worker.threads", "stage", "Applies from the next stage"),
        ("serving.queue", "restart", "Applies after a restart"),
        ("sft.lr", "workspace", "Applies to new workspaces"),
    ],
)  # fmt: skip
def test_when_a_change_applies(name: str, when: str, says: str):
    assert (applies(name), applies_text(name)) == (when, says)


def test_a_password_in_an_address_is_not_shown():
    address = "https://ada:hunter2@models.example:8443/v1"
    for name in ("serving.url", "sampling.url"):
        assert shown(name, address) == "https://•••@models.example:8443/v1"
