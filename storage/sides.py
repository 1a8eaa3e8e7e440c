"""Which side of the screen a response is on, and outcomes in the stored order.  Pure functions.

`shown_swapped` computes the side when a pair is shown and again when its judgment is stored, so the
side need not be stored in between.  Judgments store the outcome in the order `first`, `second`, and
`shown_swapped`, from which the reward model learns each annotator's side bias.

The side is an unkeyed hash: anyone who knows the ids of annotator and comparison can compute it.
It does not reveal which model wrote a response, because the order of `first` and `second` does not
depend on the models.  Sampled pairs are in the order of the completions' ids (`Draft.canonical` in
pipeline/sampling/pairs.py), written pairs in an order that depends on the workspace's secret key
(`_order` in storage/importing/planning/written_pairs.py).
"""

from collections.abc import Mapping
from typing import TypeVar

from storage.records import Outcome, ScreenOutcome, check_choice, digest

T = TypeVar("T")


def canonical_outcome(outcome: ScreenOutcome, *, shown_swapped: bool) -> Outcome:
    """The stored outcome for an outcome on the screen."""
    check_choice("outcome", outcome, ScreenOutcome)
    if outcome == "tie" or outcome == "both_bad":
        return outcome
    return "first" if (outcome == "a") != shown_swapped else "second"


def screen_outcome(outcome: Outcome, *, shown_swapped: bool) -> ScreenOutcome:
    """The outcome on the screen for a stored one: the inverse of `canonical_outcome`."""
    if outcome == "tie" or outcome == "both_bad":
        return outcome
    return "a" if (outcome == "first") != shown_swapped else "b"


def canonical_sides(values: Mapping[str, T], *, shown_swapped: bool) -> dict[str, T]:
    """Values by first and second for values by a and b; ValueError for another key."""
    for side in values:
        check_choice("side", side, ("a", "b"))
    return {
        "first" if (side == "a") != shown_swapped else "second": value
        for side, value in values.items()
    }


def screen_sides(values: Mapping[str, T], *, shown_swapped: bool) -> dict[str, T]:
    """The inverse of `canonical_sides`."""
    return {
        "a" if (side == "first") != shown_swapped else "b": value for side, value in values.items()
    }


def shown_swapped(annotator: str, comparison: str) -> bool:
    """Whether this annotator sees `first` on the right: random, but the same after a reload."""
    return int(digest("sides", annotator, comparison)[-1], 16) % 2 == 1
