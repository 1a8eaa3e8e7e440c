"""PPO reaches the closed-form optimum of E[r] − β KL(π‖π_ref) on a small response space.

The optimum is π*(y) ∝ π_ref(y) exp(r(y) / β), and J* − J(π) = β KL(π‖π*) exactly.  Responses
are up to two tokens of a vocabulary of eight: 57 of them, all enumerated.
"""

import random

import pytest
import torch
from ppo_helpers import EOS, tiny_model, tiny_tokenizer, tiny_trainer
from torch import Tensor

VOCAB, PROMPT = 8, [2, 3]
RESPONSES = [[EOS], *([a, b] for a in range(1, VOCAB) for b in range(VOCAB))]
TOKENIZER = tiny_tokenizer(VOCAB)


def score(text: str) -> float:
    """A standard normal draw fixed by the text."""
    return random.Random(text).gauss(0, 1)


def text_of(response: list[int]) -> str:
    body = response[:-1] if response[-1] == EOS else response
    return str(TOKENIZER.decode(body, skip_special_tokens=True))


@torch.no_grad()
def response_logprobs(model) -> Tensor:
    """(57,) log-probability of every response, in fp64."""
    first = model(torch.tensor([PROMPT])).logits[0, -1].double().log_softmax(-1)
    longer = torch.tensor([[*PROMPT, a] for a in range(1, VOCAB)])
    second = model(longer).logits[:, -1].double().log_softmax(-1)
    both = first[1:, None] + second
    return torch.cat([first[:1], both.flatten()])


def kl(p: Tensor, q: Tensor) -> float:
    return (p.exp() * (p - q)).sum().item()


def distance_left(beta: float, **settings) -> float:
    """KL(π‖π*) after training over KL(start‖π*), the start being off the reference."""
    small = {"scale": 0.12, "num_hidden_layers": 1}
    reference, policy = (tiny_model(VOCAB, seed=seed, **small) for seed in (1, 2))
    rewards = torch.tensor([score(text_of(r)) for r in RESPONSES], dtype=torch.float64)
    optimum = (response_logprobs(reference) + rewards / beta).log_softmax(0)
    start = response_logprobs(policy)
    trainer = tiny_trainer(
        model=policy,
        reference=reference,
        tokenizer=TOKENIZER,
        prompts=[PROMPT],
        reward=lambda _, texts: [score(text) for text in texts],
        kl_weight=beta,
        max_new_tokens=2,
        packing="off",  # Four tokens a text: padding wastes nothing, and each text is a call less.
        # Fewer rollouts can miss a rare good response until the policy has all but dropped it.
        **{"rollouts": 1024, "minibatch": 512, "epochs": 2, "lr": 5e-3} | settings,
    )
    for _ in trainer.run():
        pass
    end = response_logprobs(policy)

    def gain(p: Tensor) -> float:
        # J = E[r] − β KL(π‖π_ref), from its definition.
        return (p.exp() * rewards).sum().item() - beta * kl(p, response_logprobs(reference))

    best = gain(optimum)
    shortfall = (best - gain(end)) / (best - gain(start))
    assert shortfall == pytest.approx(kl(end, optimum) / kl(start, optimum), rel=1e-6, abs=1e-9)
    return shortfall


@pytest.mark.parametrize("beta", [0.1, 0.3, 1.0, 10.0])
def test_reaches_the_closed_form_optimum(beta):
    assert distance_left(beta, updates=40) <= 0.01


@pytest.mark.parametrize("beta", [0.1, 0.3, 1.0, 10.0])
def test_reaches_it_with_a_critic_of_its_own(beta):
    assert distance_left(beta, updates=30, critic="separate") <= 0.01


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.1, 0.3, 1.0, 10.0])
def test_comes_closer_in_a_longer_run(beta):
    assert distance_left(beta, updates=120) <= 0.002


def test_an_engine_that_hardly_trains_does_not():
    assert distance_left(1.0, updates=1, lr=1e-9) == pytest.approx(1.0, abs=1e-3)
