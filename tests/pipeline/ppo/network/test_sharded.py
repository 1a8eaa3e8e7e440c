"""Models that FSDP2 divides among two processes: precision, loading, and what each one holds."""

from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForSequenceClassification,
    MistralConfig,
    MistralForCausalLM,
)

from pipeline.ppo import PPOTrainer
from pipeline.ppo.algorithm import MinibatchSize
from pipeline.ppo.batch import Batch
from pipeline.ppo.network import token_stats
from pipeline.ppo.network.distributed import full_tensor, gathered
from tests.helpers.ppo_helpers import tiny_model, tiny_trainer, untimed
from tests.helpers.processes import found_by, two_processes

BF16 = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "chunks": {"chunk": 8, "kl_estimator": "full", "kl_in": "loss"},
    "chunks-tied": {"chunk": 8, "tie_word_embeddings": True},
    "critic": {"critic": "separate", "gradient_checkpointing": True},
}
EMPTY = {
    "plain": {},
    "tied": {"tie_word_embeddings": True, "chunk": 8},
    "critic": {"critic": "separate"},
    "scoring-critic": {"critic": "separate", "scores": True},
}

CHILD = """
from tests.pipeline.ppo.network.test_sharded import (
    BF16, EMPTY, first_update, from_the_first_process, in_bf16, refused
)
for name, settings in BF16.items():
    torch.save(in_bf16(**settings), folder / f"bf16-{name}-{rank}")
torch.save(first_update("fsdp2"), folder / f"update-{rank}")
for name, settings in EMPTY.items():
    torch.save(from_the_first_process(rank, **settings), folder / f"empty-{name}-{rank}")
torch.save(refused(rank), folder / f"refused-{rank}")
"""


pair = two_processes(CHILD)


def model_between_bf16_numbers(**config: Any) -> Any:
    """A tiny model of which no weight is a bf16 number, norms included."""
    model = tiny_model(**config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1 + 2**-9 + torch.rand_like(weight) / 8)
    return model


def trainer_of(*, rounded: bool, **settings: Any) -> PPOTrainer:
    """A trainer in bf16: of sharded models, or of whole ones with weights rounded to bf16."""
    tied = settings.pop("tie_word_embeddings", False)
    model = model_between_bf16_numbers(tie_word_embeddings=tied)
    reference = model_between_bf16_numbers(seed=1, tie_word_embeddings=tied)
    trainer = tiny_trainer(
        model=model,
        reference=reference,
        precision="bf16",
        sharding="none" if rounded else "fsdp2",
        **settings,
    )
    torch.manual_seed(2)
    drawn = torch.randn(1, 32)
    with torch.no_grad():
        head = trainer.model.value_head.weight
        local = head.to_local() if hasattr(head, "to_local") else head
        local.copy_(drawn[: len(local)])
        for part in (trainer.model.policy, trainer.model.critic, trainer.reference):
            for weight in part.parameters() if rounded and part is not None else ():
                weight.copy_(weight.bfloat16())
    return trainer


def texts() -> Batch:
    """Eight texts of other lengths, with all that a loss needs."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([6, 3, 5, 6, 1, 4, 6, 2])
    ids = torch.randint(2, 16, (8, 9), generator=generator)
    there = torch.arange(6) < lengths[:, None]
    noise = torch.randn(5, 8, 6, generator=generator)
    batch = Batch(
        prompt_indices=[0] * 8,
        input_ids=torch.cat([ids[:, :3], ids[:, 3:].where(there, 1)], 1),
        prompt_lengths=torch.full((8,), 3),
        lengths=lengths,
        tokens=ids[:, 3:].where(there, 1),
        finish_reasons=["length"] * 8,
        sampler_logprobs=noise[0],
        old_logprobs=noise[0] - 3,
        entropies=None,
        values=noise[1],
    )
    batch.importance_weights, batch.ref_logprobs = None, noise[2] - 3
    batch.advantages, batch.returns = noise[3], noise[4]
    return batch


def passes(trainer: PPOTrainer) -> dict[str, Any]:
    """Statistics of this process's texts, and the gradient of their loss."""
    learner, batch = trainer.learner, texts()
    mine = trainer.processes.share(range(8))
    exact = trainer.config.kl_estimator == "full"
    with torch.no_grad(), gathered(trainer.model), gathered(trainer.reference):
        stats, values = learner.token_stats(learner.model, batch.take(mine), exact_kl=exact)
        reference, _ = learner.token_stats(learner.setup.reference, batch.take(mine))
    size = MinibatchSize(int(batch.lengths.sum()), 8)
    losses = learner._gradients(batch, mine, size, "both", 0.1)
    named = trainer.model.named_parameters()
    return {
        "stats": [stats.logprobs, stats.kl, reference.logprobs, values],
        "losses": [list(loss) for loss in losses],
        "gradients": {name: weight.grad for name, weight in named if weight.grad is not None},
    }


def in_bf16(*, chunk: int | None = None, **settings: Any) -> dict[str, Any]:
    """The passes of a sharded model and of a whole one, and the precisions of the sharded one."""
    with pytest.MonkeyPatch.context() as patch:
        if chunk:
            patch.setattr(token_stats, "CHUNK_BYTES", chunk * 4 * 16)
        sharded = trainer_of(rounded=False, **settings)
        found = {
            "whole": passes(trainer_of(rounded=True, **settings)),
            "sharded": passes(sharded),
            "precisions": precisions(sharded),
        }
    found["sharded"]["gradients"] = {
        name: full_tensor(gradient) for name, gradient in found["sharded"]["gradients"].items()
    }
    return found


def precisions(trainer: PPOTrainer) -> dict[str, set[torch.dtype]]:
    """Of the sharded weights, their gradients, and the gathered weights."""
    model, reference = trainer.model, trainer.reference
    held = [*model.parameters(), *reference.parameters()]
    found = {"held": {weight.dtype for weight in held}}
    found["gradients"] = {weight.grad.dtype for weight in held if weight.grad is not None}
    with gathered(model), gathered(reference):
        named = [*model.named_parameters(), *reference.named_parameters()]
        heads = {weight.dtype for name, weight in named if "value_head" in name}
        others = {weight.dtype for name, weight in named if "value_head" not in name}
    return found | {"gathered value head": heads, "gathered": others}


def first_update(sharding: str) -> tuple[dict[str, float], set[torch.dtype]]:
    """The metrics of a first update of one step, and the precisions of the optimizer's states."""
    model = tiny_model()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.bfloat16())  # as most models are published
    settings = {"updates": 1, "epochs": 1, "minibatch": 8, "precision": "bf16"}
    trainer = tiny_trainer(model=model, sharding=sharding, **settings)
    (update,) = trainer.run()
    states = trainer.learner.optimizer.state.values()
    return untimed(update), {x.dtype for state in states for x in state.values() if x.dim()}


def from_the_first_process(rank: int, **settings: Any) -> tuple[Any, Any]:
    """An update where both processes have the models, and one where the second has them empty."""
    chunk, tied = settings.pop("chunk", None), settings.pop("tie_word_embeddings", False)
    scores = settings.pop("scores", False)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        if chunk:
            patch.setattr(token_stats, "CHUNK_BYTES", chunk * 4 * 16)
        for is_empty in (False, bool(rank)):
            parts = {
                "model": tiny_model(tie_word_embeddings=tied),
                "reference": tiny_model(seed=1, tie_word_embeddings=tied),
                "critic_model": scoring_model() if scores else None,
            }
            trainer = tiny_trainer(
                **{name: emptied(part) if is_empty else part for name, part in parts.items()},
                sharding="fsdp2",
                updates=1,
                **settings,
            )
            (update,) = trainer.run()
            named = [*trainer.model.named_parameters(), *trainer.reference.named_parameters()]
            weights = {name: full_tensor(weight) for name, weight in named}
            found.append((untimed(update), weights))
    return found[0], found[1]


def emptied(model: Any) -> Any:
    """The model on the meta device; `.to` would separate tied layers."""
    if model is None:
        return None
    with torch.device("meta"):
        return type(model)(model.config).eval()


def scoring_model() -> Any:
    """A critic with a scalar head without a bias, as most reward models have."""
    torch.manual_seed(3)
    return LlamaForSequenceClassification(
        LlamaConfig(**tiny_model().config.to_dict() | {"num_labels": 1})
    )


def refused(rank: int) -> str:
    """What a process is told of models that only the first one can find wrong."""
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    limited = MistralConfig(**small, **heads, sliding_window=4)
    models = [MistralForCausalLM(limited) for _ in range(2)]
    models = [emptied(model) for model in models] if rank else models
    with pytest.raises(ValueError) as found:
        tiny_trainer(model=models[0], reference=models[1], sharding="fsdp2", packing="on")
    return str(found.value)


@pytest.mark.parametrize("name", BF16)
def test_bf16_shards_give_the_results_of_weights_rounded_to_bf16(pair, name):
    """To the bit, which a value head or a sum of layers in bf16 would not."""
    for found in found_by(pair, f"bf16-{name}"):
        sharded, whole = found["sharded"], found["whole"]
        for ours, theirs in zip(sharded["stats"], whole["stats"], strict=True):
            assert (ours is None) == (theirs is None)
            assert ours is None or torch.equal(ours, theirs)
        assert sharded["losses"] == whole["losses"]


@pytest.mark.parametrize("name", BF16)
def test_bf16_gradients_are_rounded_at_most_once_more_and_summed_in_fp32(pair, name):
    first, second = found_by(pair, f"bf16-{name}")
    for weight, ours in first["sharded"]["gradients"].items():
        parts = [found["whole"]["gradients"][weight] for found in (first, second)]
        apart = (ours - sum(parts)).abs()
        rounding = 2**-8 * sum(part.abs() for part in parts)  # half a unit of bf16's eight bits
        if "embed" in weight:  # on a CPU, its rows are also added up in bf16: here four at most
            assert (apart <= 4 * rounding.max()).all(), weight
        elif "norm" in weight or ("chunk" in name and "lm_head" in weight):
            assert (apart <= rounding).all(), weight
        else:  # autocast has rounded it already, so the sum in fp32 is the same
            assert torch.equal(ours, sum(parts)), weight


def test_only_gathered_weights_are_bf16(pair):
    for found in found_by(pair, "bf16-plain"):
        assert found["precisions"] == {
            "held": {torch.float32},
            "gradients": {torch.float32},
            "gathered": {torch.bfloat16},
            "gathered value head": {torch.float32},
        }


def test_the_first_update_in_bf16_is_that_of_one_process(pair):
    alone, _ = first_update("none")
    for metrics, states in found_by(pair, "update"):
        assert metrics["kl/reference"] == 0
        assert metrics["policy/first_ratio_error"] == alone["policy/first_ratio_error"] == 0
        assert states == {torch.float32}
        for name, value in metrics.items():
            # Gradients are rounded to eight bits; their average would be half of their sum.
            limit = 2**-8 if name == "optim/grad_norm" else 1e-3
            assert value == pytest.approx(alone[name], rel=limit, abs=1e-4), name


@pytest.mark.parametrize("name", EMPTY)
def test_only_the_first_process_needs_the_weights(pair, name):
    for whole, empty in found_by(pair, f"empty-{name}"):
        assert whole[0] == empty[0]
        assert whole[1].keys() == empty[1].keys()
        for weight, value in whole[1].items():
            assert torch.equal(value, empty[1][weight]), weight


def test_what_the_first_process_refuses_is_refused_in_all(pair):
    first, second = found_by(pair, "refused")
    assert first == second
    assert first.startswith("ppo.packing='on', but the policy gives different results")
