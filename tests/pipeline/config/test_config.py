"""Settings: files, overrides, and what happens to a typo."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.config.sections import CONFIGS, Config
from pipeline.loop.settings_view import BASIC_SETTINGS, form, locked_reason
from storage.reports import InvalidSettings

FILES = sorted(CONFIGS.glob("*.toml"))


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_every_shipped_file_is_valid(file: Path) -> None:
    assert Config.load([file]) != Config()


def test_later_files_and_overrides_win(tmp_path: Path) -> None:
    first, second = tmp_path / "a.toml", tmp_path / "b.toml"
    first.write_text("[reward]\nlr = 1e-4\nepochs = 3\n")
    second.write_text("seed = 7\n[reward]\nlr = 2e-4\n")
    config = Config.load([first, second], {"reward.batch": "4"})
    assert (config.seed, config.reward.lr, config.reward.epochs, config.reward.batch) == (
        7,
        2e-4,
        3.0,
        4,
    )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ppo.kl_wieght", "1", "did you mean 'ppo.kl_weight'?"),
        ("reward.tie_model", "coin", "reward.tie_model='coin' must be one of auto"),
        ("labeling.labels", "many", "labeling.labels='many' must be a whole number"),
        ("labeling.labels", "0", "labeling.labels=0 must be at least 1"),
        ("labeling.labels", "1" + "0" * 23, "exceeds 64 bits"),
        ("sft.lr", "inf", "sft.lr=inf must be a finite number"),
        ("reward.theta_lr", "-1", "reward.theta_lr=-1.0 must be more than 0"),
        ("sampling.reference_share", "-0.5", "must be in [0, 1]"),
        ("worker.threads", "-5", "worker.threads=-5 must be at least 0"),
        ("seed", "-1", "seed=-1 must be in [0, 2147483648]"),
        ("labeling.section", "x", "there is no setting 'labeling.section'"),
        ("labeling.overlap", "1.5", "labeling.overlap=1.5 must be in [0, 1]"),
        ("sft.enabled", "1", "sft.enabled=1 must be true or false"),
        ("sampling.temperatures", "[1.0]", "must be two positive numbers"),
        ("evaluate.beams", "0", "evaluate.beams=0 must be at least 1"),
        ("shaping.ensemble", "median", "must be one of mean, lower_bound, min"),
        ("ppo.lora_rank", "1025", "ppo.lora_rank=1025 must be in [0, 1024]"),
        ("ppo.critic_lora_rank", "4096", "ppo.critic_lora_rank=4096 must be in [0, 1024]"),
        ("ppo.minibatch", "10", "ppo.minibatch=10 must divide ppo.rollouts=64"),
        ("ppo.schedule", "cosine", "ppo.schedule='cosine' must be one of linear, constant"),
        ("ppo.kl_estimator", "k3", "'k3' with ppo.kl_in='reward' penalizes a token"),
    ],
)
def test_a_bad_override_says_what_would_be_right(name: str, value: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        Config().override({name: value})
    assert message in str(error.value)


def test_every_wrong_value_of_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        "seed = -3\n[ppo]\nlr = -1\nkl_wieght = 1\nrollouts = 70\nminibatch = 8\n"
        "[reward]\nepochs = 'two'\n[unknown]\na = 1\nb = 2\n"
    )
    with pytest.raises(InvalidSettings) as error:
        Config.load([file])
    assert error.value.problems == {
        "seed": "seed=-3 must be in [0, 2147483648]",
        "ppo.lr": "ppo.lr=-1.0 must be more than 0",
        "ppo.kl_wieght": "there is no setting 'ppo.kl_wieght'; did you mean 'ppo.kl_weight'?",
        "ppo.rollouts": "ppo.minibatch=8 must divide ppo.rollouts=70",
        "ppo.minibatch": "ppo.minibatch=8 must divide ppo.rollouts=70",
        "reward.epochs": "reward.epochs='two' must be a number",
        "unknown": "there is no setting 'unknown'",
    }


def test_beam_search_finds_one_completion_a_prompt() -> None:
    with pytest.raises(ValueError, match=r"set evaluate\.completions to 1$"):
        Config().override({"evaluate.beams": "4", "evaluate.completions": "2"})


def test_text_is_read_as_the_settings_type() -> None:
    config = Config().override(
        {
            "ppo.lr": "1e-6",
            "ppo.kl_weight": ".5",
            "sft.enabled": "false",
            "sampling.temperatures": "[0.9, 1.1]",
            "model.name": "123",
        }
    )
    assert config.ppo.lr == 1e-6
    assert config.ppo.kl_weight == 0.5
    assert config.sft.enabled is False
    assert config.sampling.temperatures == (0.9, 1.1)
    assert config.model.name == "123"


def test_unknown_key_in_a_file_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "typo.toml"
    file.write_text("[samplign]\ntop_p = 0.5\n")
    with pytest.raises(ValueError, match="did you mean 'sampling'"):
        Config.load([file])


def test_a_section_given_as_a_value_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"ppo is a section; write \[ppo\]"):
        Config.from_dict({"ppo": 3})


def test_written_settings_read_back_the_same(tmp_path: Path) -> None:
    config = Config().override(
        {"model.name": 'a "quoted" näme', "seed": "3", "sampling.temperatures": "[0.5, 1.5]"}
    )
    file = tmp_path / "config.toml"
    file.write_text(config.to_toml())
    assert Config.load([file]) == config
    assert "reward" not in file.read_text()  # only what differs from the defaults


def test_every_setting_explains_itself() -> None:
    unexplained = [s.name for s in Config().settings() if not s.help.endswith((".", ")"))]
    assert unexplained == []


def test_form_starts_with_six_settings_of_the_method() -> None:
    listed = form(Config())
    assert [s.name for s in listed] == [s.name for s in Config().settings()]
    for method, basic in BASIC_SETTINGS.items():
        found = sorted((s for s in listed if method in s.basic), key=lambda s: s.basic[method])
        assert tuple(s.name for s in found) == basic
        assert len(basic) == 6


def test_what_training_reads_is_open_in_the_form_and_what_sampling_has_read_is_fixed() -> None:
    fixed = {s.name for s in form(Config()) if s.why_fixed}
    assert {"model.name", "sft.lr", "labeling.overlap", "sampling.top_p", "gate.labels"} <= fixed
    assert {name.partition(".")[0] for name in fixed} == {
        "model", "labeling", "sft", "sampling", "gate", "live", "optimize", "serving", "plugins",
        "worker",
    }  # fmt: skip
    openrlhf = {"optimize.openrlhf_python", "optimize.openrlhf_options"}
    assert {name for name in fixed if name.startswith("optimize.")} == openrlhf
    # Only the operator says where stages run, and through which store their files go.
    assert {"worker.launcher", "worker.staging"} <= fixed
    assert "worker.gpus" not in fixed
    # Rewards are centered on samples of that batch, the gate raises the KL weight, models load so.
    assert not fixed & {"sampling.batch", "gate.kl_raise", "model.dtype", "seed"}


@pytest.mark.parametrize(
    ("name", "due", "says"),
    [
        ("sft.lr", "sft", None),
        ("sft.lr", "sampling", "the SFT reference is created"),
        ("model.name", None, "the SFT reference is created"),
        ("sampling.top_p", "sft", None),
        ("sampling.top_p", "sampling", None),
        ("sampling.top_p", None, "pairs are sampled"),
        ("labeling.labels", "policy", "pairs are sampled"),
        ("labeling.scale", None, "change it on the Team page"),
        ("labeling.strength", "sampling", "change it on the Team page"),
        ("sampling.batch", "reward", None),
        ("sampling.batch", "policy", "when the reward model is trained"),
        ("reward.lr", "reward", None),
        ("reward.lr", "policy", "when the reward model is trained"),
        ("reward.tie_model", "evaluate", "when the reward model is trained"),
        ("reward.lr", None, None),  # the next training reads it
        (
            "reward.held_out_share",
            "policy",
            "when the reward model is trained",
        ),  # DPO shares out alike
        ("ppo.lr", "evaluate", None),
    ],
)
def test_a_setting_is_too_late_once_what_it_governs_is_made(
    name: str, due: Any, says: str | None
) -> None:
    found = locked_reason(name, due)
    assert found is None if says is None else says in (found or "")


def test_several_nodes_are_for_the_engines_methods_alone():
    nodes = {"worker.processes": 2, "worker.nodes": 2, "worker.launcher": "ray", "worker.gpus": 1}
    assert Config().override(nodes | {"optimize.method": "grpo"}).worker.nodes == 2
    with pytest.raises(
        ValueError, match=r"optimize.method=dpo runs on one node, but worker.nodes is 2"
    ):
        Config().override(nodes | {"optimize.method": "dpo"})


def test_processes_that_cannot_share_the_work_are_refused_before_anybody_labels():
    with pytest.raises(ValueError, match=r"^worker.processes=17 is more than ppo.minibatch=16;"):
        Config().override({"worker.processes": 17})
    assert Config().override({"worker.processes": 16}).ppo.minibatch == 16
    with pytest.raises(ValueError, match=r"^ppo.sharding=fsdp2 .* worker.processes is 1; set it"):
        Config().override({"ppo.sharding": "fsdp2"})
    sharded = Config().override({"ppo.sharding": "fsdp2", "worker.processes": 2})
    # Nobody else reads ppo.sharding, as where `launch.py compare` turns to another method.
    sharded.override({"optimize.method": "dpo", "worker.processes": 1})


def test_a_shaping_component_that_nobody_knows_is_refused_with_the_settings():
    with pytest.raises(ValueError, match="no shaping component 'zzz'; there are length, "):
        Config().override({"shaping.weights": "{zzz = 1.0}"})
    with pytest.raises(ValueError, match=r"shaping.weights=.*nan.* must be a finite number"):
        Config().override({"shaping.weights": "{repetition = nan}"})
    assert Config().override({"shaping.weights": '{"a:b" = 1.0}'}).shaping.weights == {"a:b": 1.0}


def test_settings_files_of_other_editors_and_folders(tmp_path):
    file = tmp_path / "config.toml"
    file.write_bytes(b"\xef\xbb\xbf[ppo]\nupdates = 7\n")
    assert Config.load([file]).ppo.updates == 7
    with pytest.raises(ValueError, match="is a folder; name a settings file"):
        Config.load([tmp_path])
    with pytest.raises(ValueError, match="'nope' must be one of tensorboard, trackio, wandb"):
        Config().override({"worker.report_to": '["nope"]'})
