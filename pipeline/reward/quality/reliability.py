"""The reliability and expected agreement of annotators, from a fitted reward model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from pipeline.reward.annotators import (
    SCALES,
    AnnotatorJudgments,
    FittedAnnotators,
    annotator_weights,
    calibrated,
    effective,
    fit_annotators,
)
from pipeline.reward.data import JudgedPair
from pipeline.reward.gold import GoldJudgment, gold_prior
from pipeline.reward.likelihood import (
    FIRST,
    TIE,
    Likelihood,
    TieModel,
    TieValues,
    log_probabilities,
)
from pipeline.reward.scoring import RewardModel
from pipeline.runs.rundir import Note
from storage.analysis.annotator_fit import AnnotatorEstimate, AnnotatorFit

LOW_WEIGHT = 0.25
"""A warning names annotators whose judgments have less than this weight."""


def judged_by_rewards(
    pairs: Sequence[JudgedPair],
    first: Sequence[float],
    second: Sequence[float],
    ids: Sequence[str],
    *,
    tie_model: TieModel,
) -> tuple[AnnotatorJudgments, list[int]]:
    """The judgments with the rewards of their texts, and their rows in `pairs`.

    `annotator` is an index into `ids`, which must contain all annotators.  Under ``drop`` judgments
    without a preference are left out, as in training.
    """
    rows = [n for n, p in enumerate(pairs) if p.decisive or tie_model != "drop"]
    index = {id: n for n, id in enumerate(ids)}
    a, b = (torch.tensor([r[n] for n in rows], dtype=torch.float64) for r in (first, second))
    judged = AnnotatorJudgments(
        d=a - b,
        level=(a + b) / 2,
        side=torch.tensor([float(pairs[n].side) for n in rows], dtype=torch.float64),
        annotator=torch.tensor([index[pairs[n].annotator] for n in rows], dtype=torch.long),
        outcomes=torch.tensor([pairs[n].outcome for n in rows], dtype=torch.long),
        strength=torch.tensor([pairs[n].strength for n in rows], dtype=torch.long),
    )
    return judged, rows


def reliability(
    folds: Sequence[tuple[Sequence[JudgedPair], RewardModel]],
    ids: Sequence[str],
    counts: Mapping[str, int],
    *,
    likelihood: Likelihood,
    ties: TieValues,
    gold: Sequence[GoldJudgment] = (),
) -> AnnotatorFit:
    """The estimates for each annotator, and their expected agreement.

    Each of `folds` has judgments and a model that did not learn from them; a model that did has
    memorized careless judgments, which then look careful.  The rewards of each fold are scaled to
    fit annotators of slope 1.  `counts` is the number of judgments of each annotator.  Answers to
    `gold` pairs count in the estimates, and not in the agreement.
    """
    # Neither the level nor the margin depends on the annotator.
    likelihood = replace(likelihood, both_bad="tie", margin=0.0)
    nothing, _ = judged_by_rewards([], [], [], ids, tie_model=likelihood.tie_model)
    parts, items, stream = [nothing], [], []
    for pairs, model in folds:
        sides = model.both_sides(pairs)
        judged, rows = judged_by_rewards(pairs, *sides, ids, tie_model=likelihood.tie_model)
        if rows:
            parts.append(calibrated(judged, likelihood, ties))
            items += [(pairs[n].first, pairs[n].second) for n in rows]
            stream += [pairs[n].random_stream for n in rows]
    judged = AnnotatorJudgments(
        **{name: torch.cat([vars(part)[name] for part in parts]) for name in vars(parts[0])}
    )
    prior = gold_prior(gold, ids, likelihood=likelihood, ties=ties)
    fitted = fit_annotators(judged, len(ids), likelihood=likelihood, ties=ties, prior=prior)
    chances = outcome_chances(judged, fitted, likelihood, ties)
    # `half` gives a tie no probability.
    known = likelihood.tie_model != "half"
    agreement = expected_agreement(judged.outcomes, chances, items) if known else None
    preferences = expected_preference_agreement(chances, items, stream)
    weights = annotator_weights(fitted, likelihood, ties)
    estimates = annotator_estimates(
        ids,
        counts,
        judged,
        fitted,
        weights=weights,
        follows=agreement_with_model(ids, judged, chances),
    )
    return AnnotatorFit(
        annotators=tuple(estimates),
        expected_agreement=agreement.expected if agreement else None,
        observed_agreement=agreement.observed if agreement else None,
        expected_alpha=agreement.expected_alpha if agreement else None,
        observed_alpha=agreement.observed_alpha if agreement else None,
        overlapping_items=agreement.items if agreement else 0,
        expected_preference_agreement=preferences,
    )


def losses_to_annotators(
    pairs: Sequence[JudgedPair], first: Sequence[float], second: Sequence[float], network: Any
) -> Tensor:
    """(N,) negative log-likelihoods of judgments (first, second, tie) given their annotators, nats.

    Annotators that the network does not know have slope 1 and no side bias.  ``drop`` scores a tie
    as ``half`` does.  Reward differences are scaled by the best of `SCALES`: a network becomes
    overconfident while its ranking of responses still improves.
    """
    known = network.annotators
    ids = [] if known is None else known.ids
    everybody = [*ids, *sorted({pair.annotator for pair in pairs} - set(ids))]
    asked = network.likelihood.tie_model
    likelihood = Likelihood(tie_model="half" if asked == "drop" else asked, both_bad="tie")
    judged, _ = judged_by_rewards(pairs, first, second, everybody, tie_model=likelihood.tie_model)
    slope, bias = torch.ones(len(everybody)), torch.zeros(len(everybody))
    if known is not None:
        slope[: len(ids)] += known.delta.detach().cpu()
        bias[: len(ids)] = known.bias.detach().cpu()
    annotator, scaled = judged.annotator, SCALES[:, None] * judged.d
    z = effective(scaled, slope[annotator].double(), bias[annotator].double(), judged.side)
    losses = likelihood.loss(z, judged.outcomes, ties=network.ties.values())
    return losses[losses.sum(-1).argmin()]


def notes_on_annotators(estimates: Sequence[AnnotatorEstimate]) -> list[Note]:
    """A warning for each annotator whose slope is negative or whose weight is small."""
    notes = []
    for each in estimates:
        slope_sd, weight = each.slope_sd or 0.0, each.weight or 0.0
        if each.slope + 2 * slope_sd < 0:
            problem = "contradicts the others, so its sign is reversed"
        elif weight < LOW_WEIGHT:
            problem = f"counts for {weight:.0%} of an average one"
        else:
            continue
        message = (
            f"a judgment by {each.annotator} {problem}: slope {each.slope:.2f} "
            f"± {slope_sd:.2f} over {each.measured} judgments"
        )
        notes.append(Note(kind="warning", name="annotator", message=message, payload=asdict(each)))
    return notes


@dataclass(frozen=True, kw_only=True)
class AgreementOnItems:
    """Agreement of two annotators on the `items` that several people judged."""

    items: int
    expected: float
    expected_alpha: float | None
    """Krippendorff's α over the outcomes first, second and tie; None if all ratings are the same."""
    observed: float
    observed_alpha: float | None


def expected_agreement(
    outcomes: Tensor, chances: Tensor, items: Sequence[Any]
) -> AgreementOnItems | None:
    """Expected and observed agreement of two annotators on items that several people judged.

    `outcomes` (N,) are the judgments, `chances` (N, 3) their `outcome_chances`, and `items` (N,)
    their pairs of responses.  Two judgments agree if both name the same response or both are ties.
    None without such an item.
    """
    overlapping = _judged_by_several(items)
    if not overlapping:
        return None
    ratings = one_hot(outcomes.clamp(max=TIE), 3).double()  # both bad is a tie
    expected, expected_alpha = _agreed(chances, overlapping)
    observed, observed_alpha = _agreed(ratings, overlapping)
    return AgreementOnItems(
        items=len(overlapping),
        expected=expected,
        expected_alpha=expected_alpha,
        observed=observed,
        observed_alpha=observed_alpha,
    )


def _agreed(ratings: Tensor, overlapping: Sequence[Sequence[int]]) -> tuple[float, float | None]:
    """Percent agreement and nominal α of independent ratings (N, C): probabilities, or ones.

    An item with m judgments counts m times, with the mean over its pairs of judgments.  For
    probabilities, α is the ratio of the expected numerator and denominator.  α is None if all
    ratings are the same.
    """
    rated = [row for rows in overlapping for row in rows]
    n, agreed = len(rated), 0.0
    for rows in overlapping:
        pairs = sum(float(ratings[a] @ ratings[b]) for a, b in combinations(rows, 2))
        agreed += 2 * pairs / (len(rows) - 1) / n
    # Two different ratings drawn from all, those of the same item included.
    sums, squares = ratings[rated].sum(0).square().sum(), ratings[rated].square().sum()
    by_chance = ((sums - squares) / (n * (n - 1))).item()
    return agreed, 1 - (1 - agreed) / (1 - by_chance) if by_chance < 1 else None


def expected_preference_agreement(
    chances: Tensor, items: Sequence[Any], counts: Sequence[bool]
) -> float | None:
    """How often the fitted annotators would agree if both prefer a response.

    P(both prefer the same) / P(both prefer one), each summed over all pairs of judgments of one
    item for which `counts` (N,) is true; `ceiling.agreement` is the observed value.  None without
    such a pair.
    """
    preferred = chances[:, :2]
    pairs = [
        (a, b)
        for rows in _judged_by_several(items)
        for a, b in combinations([n for n in rows if counts[n]], 2)
    ]
    if not pairs:
        return None
    one, other = (preferred[list(rows)] for rows in zip(*pairs, strict=True))
    both = (one.sum(1) * other.sum(1)).sum()
    return ((one * other).sum() / both).item()


def outcome_chances(
    judged: AnnotatorJudgments, fitted: FittedAnnotators, likelihood: Likelihood, ties: TieValues
) -> Tensor:
    """(N, 3) probabilities of first, second and tie, for each judgment's annotator."""
    slope, bias = 1 + fitted.delta[judged.annotator], fitted.bias[judged.annotator]
    z = effective(judged.d, slope, bias, judged.side)
    return log_probabilities(z, ties.theta, likelihood.tie_model).exp()


def _judged_by_several(items: Sequence[Any]) -> list[list[int]]:
    """The rows of each item with at least two judgments."""
    by_item: dict[Any, list[int]] = {}
    for row, item in enumerate(items):
        by_item.setdefault(item, []).append(row)
    return [rows for rows in by_item.values() if len(rows) > 1]


class AgreementWithModel(NamedTuple):
    """How often one annotator preferred the response with the higher reward.

    `share` is the observed share of the `decided` judgments, and `expected` the share that their
    slope and side bias predict; both are None if `decided` is 0.  Equal rewards count half.
    """

    decided: int
    share: float | None
    expected: float | None


def agreement_with_model(
    ids: Sequence[str], judged: AnnotatorJudgments, chances: Tensor
) -> list[AgreementWithModel]:
    """The figures of each annotator, in the order of `ids`."""
    decided = judged.outcomes < TIE
    right = judged.d.sign() * torch.where(judged.outcomes == FIRST, 1.0, -1.0)
    first = chances[:, 0] / chances[:, :2].sum(1)
    higher = torch.where(judged.d > 0, first, torch.where(judged.d < 0, 1 - first, 0.5))
    found = []
    for n in range(len(ids)):
        theirs = decided & (judged.annotator == n)
        some = bool(theirs.any())
        found.append(
            AgreementWithModel(
                decided=int(theirs.sum()),
                share=((1 + right[theirs]) / 2).mean().item() if some else None,
                expected=higher[theirs].mean().item() if some else None,
            )
        )
    return found


def annotator_estimates(
    ids: Sequence[str],
    counts: Mapping[str, int],
    judged: AnnotatorJudgments,
    fitted: FittedAnnotators,
    *,
    weights: Tensor,
    follows: Sequence[AgreementWithModel],
) -> list[AnnotatorEstimate]:
    """One for each of `ids`; `counts` is the number of judgments of each, measured or not."""
    measured = torch.bincount(judged.annotator, minlength=len(ids)).tolist()
    return [
        AnnotatorEstimate(
            annotator=id,
            slope=1 + fitted.delta[n].item(),
            slope_sd=fitted.delta_sd[n].item(),
            side_bias=fitted.bias[n].item(),
            side_bias_sd=fitted.bias_sd[n].item(),
            weight=weights[n].item(),
            judgments=counts[id],
            measured=measured[n],
            decided=follows[n].decided,
            with_model=follows[n].share,
            with_model_expected=follows[n].expected,
        )
        for n, id in enumerate(ids)
    ]
