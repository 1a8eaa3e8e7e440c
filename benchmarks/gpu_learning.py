"""Does PPO learn with fifty million parameters?  Uses the demo's corpus and a larger model on one
GPU.

    python -m benchmarks.gpu_learning --out DIR [--hidden 640 --layers 10] [--updates 100]

    corpus ─▶ SFT ─▶ two answers per prompt, judged by the hidden preference ─▶ reward model ─▶ PPO

Writes learning.json and learning.svg (reward and KL by update).  Needs only torch, transformers and
matplotlib: a short loop here trains SFT and the reward model, and the engine runs PPO.  The exit
status is 1 if the reward rises by less than one standard deviation of the SFT model's rewards.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid
from transformers import LlamaConfig, LlamaForCausalLM

from pipeline.demo import MODEL_DIR
from pipeline.demo.corpus import examples, prompts
from pipeline.models.padding import pad_right
from pipeline.models.text import ChatTokenizer
from pipeline.ppo import PPOConfig, PPOTrainer, generate
from pipeline.ppo.algorithm import length_mask
from pipeline.ppo.network.model import autocast, detect_device, resolve_precision
from pipeline.reward.network import from_language_model
from pipeline.simulation.preference import score as gold

NEW_TOKENS = 48


def fit(
    model: Any, steps: int, lr: float, loss_of: Callable[[int], Tensor], say: str, precision: str
) -> None:
    """Train with AdamW and a cosine schedule to zero; `loss_of(step)` is the loss of a batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    model.train()
    for step in range(steps):
        with autocast(precision, model.device):
            loss = loss_of(step)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % max(1, steps // 20) == 0:
            print(f"{say}: step {step} of {steps}, loss {loss.item():.3f}", flush=True)
    model.eval()


class Study:
    """The stages; each uses the result of the previous one."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = detect_device()
        self.precision = resolve_precision("auto", self.device)
        self.chat = ChatTokenizer.load(str(MODEL_DIR))
        train = [messages for role, messages, _ in prompts() if role == "train"]
        self.talks = train[: options.prompts]
        self.asked = [talk[-1]["content"] for talk in self.talks]
        self.ids = [self.chat.prompt(talk) for talk in self.talks]

    def sft(self) -> Any:
        """A new Llama, trained for one pass over the corpus's rows."""
        options = self.options
        torch.manual_seed(0)
        tokenizer = self.chat.tokenizer
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer), hidden_size=options.hidden,
                intermediate_size=options.hidden * 8 // 3, num_hidden_layers=options.layers,
                num_attention_heads=options.hidden // 64, max_position_embeddings=512,
                tie_word_embeddings=True, bos_token_id=None,
                eos_token_id=self.chat.end_id, pad_token_id=self.chat.pad_id,
            )
        ).to(self.device)  # type: ignore[arg-type]  # fmt: skip
        print(f"{model.num_parameters():,} parameters on {self.device}", flush=True)
        rows = [self.chat.chat(talk, text) for talk, text, _ in examples(options.rows, 0)]
        random.Random(0).shuffle(rows)

        def loss_of(step: int) -> Tensor:
            some = rows[step * options.batch : (step + 1) * options.batch]
            batch = pad_right([r.ids for r in some], self.chat.pad_id)
            ids, mask = (each.to(self.device) for each in batch.values())
            starts = torch.tensor([r.prompt_tokens for r in some], device=self.device)
            answers = mask.bool() & ~length_mask(starts, ids.shape[1])
            logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
            return cross_entropy(logits[answers[:, 1:]], ids[:, 1:][answers[:, 1:]])

        fit(model, len(rows) // options.batch, options.sft_lr, loss_of, "SFT", self.precision)
        return model

    def answers(self, model: Any, seed: int) -> list[str]:
        with autocast(self.precision, self.device):
            rollout = generate(
                model, self.ids, eos_token_ids=self.chat.stop_ids, pad_token_id=self.chat.pad_id,
                max_new_tokens=NEW_TOKENS, generator=torch.Generator().manual_seed(seed),
            )  # fmt: skip
        return [self.chat.decode(row) for row in rollout.token_lists()]

    def reward_model(self, path: Path, sft: Any) -> Any:
        """Bradley-Terry on pairs of the SFT model's answers, judged with noise by the preference."""
        sides = [self.answers(sft, seed) for seed in (1, 2)]
        dice, pairs = random.Random(0), []
        for talk, asked, one, other in zip(self.talks, self.asked, *sides, strict=True):
            better = torch.sigmoid(torch.tensor(2 * (gold(asked, one) - gold(asked, other))))
            first = dice.random() < better.item()
            won, lost = (one, other) if first else (other, one)
            pairs.append((self.chat.chat(talk, won).ids, self.chat.chat(talk, lost).ids))
        network = from_language_model(str(path), self.chat).to(self.device)
        size = 32

        def loss_of(step: int) -> Tensor:
            some = pairs[step * size % len(pairs) :][:size]
            texts = [won for won, _ in some] + [lost for _, lost in some]
            chosen, rejected = self.rewards(network, texts).chunk(2)
            return -logsigmoid(chosen - rejected).mean()

        fit(network, 2 * len(pairs) // size, 1e-4, loss_of, "reward model", self.precision)
        return network

    def rewards(self, network: Any, texts: Sequence[Sequence[int]]) -> Tensor:
        batch = pad_right(texts, self.chat.pad_id)
        return network(**{name: each.to(self.device) for name, each in batch.items()}).logits.mean(
            -1
        )

    def ppo(self, path: Path, network: Any) -> tuple[list[dict[str, float]], float]:
        """Metrics of every update, and the total seconds."""

        @torch.no_grad()
        def reward(indices: list[int], texts: list[str]) -> list[float]:
            both = zip(indices, texts, strict=True)
            with autocast(self.precision, self.device):
                ids = [self.chat.chat(self.talks[i], text).ids for i, text in both]
                return self.rewards(network, ids).float().tolist()

        config = PPOConfig(
            updates=self.options.updates, rollouts=128, minibatch=32, epochs=4, lr=3e-5,
            kl_weight=0.05, target_kl=0.1, max_new_tokens=NEW_TOKENS, score_scaling="running",
            checkpoint_every=0,
        )  # fmt: skip
        policy, reference = (LlamaForCausalLM.from_pretrained(path) for _ in range(2))
        trainer = PPOTrainer(policy, reference, self.chat.tokenizer, self.ids, reward, config)
        start, metrics = time.perf_counter(), []
        for update in trainer.run():
            metrics.append(update.metrics)
            said = (update.metrics["reward/mean"], update.metrics["kl/reference"])
            print(f"PPO: update {update.step}: reward {said[0]:.2f}, KL {said[1]:.2f}", flush=True)
        return metrics, time.perf_counter() - start


def plot(metrics: Sequence[dict[str, float]], path: Path) -> None:
    """Reward and KL by update, on one plot with two scales."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(7, 4), layout="constrained")
    left = figure.add_subplot()
    right = left.twinx()
    updates = range(1, len(metrics) + 1)
    series = ((left, "reward/mean", "reward", "C0"), (right, "kl/reference", "KL, nats", "C1"))
    for axes, name, label, color in series:
        axes.plot(updates, [m[name] for m in metrics], color=color)
        axes.set_ylabel(label, color=color)
        axes.spines[["top"]].set_visible(False)
    left.set_xlabel("update")
    figure.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--hidden", type=int, default=640, help="a multiple of 64")
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--rows", type=int, default=120_000, help="of the corpus, for SFT")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--sft-lr", type=float, default=6e-4)
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--updates", type=int, default=100)
    options = parser.parse_args()
    study = Study(options)
    path = options.out / "sft"
    sft = study.sft()
    sft.save_pretrained(path)
    study.chat.tokenizer.save_pretrained(path)
    network = study.reward_model(path, sft)
    del sft
    metrics, seconds = study.ppo(path, network)
    rewards = [m["reward/mean"] for m in metrics]
    gain = (fmean(rewards[-5:]) - fmean(rewards[:5])) / metrics[0]["reward/std"]
    found = {
        "device": str(study.device),
        "gain_sd": gain,
        "kl": fmean(m["kl/reference"] for m in metrics[-5:]),
        "noise_sd": pstdev(rewards[-5:]),
        "seconds_per_update": seconds / len(metrics),
        "metrics": metrics,
    }
    (options.out / "learning.json").write_text(json.dumps(found, indent=1))
    plot(metrics, options.out / "learning.svg")
    print(json.dumps({k: v for k, v in found.items() if k != "metrics"}, indent=1))
    return int(gain < 1)


if __name__ == "__main__":
    sys.exit(main())
