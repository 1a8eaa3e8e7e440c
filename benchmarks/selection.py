"""Does active selection of pairs save labels?  Compares hybrid, BALD and random selection.

    python -m benchmarks.selection [--seeds 0 1 2] [--arms random hybrid bald] [--folder DIR] [--report]

Eight answers to every prompt are sampled once from the embedded model.  Each seed draws prompts,
four of their answers, and annotators who label pairs in rounds.  After each round an ensemble is
trained from scratch on all labels so far.  The next round's pairs are allocated and chosen as in
the sampling stage (`storage/allocation.py`, `pipeline/sampling/acquisition.py`).  Accuracy is the
agreement of the mean reward with the gold preference on held-out prompts, over all pairs of four
random answers.  The first round, and a pair's label, are the same in every arm of a seed.

`--trunk frozen` fits the members' heads on the demo model's states by convex optimization, without
the noise of stochastic training; it takes seconds per seed.  `--trunk trained` trains the model's
weights with the heads; it takes minutes.

Writes one JSON file per seed to the folder; arms that are in it are not repeated.  `--report` only
prints stored results: accuracy by labels, and the share of random's labels with which an arm
reaches random's final accuracy, with a bootstrap interval over seeds.  The exit status is 1 if
hybrid needs more than 85% of random's labels, over ten seeds or more.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import softplus

from benchmarks.common import CACHE, exit_status, markdown
from benchmarks.demo_world import (
    ANSWERS,
    CONFIG,
    Label,
    People,
    Pool,
    World,
    judged_pair,
    quietly,
    trained,
)
from benchmarks.seeds import labels_needed, run_seeds
from pipeline.demo import MODEL_DIR
from pipeline.models.generate import Sampler
from pipeline.models.padding import pad_right
from pipeline.models.text import ChatTokenizer, Messages
from pipeline.reward.likelihood import TIE, log_probabilities
from pipeline.sampling.acquisition import (
    ACQUISITIONS,
    Candidates,
    choose,
    outcome_probabilities,
    pairs_within,
)
from pipeline.simulation.annotators import population
from pipeline.simulation.trials import TrialArm
from storage.allocation import Allocation, PromptUsage, allocate_prompts
from storage.records import Arm

ARMS: dict[str, tuple[Arm, float] | None] = {
    "random": None,
    "hybrid": ("bald", 0.5),
    "bald": ("bald", 1.0),
    "uncertainty": ("uncertainty", 1.0),
    "d_optimal": ("d_optimal", 1.0),
}
MEMBERS, ANNOTATORS = 4, 8
FEATURES, RIDGE = 200, 1.0
"""Principal components of frozen heads, and their penalty: RIDGE · |w|² / 2 over all labels."""
WANTED_RATIO, SEEDS_NEEDED = 0.85, 10


@dataclass(frozen=True, kw_only=True)
class FeaturedWorld(World):
    """A world with the features (N, F) of its answers for frozen heads."""

    features: torch.Tensor


def pool_features(pool: Pool, chat: ChatTokenizer) -> torch.Tensor:
    """`features_of` all answers with the embedded model, cached."""
    path = CACHE / f"features-{pool.digest}.pt"
    if path.exists():
        return torch.load(path, weights_only=True)
    model = Sampler.load(str(MODEL_DIR), device=torch.device("cpu"), dtype=torch.float32).model
    found = features_of(model, pool.conversations(), pool.texts, chat)
    torch.save(found, path)
    return found


@torch.no_grad()
def features_of(
    model: Any, asked: Sequence[Messages], texts: Sequence[str], chat: ChatTokenizer
) -> torch.Tensor:
    """(N, FEATURES) principal components of the states of all layers, at the last token and
    averaged over the answer; rows have a mean squared norm of 1."""
    both = [chat.chat(messages, text) for messages, text in zip(asked, texts, strict=True)]
    rows: list[torch.Tensor] = [torch.empty(0)] * len(both)
    order = sorted(range(len(both)), key=lambda n: len(both[n].ids))
    for start in range(0, len(order), 64):
        part = order[start : start + 64]
        batch = pad_right([both[n].ids for n in part], chat.pad_id)
        layers = torch.stack(model(**batch, output_hidden_states=True).hidden_states)
        for row, n in enumerate(part):
            answer = layers[:, row, both[n].prompt_tokens : len(both[n].ids)]
            rows[n] = torch.cat([answer[:, -1].flatten(), answer.mean(1).flatten()])
    states = torch.stack(rows)
    states = (states - states.mean(0)) / (states.std(0) + 1e-6)
    torch.manual_seed(0)
    _, _, axes = torch.pca_lowrank(states, FEATURES, niter=3)
    found = states @ axes
    return found / found.square().sum(1).mean().sqrt()


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A trained ensemble: `rewards` (K, N) and the heads' inputs `states` (N, F) of answers."""

    rewards: Callable[[Sequence[int]], torch.Tensor]
    states: Callable[[Sequence[int]], torch.Tensor]
    theta: float


def bootstrap(labels: Sequence[Label], seed: int) -> torch.Tensor:
    """(N, K) counts of each label in each member's Poisson bootstrap sample."""
    generator = torch.Generator().manual_seed(seed)
    return torch.poisson(torch.ones(len(labels), MEMBERS), generator=generator)


def fit_heads(
    world: FeaturedWorld, labels: Sequence[Label], _: ChatTokenizer, number: int
) -> Fitted:
    """Linear heads on frozen features, with one tie threshold, at the optimum of their loss."""
    del number  # only the bootstrap is random, and it depends only on the label
    first, second = ([getattr(label, side) for label in labels] for side in ("first", "second"))
    features = world.features[first] - world.features[second]
    codes = torch.tensor([label.outcome for label in labels]).clamp_max(TIE)
    outcomes = codes.repeat_interleave(MEMBERS)
    counts = bootstrap(labels, world.seed).flatten()
    heads = torch.zeros(features.shape[1], MEMBERS, requires_grad=True)
    raw = torch.zeros(1, requires_grad=True)  # θ = softplus(raw)
    parameters = [heads, raw]
    optimizer = torch.optim.LBFGS(parameters, max_iter=50, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        likely = log_probabilities((features @ heads).flatten(), softplus(raw))
        losses = -likely.gather(-1, outcomes.unsqueeze(-1)).squeeze(-1)
        found = ((losses * counts).sum() + RIDGE * heads.square().sum()) / len(labels)
        found.backward()
        return found

    optimizer.step(loss)  # type: ignore[arg-type]
    weights = heads.detach()
    return Fitted(
        rewards=lambda answers: (world.features[list(answers)] @ weights).T,
        states=lambda answers: world.features[list(answers)],
        theta=softplus(raw).item(),
    )


def fit_trunk(
    world: FeaturedWorld, labels: Sequence[Label], chat: ChatTokenizer, number: int
) -> Fitted:
    """MEMBERS whole models, trained as in the reward stage."""
    config = replace(CONFIG.reward, members=MEMBERS, annotators=False, early_stopping=False)
    pairs = [judged_pair(world, label, place, chat) for place, label in enumerate(labels)]
    model, _ = trained(
        pairs, chat, config, seed=100 * world.seed + number, bootstrap_seed=world.seed
    )

    def asked(answers: Sequence[int]) -> tuple[list[Messages], list[str]]:
        return [world.conversations[n] for n in answers], [world.texts[n] for n in answers]

    return Fitted(
        rewards=lambda answers: torch.tensor(model.member_scores(*asked(answers))),
        states=lambda answers: model.states(*asked(answers)),
        theta=model.network.ties().item(),
    )


FITS = {"frozen": fit_heads, "trained": fit_trunk}
"""The function that trains the ensemble, by `--trunk`."""


def accuracy(model: Fitted, world: World) -> float:
    """Share of held-out pairs that the mean reward orders as gold does."""
    return world.accuracy(model.rewards(world.held_out_answers()).mean(0).numpy())


class Selector:
    """One arm of one seed: the pairs that it has labeled, and its choice of the next ones."""

    def __init__(self, world: World, chat: ChatTokenizer, prompts_per_pair: float) -> None:
        self._world = world
        self._chat = chat
        self._prompts_per_pair = prompts_per_pair
        self._asked: set[tuple[int, int]] = set()
        self._used, self._stream = Counter[str](), Counter[str]()

    def pairs(
        self, count: int, chosen: tuple[Arm, float] | None, model: Fitted | None, number: int
    ) -> list[tuple[int, int]]:
        """The next `count` pairs; without a model all of them are random."""
        plan = allocate_prompts(
            [str(n) for n in range(self._world.held_out)],
            pairs=count,
            shares={},
            chosen=chosen if model else None,
            prompts_per_pair=self._prompts_per_pair,
            used=PromptUsage(all=self._used, stream=self._stream),
            seed=1000 * self._world.seed + number,
        )
        stream = [row for row in plan if row.arm == "random"]
        pool = [row for row in plan if row.arm != "random"]
        found = [pair for row in stream for pair in self._random(row, number)]
        self._stream.update(str(first // ANSWERS) for first, _ in found)
        if model and chosen and pool:
            found += self._chosen(pool, chosen[0], model, number)
        self._asked.update(found)
        self._used.update(str(first // ANSWERS) for first, _ in found)
        return found

    def _random(self, row: Allocation, number: int) -> list[tuple[int, int]]:
        """Unlabeled pairs of a prompt in random order."""
        coin = np.random.default_rng([self._world.seed, 2, number, int(row.prompt)])
        pairs = list(combinations(self._world.answers(int(row.prompt)), 2))
        drawn = [pairs[i] for i in coin.permutation(len(pairs))]
        return [pair for pair in drawn if self._may(pair)][: row.pairs]

    def _chosen(
        self, pool: Sequence[Allocation], arm: Arm, model: Fitted, number: int
    ) -> list[tuple[int, int]]:
        answers = [n for row in pool for n in self._world.answers(int(row.prompt))]
        first, second = pairs_within([n // ANSWERS for n in answers])
        scores = model.rewards(answers)
        states = model.states(answers) if ACQUISITIONS[arm].features else None
        candidates = Candidates(
            probabilities=outcome_probabilities(scores[:, first] - scores[:, second], model.theta),
            prompts=[answers[n] // ANSWERS for n in first],
            features=None if states is None else states[first] - states[second],
        )
        pairs = [(answers[a], answers[b]) for a, b in zip(first, second, strict=True)]
        taken = choose(
            arm,
            candidates,
            sum(row.pairs for row in pool),
            seed=1000 * self._world.seed + number,
            may=lambda n: self._may(pairs[n]),
        )
        return [pairs[n] for n in taken]

    def _may(self, pair: tuple[int, int]) -> bool:
        return pair not in self._asked and self._world.differ(pair, self._chat)


def run_arm(
    world: FeaturedWorld, name: str, args: argparse.Namespace, chat: ChatTokenizer
) -> dict[str, Any]:
    """Accuracy and number of labels after each round."""
    people = People(world, population(ANNOTATORS, bad=args.bad, seed=world.seed))
    asking = Selector(world, chat, args.prompts_per_pair)
    labels: list[Label] = []
    curve: list[dict[str, float]] = []
    model: Fitted | None = None
    started, spent = time.monotonic(), time.process_time()
    for number in range(args.rounds):
        asked = asking.pairs(args.labels, ARMS[name], model, number)
        labels += [people.label(*pair) for pair in asked]
        fitted = model = FITS[args.trunk](world, labels, chat, number)
        curve.append({"labels": len(labels), "accuracy": accuracy(fitted, world)})
        print(f"seed {world.seed}, {name}: {curve[-1]}", file=sys.stderr, flush=True)
    return {
        "curve": curve,
        "ties": sum(label.outcome == TIE for label in labels) / len(labels),
        "seconds": round(time.monotonic() - started, 1),
        "cpu_seconds": round(time.process_time() - spent, 1),
    }


def seed_results(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The results of each seed; missing ones are computed, unless --report is set."""
    names = ("trunk", "rounds", "labels", "bad", "prompts", "prompts_per_pair")
    conditions = {name: getattr(args, name) for name in names} | {"members": MEMBERS}
    quietly()
    chat = ChatTokenizer.load(str(MODEL_DIR))

    @cache
    def everything() -> tuple[Pool, torch.Tensor]:
        pool = Pool.sampled(args.pool)
        return pool, pool_features(pool, chat)

    @lru_cache(maxsize=1)
    def world(seed: int) -> FeaturedWorld:
        pool, features = everything()
        drawn = World.draw(seed, pool, asked=args.prompts)
        return FeaturedWorld(**vars(drawn), features=features[drawn.rows])

    return run_seeds(
        lambda arm, seed: run_arm(world(seed), arm.name, args, chat),
        [TrialArm(name=name) for name in args.arms],
        args.seeds,
        args.folder,
        conditions=conditions,
        only_report=args.report,
    )


def label_ratio(labels: np.ndarray, ours: np.ndarray, theirs: np.ndarray) -> float:
    """The share of all labels with which `ours` first reaches the final value of `theirs`.

    Curves are (rounds,) accuracies, linear between rounds.  Infinity if `ours` never reaches it.
    """
    return labels_needed(labels, ours, theirs[-1]) / labels[-1]


def report(args: argparse.Namespace, held: Sequence[dict[str, Any]]) -> int:
    """Print a Markdown table; return 1 if the expectation fails."""
    found: dict[str, dict[int, np.ndarray]] = {arm: {} for arm in args.arms}
    labels = np.array([args.labels * (n + 1) for n in range(args.rounds)])
    for arm in args.arms:
        for each in held:
            if made := each["arms"].get(arm):
                found[arm][each["seed"]] = np.array([point["accuracy"] for point in made["curve"]])
    coin = np.random.default_rng(0)
    rows: list[tuple[Any, ...]] = []
    missed: list[str] = []
    for arm in args.arms:
        seeds = sorted(found[arm].keys() & found["random"].keys())
        if not seeds:
            continue
        ours, theirs = (np.stack([found[a][s] for s in seeds]) for a in (arm, "random"))
        gain = (ours - theirs)[:, -1]
        sure = 1.96 * gain.std(ddof=1) / len(gain) ** 0.5 if len(gain) > 1 else math.nan
        ratio = label_ratio(labels, ours.mean(0), theirs.mean(0))
        draws = coin.integers(len(seeds), size=(2000, len(seeds)))
        drawn = [label_ratio(labels, ours[d].mean(0), theirs[d].mean(0)) for d in draws]
        low, high = np.quantile(drawn, [0.025, 0.975], method="nearest")
        means = (f"{value:.3f}" for value in ours.mean(0))
        compared = (f"{gain.mean():+.3f} ± {sure:.3f}", f"{ratio:.2f} [{low:.2f}, {high:.2f}]")
        rows.append((arm, len(seeds), *means, *(("", 1) if arm == "random" else compared)))
        if arm == "hybrid" and len(seeds) >= SEEDS_NEEDED and ratio > WANTED_RATIO:
            missed.append(f"hybrid needs {ratio:.2f} of random's labels")
    names = [f"{n} labels" for n in labels]
    columns = ("final − random", "labels to random's final accuracy")
    print(markdown(("arm", "seeds", *names, *columns), rows))
    return exit_status(missed)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(40)))
    parser.add_argument(
        "--arms", nargs="+", choices=list(ARMS), default=["random", "hybrid", "bald"]
    )
    parser.add_argument("--folder", type=Path, default=CACHE / "selection")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--labels", type=int, default=80, help="labels per round")
    parser.add_argument("--prompts", type=int, default=740, help="prompts with labeled pairs")
    parser.add_argument("--trunk", choices=list(FITS), default="frozen", help="what is trained")
    parser.add_argument("--bad", type=float, default=0.0, help="share of bad annotators")
    parser.add_argument(
        "--prompts-per-pair",
        type=float,
        default=CONFIG.sampling.selection_prompts,
        help="sampling.selection_prompts",
    )
    parser.add_argument("--report", action="store_true", help="only print stored results")
    parser.add_argument(
        "--pool", type=int, help="number of prompts of each role to sample answers to; default: all"
    )
    args = parser.parse_args()
    if "random" not in args.arms:
        parser.error("--arms must include random, the baseline of the others")
    return report(args, seed_results(args))


if __name__ == "__main__":
    sys.exit(main())
