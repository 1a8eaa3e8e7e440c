"""Code shared by the reward model benchmarks on the demo: answers, worlds, annotators, training.

Answers to every prompt are sampled once from the embedded model and cached in `.bench`, in a file
named by a digest of the model and the sampling settings.  A seed draws prompts, some of their
answers and the annotators; the hidden gold preference (`pipeline/simulation/preference.py`) scores
the answers.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from transformers.utils import logging

from benchmarks.common import CACHE
from pipeline.config.reward import RewardConfig
from pipeline.config.sections import CONFIGS, Config
from pipeline.demo import MODEL_DIR
from pipeline.demo.corpus import prompts
from pipeline.models.generate import Sampler
from pipeline.models.text import ChatTokenizer, Messages
from pipeline.reward.data import (
    JudgedPair,
    Split,
    judges_beside_people,
    split_judgments,
    stopping_pairs,
)
from pipeline.reward.judges import ground_judges
from pipeline.reward.likelihood import OUTCOME_CODES, UNSTATED
from pipeline.reward.members import train_members
from pipeline.reward.quality.calibration import calibrate
from pipeline.reward.scoring import RewardModel
from pipeline.reward.stopping import EarlyStop
from pipeline.reward.trainer import Training
from pipeline.runs.rundir import Report, RunDirectory
from pipeline.sampling.pairs import are_near_duplicates
from pipeline.simulation.annotators import SimulatedAnnotator
from pipeline.simulation.preference import score
from storage.records import as_messages
from storage.sides import canonical_outcome

CONFIG = Config.load([CONFIGS / "demo.toml"])
SAMPLED, ANSWERS = 8, 4
"""Answers sampled per prompt, and answers per prompt that a seed uses."""


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The sampled answers; answer n belongs to prompt n // SAMPLED.

    The first `train` prompts are for labeling.  `digest` identifies the model and the sampling
    settings.
    """

    digest: str
    messages: Sequence[Any]
    texts: Sequence[str]
    train: int

    @classmethod
    def sampled(cls, most: int | None = None) -> Pool:
        """SAMPLED answers to each train and held-out prompt, or the first `most` of each role."""
        options = {
            "temperature": CONFIG.sampling.temperatures[0],
            "top_p": CONFIG.sampling.top_p,
            "max_new_tokens": CONFIG.sampling.max_new_tokens,
            "seed": 0,
        }
        parts = sorted(options.items()) + ([] if most is None else [("prompts", most)])
        known = hashlib.sha256(repr(parts).encode())
        for file in sorted(MODEL_DIR.iterdir()):
            known.update(file.read_bytes())
        digest = known.hexdigest()[:12]
        path = CACHE / f"answers-{digest}.pt"
        if path.exists():
            return cls(digest=digest, **torch.load(path, weights_only=True))
        by_role = [
            [m for r, m, _ in prompts() if r == role][:most] for role in ("train", "held-out")
        ]
        messages = [m for asked in by_role for m in asked]
        asked = [as_messages(m) for m in messages for _ in range(SAMPLED)]
        sampler = Sampler.load(str(MODEL_DIR), device=torch.device("cpu"), dtype=torch.float32)
        print(f"sampling {len(asked)} answers, once", file=sys.stderr, flush=True)
        answers = sampler.sample(asked, batch=64, **options)
        found = {
            "messages": messages,
            "texts": [answer.text for answer in answers],
            "train": len(by_role[0]),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(found, path)
        return cls(digest=digest, **found)

    def conversations(self) -> list[Messages]:
        """The conversation that each answer belongs to."""
        return [as_messages(m) for m in self.messages for _ in range(SAMPLED)]


@dataclass(frozen=True, kw_only=True)
class World:
    """The prompts and answers of one seed; answer n belongs to prompt n // ANSWERS.

    The prompts before `held_out` are labeled; the others measure the reward model.  `rows` are the
    answers' indices in the pool.
    """

    seed: int
    rows: Sequence[int]
    conversations: Sequence[Messages]
    texts: Sequence[str]
    gold: np.ndarray
    held_out: int

    @classmethod
    def draw(cls, seed: int, pool: Pool, *, asked: int, measured: int | None = None) -> World:
        """Draw `asked` train prompts and `measured` held-out prompts (default: all), with four
        answers each."""
        coin = np.random.default_rng([seed, 0])
        held_out = list(range(pool.train, len(pool.messages)))
        if measured is not None:
            held_out = np.random.default_rng([seed, 5]).permutation(held_out)[:measured].tolist()
        drawn: list[int] = [*coin.permutation(pool.train)[:asked].tolist(), *held_out]
        rows = [p * SAMPLED + int(n) for p in drawn for n in coin.permutation(SAMPLED)[:ANSWERS]]
        texts = [pool.texts[row] for row in rows]
        conversations = [as_messages(pool.messages[row // SAMPLED]) for row in rows]
        both = zip(conversations, texts, strict=True)
        return cls(
            seed=seed,
            rows=rows,
            conversations=conversations,
            texts=texts,
            gold=np.array([score(messages[-1].content, text) for messages, text in both]),
            held_out=min(asked, pool.train),
        )

    def answers(self, prompt: int) -> range:
        return range(prompt * ANSWERS, (prompt + 1) * ANSWERS)

    def held_out_answers(self) -> range:
        return range(self.held_out * ANSWERS, len(self.texts))

    def differ(self, pair: tuple[int, int], chat: ChatTokenizer) -> bool:
        """Whether the pair's texts are not near-duplicates, so that people would judge it."""
        texts = self.texts[pair[0]], self.texts[pair[1]]
        return not are_near_duplicates(*texts, chat.plain, CONFIG.sampling.near_duplicate)

    def random_pairs(self, count: int, chat: ChatTokenizer) -> list[tuple[int, int]]:
        """`count` different pairs to label; a prompt repeats only after all prompts had a pair."""
        coin = np.random.default_rng([self.seed, 4])
        prompts = coin.permutation(self.held_out).tolist()
        drawn = {p: coin.permutation(list(combinations(self.answers(p), 2))) for p in prompts}
        left = {
            p: ((a, b) for a, b in pairs.tolist() if self.differ((a, b), chat))
            for p, pairs in drawn.items()
        }
        found: list[tuple[int, int]] = []
        while len(found) < count:
            taken = [pair for p in prompts if (pair := next(left[p], None))]
            if not taken:
                raise ValueError(f"there are only {len(found)} pairs to label, not {count}")
            found += taken
        return found[:count]

    def accuracy(self, rewards: np.ndarray) -> float:
        """Share of held-out pairs (within a prompt) that `rewards` order as gold does.

        `rewards` has one value per held-out answer; pairs with equal gold scores are left out.
        """
        gold = self.gold[self.held_out_answers().start :]
        right = []
        for start in range(0, len(gold), ANSWERS):
            for a, b in combinations(range(start, start + ANSWERS), 2):
                if abs(gold[a] - gold[b]) > 1e-9:
                    ours = np.sign(rewards[a] - rewards[b]) * np.sign(gold[a] - gold[b])
                    right.append((1 + ours) / 2)
        return float(np.mean(right))


@dataclass(frozen=True, kw_only=True)
class Label:
    """One annotator's judgment of two answers, in the fields of `JudgedPair`."""

    first: int
    second: int
    outcome: int
    strength: int
    annotator: str
    side: int
    milliseconds: int | None = None


class People:
    """Simulated annotators; a pair's label does not depend on the order of labeling.

    A different `stream` assigns different people and different noise to the same pairs.
    """

    def __init__(
        self, world: World, annotators: Sequence[SimulatedAnnotator], *, stream: int = 1
    ) -> None:
        self._world = world
        self._annotators = annotators
        self._stream = stream

    def label(self, first: int, second: int) -> Label:
        coin = np.random.default_rng([self._world.seed, self._stream, first, second])
        annotator = self._annotators[int(coin.integers(len(self._annotators)))]
        swapped = bool(coin.integers(2))
        left, right = (second, first) if swapped else (first, second)
        gold, texts = self._world.gold, self._world.texts
        words = sum(len(texts[side].split()) for side in (left, right))
        said = annotator.judge(left=gold[left], right=gold[right], words=words, rng=coin)
        outcome = canonical_outcome(said.outcome, shown_swapped=swapped)
        return Label(
            first=first,
            second=second,
            outcome=OUTCOME_CODES[outcome],
            strength=said.strength or UNSTATED,
            annotator=annotator.name,
            side=-1 if swapped else 1,
            milliseconds=said.milliseconds,
        )


def judged_pair(world: World, label: Label, place: int, chat: ChatTokenizer) -> JudgedPair:
    """A label as the reward stage reads it; the id is `place`, to keep its bootstrap weights."""
    ids = [
        chat.chat(world.conversations[n], world.texts[n]).ids for n in (label.first, label.second)
    ]
    return JudgedPair(
        judgment=str(place), prompt=str(label.first // ANSWERS),
        first=str(label.first), second=str(label.second), first_ids=ids[0], second_ids=ids[1],
        first_length=len(ids[0]), second_length=len(ids[1]), outcome=label.outcome,
        strength=label.strength, annotator=label.annotator, side=label.side,
        milliseconds=label.milliseconds,
    )  # fmt: skip


def reward_settings(chosen: Sequence[str]) -> RewardConfig:
    """[reward] of pipeline/config/presets/demo.toml with ``name=value`` overrides."""
    if malformed := [each for each in chosen if "=" not in each]:
        raise ValueError(f"--set needs NAME=VALUE, not {malformed[0]}")
    pairs = (each.split("=", 1) for each in chosen)
    return CONFIG.override({f"reward.{name}": value for name, value in pairs}).reward


def quietly() -> None:
    """Use one thread and silence transformers, so that only the benchmark prints."""
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")


def trained(
    pairs: Sequence[JudgedPair],
    chat: ChatTokenizer,
    config: RewardConfig,
    *,
    seed: int,
    bootstrap_seed: int = 0,
    outside: Sequence[JudgedPair] = (),
    base: Path = MODEL_DIR,
    split: Split | None = None,
) -> tuple[RewardModel, EarlyStop | None]:
    """Train a reward model on the judgments, from a policy, as the reward stage does.

    With `split`, whose judgments to learn from they are, model judges are measured first."""
    with (
        Path(os.devnull).open("w") as nowhere,
        redirect_stdout(nowhere),  # the trainer prints every step
        TemporaryDirectory() as scratch,
        Report(RunDirectory(Path(scratch))) as report,
    ):
        training = Training(
            base=str(base), chat=chat, config=config, report=report, seed=seed,
            checkpoints=Path(scratch) / "checkpoints", device=torch.device("cpu"),
            bootstrap_seed=bootstrap_seed,
        )  # fmt: skip
        if split:
            grounded = ground_judges(training, split)
            training, pairs = grounded.training, grounded.learned
        return train_members(training, pairs, stopping=outside)


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A reward model trained as the reward stage does, with rewards scaled to fit `unseen`."""

    model: RewardModel
    learned: Sequence[JudgedPair]
    unseen: Sequence[JudgedPair]
    scale: float
    threshold_scale: float
    epochs: float
    cpu_seconds: float

    @classmethod
    def to(
        cls,
        pairs: Sequence[JudgedPair],
        chat: ChatTokenizer,
        config: RewardConfig,
        *,
        seed: int,
        base: Path = MODEL_DIR,
    ) -> Fitted:
        """Split, train and calibrate as the stage does; `cpu_seconds` is the training time."""
        split = split_judgments(judges_beside_people(pairs), config, seed=CONFIG.seed)
        learned, audit_set, held_out = split
        started = time.process_time()
        model, kept = trained(
            learned,
            chat,
            config,
            seed=seed,
            bootstrap_seed=seed,
            outside=stopping_pairs(config, audit_set),
            base=base,
            split=split,
        )
        spent = time.process_time() - started
        factors = calibrate(model, held_out, audit_set, scale=config.calibrate)[1].factors
        return cls(
            model=model,
            learned=learned,
            unseen=[*audit_set, *held_out],
            scale=factors.rewards,
            threshold_scale=factors.thresholds,
            epochs=kept.epoch if kept else config.epochs,
            cpu_seconds=round(spent, 1),
        )
