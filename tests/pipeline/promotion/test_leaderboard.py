"""The leaderboard: ratings of the peer's own fixtures, intervals by hand and by simulation."""

import math

import numpy as np
import pytest

from pipeline.promotion.leaderboard import Match, leaderboard

# choix's own fixtures (github.com/lucasmaystre/choix, tests/data/testcase-pairwise-{1,2}.json,
# MIT License, Copyright (c) 2015-2017 Lucas Maystre): (winner, loser) and maximum-likelihood ratings.
CYCLE = [(0, 1), (1, 2), (2, 0)]
CHOIX = [
    (CYCLE, [0.0, 0.0, 0.0]),
    ([(0, 1), *CYCLE], [0.419617624, -0.419617624, 0.0]),
]


def won(first: str, second: str, outcome: float = 1.0, *, prompt: object = None) -> Match:
    return Match(first=first, second=second, outcome=outcome, prompt=prompt or object())


@pytest.mark.parametrize(("games", "expected"), CHOIX)
def test_ratings_equal_those_of_choix(games, expected):
    # So many games that the prior, one tie for each pair, weighs nothing.
    matches = [won(str(a), str(b)) for a, b in games] * 4000
    ranks = {rank.policy: rank for rank in leaderboard(matches, ["0", "1", "2"], anchor="0")}
    found = np.array([ranks[name].rating for name in ("0", "1", "2")])
    np.testing.assert_allclose(found - found.mean(), expected, atol=1e-4)


def test_a_tie_is_half_a_win_each():
    # 3 wins, 2 ties, 1 loss and the prior's tie: 4.5 of 7 points, log(4.5/2.5).
    games = [won("a", "b")] * 3 + [won("a", "b", 0.5)] * 2 + [won("a", "b", 0.0)]
    best = leaderboard(games, ["a"], anchor="b")[0]
    assert (best.policy, best.rating) == ("a", pytest.approx(math.log(1.8)))


def test_two_policies_worked_by_hand():
    # 6 wins, 2 losses and the prior's tie: rating log(6.5/2.5) = .95551, p = .72222.
    # Information 9p(1−p) = 1.80556; squared scores 6 · .27778² + 2 · .72222² + .22222² = 1.55556,
    # times 9/8 = 1.75; variance 1.75/1.80556² = .53680, SE .73267; t(7) = 2.36462.
    games = [won("new", "sft", float(i < 6), prompt=i) for i in range(8)]
    best, anchor = leaderboard(games, ["sft", "new"], anchor="sft")
    assert (best.policy, best.judgments, anchor.policy) == ("new", 8, "sft")
    assert best.rating == pytest.approx(0.95551, abs=1e-5)
    assert best.error == pytest.approx(0.73267, abs=1e-5)
    low = 1 / (1 + math.exp(-(0.95551 - 2.36462 * 0.73267)))
    assert best.low == pytest.approx(low, abs=2e-3)  # t within 1%
    assert (anchor.win_rate, anchor.low, anchor.high) == (0.5, 0.5, 0.5)


def test_judgments_between_others_reach_the_anchor_by_way_of_them():
    games = [won("a", "sft", float(i < 6), prompt=i) for i in range(8)]
    games += [won("b", "a", float(i < 6), prompt=i + 8) for i in range(8)]
    ranks = {r.policy: r for r in leaderboard(games, ["sft", "a", "b"], anchor="sft")}
    assert ranks["b"].rating == pytest.approx(2 * 0.95551, abs=1e-5)
    assert ranks["b"].error > ranks["a"].error


def test_repeating_a_prompts_judgments_adds_little_certainty():
    once = [won("new", "sft", float(i < 13), prompt=i) for i in range(20)]
    thrice = [m for m in once for _ in range(3)]
    error = {len(g): leaderboard(g, ["new"], anchor="sft")[0].error for g in (once, thrice)}
    assert error[60] > 0.95 * error[20]


def test_winning_every_time_leaves_a_finite_rating_and_doubt():
    games = [won("new", "sft", prompt=i) for i in range(60)]
    best = leaderboard(games, ["new"], anchor="sft")[0]
    assert best.rating == pytest.approx(math.log(60.5 / 0.5))
    # "Rule of three": 60 wins of 60 leave room for 1 loss in 20.
    assert 0.90 < best.low < 0.97 < best.high < 1


def test_what_no_judgment_links_to_the_anchor_is_not_ranked():
    games = [won("a", "sft", prompt=1), won("x", "y", prompt=2)]
    ranks = leaderboard(games, ["sft", "a", "x", "y", "z"], anchor="sft")
    assert [r.policy for r in ranks] == ["a", "sft", "x", "y", "z"]
    assert [r.rating is None for r in ranks] == [False, False, True, True, True]
    assert [r.judgments for r in ranks] == [1, 1, 1, 1, 0]
    nothing = leaderboard([], ["sft", "a"], anchor="sft")
    assert [(r.policy, r.win_rate) for r in nothing] == [("sft", 0.5), ("a", None)]


def test_one_prompt_says_nothing():
    best = leaderboard([won("a", "sft", prompt="p")] * 9, ["a"], anchor="sft")[0]
    # One prompt and the prior's tie: t of one degree of freedom.
    assert best.low < 0.01
    assert best.high > 0.99


def test_bad_matches_are_refused():
    with pytest.raises(ValueError, match="against itself"):
        won("a", "a")
    with pytest.raises(ValueError, match="outcomes"):
        won("a", "b", 0.7)


def test_intervals_cover_the_truth_when_judgments_cluster():
    generator = np.random.default_rng(5)
    truth = {"sft": 0.0, "a": 0.4, "b": 0.9}
    pairs = [("a", "sft"), ("b", "sft"), ("b", "a")]
    covered, trials = 0, 300
    for _ in range(trials):
        games = []
        for number, (first, second) in enumerate(pairs):
            mean = 1 / (1 + math.exp(truth[second] - truth[first]))
            # Prompts differ: Beta(2p, 2(1−p)) around the mean, three judgments each.
            for prompt, p in enumerate(generator.beta(2 * mean, 2 * (1 - mean), size=40)):
                games += [
                    won(first, second, float(generator.random() < p), prompt=(number, prompt))
                    for _ in range(3)
                ]
        rank = next(r for r in leaderboard(games, truth, anchor="sft") if r.policy == "b")
        covered += rank.low <= 1 / (1 + math.exp(-truth["b"])) <= rank.high
    assert 0.915 < covered / trials < 0.985  # .95 ± 2.8 standard errors
