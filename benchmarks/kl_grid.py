"""How close PPO gets to the closed-form optimum, for every combination of KL settings.

    python -m benchmarks.kl_grid [--beta 1.0] [--updates 40] [--tokens 1 2]

Rows are `kl_estimator` × `kl_in`; columns are critics and baselines.  A cell is KL(π‖π*) after
training divided by KL(start‖π*), or "refused".  With one token the policy starts at the reference;
with two it starts elsewhere.
"""

from __future__ import annotations

import argparse
from itertools import product

import torch

from benchmarks.common import markdown, row_of
from pipeline.ppo import PPOConfig
from tests.helpers.closed_form import distance_left

BASELINES = {
    "shared critic": {},
    "separate critic": {"critic": "separate"},
    "return to go": {"baseline": "return_to_go"},
    "category mean": {"baseline": "category_mean"},
    "separate, no critic": {"critic": "separate", "baseline": "return_to_go"},
}


def cell(beta: float, tokens: int, updates: int, **settings: str) -> str:
    """The remaining KL in percent, or "refused" for invalid settings."""
    try:
        PPOConfig(**settings)  # pyright: ignore[reportArgumentType]
    except ValueError:
        return "refused"
    from_reference = tokens == 1
    left = distance_left(
        beta, tokens=tokens, from_reference=from_reference, updates=updates, **settings
    )
    return f"{left:.2%}"


def main() -> None:
    parser = argparse.ArgumentParser(description="PPO against the closed form, grid of KL settings")
    parser.add_argument("--beta", type=float, nargs="+", default=[1.0])
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--tokens", type=int, nargs="+", choices=(1, 2), default=[1, 2])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for beta, tokens in product(arguments.beta, arguments.tokens):
        print(f"\nβ {beta}, responses of {tokens} token(s), {arguments.updates} updates\n")
        print(markdown(("`kl_estimator`", "`kl_in`", *BASELINES), ()))
        for estimator, place in product(("k1", "k2", "k3", "abs", "full"), ("reward", "loss")):
            cells = [
                cell(
                    beta, tokens, arguments.updates, kl_estimator=estimator, kl_in=place, **settings
                )
                for settings in BASELINES.values()
            ]
            print(row_of((estimator, place, *cells)), flush=True)


if __name__ == "__main__":
    main()
