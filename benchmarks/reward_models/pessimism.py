"""Pessimistic fine-tuning of a reward model against best of four.

PET (arXiv:2505.20556) goes on training the reward model on its judgments and adds

    weight · mean over prompts of (reward of the answer with the highest reward − mean reward),

the gain that the reward model promises for best-of-n of the reference.  So only promises stay that the
judgments support.
"""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.demo_world import ANSWERS, Fitted, World
from pipeline.config.reward import RewardConfig
from pipeline.models.padding import pad_right
from pipeline.models.text import ChatTokenizer
from pipeline.reward.data import PairCollator, training_rows
from pipeline.reward.trainer import judgment_losses

PROMPTS = 16
"""Prompts of a step."""


def train_further(
    fitted: Fitted, world: World, config: RewardConfig, weight: float, chat: ChatTokenizer
) -> None:
    """Train the network of `fitted` for one more pass, in place; the learning rate falls linearly to 0."""
    network = fitted.model.network
    rows = training_rows(fitted.learned, network.likelihood.tie_model, heads=network.members)
    texts = [
        chat.chat(world.conversations[n], world.texts[n]).ids
        for n in range(world.held_out * ANSWERS)
    ]
    coin = np.random.default_rng([world.seed, 11])
    collate = PairCollator(chat.pad_id)
    order = coin.permutation(len(rows)).tolist()
    steps = [order[at : at + config.batch] for at in range(0, len(order), config.batch)]
    trained = [each for each in network.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=config.lr / 8, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 - n / len(steps))
    for step in steps:
        inputs = collate([rows[n] for n in step])
        found = network(inputs["input_ids"], inputs["attention_mask"], inputs["annotators"])
        loss = judgment_losses(
            network.likelihood, found.logits[:, :1], inputs, found.ties, found.slope, found.bias
        ).mean()
        if found.penalty is not None:
            loss = loss + found.penalty / len(rows)
        prompts = coin.choice(world.held_out, size=min(PROMPTS, world.held_out), replace=False)
        asked = [texts[n] for prompt in prompts for n in world.answers(int(prompt))]
        rewards = network(**pad_right(asked, chat.pad_id)).logits[:, :1].view(-1, ANSWERS)
        loss = loss + weight * (rewards.amax(1) - rewards.mean(1)).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
    network.eval()
