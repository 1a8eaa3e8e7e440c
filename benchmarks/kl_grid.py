"""How close PPO gets to the closed-form optimum, for every combination of KL form, method and sampler.

    python -m benchmarks.kl_grid [--beta 1.0] [--updates 40] [--tokens 1 2] [--samplers own …] [--most 2]

Rows are methods: baseline, critic, scaling, mean and level of the ratio.  Columns are `kl_estimator` ×
`kl_in`.  A cell is KL(π‖π*) after training divided by KL(start‖π*), or "refused".  With one token the
policy starts at the reference; with two it starts elsewhere.  The exit status is 1 if a cell leaves
more than `--most` percent.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from typing import Any

import torch

from benchmarks.common import exit_status, markdown, row_of
from pipeline.ppo import PPOConfig
from tests.helpers.closed_form import METHODS, distance_left

FORMS = list(product(("k1", "k2", "k3", "abs", "full"), ("reward", "loss")))
SAMPLERS = ("own", "transformers", "compiled")


def cell(beta: float, tokens: int, updates: int, settings: dict[str, Any]) -> float | None:
    """The share of the KL that remains; None for refused settings."""
    try:
        PPOConfig(**settings)
    except ValueError:
        return None
    torch._dynamo.reset()  # each run compiles for itself
    from_reference = tokens == 1
    return distance_left(
        beta, tokens=tokens, from_reference=from_reference, updates=updates, **settings
    )


def row(method: str, sampler: str, beta: float, tokens: int, updates: int) -> list[float | None]:
    """One method's cells."""
    return [
        cell(
            beta,
            tokens,
            updates,
            METHODS[method]
            | {"kl_estimator": estimator, "kl_in": place, "rollout_backend": sampler},
        )
        for estimator, place in FORMS
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="PPO against the closed form: KL, method, sampler")
    parser.add_argument("--beta", type=float, nargs="+", default=[1.0])
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--tokens", type=int, nargs="+", choices=(1, 2), default=[1, 2])
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=SAMPLERS)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--most", type=float, default=2.0, help="percent that a cell may leave")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    missed: list[str] = []
    for sampler, beta, tokens in product(arguments.samplers, arguments.beta, arguments.tokens):
        place = f"sampler {sampler}, β {beta}, responses of {tokens} token(s)"
        print(f"\n{place}, {arguments.updates} updates\n")
        print(markdown(("method", *(f"{estimator}, {where}" for estimator, where in FORMS)), ()))
        for method in arguments.methods:
            cells = row(method, sampler, beta, tokens, arguments.updates)
            print(
                row_of((method, *("refused" if x is None else f"{x:.2%}" for x in cells))),
                flush=True,
            )
            missed += [
                f"{place}: {method} with {form} leaves {left:.2%}"
                for form, left in zip(FORMS, cells, strict=True)
                if left is not None and left > arguments.most / 100
            ]
    return exit_status(missed)


if __name__ == "__main__":
    sys.exit(main())
