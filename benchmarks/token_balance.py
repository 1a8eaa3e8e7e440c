"""How evenly a minibatch's tokens are divided among processes.

    python -m benchmarks token-balance [--minibatches N]

Rows are prompts of 16–128 tokens with responses that end with probability 1/128 a token, 512 at most.
A figure is the largest number of tokens of a process divided by the mean: the others wait for it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from statistics import fmean

import torch

from benchmarks.common import markdown
from pipeline.ppo.network.distributed import Processes

MOST = 512
Share = Callable[[Processes, list[int]], Sequence[int]]


def lengths_of(rows: int, generator: torch.Generator) -> list[int]:
    """Tokens of prompt and response, one number per row."""
    prompts = torch.randint(16, 129, (rows,), generator=generator)
    responses = torch.empty(rows).geometric_(1 / 128, generator=generator).clamp_(max=MOST)
    return (prompts + responses.long()).tolist()


def excess(share: Share, processes: Sequence[Processes], lengths: list[int]) -> float:
    """The largest share's tokens divided by the mean share's."""
    rows = list(range(len(lengths)))
    tokens = [sum(lengths[row] for row in share(each, rows)) for each in processes]
    return max(tokens) / fmean(tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description="tokens of a minibatch by process")
    parser.add_argument("--minibatches", type=int, default=400)
    arguments = parser.parse_args()
    table = []
    for rows, size in ((16, 2), (16, 4), (64, 4), (64, 8)):
        processes = [Processes() for _ in range(size)]
        for rank, each in enumerate(processes):
            each.rank, each.size = rank, size
        generator = torch.Generator().manual_seed(0)
        batches = [lengths_of(rows, generator) for _ in range(arguments.minibatches)]
        every_nth = fmean(excess(Processes.share, processes, batch) for batch in batches)
        by_tokens = fmean(
            excess(lambda each, mine, b=batch: each.balanced_share(mine, b), processes, batch)
            for batch in batches
        )
        table.append((rows, size, f"{every_nth:.3f}", f"{by_tokens:.3f}"))
    print(markdown(("minibatch", "processes", "every n-th row", "by tokens"), table))


if __name__ == "__main__":
    main()
