"""One process of TRL 1.12's PPOTrainer, controlled by the driver.  Runs in TRL's environment."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl.experimental.ppo import PPOConfig, PPOTrainer  # type: ignore[import-not-found]
from trl.experimental.ppo import ppo_trainer as inside  # type: ignore[import-not-found]

from benchmarks.ppo import case as work


class Paced(TrainerCallback):
    """Holds the trainer between updates."""

    def __init__(self, device: str) -> None:
        self.pacer = work.Pacer(device)

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        work.say(ready=True)
        self._hold()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.pacer.report()
        self._hold()

    def _hold(self) -> None:
        if not self.pacer.wait():
            sys.exit()


def losses(case: work.Case, batch: Path) -> None:
    """Policy and value loss of TRL's training loop on a stored batch of right-padded responses."""
    given = torch.load(batch, weights_only=True)
    policy, critic = case.policy(), case.scorer(2)
    responses, mask, start = given["responses"], given["mask"], given["prompt_width"]
    with torch.no_grad():
        wrapped = inside.PolicyAndValueWrapper(policy, critic)
        output, values = inside.forward(wrapped, given["query_responses"], work.PAD)
        logprobs = inside.selective_log_softmax(output.logits[:, start - 1 : -1], responses)
        values = values[:, start - 1 : -1].squeeze(-1)
        gain = given["advantages"] * torch.exp(logprobs - given["logprobs"])
        held = given["advantages"] * torch.clamp(torch.exp(logprobs - given["logprobs"]), 0.8, 1.2)
        near = torch.clamp(values, given["values"] - 0.2, given["values"] + 0.2)
        errors = [torch.square(v - given["returns"]) for v in (values, near)]
        work.say(
            policy=inside.masked_mean(torch.max(-gain, -held), mask).item(),
            value=0.5 * inside.masked_mean(torch.max(*errors), mask).item(),
        )


def main() -> None:
    """Train, or compute the losses for the check."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--size", default="S")
    parser.add_argument("--no-eos", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--losses", type=Path)
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    case = work.Case(options.size, not options.no_eos, options.device)
    sys.stdout = sys.stderr
    if options.losses:
        losses(case, options.losses)
    else:
        train(case)


def train(case: work.Case) -> None:
    """One update whenever the driver says "go"."""
    size, cpu = case.size, case.device == "cpu"
    with tempfile.TemporaryDirectory() as out:
        args = PPOConfig(
            output_dir=out,
            per_device_train_batch_size=size.prompts,
            gradient_accumulation_steps=1,
            num_mini_batches=size.prompts // size.minibatch,
            num_ppo_epochs=work.EPOCHS,
            total_episodes=size.prompts * 1000,
            local_rollout_forward_batch_size=size.prompts if cpu else size.minibatch,
            response_length=size.new_tokens,
            stop_token="eos",
            missing_eos_penalty=1.0,
            temperature=1.0,
            learning_rate=work.LR,
            optim="adamw_torch_fused",
            kl_coef=0.05,
            bf16=not cpu,
            use_cpu=cpu,
            gradient_checkpointing=False,
            num_sample_generations=0,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = PPOTrainer(
            args=args,
            processing_class=work.tokenizer(size),
            model=case.policy(),
            ref_model=case.policy(),
            reward_model=case.scorer(1),
            value_model=case.scorer(2),
            train_dataset=Dataset.from_dict({"input_ids": work.prompts(size)}),
            callbacks=[Paced(case.device)],
        )
        trainer.train()


if __name__ == "__main__":
    main()
