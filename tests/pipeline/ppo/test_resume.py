"""A run that was interrupted and resumed equals the uninterrupted one bit for bit."""

import random

import numpy as np
import pytest
import torch

from pipeline.ppo.checkpoint import list_checkpoints, save_checkpoint
from tests.helpers.ppo_helpers import assert_same_state, tiny_trainer, untimed

SETTINGS = {
    "updates": 6,
    "checkpoint_every": 2,
    "kl_control": "adaptive",
    "kl_target": 0.5,
    "kl_horizon": 64,
    "score_scaling": "running",
}


def noisy_reward(_: list[int], texts: list[str]) -> list[float]:
    """A reward that draws from every global generator."""
    noise = random.random() + float(np.random.rand()) + float(torch.rand(()))  # noqa: NPY002
    return [len(text.split()) + noise for text in texts]


def seeded_trainer(directory, **settings):
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    trainer = tiny_trainer(directory, reward=noisy_reward, **SETTINGS | settings)
    torch.manual_seed(1)
    return trainer


def test_resumed_run_equals_the_uninterrupted_one(tmp_path):
    whole = seeded_trainer(tmp_path / "whole")
    expected = [untimed(update) for update in whole.run()]

    first = seeded_trainer(tmp_path / "cut")
    for update in first.run():
        first.extra = {"seq": update.step * 10}
        if update.step == 5:  # after the checkpoint of update 4, before the next
            break
    second = tiny_trainer(tmp_path / "cut", reward=noisy_reward, **SETTINGS)
    updates = second.run(resume=True)
    resumed = [next(updates)]
    assert second.extra == {"seq": 40}  # what the caller knew when update 4 was handled
    resumed += list(updates)
    assert [untimed(update) for update in resumed] == expected[4:]
    second.extra = whole.extra
    assert_same_state(second.state_dict(), whole.state_dict())


def test_the_last_two_checkpoints_are_kept_and_drafts_are_not_taken_up(tmp_path):
    trainer = tiny_trainer(tmp_path, updates=5, checkpoint_every=1)
    announced = [update.checkpoint for update in trainer.run()]
    folder = tmp_path / "checkpoints"
    assert list_checkpoints(folder) == announced[-2:]
    (folder / ".step-000009.tmp").mkdir()
    assert [path.name for path in list_checkpoints(folder)] == ["step-000004", "step-000005"]


def test_a_crash_while_writing_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, 1, {"step": 1})

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="no space"):
        save_checkpoint(tmp_path, 2, {"step": 2})
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-000001"]


def test_a_finished_run_resumes_to_nothing_more(tmp_path):
    list(tiny_trainer(tmp_path, checkpoint_every=1).run())
    assert list(tiny_trainer(tmp_path, checkpoint_every=1).run(resume=True)) == []


def extended(directory, before: int, after: int, **settings):
    """Metrics of the updates that a finished run was made longer by, and the trainer."""
    settings = {"checkpoint_every": 2, **settings}
    done = tiny_trainer(directory, updates=before, **settings)
    assert len(list(done.run())) == before
    more = tiny_trainer(directory, updates=after, **settings)
    return [untimed(update) for update in more.run(resume=True)], more


def test_a_finished_run_made_longer_equals_a_run_of_that_length(tmp_path):
    """At a constant rate, which does not depend on how many updates are to come."""
    settings = {"schedule": "constant", "checkpoint_every": 2}
    whole = tiny_trainer(tmp_path / "whole", updates=5, **settings)
    expected = [untimed(update) for update in whole.run()]
    found, longer = extended(tmp_path / "cut", 3, 5, schedule="constant")
    assert found == expected[3:]
    assert_same_state(longer.state_dict(), whole.state_dict())


def test_the_linear_rate_of_a_run_made_longer_is_that_of_the_new_length(tmp_path):
    found, _ = extended(tmp_path, 2, 4, lr=8e-4)
    # 8e-4 · (1 − 2/4), where the shorter run had come down to 8e-4 · (1 − 1/2).
    assert [metrics["optim/lr"] for metrics in found] == pytest.approx([4e-4, 2e-4])


def test_a_run_that_is_resumed_cannot_be_made_shorter(tmp_path):
    with pytest.raises(ValueError, match=r"run of 4 updates.*ppo.updates=3 may be raised"):
        extended(tmp_path, 4, 3)


def test_another_runs_checkpoints_are_neither_resumed_nor_overwritten(tmp_path):
    list(tiny_trainer(tmp_path, updates=1, checkpoint_every=1).run())
    with pytest.raises(ValueError, match=r"another run: ppo.lr differ"):
        next(tiny_trainer(tmp_path, updates=1, lr=5e-4, checkpoint_every=1).run(resume=True))
    with pytest.raises(ValueError, match="checkpoints of an earlier run"):
        next(tiny_trainer(tmp_path, updates=1, checkpoint_every=1).run())
