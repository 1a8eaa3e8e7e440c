"""The leaderboard of all models in the judgments, imported ones included."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict

from pipeline.promotion.leaderboard import Match, leaderboard, linked
from storage.gate_records import ModelJudgment
from storage.gate_report import Meeting, ModelBoard, ModelRank

_NO_CATEGORY = "(none)"


def model_board(
    judgments: Sequence[ModelJudgment],
    *,
    reference: str | None = None,
    anchor: str | None = None,
    category: str | None = None,
) -> ModelBoard:
    """The models by rating, with the judgments between each two of them.

    The anchor has the rating 0: `anchor`, otherwise the `reference` if it was judged, otherwise the
    model with the most judgments.  `category` keeps the judgments on its prompts.  ValueError for a
    model or a category without judgments.
    """
    categories = Counter(each.category or _NO_CATEGORY for each in judgments)
    if category is not None:
        if category not in categories:
            known = ", ".join(sorted(categories)) or "no category yet"
            raise ValueError(f"no judgments are of the category {category!r}; there are: {known}")
        judgments = [j for j in judgments if (j.category or _NO_CATEGORY) == category]
    counts = Counter(name for each in judgments for name in (each.first, each.second))
    if anchor is not None and anchor not in counts:
        known = ", ".join(sorted(counts)) or "no model yet"
        raise ValueError(f"no judgments are of the model {anchor!r}; there are: {known}")
    meetings = _meetings(judgments)
    matches = [
        Match(first=j.first, second=j.second, outcome=j.outcome, prompt=j.prompt) for j in judgments
    ]
    if anchor is None and counts:
        anchor = reference if reference in counts else _most_judged(counts, matches)
    return ModelBoard(
        anchor=anchor,
        category=category,
        judgments=len(judgments),
        prompts=len({each.prompt for each in judgments}),
        ranks=_ranks(matches, counts, meetings, anchor),
        meetings=meetings,
        categories=dict(categories.most_common()),
    )


def _ranks(
    matches: Sequence[Match], counts: Counter[str], meetings: Sequence[Meeting], anchor: str | None
) -> list[ModelRank]:
    if anchor is None:
        return []
    wins: dict[str, float] = defaultdict(float)
    for each in meetings:
        wins[each.model] += each.wins
    ranks = map(asdict, leaderboard(matches, sorted(counts), anchor=anchor))
    return [
        ModelRank(model=(name := rank.pop("policy")), won=wins[name] / counts[name], **rank)
        for rank in ranks
    ]


def _most_judged(counts: Counter[str], matches: Sequence[Match]) -> str:
    """The model with the most judgments in the largest group of models that judgments connect."""
    left, groups = set(counts), []
    while left:
        groups.append(linked(matches, min(left)))
        left -= groups[-1]
    largest = max(groups, key=lambda group: sum(counts[name] for name in group))
    return max(sorted(largest), key=lambda name: counts[name])


def _meetings(judgments: Sequence[ModelJudgment]) -> list[Meeting]:
    played: Counter[tuple[str, str]] = Counter()
    wins: dict[tuple[str, str], float] = defaultdict(float)
    for each in judgments:
        for one, other, won in (
            (each.first, each.second, each.outcome),
            (each.second, each.first, 1 - each.outcome),
        ):
            played[one, other] += 1
            wins[one, other] += won
    return [
        Meeting(model=one, opponent=other, judgments=played[one, other], wins=wins[one, other])
        for one, other in sorted(played)
    ]


def format_board(found: ModelBoard) -> str:
    """The leaderboard as text."""
    if found.anchor is None:
        return (
            "No judgments compare two models yet. Label pairs of two policies, or import judgments "
            "with model_a and model_b."
        )
    of = f" of the category {found.category}" if found.category else ""
    width = max(24, *(len(rank.model) for rank in found.ranks))
    lines = [
        f"{found.judgments:,} judgments on {found.prompts:,} prompts{of}",
        "",
        f"{'model':<{width}}  {'wins against ' + found.anchor:<28}  rating         judgments",
    ]
    for rank in found.ranks:
        chance, rating = "not connected by judgments", ""
        if rank.win_rate is not None:
            chance = f"{rank.win_rate:.0%} ({rank.low:.0%} to {rank.high:.0%})"
            rating = f"{rank.rating:+z.2f} ± {rank.error:.2f}"
        if rank.model == found.anchor:
            chance, rating = "reference", "0"
        lines.append(f"{rank.model:<{width}}  {chance:<28}  {rating:<13}  {rank.judgments:>9,}")
    if len(found.categories) > 1 and not found.category:
        listed = ", ".join(f"{name} {count:,}" for name, count in found.categories.items())
        lines += ["", f"categories (--category NAME): {listed}"]
    return "\n".join(lines)
