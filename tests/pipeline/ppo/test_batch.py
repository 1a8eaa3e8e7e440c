"""Batches by hand: rows taken, shares gathered, and micro-batches of similar lengths."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pipeline.ppo.batch import Batch, gather_shares, micro_batches
from pipeline.ppo.network.distributed import Processes
from pipeline.ppo.rollouts.rollout import Rollout
from pipeline.ppo.summary import samples_of

PAD = 0


def batch_of(prompts: list[list[int]], responses: list[list[int]], first: int, step: int) -> Batch:
    """Responses to prompts `first`, `first + step`, …; every score is the sum of its tokens."""
    width = max(map(len, responses))
    tokens = torch.tensor([row + [PAD] * (width - len(row)) for row in responses])
    rollout = Rollout(
        tokens=tokens,
        lengths=torch.tensor([len(row) for row in responses]),
        logprobs=-tokens.float() / 10,
        entropies=None,
        values=tokens.float() * 2,
        finish_reasons=["length" if row[-1] != 9 else "stop" for row in responses],
    )
    numbers = [first + step * n for n in range(len(responses))]
    batch = Batch.of(prompts, rollout, prompt_indices=numbers, pad=PAD)
    batch.texts = [f"text {number}" for number in numbers]
    batch.scores = tokens.sum(1).float()
    batch.components = {"reward": batch.scores.tolist(), "length": [-1.0 * n for n in numbers]}
    return batch


class Peers(Processes):
    """This process and others, whose shares are at hand."""

    def __init__(self, shares: list[Batch]) -> None:
        self.rank, self.size, self._shares = 0, len(shares), shares

    def gather(self, mine):  # the exchange itself is tested in test_parallel.py
        assert torch.equal(mine.tokens, self._shares[0].tokens)
        return self._shares


def rows(tensor: Tensor | None) -> list[list[float]]:
    assert tensor is not None
    return tensor.tolist()


def test_shares_become_one_batch_in_the_order_of_the_prompts():
    mine = batch_of([[5], [5, 6], [5]], [[1, 9], [2], [3, 3]], first=0, step=2)
    theirs = batch_of([[7, 7, 7], [8]], [[4, 4, 9], [6]], first=1, step=2)
    whole = gather_shares(mine, Peers([mine, theirs]))
    assert whole.prompt_indices == [0, 1, 2, 3, 4]
    assert whole.texts == [f"text {n}" for n in range(5)]
    assert whole.finish_reasons == ["stop", "stop", "length", "length", "length"]
    assert rows(whole.tokens) == [[1, 9, 0], [4, 4, 9], [2, 0, 0], [6, 0, 0], [3, 3, 0]]
    assert rows(whole.input_ids) == [
        [5, 1, 9, 0, 0, 0],
        [7, 7, 7, 4, 4, 9],
        [5, 6, 2, 0, 0, 0],
        [8, 6, 0, 0, 0, 0],
        [5, 3, 3, 0, 0, 0],
    ]
    assert rows(whole.values) == [[2, 18, 0], [8, 8, 18], [4, 0, 0], [12, 0, 0], [6, 6, 0]]
    assert whole.lengths.tolist() == [2, 3, 1, 1, 2]
    assert whole.prompt_lengths.tolist() == [1, 3, 2, 1, 1]
    assert whole.scores.tolist() == [10, 17, 2, 6, 6]
    assert whole.components == {
        "reward": [10, 17, 2, 6, 6],
        "length": [-0.0, -1.0, -2.0, -3.0, -4.0],
    }
    assert whole.entropies is None
    # The share itself is as it was: its process goes on with it.
    assert mine.prompt_indices == [0, 2, 4]
    assert rows(mine.tokens) == [[1, 9], [2, 0], [3, 3]]


def test_the_share_of_one_process_is_the_batch():
    mine = batch_of([[5]], [[1, 9]], first=0, step=1)
    assert gather_shares(mine, Peers([mine])) is mine


def test_rows_taken_are_cut_to_the_longest_of_them():
    whole = batch_of([[5], [7, 7, 7], [5, 6]], [[1, 9], [4, 4, 9], [2]], first=0, step=1)
    part = whole.take([2, 0])
    assert rows(part.tokens) == [[2, 0], [1, 9]]
    assert rows(part.input_ids) == [[5, 6], [5, 1]]  # the last token is predicted, never read
    assert part.read_lengths.tolist() == [2, 2]
    assert part.texts == ["text 2", "text 0"]
    assert part.mask.tolist() == [[True, False], [True, True]]
    assert part.positions.tolist() == [[False, True], [True, True]]
    assert part.token_lists() == [[2], [1, 9]]
    assert part.entropies is None


LENGTHS = [4, 10, 9, 3, 10, 2]


@pytest.mark.parametrize(
    ("budget", "slack", "groups"),
    [
        # Longest first: 10, 10, 9, 4, 3, 2.  Padding of a group: 0, 0, 1, then 1 + 6 for the row of 4.
        (1000, 1000, [[1, 4, 2, 0, 3, 5]]),
        (1000, 7, [[1, 4, 2, 0], [3, 5]]),  # 7 is allowed; the row of 3 would add 7 more
        (1000, 6, [[1, 4, 2], [0, 3, 5]]),  # 4, 3 and 2: 1 + 2 tokens of padding
        (1000, 0, [[1, 4], [2], [0], [3], [5]]),
        (1000, 1, [[1, 4, 2], [0, 3], [5]]),
        # Three rows as wide as the first would be 30 tokens, one more 40.
        (30, 1000, [[1, 4, 2], [0, 3, 5]]),
        (29, 1000, [[1, 4], [2, 0, 3], [5]]),
        (12, 1000, [[1], [4], [2], [0, 3, 5]]),
        (9, 1000, [[1], [4], [2], [0, 3], [5]]),  # a longer row than the budget goes alone
    ],
)
def test_rows_of_similar_length_share_a_micro_batch(budget, slack, groups):
    assert micro_batches(range(6), LENGTHS, token_budget=budget, slack=slack) == groups


@pytest.mark.parametrize(
    ("budget", "groups"),
    [
        (38, [[0, 1, 2, 3, 4, 5]]),
        (37, [[0, 1, 2, 3, 4], [5]]),
        (14, [[0, 1], [2, 3], [4, 5]]),
        (13, [[0], [1], [2, 3], [4, 5]]),
        (9, [[0], [1], [2], [3], [4], [5]]),
    ],
)
def test_packed_rows_share_a_pass_up_to_the_budget_in_their_order(budget, groups):
    assert micro_batches(range(6), LENGTHS, token_budget=budget, slack=None) == groups


def test_samples_have_the_sums_of_their_own_tokens():
    batch = batch_of([[5], [5, 6]], [[1, 9], [2]], first=4, step=3)
    batch.log_ratio = torch.tensor([[0.5, -0.25], [0.125, 0.0]])
    first, second = samples_of(batch)
    assert (first.prompt_index, first.text, first.score) == (4, "text 4", 10)
    assert (first.kl, first.length, first.finish_reason) == (0.25, 2, "stop")
    assert (second.prompt_index, second.text, second.score) == (7, "text 7", 2)
    assert (second.kl, second.length, second.finish_reason) == (0.125, 1, "length")
