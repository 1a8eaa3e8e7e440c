"""Frozen models in host memory: where their weights are, and that a run does not notice."""

import pytest
import torch

from pipeline.ppo import PPOConfig
from pipeline.ppo.network import offload
from pipeline.ppo.network.offload import Offloaded
from tests.helpers.ppo_helpers import PROMPTS, tiny_model, tiny_trainer, untimed

CPU = torch.device("cpu")


@pytest.fixture
def copies(monkeypatch) -> list[torch.Tensor]:
    """The host memory's tensors that were copied; the copies stand for those on a GPU."""
    found: list[torch.Tensor] = []

    def copy(data: torch.Tensor, _: torch.device) -> torch.Tensor:
        found.append(data)
        return data.clone()

    monkeypatch.setattr(offload, "_on_device", copy)
    return found


def places(model) -> list[int]:
    return [weight.data_ptr() for weight in (*model.parameters(), *model.buffers())]


def test_weights_are_copied_once_and_come_home(copies):
    model = tiny_model(tie_word_embeddings=True)
    text = torch.tensor([PROMPTS[1]])
    logits = model(input_ids=text).logits
    offloaded, home = Offloaded([model, model], CPU), places(model)
    with offloaded.on_device():
        inside = places(model)
        assert torch.equal(model(input_ids=text).logits, logits)
        assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert not set(inside) & set(home)
    assert places(model) == home
    assert len(copies) == len(home)


@pytest.mark.usefixtures("copies")
def test_weights_come_home_after_an_error():
    model = tiny_model()
    offloaded, home = Offloaded([model], CPU), places(model)
    with pytest.raises(IndexError), offloaded.on_device():
        model(input_ids=torch.tensor([[99]]))
    assert places(model) == home


SETTINGS = {
    "full": {},
    "critic": {"critic": "separate"},
    "lora": {"lora_rank": 4},
    "bf16": {"precision": "bf16"},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_run_is_the_same_to_the_bit(copies, settings):
    """One copy of the reference per update."""
    runs = [tiny_trainer(offload=where, **settings) for where in ("none", "frozen")]
    usual, offloaded = ([untimed(u) for u in run.run()] for run in runs)
    assert usual == offloaded
    assert len(copies) == 3 * len(places(runs[1].reference))


def test_a_reference_without_weights_of_its_own_stays(copies):
    """With LoRA, the reference is the policy without its adapters."""
    trainer = tiny_trainer(offload="frozen", lora_rank=4, reference=None)
    assert [update.step for update in trainer.run()] == [1, 2, 3]
    assert not copies


def test_a_write_to_the_reference_in_host_memory_is_found(copies):
    trainer = tiny_trainer(offload="frozen")
    run = trainer.run()
    assert next(run).metrics["reference/changed"] == 0
    with torch.no_grad():
        trainer.reference.lm_head.weight += 0.1
    assert next(run).metrics["reference/changed"] == 1
    assert copies


def test_a_run_may_be_resumed_with_offload(copies, tmp_path):
    for _ in (first := tiny_trainer(tmp_path, updates=2, checkpoint_every=1)).run():
        pass
    more = tiny_trainer(tmp_path, updates=3, checkpoint_every=1, offload="frozen")
    assert [update.step for update in more.run(resume=True)] == [3]
    assert first.step == 2
    assert copies


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sharding": "fsdp2"}, "needs ppo.sharding='none'; with fsdp2"),
        ({"kl_estimator": "full"}, "needs ppo.kl_estimator='k1' or 'k2'; 'full' runs the"),
    ],
)
def test_settings_that_need_the_reference_all_the_time_are_refused(settings, sentence):
    with pytest.raises(ValueError, match=rf"^ppo.offload='frozen' {sentence}"):
        PPOConfig(offload="frozen", **settings)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_holds_the_weights_only_inside():
    cuda = torch.device("cuda")
    before = torch.cuda.memory_allocated()
    model = tiny_model(vocab=20_000).to(cuda)
    offloaded = Offloaded([model], cuda)
    assert torch.cuda.memory_allocated() == before
    with offloaded.on_device():
        assert torch.cuda.memory_allocated() > before + 20_000 * 32 * 4
        model(input_ids=torch.tensor([PROMPTS[1]], device=cuda))
    assert torch.cuda.memory_allocated() == before
