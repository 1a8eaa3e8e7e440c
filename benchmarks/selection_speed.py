"""Times the choice among 10,000 candidate pairs on one core, without the forward passes.

    python -m benchmarks.selection_speed [--prompts 1667] [--rounds 5] [--words 150]

Uses artificial answers, four per prompt, with the rewards of four members and features of the demo's
width, and chooses one pair for every second prompt.  For each acquisition it measures the CPU time
of building candidates, scoring, choosing and the near-duplicate check, and reports the best round.
Prints a Markdown table; the exit status is 1 if an acquisition takes a second or more.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import cache

import numpy as np
import torch

from benchmarks.common import exit_status, markdown
from pipeline.demo import MODEL_DIR
from pipeline.models.text import ChatTokenizer
from pipeline.sampling.acquisition import (
    ACQUISITIONS,
    Candidates,
    choose,
    narrow,
    outcome_probabilities,
    pairs_within,
)
from pipeline.sampling.pairs import are_near_duplicates

ANSWERS, MEMBERS, WIDTH, THRESHOLD = 4, 4, 192, 0.9
LIMIT = 1.0


def texts(count: int, words: int) -> list[str]:
    """Answers of `words` common words; every twentieth answer repeats the previous one."""
    coin = np.random.default_rng(0)
    vocabulary = np.array(["water", "add", "the", "a", "salt", "to", "and", "boil", "it", "for"])
    made: list[str] = []
    for number in range(count):
        again = number % 20 == 19
        made.append(made[-1] if again else " ".join(coin.choice(vocabulary, words)))
    return made


def once(name: str, prompts: int, rewards: torch.Tensor, states: torch.Tensor, said: list[str],
         chat: ChatTokenizer) -> tuple[float, int, int]:  # fmt: skip
    """CPU seconds, number of candidate pairs and number of chosen pairs of one choice."""
    started = time.process_time()
    first, second = pairs_within([n // ANSWERS for n in range(prompts * ANSWERS)])
    features = None
    if ACQUISITIONS[name].features:
        slim = narrow(states, seed=0)
        features = slim[first] - slim[second]
    candidates = Candidates(
        probabilities=outcome_probabilities(rewards[:, first] - rewards[:, second], 0.5),
        prompts=[n // ANSWERS for n in first],
        features=features,
    )
    tokens = cache(chat.plain)

    def differ(pair: int) -> bool:
        return not are_near_duplicates(said[first[pair]], said[second[pair]], tokens, THRESHOLD)

    chosen = choose(name, candidates, prompts // 2, seed=0, may=differ)
    return time.process_time() - started, len(first), len(chosen)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=1667)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--words", type=int, default=150, help="words per answer")
    parser.add_argument("--width", type=int, default=WIDTH, help="features per answer")
    args = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    answers = args.prompts * ANSWERS
    rewards = torch.randn(MEMBERS, answers, generator=generator, dtype=torch.float64)
    states = torch.randn(answers, args.width, generator=generator)
    said, chat = texts(answers, args.words), ChatTokenizer.load(str(MODEL_DIR))
    rows, slow = [], []
    for name in ACQUISITIONS:
        runs = [once(name, args.prompts, rewards, states, said, chat) for _ in range(args.rounds)]
        seconds = min(run[0] for run in runs)
        rows.append((name, f"{runs[0][1]:,}", f"{runs[0][2]:,}", f"{seconds:.2f}"))
        if seconds >= LIMIT:
            slow.append(f"{name} took {LIMIT:g} s or more")
    print(markdown(("acquisition", "candidates", "chosen", "seconds"), rows))
    return exit_status(slow)


if __name__ == "__main__":
    sys.exit(main())
