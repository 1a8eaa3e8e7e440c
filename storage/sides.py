"""Which side of the screen a response is on, and outcomes in the stored order.  Pure functions."""

from storage.records import Outcome, ScreenOutcome, check_choice, digest


def canonical_outcome(outcome: ScreenOutcome, *, shown_swapped: bool) -> Outcome:
    """The stored outcome for a button of the screen."""
    check_choice("outcome", outcome, ScreenOutcome)
    if outcome == "tie" or outcome == "both_bad":
        return outcome
    return "first" if (outcome == "a") != shown_swapped else "second"


def shown_swapped(annotator: str, comparison: str) -> bool:
    """Whether this annotator sees `first` on the right: a fair coin, the same after a reload."""
    return int(digest("sides", annotator, comparison)[-1], 16) % 2 == 1
