"""One update's gradient on a stored batch is that of TRL's GRPOTrainer and RLOOTrainer."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import trl
from datasets import Dataset
from torch import Tensor

from pipeline.ppo.rollouts import rollout
from tests.helpers.ppo_helpers import EOS, PAD, PROMPTS, tiny_model, tiny_tokenizer, tiny_trainer

GROUP, TOKENS = 4, 6
TOKENIZER = tiny_tokenizer()


def score(text: str) -> float:
    """Words differ in worth, so that rewards within a group differ; longer texts may cost."""
    return sum(((int(word[1:]) * 7) % 5 - 2) / 2 for word in text.split())


def policy_and_old() -> tuple[Any, Any]:
    """The policy, and the slightly different one that sampled: some ratios are beyond the clip."""
    old = tiny_model(seed=1)
    policy = copy.deepcopy(old)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in policy.parameters():
            weight += 0.03 * torch.randn(weight.shape, generator=generator)
    return policy, old


@pytest.fixture(scope="module")
def stored() -> rollout.Rollout:
    """Responses of the old policy, four to each of four prompts of different lengths."""
    rows = [prompt for prompt in PROMPTS for _ in range(GROUP)]
    return rollout.generate(
        policy_and_old()[1],
        rows,
        eos_token_ids=[EOS],
        pad_token_id=PAD,
        max_new_tokens=TOKENS,
        generator=torch.Generator().manual_seed(0),
    )


def engine_gradient(stored: rollout.Rollout, **settings: Any) -> dict[str, Tensor]:
    """By name, the gradient of the first step of an update on the stored responses."""
    policy, _ = policy_and_old()
    trainer = tiny_trainer(
        model=policy,
        reference=tiny_model(seed=2),
        tokenizer=TOKENIZER,
        reward=lambda _, texts: [score(text) for text in texts],
        **{"rollouts": 16, "minibatch": 16, "epochs": 1, "whiten_advantages": False} | settings,
    )

    class Stored:
        foreign = False

        def __call__(self, *_: Any) -> rollout.Rollout:
            return stored

    trainer.backend = Stored()
    trainer.sampler.draw = lambda count: list(range(count))
    found: dict[str, Tensor] = {}

    def keep(_: Any) -> None:
        found.update(
            {n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None}
        )

    trainer.learner._step = keep
    metrics = trainer._update().metrics
    # Otherwise neither the ratio nor the clip would be tested.
    assert metrics["policy/clip_fraction"] > 0.1
    return found


def trl_gradient(trainer: Any, stored: rollout.Rollout, policy: Any) -> dict[str, Tensor]:
    """The gradient of TRL's loss in the policy; the trainer still has the old policy."""
    responses = stored.token_lists()
    rows = [prompt for prompt in PROMPTS for _ in range(GROUP)]
    texts = [TOKENIZER.decode(ids, skip_special_tokens=True) for ids in responses]
    logprobs, fields, images = None, {}, None
    made = (rows, responses, None, texts, logprobs, fields, images, [])
    is_grpo = isinstance(trainer, trl.GRPOTrainer)
    trainer._generate = lambda _: made if is_grpo else (rows, responses, texts)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    inputs = trainer._generate_and_score_completions([{"prompt": str(row)} for row in rows])
    assert "old_per_token_logps" in inputs or "old_logps" in inputs
    trainer.model.load_state_dict(policy.state_dict())
    trainer._compute_loss(trainer.model, inputs).backward()
    return {n: p.grad for n, p in trainer.model.named_parameters() if p.grad is not None}


def trl_trainer(kind: Any, config: Any, folder: Path, **settings: Any) -> Any:
    common = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 16,
        "num_generations": GROUP,
        "max_completion_length": TOKENS,
        "num_iterations": 2,  # so that TRL keeps the old log-probabilities
        "epsilon": 0.2,
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "disable_dropout": True,
        "gradient_checkpointing": False,
    }
    model = policy_and_old()[1]
    if settings["beta"]:  # TRL loads the reference from the policy's path
        tiny_model(seed=2).save_pretrained(folder / "reference")
        model.config.name_or_path = str(folder / "reference")
    return kind(
        model=model,
        reward_funcs=lambda completions, **_: [score(text) for text in completions],
        args=config(**common | settings),
        train_dataset=Dataset.from_dict({"prompt": ["w2"] * 16}),
        processing_class=TOKENIZER,
    )


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert theirs.keys() <= ours.keys()
    largest = max(grad.abs().max().item() for grad in theirs.values())
    assert largest > 1e-2
    for name, grad in theirs.items():
        torch.testing.assert_close(ours[name], grad, rtol=0, atol=1e-5 * max(largest, 1), msg=name)


MEANS = {"token": "dapo", "response": "grpo", "constant": "dr_grpo"}


@pytest.mark.parametrize("loss_mean", [*MEANS])
@pytest.mark.parametrize("scaling", ["std", "none"])
def test_grpo_has_the_gradient_of_trls(stored, tmp_path, loss_mean, scaling):
    scale = {"std": "group", "none": "none"}[scaling]
    theirs = trl_trainer(
        trl.GRPOTrainer, trl.GRPOConfig, tmp_path, beta=0.0, loss_type=MEANS[loss_mean],
        scale_rewards=scale, epsilon_high=0.28,
    )  # fmt: skip
    ours = engine_gradient(
        stored,
        baseline="group_mean",
        group_scaling=scaling,
        loss_mean=loss_mean,
        clip_high=0.28,
        kl_weight=0.0,
    )
    assert_close(ours, trl_gradient(theirs, stored, policy_and_old()[0]))


@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_rloo_has_the_gradient_of_trls(stored, tmp_path, beta):
    theirs = trl_trainer(trl.RLOOTrainer, trl.RLOOConfig, tmp_path, beta=beta)
    ours = engine_gradient(
        stored,
        baseline="leave_one_out",
        ratio_level="response",
        loss_mean="response",
        kl_weight=beta,
    )
    assert_close(ours, trl_gradient(theirs, stored, policy_and_old()[0]))
