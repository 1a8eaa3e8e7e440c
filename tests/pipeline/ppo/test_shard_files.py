"""Checkpoints of sharded runs: a file per process, complete or not visible, damage found."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.ppo.checkpoint import (
    DamagedCheckpoint,
    NoReadableCheckpoint,
    list_checkpoints,
    load_checkpoint,
    load_newest,
)
from pipeline.ppo.network.distributed import full_tensor
from pipeline.ppo.trainer import PPOTrainer
from tests.helpers.ppo_helpers import tiny_model, tiny_trainer, untimed
from tests.helpers.processes import found_by, run_processes, two_processes

SETTINGS = {"sharding": "fsdp2", "updates": 4, "checkpoint_every": 1, "lr": 1e-3}
STOPPED = 2
"""The update after which a run is left, with its checkpoint and the one before."""

PAIR = """
from tests.pipeline.ppo.test_shard_files import after_damage, full_disk, left, other_run, whole_run
torch.save(whole_run(folder), folder / f"whole-{rank}")
torch.save(left(folder / "left"), folder / f"left-{rank}")
torch.save(after_damage(folder, rank), folder / f"damage-{rank}")
torch.save(full_disk(folder / "full", rank), folder / f"full-{rank}")
torch.save(other_run(folder / "left"), folder / f"other-{rank}")
"""
THREE = """
from tests.pipeline.ppo.test_shard_files import continued
torch.save(continued(folder / "left"), folder / f"continued-{rank}")
"""


pair = two_processes(PAIR)


def trainer_in(directory: Path, **settings: Any) -> PPOTrainer:
    return tiny_trainer(
        directory, model=tiny_model(tie_word_embeddings=True), **SETTINGS | settings
    )


def tensors(trainer: PPOTrainer) -> dict[str, torch.Tensor]:
    """All weights and optimizer states, whole."""
    found = {}
    for name, weight in trainer.model.named_parameters():
        found[name] = full_tensor(weight.detach()).clone()
        for field, state in trainer.learner.optimizer.state.get(weight, {}).items():
            found[f"{field} of {name}"] = full_tensor(state).clone()
    return found


def whole_run(folder: Path) -> list[dict[str, float]]:
    return [untimed(update) for update in trainer_in(folder / "whole").run()]


def left(directory: Path) -> dict[str, torch.Tensor]:
    """Leave a run after a checkpoint; return what it held then."""
    trainer = trainer_in(directory)
    for update in trainer.run():
        if update.step == STOPPED:
            trainer.write_checkpoint()
            break
    return tensors(trainer)


def continued(directory: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, float]]]:
    """What a resumed trainer holds, and the metrics of the updates after it."""
    trainer = trainer_in(directory)
    found: dict[str, torch.Tensor] = {}
    load = trainer.load_state_dict

    def look(*args: Any) -> None:
        load(*args)
        found.update(tensors(trainer))

    trainer.load_state_dict = look  # type: ignore[method-assign]
    return found, [untimed(update) for update in trainer.run(resume=True)]


def damaged_copy(folder: Path, rank: int, name: str, file: str, *, older: bool = False) -> Path:
    """A copy of the run where one bit of a file of its newest checkpoints, or of both, is wrong."""
    copy = folder / name
    if rank == 0:
        shutil.copytree(folder / "left", copy)
        for checkpoint in list_checkpoints(copy / "checkpoints")[0 if older else 1 :]:
            content = bytearray((checkpoint / file).read_bytes())
            content[len(content) // 2] ^= 1
            (checkpoint / file).write_bytes(content)
    torch.distributed.barrier()
    return copy


def after_damage(folder: Path, rank: int) -> dict[str, Any]:
    """What is said of damaged files, and where the run went on."""
    found: dict[str, Any] = {}
    for file in ("__1_0.distcp", "state.pt"):
        trainer = trainer_in(damaged_copy(folder, rank, f"damaged {file}", file))
        next(trainer.run(resume=True))
        found[file] = [str(error) for error in trainer.passed_over], trainer.step
    hopeless = trainer_in(damaged_copy(folder, rank, "hopeless", "__0_0.distcp", older=True))
    with pytest.raises(NoReadableCheckpoint) as error:
        next(hopeless.run(resume=True))
    return found | {"hopeless": str(error.value)}


def full_disk(directory: Path, rank: int) -> tuple[int | None, list[str], list[str]]:
    """The error's number in each process when the second cannot write, and the checkpoints left."""
    trainer = trainer_in(directory)
    run = trainer.run()
    next(run), next(run)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    with pytest.raises(OSError) as error:
        trainer.write_checkpoint()
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    visible = [path.name for path in list_checkpoints(directory / "checkpoints")]
    torch.distributed.barrier()
    trainer.write_checkpoint()  # there is room again
    torch.distributed.barrier()
    return error.value.errno, visible, sorted(x.name for x in (directory / "checkpoints").iterdir())


def other_run(directory: Path) -> str:
    with pytest.raises(ValueError, match="another run") as error:
        next(trainer_in(directory, lr=5e-4).run(resume=True))
    return str(error.value)


def test_a_run_goes_on_with_another_number_of_processes(pair):
    folder = pair / "three"
    folder.mkdir()
    shutil.copytree(pair / "left", folder / "left")
    run_processes(THREE, folder, count=3)
    held, whole = found_by(pair, "left")[0], found_by(pair, "whole")[0]
    for found, metrics in found_by(folder, "continued", count=3):
        assert found.keys() == held.keys()
        for name, value in held.items():
            assert torch.equal(found[name], value), name  # to the bit
        assert len(metrics) == len(whole[STOPPED:])
        for ours, theirs in zip(metrics, whole[STOPPED:], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-4)  # sums in another order


def test_each_process_writes_only_its_part_and_nothing_twice(pair):
    newest = list_checkpoints(pair / "left" / "checkpoints")[-1]
    assert sorted(path.name for path in newest.iterdir()) == [
        "__0_0.distcp", "__1_0.distcp", "state.pt"
    ]  # fmt: skip
    state = load_checkpoint(newest)
    assert not {"model", "optimizer"} & state.keys()
    written = {"__0_0.distcp": 0, "__1_0.distcp": 0}
    for entry in state["shards"]["index"].values():
        for part in entry["parts"]:
            written[part["file"]] += torch.Size(part["sizes"]).numel()
    held = sum(tensor.numel() for tensor in found_by(pair, "left")[0].values())
    assert sum(written.values()) == held
    # The value head's only row, with its moments, and the counts of steps are in one file.
    assert abs(written["__0_0.distcp"] - written["__1_0.distcp"]) < 0.02 * held


def test_damaged_parts_are_passed_over_by_all_processes(pair):
    first, second = found_by(pair, "damage")
    assert first == second
    for file, (said, step) in ((name, first[name]) for name in ("__1_0.distcp", "state.pt")):
        assert len(said) == 1
        assert "step-000002 is damaged" in said[0]
        assert step == STOPPED  # after the update that followed the older checkpoint
        assert file != "__1_0.distcp" or "__1_0.distcp does not match its checksum" in said[0]
        left = {path.name for path in (pair / f"damaged {file}" / "checkpoints").iterdir()}
        assert "damaged-step-000002" in left
    assert first["hopeless"].count("__0_0.distcp does not match its checksum") == 2


def test_a_missing_part_is_damage(pair, tmp_path):
    shutil.copytree(pair / "left" / "checkpoints", tmp_path / "checkpoints")
    older, newest = list_checkpoints(tmp_path / "checkpoints")
    (newest / "__0_0.distcp").unlink()
    with pytest.raises(DamagedCheckpoint, match=r"__0_0.distcp is missing"):
        load_checkpoint(newest)
    assert load_newest([older, newest])[0] == older


def test_a_disk_that_is_full_for_one_process_fails_all_and_leaves_the_older_checkpoint(pair):
    for number, visible, after in found_by(pair, "full"):
        assert number == 27  # EFBIG, here for a limit of the process; ENOSPC takes the same way
        assert visible == ["step-000001"]
        assert after == ["step-000001", "step-000002"]  # no draft is left


def test_checkpoints_of_another_run_are_refused(pair, tmp_path):
    for said in found_by(pair, "other"):
        assert said.startswith("the checkpoint belongs to another run: ppo.lr differ")
    shutil.copytree(pair / "left" / "checkpoints", tmp_path / "checkpoints")
    alone = trainer_in(tmp_path, sharding="none")
    with pytest.raises(ValueError, match=r"another run: ppo\.sharding differ"):
        next(alone.run(resume=True))
    earlier = load_checkpoint(list_checkpoints(tmp_path / "checkpoints")[-1]) | {"format": 2}
    with pytest.raises(ValueError, match=r"format 2; this version reads 3"):
        alone.load_state_dict(earlier)
