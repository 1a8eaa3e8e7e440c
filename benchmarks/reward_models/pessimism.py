"""Pessimistic fine-tuning of a reward model against best of four.

PET (arXiv:2505.20556) goes on training the reward model on its judgments and adds

    weight · mean over prompts of (reward of the answer with the highest reward − mean reward),

the gain that the reward model promises for best-of-n of the reference.  So only promises stay that the
judgments support.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.demo_world import ANSWERS, Fitted, World
from pipeline.config.reward import RewardConfig
from pipeline.models.padding import pad_right
from pipeline.models.text import ChatTokenizer
from pipeline.reward.annotators import effective
from pipeline.reward.data import PairCollator, annotator_ids, training_rows
from pipeline.reward.likelihood import TieValues

PROMPTS = 16
"""Prompts of a step."""
EPOCHS = 1
"""Passes over the judgments."""


def train_further(
    fitted: Fitted, world: World, config: RewardConfig, weight: float, chat: ChatTokenizer
) -> None:
    """Train the network of `fitted` further, in place; the learning rate falls linearly to 0."""
    network = fitted.model.network
    rows = training_rows(fitted.learned, network.likelihood.tie_model, heads=network.members)
    known = list(network.annotators.ids) if network.annotators is not None else None
    if known is not None and known != annotator_ids(fitted.learned):
        raise ValueError("the network has other annotators than the judgments")
    texts = [
        chat.chat(world.conversations[n], world.texts[n]).ids
        for n in range(world.held_out * ANSWERS)
    ]
    coin = np.random.default_rng([world.seed, 11])
    collate = PairCollator(chat.pad_id)
    order = [n for _ in range(EPOCHS) for n in coin.permutation(len(rows)).tolist()]
    steps = [order[at : at + config.batch] for at in range(0, len(order), config.batch)]
    trained = [each for each in network.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=config.lr / 8, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 - n / len(steps))
    for step in steps:
        loss = judgment_loss(network, collate([rows[n] for n in step]), len(rows))
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


def judgment_loss(network: Any, inputs: dict[str, Tensor], judgments: int) -> Tensor:
    """The mean negative log-likelihood of a batch's judgments, as the reward stage's."""
    outputs = network(inputs["input_ids"], inputs["attention_mask"], inputs["annotators"])
    first, second = outputs.logits[:, :1].chunk(2)
    z = first - second
    if outputs.slope is not None:
        z = effective(z.T, outputs.slope, outputs.bias, inputs["side"]).T
    losses = network.likelihood.loss(
        z,
        inputs["outcomes"][:, None],
        ties=TieValues(*outputs.ties),
        strength=inputs["strength"][:, None],
        level=(first + second) / 2,
    )
    penalty = 0.0 if outputs.penalty is None else outputs.penalty / judgments
    return losses.mean() + penalty


def promise(fitted: Fitted, world: World) -> dict[str, float]:
    """The gold gain of best of four over the mean answer, and the reward's, in sd of the rewards."""
    start = world.held_out_answers().start
    found = fitted.model(world.conversations[start:], world.texts[start:])
    rewards = np.array(found).reshape(-1, ANSWERS)
    gold = world.gold[start:].reshape(-1, ANSWERS)
    best = gold[np.arange(len(gold)), rewards.argmax(1)]
    return {
        "best_of_4": float((best - gold.mean(1)).mean()),
        "promised": float((rewards.max(1) - rewards.mean(1)).mean() / rewards.std()),
    }
