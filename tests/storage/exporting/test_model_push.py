"""A trained model on the hub: which files, which card, whose token; against a stand-in on localhost."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from huggingface_hub import HfApi
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from commands.studio import Studio
from pipeline.config.sections import Config
from pipeline.models.text import Message
from pipeline.reward.scoring import RewardModel
from storage.control import Control, ImportCancelled
from storage.engine.database import Database
from storage.errors import NotFound
from storage.exporting.model_card import CardFacts, card
from storage.exporting.model_push import TOKEN as FILE
from storage.exporting.model_push import hub_token, plan, push_model, pushable
from storage.records import ModelVersion, Snapshot, now
from tests.helpers.model_hub import NO_VERDICTS, TOKEN, ModelHub, model_hub
from tests.helpers.stage_inputs import tiny_models, tiny_models_and_reward

WEIGHTS = b"w" * 5_000


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelHub]:
    with model_hub(monkeypatch) as found:
        yield found


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with Database.open(tmp_path / "study") as db:
        fill(db)
        yield db


def fill(db: Database) -> None:
    """SFT by its id on the hub, a reward model, and two policies; policy-1 has files."""
    folder = db.workspace / "models" / "policy-1"
    (folder / "sub").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "sub" / "model.safetensors").write_bytes(WEIGHTS)
    (folder / ".hidden").write_text("x")
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "README.md").write_text("of another tool")
    when = now()
    db.write(lambda tx: tx.store(
        ModelVersion(id="sft-1", role="sft", name="SFT", path="lab/small-model"),
        Snapshot(hash="s-1", iteration=1, judgments=(), created_at=when),
        ModelVersion(id="reward-1", role="reward", name="reward-1", iteration=1, snapshot="s-1", summary={"accuracy": 0.712}),
        ModelVersion(id="policy-1", role="policy", name="policy-1", path="models/policy-1", parent="sft-1", iteration=1, reward_model="reward-1", summary={"method": "rloo"}),
        ModelVersion(id="policy-2", role="policy", name="policy-2", path="models/../../elsewhere", parent="sft-1", iteration=2),
    ))  # fmt: skip


def test_the_plan_has_the_files_of_the_model_and_a_card(db: Database) -> None:
    found = plan(db, NO_VERDICTS, "policy-1")
    assert [each.name for each in found.files] == [
        "config.json",
        "sub/model.safetensors",
        "README.md",
    ]
    assert found.bytes == 2 + len(WEIGHTS) + len(found.card.encode())
    assert 'base_model: "lab/small-model"' in found.card
    assert 'tags: ["kitestring", "rlhf", "rloo"]' in found.card
    assert "A policy trained by RLOO from preferences of annotators in iteration 1" in found.card
    assert "held-out preferences: 71.2%.\n" in found.card
    assert "rewarded by reward-1" in found.card
    assert 'pipeline("text-generation", model="OWNER/NAME")' in found.card
    assert 'model="me/policy")' in plan(db, NO_VERDICTS, "policy-1", repository="me/policy").card
    assert [each.id for each in pushable(db)] == ["policy-1"]


def test_a_card_says_how_certain_the_accuracy_is_and_that_people_have_not_decided() -> None:
    # 4 of 7 preferences, as a first iteration with few labels has them.
    reward = ModelVersion(
        id="reward-1", role="reward", name="reward-1", iteration=1, snapshot="s-1",
        summary={"accuracy": 4 / 7, "accuracy_low": 0.184, "accuracy_high": 0.887, "held_out_preferences": 7},
    )  # fmt: skip
    policy = ModelVersion(
        id="policy-1", role="policy", name="policy-1", path="models/policy-1", parent="sft-1",
        iteration=1, reward_model="reward-1",
    )  # fmt: skip
    text = card(policy, CardFacts(reward_model=reward))
    assert "held-out preferences: 57.1% (95% interval 18.4% to 88.7%, of 7)." in text
    assert "* Verdict of the promotion gate: none yet.\n" in text
    assert "promotion gate" not in card(reward, CardFacts())


def test_a_model_is_named_or_the_nearest_is_suggested(
    db: Database,
    hub: ModelHub,  # noqa: ARG001
) -> None:
    db.write(lambda tx: tx.store(
        ModelVersion(id="policy-1", role="policy", name="kite", path="models/policy-1", iteration=1)
    ))  # fmt: skip
    assert plan(db, NO_VERDICTS, "kite").model == "policy-1"
    assert push_model(db, NO_VERDICTS, "kite", "me/policy").model == "policy-1"
    with pytest.raises(NotFound, match=r"no model 'policy-9'; did you mean policy-2"):
        plan(db, NO_VERDICTS, "policy-9")


def test_a_model_without_files_here_is_refused(db: Database) -> None:
    (db.workspace.parent / "elsewhere").mkdir()
    (db.workspace.parent / "elsewhere" / "x").write_text("x")
    for model in ("sft-1", "policy-2", "reward-1"):
        with pytest.raises(ValueError, match="has no files in this workspace"):
            plan(db, NO_VERDICTS, model)
    with pytest.raises(NotFound):
        plan(db, NO_VERDICTS, "policy-9")


def test_a_push_is_private_and_one_commit_has_all_files(db: Database, hub: ModelHub) -> None:
    control = Control()
    done = push_model(db, NO_VERDICTS, "policy-1", "me/policy", control=control)
    assert done.url == f"{hub.url}/me/policy"
    assert hub.created[0]["visibility"] == "private"
    assert hub.files == {
        "config.json": b"{}", "sub/model.safetensors": WEIGHTS,
        "README.md": plan(db, NO_VERDICTS, "policy-1", repository="me/policy").card.encode(),
    }  # fmt: skip
    assert (control.sent, control.of_bytes) == (done.bytes, done.bytes)
    assert f"Bearer {TOKEN}" in hub.tokens


def test_a_private_push_does_not_go_to_a_public_repository(db: Database, hub: ModelHub) -> None:
    hub.make_public("me/policy")
    with pytest.raises(ValueError, match="already a public repository"):
        push_model(db, NO_VERDICTS, "policy-1", "me/policy")
    assert hub.files == {}
    push_model(db, NO_VERDICTS, "policy-1", "me/policy", private=False)
    assert "config.json" in hub.files


def test_a_cancelled_push_makes_no_commit(db: Database, hub: ModelHub) -> None:
    control = Control()
    control.cancel()
    with pytest.raises(ImportCancelled):
        push_model(db, NO_VERDICTS, "policy-1", "me/policy", control=control)
    assert hub.files == {}


def test_a_refusal_of_the_hub_does_not_tell_the_token(
    db: Database, hub: ModelHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.refuses = True
    with pytest.raises(ValueError, match="the hub refused me/policy") as refused:
        push_model(db, NO_VERDICTS, "policy-1", "me/policy")
    assert TOKEN not in str(refused.value)
    assert refused.value.__cause__ is None

    def fail(*_: object, **__: object) -> None:
        raise OSError(f"the header Bearer {TOKEN} is wrong")

    monkeypatch.setattr(HfApi, "create_repo", fail)
    with pytest.raises(ValueError, match="the header Bearer … is wrong"):
        push_model(db, NO_VERDICTS, "policy-1", "me/policy")


@pytest.mark.parametrize("name", ["policy", "a/b/c", "../x", "me/", "me/a b", "https://x/y"])
def test_what_is_no_repository_is_refused_before_anything_is_sent(
    db: Database, hub: ModelHub, name: str
) -> None:
    with pytest.raises(ValueError, match="is not a repository"):
        push_model(db, NO_VERDICTS, "policy-1", name)
    assert not hub.created


def test_the_token_is_of_the_environment_or_of_a_file_of_the_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_environment")
    assert hub_token(tmp_path) == "hf_environment"
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(ValueError, match="there is no token for the hub"):
        hub_token(tmp_path)
    file = tmp_path / FILE
    file.write_text("hf_file\n")
    file.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600") as refused:
        hub_token(tmp_path)
    assert "hf_file" not in str(refused.value)
    file.chmod(0o600)
    assert hub_token(tmp_path) == "hf_file"
    file.write_text(" \n")
    with pytest.raises(ValueError, match="is empty"):
        hub_token(tmp_path)


def test_the_command_plans_and_pushes(db: Database, hub: ModelHub) -> None:
    db.close()
    studio = Studio(db.workspace, Config())
    try:
        planned = studio.call("push.plan", model="policy-1")
        done = studio.call("push", model="policy-1", repository="me/policy")
        noted = studio.call("audit.list")
    finally:
        studio.close()
    assert planned["files"][0]["name"] == "config.json"
    assert "Verdict of the promotion gate: provisional." in planned["card"]
    assert (done["repository"], done["private"]) == ("me/policy", True)
    assert "config.json" in hub.files
    assert [each["subject"] for each in noted if each["action"] == "push"] == ["policy-1"]


def test_a_pushed_policy_loads_from_the_hub_with_transformers(
    db: Database, hub: ModelHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = db.workspace / "models" / "policy-1"
    shutil.rmtree(folder)
    config = GPT2Config(vocab_size=7, n_positions=4, n_embd=4, n_layer=1, n_head=1)
    made = GPT2LMHeadModel(config)
    made.save_pretrained(folder)
    push_model(db, NO_VERDICTS, "policy-1", "me/policy", private=False)
    template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    loaded = GPT2LMHeadModel.from_pretrained("me/policy", cache_dir=tmp_path / "cache")
    assert loaded.config.vocab_size == 7
    for name, value in made.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


def run_code(text: str, capsys: pytest.CaptureFixture[str], *, prompt: str, response: str) -> str:
    """What the Python code of a card prints for a prompt and a response."""
    code = text.split("```python\n")[1].split("\n```")[0]
    code = code.replace("…", prompt, 1).replace("…", response)
    capsys.readouterr()
    exec(code, {})
    return capsys.readouterr().out.strip()


def test_the_code_of_a_policys_card_prints_an_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny_models(tmp_path)["reference"]
    policy = ModelVersion(id="policy-1", role="policy", name="policy-1", iteration=1)
    text = card(policy, CardFacts(), repository=path)
    text = text.replace("max_new_tokens=256", "max_new_tokens=9, do_sample=False")
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(path),
        AutoTokenizer.from_pretrained(path),
    )
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hello"}], add_generation_prompt=True, return_tensors="pt"
    )["input_ids"]
    told = model.generate(asked, max_new_tokens=9, do_sample=False)[0, asked.shape[1] :]
    expected = tokenizer.decode(told, skip_special_tokens=True).strip()
    assert run_code(text, capsys, prompt="Hello", response="") == expected


def test_the_code_of_a_reward_models_card_compares_as_kitestring_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(tiny_models_and_reward(tmp_path)["reward"])
    rated = RewardModel.load(path)
    rated.shift([3.0])
    rated.save(path)
    reward = ModelVersion(id="reward-1", role="reward", name="reward-1", iteration=1)
    text = card(reward, CardFacts(networks=3), repository=str(path))
    assert 'Load the others with `subfolder="member-2"` to `subfolder="member-3"`.' in text
    responses = ("Yes.", "No, never.")
    printed = [run_code(text, capsys, prompt="May I?", response=each) for each in responses]
    first, second = (float(re.findall(r"-?\d+\.\d+", each)[0]) for each in printed)
    own = rated([[Message("user", "May I?")]] * 2, responses)
    assert first != second
    assert first - second == pytest.approx(own[0] - own[1], abs=2e-4)


def test_a_card_names_the_networks_that_the_reward_model_has(db: Database) -> None:
    folder = db.workspace / "models" / "reward-1"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"reward_networks": 4}')
    db.write(lambda tx: tx.store(
        ModelVersion(id="reward-1", role="reward", name="reward-1", path="models/reward-1", iteration=1)
    ))  # fmt: skip
    assert "the mean of 4 networks" in plan(db, NO_VERDICTS, "reward-1").card
    (folder / "config.json").write_text("{}")
    assert "networks" not in plan(db, NO_VERDICTS, "reward-1").card
