"""What strangers hand to the engine by mistake: one sentence, before any work; nothing lost."""

import errno
import math
import os

import numpy as np
import pytest
import torch

from pipeline.ppo.checkpoint import NoReadableCheckpoint, _write, list_checkpoints, save_checkpoint
from pipeline.ppo.learner import NonFiniteError
from tests.helpers.ppo_helpers import PROMPTS, count_of_w3, tiny_model, tiny_trainer, untimed


def poisoned():
    model = tiny_model()
    model.lm_head.weight.data[3, 4] = math.nan
    return model


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompts": ["hello there"]}, "prompt 0 is 'hello there', not a list of token ids"),
        ({"prompts": [[2, 3], [2.5]]}, r"prompt 1 is '\[2.5\]', not a list"),
        ({"prompts": torch.tensor([[[2, 3]]])}, "prompt 0 is .* not a list"),
        (
            {"reference": tiny_model(vocab=12)},
            "the reference has a vocabulary of 12 tokens and the policy of 16",
        ),
        ({"reference": "/no/such/model"}, "the reference '/no/such/model' cannot be loaded: "),
        ({"model": poisoned()}, r"the policy's weight lm_head.weight contains NaN"),
        ({"reference": poisoned()}, r"the reference's weight lm_head.weight contains NaN"),
        ({"eos_token_ids": [99]}, r"eos_token_ids contains 99, .*0 to 15"),
        ({"eos_token_ids": ["a"]}, "eos_token_ids contains 'a'"),
        ({"reward_weights": {"score": math.nan}}, r"reward_weights\['score'\]=nan"),
        ({"reward_weights": {"score": "a"}}, r"reward_weights\['score'\]='a'"),
        ({"reward_weights": ["score"]}, "must map component names to numbers"),
        ({"kl_weight": 1e40}, r"kl_weight=1e\+40 must be in \[0, 10000"),
        ({"seed": 2**63}, "seed=9223372036854775808 exceeds 64 bits"),
    ],
)
def test_refused_when_the_trainer_is_made(changes, message):
    with pytest.raises(ValueError, match=message):
        tiny_trainer(**changes)


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (7, "the reward is 7; it must be a callable of"),
        (lambda texts: [0.0] * len(texts), "it must be a callable of"),
        (lambda *_: None, "returned 'None' .*one number per completion"),
        (lambda *_: 1.0, "returned '1.0'"),
        (lambda *_: "11", "returned '11'"),
        (lambda *_: {"a": None}, "component 'a'"),
        (lambda *_: [None, None], "one number per completion"),
        (lambda *_: np.zeros((2, 1)), "one number per completion"),
        (lambda *_: [1e39, 0.0], r"returned 1e\+39"),
    ],
)
def test_a_reward_of_another_kind_is_found_before_anything_is_sampled(reward, message, monkeypatch):
    trainer = tiny_trainer(reward=reward)
    monkeypatch.setattr(trainer, "_rollout", lambda _: pytest.fail("sampled"))
    with pytest.raises(ValueError, match=message):
        next(trainer.run())


def test_a_weight_for_no_component_is_found_before_anything_is_sampled(monkeypatch):
    trainer = tiny_trainer(reward_weights={"length": 1.0})
    monkeypatch.setattr(trainer, "_rollout", lambda _: pytest.fail("sampled"))
    with pytest.raises(ValueError, match="names length, but the reward callable returned score"):
        next(trainer.run())


def test_components_may_not_change_on_the_way():
    names = iter(["score", "score", "other"])
    trainer = tiny_trainer(reward=lambda _, texts: {next(names): [0.0] * len(texts)})
    run = trainer.run()
    next(run)
    with pytest.raises(ValueError, match="returned other, but score before"):
        next(run)


def test_scores_that_overflow_together_are_named():
    huge = {"a": 3e38, "b": 3e38}
    trainer = tiny_trainer(reward=lambda _, texts: {n: [v] * len(texts) for n, v in huge.items()})
    with pytest.raises(ValueError, match="too large for float32"):
        next(trainer.run())


@pytest.mark.parametrize("kind", [np.array, torch.tensor, tuple])
def test_prompts_of_arrays_train_and_are_checkpointed(kind, tmp_path):
    lists = tiny_trainer(updates=1)
    arrays = tiny_trainer(
        tmp_path, updates=1, checkpoint_every=1, prompts=[kind(prompt) for prompt in PROMPTS]
    )
    assert untimed(next(arrays.run())) == untimed(next(lists.run()))
    assert arrays.prompts == lists.prompts


def test_a_folder_that_cannot_be_written_is_found_before_anything_is_sampled(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    trainer = tiny_trainer(tmp_path / "file" / "run", checkpoint_every=1)
    monkeypatch.setattr(trainer, "_rollout", lambda _: pytest.fail("sampled"))
    with pytest.raises(ValueError, match=r"no checkpoints can be written to .*Not a directory"):
        next(trainer.run())


def test_a_full_disk_says_so():
    state = {"weights": torch.zeros(300_000)}
    with pytest.raises(OSError) as raised, open("/dev/full", "wb", buffering=0) as full:  # noqa: PTH123
        _write(state, full)
    assert raised.value.errno == errno.ENOSPC


def cut(share):
    def damage(file):
        os.truncate(file, int(file.stat().st_size * share))

    return damage


def flip(file):
    data = bytearray(file.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 2000] = bytes(255 - byte for byte in data[middle : middle + 2000])
    file.write_bytes(data)


@pytest.mark.parametrize(
    "damage", [cut(0), cut(0.001), cut(0.5), cut(0.99), flip, lambda file: file.unlink()]
)
def test_a_resume_passes_over_a_damaged_checkpoint_and_says_so(damage, tmp_path):
    whole = [untimed(u) for u in tiny_trainer(updates=3).run()]
    newest = two_checkpoints(tmp_path)[-1]
    damage(newest / "state.pt")
    again = tiny_trainer(tmp_path, updates=3, checkpoint_every=1)
    assert [untimed(u) for u in again.run(resume=True)] == whole[1:]
    (passed_over,) = again.passed_over
    assert passed_over.path == newest
    assert passed_over.reason
    # What could not be read stays for whoever wants to look, and is never taken for one of the two.
    names = ["damaged-step-000002", "step-000002", "step-000003"]
    assert sorted(path.name for path in newest.parent.iterdir()) == names


def test_a_run_whose_checkpoints_are_all_damaged_says_what_to_do(tmp_path):
    older, newest = two_checkpoints(tmp_path)
    cut(0.5)(older / "state.pt")
    flip(newest / "state.pt")
    with pytest.raises(
        NoReadableCheckpoint, match=r"step-000002.*step-000001.*start.* again"
    ) as raised:
        next(tiny_trainer(tmp_path, updates=3, checkpoint_every=1).run(resume=True))
    assert "\n" not in str(raised.value)
    assert list_checkpoints(newest.parent) == [older, newest]  # asked again, it says the same


def test_a_run_that_diverges_goes_back_to_the_newest_checkpoint_that_can_be_read(tmp_path):
    older, newest = two_checkpoints(tmp_path)
    cut(0.5)(newest / "state.pt")
    trainer = tiny_trainer(tmp_path, updates=3, checkpoint_every=1)
    error = trainer._diverged(NonFiniteError("a number is not finite"))
    assert f"{older} (update 1)" in str(error)
    cut(0.5)(older / "state.pt")
    assert "no checkpoint can be read" in str(trainer._diverged(NonFiniteError("again")))


def two_checkpoints(directory):
    """Those of the first two updates of a run of three, older first."""
    run = tiny_trainer(directory, updates=3, checkpoint_every=1).run()
    next(run)
    next(run)
    run.close()
    save_after_two(directory)
    older, newest = list_checkpoints(directory / "checkpoints")
    return older, newest


def save_after_two(directory):
    """The second update's checkpoint, which a run writes once it is asked for a third."""
    trainer = tiny_trainer(directory, updates=3, checkpoint_every=1)
    run = trainer.run(resume=True)
    next(run)
    trainer.write_checkpoint()
    run.close()


def test_what_lies_beside_checkpoints_is_left_alone(tmp_path):
    save_checkpoint(tmp_path, 1, {"step": 1})
    (tmp_path / "step-foo").mkdir()
    (tmp_path / "step-000002.bak").mkdir()
    (tmp_path / "step-000009").write_text("")
    save_checkpoint(tmp_path, 2, {"step": 2})
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-000001", "step-000002"]
    assert (tmp_path / "step-000009").is_file()
    assert (tmp_path / "step-000002.bak").is_dir()


def test_a_model_of_another_shape_is_not_resumed(tmp_path):
    list(tiny_trainer(tmp_path, updates=1, checkpoint_every=1).run())
    deeper = tiny_model(num_hidden_layers=3)
    with pytest.raises(ValueError, match="belongs to another run: model"):
        next(
            tiny_trainer(
                tmp_path, model=deeper, reference=tiny_model(), reward=count_of_w3,
                updates=1, checkpoint_every=1,
            ).run(resume=True)
        )  # fmt: skip


def test_a_setting_that_came_after_a_checkpoint_had_its_default_in_the_run():
    state = tiny_trainer(None, updates=1).state_dict()
    assert state["run"].pop("ppo.loss_mean") == "token"
    tiny_trainer(None, updates=1).load_state_dict(state)
    with pytest.raises(ValueError, match=r"belongs to another run: ppo\.loss_mean differ"):
        tiny_trainer(None, updates=1, loss_mean="constant").load_state_dict(state)
