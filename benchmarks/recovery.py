"""Does the annotator model recover the parameters of simulated judgments?

    python -m benchmarks.recovery [--seeds 40] [--annotators 20] [--each 200] [--items 40]

A seed draws rewards of items (sd 1.2), θ (uniform in .1 to .9), slopes and side biases of the
annotators (from their priors) and judgments from Rao and Kupper's model.  Rewards, θ, slopes and
biases are then fitted jointly to the judgments.  The benchmark counts how many intervals of two
standard errors contain the true value.  The intervals of slopes and biases are those in the reward
model's summary; θ's is from the curvature of the joint problem.  Doubling all rewards and halving
all slopes does not change the likelihood, so slopes are compared on the scale that the prior
prefers.

A second run has outliers: of 20 annotators five are inverted, random, or press one side.  Prints
Markdown tables.  The exit status is 1 unless at least 90% of the intervals contain the true value,
the slopes of inverted annotators are below 0, and the AUC of bad against careful annotators is at
least .95.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from benchmarks.common import markdown
from pipeline.reward.annotators import (
    BIAS_SD,
    SLOPE_SD,
    AnnotatorJudgments,
    FittedAnnotators,
    annotator_weights,
    effective,
    fit_annotators,
)
from pipeline.reward.likelihood import FIRST, SECOND, TIE, Likelihood, TieValues

F64 = torch.float64


@dataclass(frozen=True, kw_only=True)
class World:
    """The draws of a seed: rewards (I,), θ, slopes and biases (W,), and judgments of pairs."""

    rewards: Tensor
    theta: float
    slopes: Tensor
    biases: Tensor
    first: Tensor
    second: Tensor
    judged: AnnotatorJudgments


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The estimates, with θ's standard error."""

    rewards: Tensor
    theta: float
    theta_sd: float
    annotators: FittedAnnotators


def simulate(
    coin: np.random.Generator, *, slopes: np.ndarray, biases: np.ndarray, each: int, items: int
) -> World:
    """`each` judgments by every annotator on random pairs of `items`."""
    count = each * len(slopes)
    rewards, theta = coin.normal(0, 1.2, items), coin.uniform(0.1, 0.9)
    first = coin.integers(items, size=count)
    second = (first + coin.integers(1, items, size=count)) % items
    who, side = np.repeat(np.arange(len(slopes)), each), coin.choice([-1.0, 1.0], count)
    d = rewards[first] - rewards[second]
    # The advantage of the left response, with the bias to the left.
    left = slopes[who] * d * side + biases[who]
    p_left, p_right = (1 / (1 + np.exp(theta - z)) for z in (left, -left))
    toss = coin.random(count)
    said = np.where(toss < p_left, 1.0, np.where(toss < p_left + p_right, -1.0, 0.0)) * side
    outcomes = np.where(said > 0, FIRST, np.where(said < 0, SECOND, TIE))
    judged = AnnotatorJudgments(
        d=torch.tensor(d),
        side=torch.tensor(side),
        annotator=torch.tensor(who),
        outcomes=torch.tensor(outcomes),
        strength=torch.zeros(count, dtype=torch.long),
        level=torch.zeros(count, dtype=F64),
    )
    return World(
        rewards=torch.tensor(rewards), theta=theta, slopes=torch.tensor(slopes),
        biases=torch.tensor(biases), first=torch.tensor(first), second=torch.tensor(second),
        judged=judged,
    )  # fmt: skip


def fit(world: World, likelihood: Likelihood, *, annotators: bool = True) -> Fit:
    """The joint MAP estimates of the items' rewards, θ and the annotators.

    Without `annotators` all slopes are 1 and all biases 0, which leaves the maximum-likelihood
    estimate of the rewards and θ.
    """
    items, people = len(world.rewards), len(world.slopes)
    judged = world.judged

    def cost(x: Tensor) -> Tensor:
        rewards, raw, delta, bias = x.split([items, 1, people, people])
        d = rewards[world.first] - rewards[world.second]
        z, prior = d, torch.zeros((), dtype=F64)
        if annotators:
            who = judged.annotator
            z = effective(d, 1 + delta[who], bias[who], judged.side)
            prior = ((delta / SLOPE_SD).square() + (bias / BIAS_SD).square()).sum() / 2
        ties = TieValues(theta=softplus(raw)[0])
        return likelihood.loss(z, judged.outcomes, ties=ties).sum() + prior

    x = torch.zeros(items + 1 + 2 * people, dtype=F64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [x], max_iter=2000, max_eval=4000, tolerance_grad=1e-9, tolerance_change=1e-14,
        history_size=50, line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cost(x)
        loss.backward()
        return loss

    optimizer.step(closure)
    found = x.detach()
    rewards = found[:items] - found[:items].mean()
    theta = softplus(found[items])
    hessian = torch.autograd.functional.hessian(cost, found)
    # The level of the rewards is not identified; the pseudo-inverse leaves that direction out.
    raw_sd = torch.linalg.pinv(hessian, hermitian=True)[items, items].sqrt()
    d = rewards[world.first] - rewards[world.second]
    known = AnnotatorJudgments(**(vars(judged) | {"d": d}))
    ties = TieValues(theta=theta)
    return Fit(
        rewards=rewards,
        theta=theta.item(),
        theta_sd=(torch.sigmoid(found[items]) * raw_sd).item(),
        annotators=fit_annotators(known, people, likelihood=likelihood, ties=ties),
    )


def comparable(slopes: Tensor) -> Tensor:
    """True slopes on the scale m that makes slopes / m most probable: m = Σ slope² / Σ slope."""
    return slopes / (slopes.square().sum() / slopes.sum())


def recovery(seeds: int, people: int, each: int, items: int) -> dict[str, float]:
    """Shares of two-standard-error intervals that contain the true value."""
    held: dict[str, list[bool]] = {"θ": [], "slope": [], "side bias": []}
    for seed in range(seeds):
        coin = np.random.default_rng([seed, 7])
        slopes, biases = 1 + coin.normal(0, SLOPE_SD, people), coin.normal(0, BIAS_SD, people)
        world = simulate(coin, slopes=slopes, biases=biases, each=each, items=items)
        found = fit(world, Likelihood(tie_model="rao_kupper", both_bad="tie"))
        fitted = found.annotators
        truth = comparable(world.slopes)
        held["θ"].append(abs(found.theta - world.theta) <= 2 * found.theta_sd)
        held["slope"] += ((1 + fitted.delta - truth).abs() <= 2 * fitted.delta_sd).tolist()
        held["side bias"] += ((fitted.bias - world.biases).abs() <= 2 * fitted.bias_sd).tolist()
    return {name: sum(each) / len(each) for name, each in held.items()}


BAD = {"inverted": (-1.0, 0.0), "spam": (0.0, 0.0), "left": (0.3, 1.5), "right": (0.3, -1.5)}


def outliers(seeds: int, people: int, each: int, items: int) -> dict[str, float]:
    """Estimates of bad annotators, a quarter of all: signs, ranking by weight, and AUC."""
    signs: dict[str, list[bool]] = {
        "inverted below 0": [],
        "spam within .5 of 0": [],
        "side found": [],
    }
    aucs = []
    for seed in range(seeds):
        coin = np.random.default_rng([seed, 8])
        kinds = (["inverted", "inverted", "spam", "left", "right"] * people)[: people // 4]
        slopes, biases = 1 + coin.normal(0, 0.2, people), coin.normal(0, 0.1, people)
        for n, kind in enumerate(kinds):
            slopes[n], biases[n] = BAD[kind]
        world = simulate(coin, slopes=slopes, biases=biases, each=each, items=items)
        fitted = fit(world, Likelihood(tie_model="rao_kupper", both_bad="tie")).annotators
        slope, bias = 1 + fitted.delta, fitted.bias
        for n, kind in enumerate(kinds):
            if kind == "inverted":
                signs["inverted below 0"].append(bool(slope[n] + 2 * fitted.delta_sd[n] < 0))
            elif kind == "spam":
                signs["spam within .5 of 0"].append(bool(slope[n].abs() < 0.5))
            else:
                most = bias if kind == "left" else -bias
                signs["side found"].append(bool(most.argsort(descending=True)[0] == n))
        # The ranking uses the weight of a judgment, with the sign of the slope.
        ties = TieValues(theta=world.theta)
        merit = (
            annotator_weights(fitted, Likelihood(tie_model="rao_kupper", both_bad="tie"), ties)
            * slope.sign()
        )
        bad, good = merit[: len(kinds)], merit[len(kinds) :]
        aucs.append((good[:, None] > bad).double().mean().item())
    return {name: sum(each) / len(each) for name, each in signs.items()} | {
        "AUC": sum(aucs) / len(aucs)
    }


def main() -> int:
    """Print both tables; return 1 if an expectation fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--annotators", type=int, default=20)
    parser.add_argument("--each", type=int, default=200)
    parser.add_argument("--items", type=int, default=40)
    args = parser.parse_args()
    torch.set_num_threads(1)
    size = (args.seeds, args.annotators, args.each, args.items)
    held, bad = recovery(*size), outliers(*size)
    rows = []
    for name, share in held.items():
        count = args.seeds * (1 if name == "θ" else args.annotators)
        margin = math.sqrt(share * (1 - share) / count)
        rows.append((name, count, f"{share:.3f} ± {margin:.3f}"))
    print(markdown(("parameter", "intervals", "contain the true value"), rows))
    shares = ((name, f"{share:.3f}") for name, share in bad.items())
    print(f"\n{markdown(('outliers', ''), shares)}")
    wrong = min(held.values()) < 0.9 or bad["inverted below 0"] < 1 or bad["AUC"] < 0.95
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
