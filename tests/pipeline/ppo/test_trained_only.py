"""Checkpoints of adapters: what training changes and nothing else, over the base they were made on."""

import copy
from pathlib import Path

import pytest
import torch

from pipeline.ppo.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from pipeline.ppo.network.model import weights_hash
from tests.helpers.ppo_helpers import assert_same_state, tiny_model, tiny_trainer, untimed

LORA = {"lora_rank": 4, "lr": 1e-2, "updates": 4, "checkpoint_every": 1}


def newest(directory: Path) -> Path:
    return list_checkpoints(directory / "checkpoints")[-1]


def resumed_after_two(directory: Path, **changes):
    """A new trainer on the checkpoint that a run left after its second update."""
    first = tiny_trainer(directory, **LORA | changes)
    run = first.run()
    next(run), next(run)
    first.write_checkpoint()
    return tiny_trainer(directory, **LORA | changes)


def test_a_checkpoint_holds_adapters_and_values_and_not_the_base(tmp_path):
    # Wide enough for the base to be most of it.
    model = tiny_model(hidden_size=128, intermediate_size=512)
    trainer = tiny_trainer(tmp_path, model=model, reference=None, **LORA | {"updates": 1})
    list(trainer.run())
    trained = {n: p for n, p in trainer.model.named_parameters() if p.requires_grad}
    state = load_checkpoint(newest(tmp_path))
    assert state["model"].keys() == trained.keys()
    # Trained weights and Adam's two moments of each, and the random states.
    bytes_trained = 4 * sum(p.numel() for p in trained.values())
    bytes_base = 4 * sum(p.numel() for p in model.parameters())
    size = (newest(tmp_path) / "state.pt").stat().st_size
    assert size < 3 * bytes_trained + 100_000 < bytes_base


@pytest.mark.parametrize(
    "changes",
    [
        {"reference": None},
        {},
        {"critic": "separate"},
        {"critic": "separate", "critic_lora_rank": 2},
    ],
)
def test_adapters_resume_bit_for_bit(tmp_path, changes):
    whole = tiny_trainer(tmp_path / "whole", **LORA | changes)
    expected = [untimed(update) for update in whole.run()]
    again = resumed_after_two(tmp_path / "cut", **changes)
    assert [untimed(update) for update in again.run(resume=True)] == expected[2:]
    assert_same_state(again.state_dict(), whole.state_dict())
    for name, weight in again.model.state_dict().items():
        assert torch.equal(weight, whole.model.state_dict()[name]), name


def test_bf16_adapters_resume_bit_for_bit_and_save_the_same_model(tmp_path):
    changes = {"reference": None, "precision": "bf16"}
    whole = tiny_trainer(tmp_path / "whole", **LORA | changes)
    list(whole.run())
    again = resumed_after_two(tmp_path / "cut", **changes)
    list(again.run(resume=True))
    saved = []
    for trainer, name in ((whole, "a"), (again, "b")):
        trainer.save(tmp_path / name)
        saved.append(weights_hash(type(tiny_model()).from_pretrained(tmp_path / name)))
    assert saved[0] == saved[1]


def test_adapters_are_not_resumed_on_another_base(tmp_path):
    reference = tiny_model()
    resumed_after_two(tmp_path, reference=copy.deepcopy(reference))
    other = tiny_trainer(tmp_path, model=tiny_model(seed=1), reference=reference, **LORA)
    with pytest.raises(ValueError, match="another run: frozen weights differ"):
        next(other.run(resume=True))


def test_frozen_layers_of_a_model_trained_whole_are_left_out_too(tmp_path):
    def part_frozen():
        model = tiny_model()
        model.model.layers[0].requires_grad_(False)
        return model

    settings = {"updates": 3, "checkpoint_every": 1, "reference": tiny_model()}
    whole = tiny_trainer(tmp_path / "whole", model=part_frozen(), **settings)
    expected = [untimed(update) for update in whole.run()]
    assert not [n for n in whole.state_dict()["model"] if "layers.0." in n]
    assert [n for n in whole.state_dict()["model"] if "layers.1." in n]
    run = tiny_trainer(tmp_path / "cut", model=part_frozen(), **settings).run()
    next(run), next(run)
    again = tiny_trainer(tmp_path / "cut", model=part_frozen(), **settings)
    assert [untimed(update) for update in again.run(resume=True)] == expected[1:]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_reference_hashes_alike_as_a_model_and_as_adapters_off(precision):
    settings = {"lora_rank": 4, "precision": precision}
    twin, apart = tiny_trainer(reference=None, **settings), tiny_trainer(**settings)
    assert twin.reference_hash == apart.reference_hash
    if precision == "fp32":
        assert twin.reference_hash == weights_hash(tiny_model())


def test_a_checkpoint_of_an_earlier_version_is_refused_in_a_sentence(tmp_path):
    trainer = resumed_after_two(tmp_path)
    state = load_checkpoint(newest(tmp_path))
    del state["format"]  # it had none, and the whole model
    state["model"] = trainer.model.state_dict()
    save_checkpoint(tmp_path / "checkpoints", 3, state)
    with pytest.raises(ValueError, match=r"another version of the engine \(format 1.*start from"):
        next(trainer.run(resume=True))
