"""Which side of the screen a response is on, and outcomes in the stored order.  Pure functions.

`shown_swapped` decides the side when a pair is shown and again when its judgment is stored, so no
side is kept between the two.  Judgments store the outcome in the order `first`, `second`, and
`shown_swapped` beside it; the reward model learns each annotator's side bias from that.

The side is a hash without a key: whoever knows the ids of annotator and comparison can compute it.
It does not reveal which model wrote a response, because the order of `first` and `second` does not
depend on the models.  Sampled pairs are in the order of the completions' ids (`Draft.canonical` in
pipeline/sampling/pairs.py), written pairs in an order that depends on the workspace's secret key
(`_order` in storage/importing/written_pairs.py).
"""

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
