"""One process of this project's PPOTrainer, controlled by the driver."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from benchmarks.ppo import case as work
from pipeline.ppo import PPOConfig, PPOTrainer
from pipeline.ppo.algorithm import MinibatchSize
from pipeline.ppo.learner import JOINT
from pipeline.ppo.network.packing import last_states

VARIANTS: dict[str, dict[str, Any]] = {
    "separate-fp32": {"critic": "separate", "micro_batch_tokens": 256},
    "shared-fp32": {},
    "lora-fp32": {"lora_rank": 16},
    "shared-bf16": {"precision": "bf16"},
    "lora-bf16": {"lora_rank": 16, "precision": "bf16"},
}


class Scorer:
    """The reward model behind a text-in callable."""

    def __init__(self, model: Any, prompts: list[list[int]], tokenizer: Any, bf16: bool) -> None:
        self.model, self.prompts, self.tokenizer, self.bf16 = model, prompts, tokenizer, bf16

    @torch.no_grad()
    def __call__(self, indices: list[int], texts: list[str]) -> list[float]:
        ids = [
            self.prompts[i] + self.tokenizer(text, add_special_tokens=False)["input_ids"]
            for i, text in zip(indices, texts, strict=True)
        ]
        device = self.model.device
        with torch.autocast(device.type, torch.bfloat16, enabled=self.bf16):
            if device.type == "cpu":
                last = last_states(self.model.model, ids)
            else:
                rows = [torch.tensor(row, device=device) for row in ids]
                padded = pad_sequence(rows, batch_first=True, padding_value=work.PAD)
                hidden = self.model.model(input_ids=padded, use_cache=False).last_hidden_state
                ends = torch.tensor([len(row) - 1 for row in ids], device=device)
                last = hidden[torch.arange(len(ids), device=device), ends]
            return self.model.score(last)[:, 0].tolist()


def trainer_of(case: work.Case, variant: str, **changes: Any) -> PPOTrainer:
    """The engine's trainer for the benchmark's workload."""
    settings = VARIANTS[variant]
    size = case.size
    prompts, tokenizer = work.prompts(size), work.tokenizer(size)
    bf16 = settings.get("precision") == "bf16"
    config = PPOConfig(
        **{
            "updates": 100_000,
            "rollouts": size.prompts,
            "minibatch": size.minibatch,
            "epochs": work.EPOCHS,
            "lr": work.LR,
            "schedule": "constant",
            "max_new_tokens": size.new_tokens,
            "checkpoint_every": 0,
            "precision": "fp32",
        }
        | settings
        | changes
    )
    separate = config.critic == "separate"
    return PPOTrainer(
        case.policy(),
        None if config.lora_rank else case.policy(),
        tokenizer,
        prompts,
        Scorer(case.scorer(1).to(case.device), prompts, tokenizer, bf16),
        config,
        critic=case.scorer(2) if separate else None,
        device=case.device,
    )


def gate(case: work.Case, path: Path) -> None:
    """Check sampled log-probabilities; store a batch and this engine's losses on it."""
    trainer = trainer_of(case, "separate-fp32")
    order = list(range(case.size.minibatch))
    batch = trainer._rollout(order)
    mask = batch.mask
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        again, _ = trainer.learner.logits(trainer.model, batch)
        off = again.log_softmax(-1).gather(1, batch.tokens[mask][:, None])[:, 0]
        difference = (off - batch.sampler_logprobs[mask]).abs().max().item()
    noise = {
        name: torch.where(mask, torch.randn(mask.shape, generator=generator) * scale, 0)
        for name, scale in (("advantages", 1.0), ("returns", 1.0), ("values", 0.1), ("shift", 0.2))
    }
    logprobs = batch.sampler_logprobs + noise["shift"]
    batch.old_logprobs = batch.ref_logprobs = logprobs
    batch.importance_weights = None
    batch.values, batch.returns = noise["values"], noise["returns"]
    batch.advantages = noise["advantages"]
    with torch.no_grad():
        losses = trainer.learner._losses(
            batch, MinibatchSize(int(mask.sum()), len(mask)), JOINT[0], 0.0
        )
        found = trainer.learner._summed(list(losses))
    widest = max(len(trainer.prompts[i]) for i in order)
    left = [[work.PAD] * (widest - len(trainer.prompts[i])) + trainer.prompts[i] for i in order]
    torch.save(
        {
            "query_responses": torch.cat([torch.tensor(left), batch.tokens], 1),
            "responses": batch.tokens,
            "mask": mask,
            "prompt_width": widest,
            "logprobs": logprobs,
        }
        | {name: noise[name] for name in ("advantages", "returns", "values")},
        path,
    )
    work.say(logprobs=difference, policy=found["policy"], value=found["value"])


def main() -> None:
    """Train, or compute the inputs of the checks."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--size", default="S")
    parser.add_argument("--no-eos", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--variant", default="shared-fp32", choices=VARIANTS)
    parser.add_argument("--gate", type=Path)
    parser.add_argument("--peak", action="store_true", help="measure sgemm and end")
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    sys.stdout = sys.stderr
    case = work.Case(options.size, not options.no_eos, options.device)
    if options.peak:
        work.say(gflops=work.sgemm_peak())
    elif options.gate:
        gate(case, options.gate)
    else:
        train(case, options.variant)


def train(case: work.Case, variant: str) -> None:
    """One update whenever the driver says "go"."""
    run = trainer_of(case, variant).run()
    pacer = work.Pacer(case.device)
    work.say(ready=True)
    while pacer.wait():
        metrics = next(run).metrics
        phases = {k.split("/")[1]: v for k, v in metrics.items() if k.endswith("_seconds")}
        pacer.report(tokens=metrics["completion/length_mean"] * case.size.prompts, **phases)


if __name__ == "__main__":
    main()
