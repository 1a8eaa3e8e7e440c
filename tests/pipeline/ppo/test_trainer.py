"""The trainer as a whole: what holds before the first step, what must never change, what is refused."""

import copy
import math
import subprocess
import sys

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from pipeline.ppo import PPOConfig, PPOTrainer, TrainingDiverged
from pipeline.ppo.metrics import METRICS, RESERVED_COMPONENTS
from pipeline.ppo.network.model import weights_hash
from tests.helpers.ppo_helpers import (
    EOS,
    PROMPTS,
    count_of_w3,
    tiny_config,
    tiny_model,
    tiny_tokenizer,
    tiny_trainer,
    untimed,
)


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7}, {"kl_estimator": "full"}])
def test_before_the_first_step_ratio_is_one_and_kl_zero(settings):
    first = next(tiny_trainer(**settings).run())
    assert first.metrics["policy/first_ratio_error"] < 1e-5
    assert abs(first.metrics["kl/reference"]) < 1e-5
    assert abs(first.metrics["kl/penalty"]) < 1e-5
    assert max(abs(sample.kl) for sample in first.samples) < 1e-4


def test_bf16_recomputes_what_it_sampled():
    first = next(tiny_trainer(precision="bf16").run())
    assert first.metrics["policy/first_ratio_error"] < 0.1
    assert abs(first.metrics["kl/reference"]) < 0.05


def test_the_policy_moves_and_the_reference_does_not():
    trainer = tiny_trainer()
    before, start = weights_hash(trainer.reference), weights_hash(trainer.model)
    updates = list(trainer.run())
    assert len(updates) == 3
    assert weights_hash(trainer.reference) == before
    assert weights_hash(trainer.model) != start
    assert not any(update.metrics["reference/changed"] for update in updates)


def test_a_reference_written_to_is_flagged_at_once_and_fails_the_run():
    trainer = tiny_trainer()
    run = trainer.run()
    assert "reference_changed" not in {flag.name for flag in next(run).flags}
    with torch.no_grad():
        next(trainer.reference.parameters()).add_(1e-3)
    assert "reference_changed" in {flag.name for flag in next(run).flags}
    with pytest.raises(RuntimeError, match="reference model's weights changed"):
        list(run)


def test_exactly_the_defined_metrics_are_logged():
    def reward(_, texts):
        return {"words": [float(len(t.split())) for t in texts], "w3": [0.5 for _ in texts]}

    update = next(tiny_trainer(reward=reward, reward_weights={"words": 0.1}).run())
    components = {"reward/words", "reward/w3"}
    assert set(update.metrics) == set(METRICS) - {"reward/<component>"} | components
    assert all(math.isfinite(value) for value in update.metrics.values())
    # The mean score is the weighted sum of the components' means.
    expected = 0.1 * update.metrics["reward/words"] + 0.5
    assert update.metrics["reward/mean"] == pytest.approx(expected)


def test_micro_batches_and_decoding_batches_change_nothing():
    runs = []
    for settings in ({}, {"micro_batch_tokens": 12}, {"rollout_batch": 3}):
        trainer = tiny_trainer(**settings)
        metrics = [untimed(update) for update in trainer.run()]
        runs.append((metrics, torch.cat([p.flatten() for p in trainer.model.parameters()])))
    for metrics, weights in runs[1:]:
        for ours, plain in zip(metrics, runs[0][0], strict=True):
            assert ours == pytest.approx(plain, rel=1e-3, abs=1e-4)
        torch.testing.assert_close(weights, runs[0][1], atol=2e-4, rtol=0)


def test_samples_are_the_rollouts_and_their_scores():
    update = next(tiny_trainer().run())
    assert len(update.samples) == 8
    for sample in update.samples:
        assert sample.score == count_of_w3([0], [sample.text])[0]
        assert sample.finish_reason == "length" or sample.length <= 6
        assert "<eos>" not in sample.text
    mean = sum(sample.score for sample in update.samples) / 8
    assert update.metrics["reward/mean"] == pytest.approx(mean)


def test_a_reward_reads_what_was_sampled_and_not_a_tidied_text():
    """Some tokenizers say "w3." for the tokens "w3" and "."; other stages never let them."""
    base = Tokenizer(models.WordLevel({"<eos>": EOS, "<pad>": 1, "w2": 2, ".": 3}, unk_token="."))
    base.pre_tokenizer = pre_tokenizers.Whitespace()
    tidy = PreTrainedTokenizerFast(
        tokenizer_object=base, eos_token="<eos>", pad_token="<pad>",
        clean_up_tokenization_spaces=True,
    )  # fmt: skip
    assert tidy.decode([2, 3]) == "w2."
    read: list[str] = []

    def reward(_: list[int], texts: list[str]) -> list[float]:
        read.extend(texts)
        return [0.0] * len(texts)

    trainer = tiny_trainer(tokenizer=tidy, model=tiny_model(4), prompts=[[2]], reward=reward)
    samples = next(trainer.run()).samples
    assert any("w2 ." in sample.text for sample in samples)
    assert not [text for text in read[-len(samples) :] if "w2." in text]


def test_missing_eos_is_charged_to_responses_that_were_cut_off():
    def nothing(_, texts):
        return [0.0] * len(texts)

    settings = {"reward": nothing, "kl_weight": 0.0, "missing_eos_penalty": 2.0}
    update = next(tiny_trainer(**settings).run())
    cut = [sample.finish_reason for sample in update.samples].count("length")
    assert 0 < cut < 8
    assert update.metrics["reward/total"] == pytest.approx(-2.0 * cut / 8)
    assert update.metrics["completion/eos_rate"] == 1 - cut / 8


def test_a_larger_kl_weight_ends_nearer_to_the_reference():
    settings = {"updates": 12, "rollouts": 32, "minibatch": 16, "epochs": 2, "lr": 3e-3}
    final = {}
    for weight in (0.0, 2.0):
        updates = list(tiny_trainer(kl_weight=weight, **settings).run())
        final[weight] = updates[-1].metrics["kl/reference"]
    assert final[0.0] > 3 * abs(final[2.0])


def test_training_raises_the_reward():
    settings = {"updates": 12, "rollouts": 32, "minibatch": 16, "lr": 3e-3}
    updates = list(tiny_trainer(**settings).run())
    first, last = (
        sum(u.metrics["reward/mean"] for u in part) / 3 for part in (updates[:3], updates[-3:])
    )
    assert last > first + 0.5


def test_target_kl_ends_the_update_and_the_budget_ends_the_run():
    free = next(tiny_trainer(lr=1e-2).run())
    held = next(tiny_trainer(lr=1e-2, target_kl=1e-3).run())
    assert free.metrics["optim/steps"] == 4
    assert held.metrics["optim/steps"] < 4
    trainer = tiny_trainer(updates=20, lr=1e-2, kl_budget=0.05, kl_weight=0.0)
    updates = list(trainer.run())
    assert trainer.stopped == "kl_budget"
    assert len(updates) < 20
    assert updates[-1].metrics["kl/reference"] > 0.05


def test_lora_trains_adapters_only_and_saves_a_merged_model(tmp_path):
    trainer = tiny_trainer(lora_rank=4, lr=1e-2)
    base = weights_hash(trainer.reference)
    list(trainer.run())
    names = {n for n, p in trainer.model.named_parameters() if p.requires_grad}
    assert names
    assert all("lora_" in n or n.startswith("value_head") for n in names)
    trainer.save(tmp_path)
    saved = type(trainer.reference).from_pretrained(tmp_path)
    assert weights_hash(saved) != base
    ids = torch.tensor([PROMPTS[1]])
    with torch.no_grad():
        torch.testing.assert_close(
            saved(ids).logits, trainer.model.policy(ids).logits, atol=1e-4, rtol=1e-4
        )


def test_lora_with_its_adapters_off_is_the_reference():
    settings = {"lora_rank": 4, "lr": 1e-2}
    model = tiny_model()
    twin, apart = tiny_trainer(reference=None, **settings), tiny_trainer(**settings)
    for ours, theirs in zip(twin.run(), apart.run(), strict=True):
        assert untimed(ours) == pytest.approx(untimed(theirs), rel=1e-4, abs=1e-5)
    ids = torch.tensor([PROMPTS[1]])
    with torch.no_grad():
        seen = twin.reference(input_ids=ids).logits
        torch.testing.assert_close(seen, model(ids).logits)
        assert not torch.allclose(seen, twin.model.policy(ids).logits, atol=1e-3)


def test_writing_to_the_base_under_the_adapters_fails_the_run():
    trainer = tiny_trainer(reference=None, lora_rank=4)
    run = trainer.run()
    next(run)
    with torch.no_grad():
        trainer.model.policy.get_input_embeddings().weight.add_(1)
    assert next(run).metrics["reference/changed"] == 1
    with pytest.raises(RuntimeError, match="reference model's weights changed"):
        list(run)


def test_gradient_checkpointing_changes_nothing_but_memory():
    plain, checkpointed = (
        [untimed(u) for u in tiny_trainer(gradient_checkpointing=flag).run()]
        for flag in (False, True)
    )
    for ours, theirs in zip(checkpointed, plain, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)


def test_gradient_checkpointing_is_in_force(monkeypatch):
    calls = []
    trainer = tiny_trainer(gradient_checkpointing=True, updates=1)
    layer = trainer.model.policy.model.layers[0]
    inner = layer._gradient_checkpointing_func
    monkeypatch.setattr(
        layer, "_gradient_checkpointing_func", lambda *a, **k: calls.append(1) or inner(*a, **k)
    )
    list(trainer.run())
    assert calls


@pytest.mark.parametrize("estimator", ["k2", "full"])
def test_kl_in_the_loss_holds_the_policy(estimator):
    settings = {"kl_in": "loss", "kl_estimator": estimator, "updates": 8, "lr": 5e-3}
    free, held = (
        list(tiny_trainer(kl_weight=beta, **settings).run())[-1].metrics for beta in (0.0, 2.0)
    )
    assert held["kl/reference"] < free["kl/reference"] / 2
    assert held["kl/loss"] > 0


def test_a_divergence_in_the_loss_leaves_only_later_tokens_in_the_reward():
    # One token per response: nothing follows it, so nothing is charged in the reward.
    settings = {"kl_weight": 2.0, "updates": 4, "lr": 5e-3, "max_new_tokens": 1}
    for charge, left in (({"kl_estimator": "k2", "kl_in": "loss"}, True), ({}, False)):
        metrics = list(tiny_trainer(**settings, **charge).run())[-1].metrics
        paid_in_full = metrics["reward/total"] == pytest.approx(metrics["reward/mean"])
        assert paid_in_full == left


def test_save_round_trips_policy_and_tokenizer(tmp_path):
    trainer = tiny_trainer()
    list(trainer.run())
    trainer.save(tmp_path)
    saved = type(trainer.reference).from_pretrained(tmp_path)
    assert weights_hash(saved) == weights_hash(trainer.model.policy)
    assert (tmp_path / "tokenizer.json").exists()


def broken(value):
    """A reward that is sound on the probe and broken on what is sampled."""
    return lambda _, texts: [0.0 if t in ("", "Yes.") else value for t in texts]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompts": []}, "no prompts"),
        ({"prompts": [[2], []]}, "prompt 1 is empty"),
        ({"prompts": [[2] * 20], "max_prompt_tokens": 10}, "ppo.max_prompt_tokens=10"),
        ({"prompts": [[2] * 60]}, "context of 64"),
        ({"prompts": [[99]]}, "vocabulary of 16"),
        ({"tokenizer": tiny_tokenizer(pad=None)}, "no padding token"),
        ({"reference": None}, "there is no reference; give the SFT model"),
        ({"critic_model": tiny_model()}, "a critic was given, but ppo.critic='shared'"),
        ({"baseline": "category_mean"}, "needs `categories`, one per prompt"),
        ({"categories": ["a"]}, "1 categories for 4 prompts"),
    ],
)
def test_bad_input_is_refused_before_any_work(changes, message):
    with pytest.raises(ValueError, match=message):
        tiny_trainer(**changes)


def test_a_tokenizer_without_end_of_text_is_refused():
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="no end-of-text token"):
        tiny_trainer(tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (lambda _, texts: [math.nan] * len(texts), "returned nan"),
        (lambda _, texts: [0.0] * (len(texts) + 1), "3 scores for 2 completions"),
        (lambda _, texts: {"mean": [0.0] * len(texts)}, "may not be named 'mean'"),
        (lambda _, __: {}, "no components"),
    ],
)
def test_a_broken_reward_is_found_before_anything_is_sampled(reward, message, monkeypatch):
    trainer = tiny_trainer(reward=reward)
    monkeypatch.setattr(trainer, "_rollout", lambda _: pytest.fail("sampled"))
    with pytest.raises(ValueError, match=message):
        next(trainer.run())


def test_a_reward_that_breaks_later_names_the_text():
    with pytest.raises(ValueError, match=r"returned inf .* for the completion"):
        next(tiny_trainer(reward=broken(math.inf)).run())


def test_weights_for_unknown_components_are_refused():
    with pytest.raises(ValueError, match="reward_weights names length"):
        next(tiny_trainer(reward_weights={"length": 1.0}).run())
    assert {"mean", "std", "min", "max"} <= RESERVED_COMPONENTS


def test_a_reference_that_shares_weights_is_refused():
    model = tiny_model()
    with pytest.raises(ValueError, match="share the parameter"):
        tiny_trainer(model=model, reference=model)


def test_divergence_goes_back_to_the_last_good_checkpoint(tmp_path):
    trainer = tiny_trainer(tmp_path, updates=4, checkpoint_every=1)
    run = trainer.run()
    next(run)
    next(run)
    kept = copy.deepcopy(trainer.model.state_dict())
    draw = trainer.sampler.draw

    def spoil(count):
        with torch.no_grad():
            next(trainer.model.policy.parameters()).fill_(math.nan)
        return draw(count)

    trainer.sampler.draw = spoil
    message = r"update 3: the policy's log-probabilities .* last good checkpoint.*update 2"
    with pytest.raises(TrainingDiverged, match=message):
        next(run)
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(tensor, kept[name]), name
    assert trainer.step == 2


def test_pad_equal_to_end_of_text_trains_the_same():
    runs = []
    for tokenizer in (tiny_tokenizer(), tiny_tokenizer(pad=EOS)):
        trainer = tiny_trainer(tokenizer=tokenizer)
        runs.append([untimed(update) for update in trainer.run()])
    for update in (*runs[0], *runs[1]):
        del update["completion/unseen_tokens"]  # token 1 is a word where it does not pad
    for ours, theirs in zip(*runs, strict=True):
        assert ours["completion/eos_rate"] == theirs["completion/eos_rate"]
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5)


def test_config_and_metrics_load_no_torch_and_the_engine_stands_alone():
    code = """
import sys
from pipeline.ppo.config import PPOConfig
import pipeline.ppo.metrics
PPOConfig()
assert "torch" not in sys.modules and "transformers" not in sys.modules
from pipeline.ppo import PPOTrainer
ours = {m.split(".")[0] for m in sys.modules} & {"trl", "gradio", "duckdb", "storage", "labeler"}
inside = [m for m in sys.modules if m.startswith("pipeline.") and not m.startswith("pipeline.ppo")]
assert not ours and not inside, (ours, inside)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert PPOConfig is type(tiny_config())
    assert PPOTrainer.__module__ == "pipeline.ppo.trainer"
