"""A world small enough to enumerate, and how much of the way to its optimum a PPO run leaves.

max E[r] − β KL(π‖π_ref) has the solution π*(y) ∝ π_ref(y) exp(r(y) / β), and J* − J(π) =
β KL(π‖π*) exactly.  Responses are up to `tokens` tokens (1 or 2) of a vocabulary of eight.
"""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.ppo_helpers import EOS, tiny_model, tiny_tokenizer, tiny_trainer

VOCAB, PROMPT = 8, [2, 3]

RAW = {"whiten_advantages": False}
RLOO, GROUP_MEAN = {"baseline": "leave_one_out"}, {"baseline": "group_mean"}
GROUPS: dict[str, dict[str, Any]] = {
    "rloo": RLOO | RAW | {"ratio_level": "response", "loss_mean": "response"},
    "grpo": GROUP_MEAN | RAW | {"group_scaling": "std", "loss_mean": "response"},
    "dr-grpo": GROUP_MEAN | RAW | {"loss_mean": "constant"},
    "dapo": GROUP_MEAN | RAW | {"group_scaling": "std", "clip_high": 0.28, "dynamic_sampling": 2},
    "reinforce++": {"baseline": "return_to_go"},
    "reinforce++-baseline": GROUP_MEAN,
}
"""Group methods as settings: baseline, scaling, mean of the loss, level of the ratio."""
METHODS: dict[str, dict[str, Any]] = {
    "shared critic": {},
    "separate critic": {"critic": "separate"},
    "separate critic, LoRA": {"critic": "separate", "critic_lora_rank": 4},
    "return_to_go": {"baseline": "return_to_go"},
    "category_mean": {"baseline": "category_mean"},
    "leave_one_out": RLOO,
} | GROUPS
"""Every way to make advantages."""
TOKENIZER = tiny_tokenizer(VOCAB)


def score(text: str) -> float:
    """A standard normal draw fixed by the text."""
    return random.Random(text).gauss(0, 1)


def all_responses(tokens: int) -> list[list[int]]:
    """Every response, 8 of one token or 57 of at most two."""
    if tokens == 1:
        return [[a] for a in range(VOCAB)]
    return [[EOS], *([a, b] for a in range(1, VOCAB) for b in range(VOCAB))]


def text_of(response: list[int]) -> str:
    body = response[:-1] if response[-1] == EOS else response
    return str(TOKENIZER.decode(body, skip_special_tokens=True))


@torch.no_grad()
def response_logprobs(model: Any, tokens: int) -> Tensor:
    """(responses,) log-probability of every response, in fp64."""
    first = model(torch.tensor([PROMPT])).logits[0, -1].double().log_softmax(-1)
    if tokens == 1:
        return first
    longer = torch.tensor([[*PROMPT, a] for a in range(1, VOCAB)])
    second = model(longer).logits[:, -1].double().log_softmax(-1)
    return torch.cat([first[:1], (first[1:, None] + second).flatten()])


def kl(p: Tensor, q: Tensor) -> float:
    return (p.exp() * (p - q)).sum().item()


def distance_left(
    beta: float,
    *,
    tokens: int = 2,
    from_reference: bool = False,
    size: dict[str, Any] | None = None,
    **settings: Any,
) -> float:
    """KL(π‖π*) after training over KL(start‖π*); the start is off the reference unless told.

    `size` changes the model's configuration.
    """
    small = {"scale": 0.12, "num_hidden_layers": 1} | (size or {})
    reference = tiny_model(VOCAB, seed=1, **small)
    policy = copy.deepcopy(reference) if from_reference else tiny_model(VOCAB, seed=2, **small)
    responses = all_responses(tokens)
    rewards = torch.tensor([score(text_of(r)) for r in responses], dtype=torch.float64)
    anchor = response_logprobs(reference, tokens)
    optimum = (anchor + rewards / beta).log_softmax(0)
    start = response_logprobs(policy, tokens)
    trainer = tiny_trainer(
        model=policy,
        reference=reference,
        tokenizer=TOKENIZER,
        prompts=[PROMPT],
        categories=["all"] if settings.get("baseline") == "category_mean" else None,
        reward=lambda _, texts: [score(text) for text in texts],
        kl_weight=beta,
        max_new_tokens=tokens,
        packing="off",  # Few tokens a text: padding wastes nothing, and each text is a call less.
        # Fewer rollouts can miss a rare good response until the policy has all but dropped it.
        **{"rollouts": 1024, "minibatch": 512, "epochs": 2, "lr": 5e-3} | settings,
    )
    for _ in trainer.run():
        pass
    end = response_logprobs(policy, tokens)

    def gain(p: Tensor) -> float:
        # J = E[r] − β KL(π‖π_ref), from its definition.
        return (p.exp() * rewards).sum().item() - beta * kl(p, anchor)

    best = gain(optimum)
    shortfall = (best - gain(end)) / (best - gain(start))
    assert shortfall == pytest.approx(kl(end, optimum) / kl(start, optimum), rel=1e-6, abs=1e-9)
    return shortfall
