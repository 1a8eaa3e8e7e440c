"""Two processes make the steps that one would make."""

import pytest
import torch
from transformers import LlamaForCausalLM

from pipeline.ppo import learner
from pipeline.ppo.network import token_stats
from pipeline.ppo.network.distributed import Processes, full_tensor
from pipeline.ppo.network.model import weights_hash
from tests.helpers.ppo_helpers import PROMPTS, tiny_model, tiny_trainer, untimed
from tests.helpers.processes import found_by, two_processes

SETTINGS = {"updates": 2, "kl_control": "adaptive", "score_scaling": "running", "lr": 1e-3}

EXACT = {"kl_estimator": "full", "kl_in": "loss"}
CASES = {
    "plain": {},
    "few-rows": {"minibatch": 1, "epochs": 1},
    "critic": {"critic": "separate", "value_warmup": 1},
    "lora": {"lora_rank": 4},
    "lora-twin": {"lora_rank": 4, "reference": None},
    "transformers": {"rollout_backend": "transformers"},
    "grpo": {
        "baseline": "group_mean",
        "group_scaling": "std",
        "loss_mean": "response",
        "samples_per_prompt": 2,
        "dynamic_sampling": 2,
        # Equal scores would differ by rounding, which the group's deviation magnifies.
        "kl_control": "fixed",
        "kl_weight": 0.0,
    },
    "fsdp2": {"sharding": "fsdp2"},
    "fsdp2-critic": {"sharding": "fsdp2", "critic": "separate", "gradient_checkpointing": True},
    "fsdp2-warmup": {"sharding": "fsdp2", "value_warmup": 1, "update_order": "alternating"},
    "fsdp2-critic-warmup": {
        "sharding": "fsdp2",
        "critic": "separate",
        "value_warmup": 1,
        "update_order": "alternating",
    },
    # Logits in chunks of a few tokens; the single process makes all at once.
    "fsdp2-chunks": {"sharding": "fsdp2", "chunk": 8, "entropy_weight": 0.01},
    "fsdp2-chunks-exact-kl": EXACT | {"sharding": "fsdp2", "chunk": 8, "tied": True},
    "fsdp2-chunks-critic": EXACT
    | {
        "sharding": "fsdp2",
        "chunk": 8,
        "kl_in": "reward",
        "critic": "separate",
        "gradient_checkpointing": True,
    },
    # The processes have other numbers of micro-batches, and only some micro-batches take chunks.
    "fsdp2-chunks-uneven": EXACT
    | {"sharding": "fsdp2", "chunk": 5, "rollouts": 9, "minibatch": 3, "micro_batch_tokens": 16},
    "fsdp2-exact-kl": EXACT | {"sharding": "fsdp2"},
}
RESUMED = {
    "resume-none": {"sharding": "none"},
    "resume-fsdp2": {"sharding": "fsdp2"},
    "resume-lora": {"lora_rank": 4},
    # The checkpoint has no optimizer states of the policy, which has not been trained yet.
    "resume-fsdp2-warmup": {
        "sharding": "fsdp2",
        "precision": "bf16",
        "value_warmup": 1,
        "update_order": "alternating",
    },
    "resume-fsdp2-critic": {"sharding": "fsdp2", "critic": "separate"},
}
RESPONDING = {
    "respond-none": {},
    "respond-lora": {"lora_rank": 4},
    "respond-transformers": {"rollout_backend": "transformers"},
    "respond-fsdp2": {"sharding": "fsdp2"},
}
TOO_FEW = {
    "rollouts": {"rollouts": 1, "minibatch": 1},
    "minibatch": {"rollouts": 8, "minibatch": 1, "sharding": "fsdp2"},
}

# One pair of processes for all cases: loading torch takes longer than any of them.
CHILD = """
from tests.pipeline.ppo.network.test_parallel import (
    CASES, RESPONDING, RESUMED, SETTINGS, TOO_FEW, refusal, responses, saved_and_resumed, watched
)
for name, extra in RESPONDING.items():
    torch.save(responses(extra), folder / f"{name}-{rank}")
for name, rows in TOO_FEW.items():
    torch.save(refusal(rows), folder / f"few-{name}-{rank}")
for name, extra in CASES.items():
    torch.save(watched(SETTINGS | extra), folder / f"{name}-{rank}")
for name, extra in RESUMED.items():
    torch.save(saved_and_resumed(extra, folder / f"{name}-run"), folder / f"{name}-{rank}")
"""


def watched(settings):
    """Gradients before clipping at every step, metrics of every update, and the last weights."""
    settings = {"chunk": None, "tied": False} | settings
    chunk, tied = settings.pop("chunk"), settings.pop("tied")
    if settings.get("kl_estimator") == "full":
        settings["reference"] = tiny_model(seed=1)
    gradients, chunked = [], []
    clip, stats = torch.nn.utils.clip_grad_norm_, learner.chunked_stats

    def keep(parameters, limit):
        found = [None if p.grad is None else full_tensor(p.grad).clone() for p in parameters]
        gradients.append(found)
        return clip(parameters, limit)

    def count(head, hidden, *args, **options):
        chunked.append(torch.is_grad_enabled())
        return stats(head, hidden, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.utils, "clip_grad_norm_", keep)
        patch.setattr(learner, "chunked_stats", count)
        if chunk:
            patch.setattr(token_stats, "CHUNK_BYTES", chunk * 4 * 16)
        trainer = tiny_trainer(model=tiny_model(tie_word_embeddings=tied), **settings)
        metrics = [untimed(update) for update in trainer.run()]
    assert set(chunked) == ({True, False} if chunk else set())  # in training and in scoring
    weights = {name: full_tensor(tensor) for name, tensor in trainer.model.state_dict().items()}
    return gradients, metrics, weights


def saved_and_resumed(extra, directory):
    """Metrics of the last update of a run that was interrupted and of one that was not; saves the policy."""
    settings = {"checkpoint_every": 1, "updates": 3, "lr": 1e-3} | extra
    whole_run = [untimed(update) for update in tiny_trainer(directory / "a", **settings).run()]
    run = tiny_trainer(directory / "b", **settings).run()
    next(run), next(run)
    again = tiny_trainer(directory / "b", **settings)
    resumed = [untimed(update) for update in again.run(resume=True)]
    again.save(directory / "policy")
    return whole_run[1:], resumed


def responses(settings):
    """Responses to all prompts, to a single one, and again after an update that starts afterwards."""
    trainer = tiny_trainer(updates=1, lr=0.1, **settings)
    before = [trainer.respond(prompts, seed=3) for prompts in (PROMPTS, PROMPTS[:1])]
    (update,) = trainer.run()
    return before, trainer.respond(PROMPTS, seed=3), untimed(update)


def refusal(rows):
    """What a process is told of so few rows, before it does anything."""
    with pytest.raises(ValueError, match="processes") as refused:
        tiny_trainer(**rows)
    return str(refused.value)


pair = two_processes(CHILD)


@pytest.mark.parametrize("name", CASES)
def test_two_processes_equal_one(pair, name):
    alone = watched(SETTINGS | CASES[name] | {"sharding": "none", "chunk": None})
    first, second = found_by(pair, name)
    for step, (ours, theirs) in enumerate(zip(first[0], alone[0], strict=True)):
        for a, b in zip(ours, theirs, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                # Relative to the step's largest gradient: sums in another order differ by rounding.
                scale = max(g.abs().max() for g in theirs if g is not None)
                assert (a - b).abs().max() <= (1e-5 if step == 0 else 1e-3) * scale
    for ours, theirs in zip(first[1], alone[1], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-4)
    assert first[1] == second[1]
    for key, weight in first[2].items():
        assert torch.equal(weight, second[2][key]), key  # the processes stay together, to the bit


@pytest.mark.parametrize("name", RESPONDING)
def test_two_processes_respond_as_one_and_the_run_does_not_notice(pair, name):
    alone = RESPONDING[name] | {"sharding": "none"}
    (whole, single), after, update = responses(alone)
    first, second = found_by(pair, name)
    assert first == second
    assert first[0] == [whole, single]
    assert len(whole) == len(PROMPTS)
    assert single == whole[:1]  # a row has its own random numbers
    assert first[1] == after != whole
    (plain,) = tiny_trainer(updates=1, lr=0.1, **alone).run()
    assert update == untimed(plain)


@pytest.mark.parametrize("name", RESUMED)
def test_two_processes_resume_and_save(pair, name):
    for uninterrupted, resumed in found_by(pair, name):
        assert uninterrupted == resumed
    saved = LlamaForCausalLM.from_pretrained(pair / f"{name}-run" / "policy")
    assert weights_hash(saved) != weights_hash(tiny_model())


def test_shards_need_several_processes():
    with pytest.raises(ValueError, match="needs several processes; start them with `accelerate"):
        tiny_trainer(sharding="fsdp2")


@pytest.mark.parametrize("name", TOO_FEW)
def test_fewer_rows_than_processes_are_refused_on_every_one(pair, name):
    first, second = found_by(pair, f"few-{name}")
    assert first == second
    assert first.startswith(f"ppo.{name}=1 leaves some of the 2 processes without a row; raise")


def test_shares_make_a_whole():
    rows = list(range(7))
    processes = [Processes() for _ in range(3)]
    for rank, one in enumerate(processes):
        one.rank, one.size = rank, 3
    shares = [one.share(rows) for one in processes]
    assert shares == [[0, 3, 6], [1, 4], [2, 5]]
    assert processes[0].interleave(shares) == rows


def test_shares_of_a_minibatch_have_about_as_many_tokens():
    """9, 7, 5, 4 and 1 tokens: 9 | 7, then 5 to the second (12), 4 to the first (13), 1 to the second."""
    lengths, rows = [5, 9, 4, 1, 7, 99], [4, 0, 2, 1, 3]
    first, second = Processes(), Processes()
    (first.rank, first.size), (second.rank, second.size) = (0, 2), (1, 2)
    assert first.balanced_share(rows, lengths) == [2, 1]
    assert second.balanced_share(rows, lengths) == [4, 0, 3]
    assert Processes().balanced_share(rows, lengths) == rows


def test_alone_nothing_is_exchanged():
    alone = Processes()
    assert (alone.rank, alone.size) == (0, 1)
    assert alone.share(PROMPTS) == PROMPTS
    assert alone.gather("x") == ["x"]
