"""How each annotator judges, compared with the others, as HTML. Pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from labeler.html import components
from labeler.html.components import Column, Markup
from storage.analysis.agreement import Agreement, Kappa
from storage.analysis.agreement_statistics import MIN_ITEMS
from storage.analysis.annotator_fit import AnnotatorEstimate, AnnotatorFit
from storage.analysis.checks import AnnotatorChecks, CheckResult, PracticeState
from storage.analysis.intervals import NORMAL, UNLIKELY, clearly_below, wilson
from storage.analysis.reliability import AnnotatorFigures
from storage.wording import plural

NO_STATES: Mapping[str, PracticeState] = MappingProxyType({})
NO_CHECKS: Mapping[str, AnnotatorChecks] = MappingProxyType({})

_JUDGED = (
    Column("Annotator"),
    Column("Judged", "right", "Current judgments over all iterations."),
    Column(
        "Left",
        "right",
        "Share of preferences for the response on the left, with its 95% interval. Sides are random, "
        "so an interval that does not contain 50% shows a side bias.",
    ),
    Column("Ties", "right", "Share of judgments that are ties."),
    Column("Both bad", "right", "Share of judgments that say both are bad."),
    Column(
        "Time",
        "right",
        "Median time from seeing a pair to judging it. Small: the 10% quantile.",
    ),
    Column(
        "Agreement",
        "right",
        "Share of the other annotators' judgments of the same pairs that agree. Small: its 95% "
        "interval, clustered by prompt, and the number of pairs that others also judged.",
    ),
)
_FITTED = (
    Column(
        "Slope",
        "right",
        "How strongly the annotator's choices depend on the reward, fitted with the newest reward "
        "model: 1 is average, 0 means no dependence, below 0 the opposite. With its 95% interval.",
    ),
    Column(
        "Side bias",
        "right",
        "The annotator's preference for the left side, in units of reward. The fit corrects for "
        "it. With its 95% interval.",
    ),
    Column("Weight", "right", "Weight of each of the annotator's judgments in the fit."),
    Column(
        "With model",
        "right",
        "Share of the annotator's preferences for the response with the higher reward, on pairs that "
        "the scoring model did not learn from. With its 95% interval, and the share that slope and "
        "side bias predict.",
    ),
)

_CHECKED = (
    Column(
        "Gold",
        "right",
        "Share of gold pairs that the annotator answered as expected. A tie or both bad counts as "
        "missed. With its 95% interval, and the number of gold pairs.",
    ),
    Column(
        "Self-consistency",
        "right",
        "Share of the annotator's own pairs that they judged the same again, with the sides swapped. "
        "With its 95% interval, and the number of pairs asked again.",
    ),
    Column(
        "Practice",
        "right",
        "Share of practice pairs whose first answer was the expected one, and whether practice is "
        "passed: the lower bound of the share exceeds labeling.practice_mark with 95% confidence. "
        "Nobody is excluded.",
    ),
)

_MIN_JUDGMENTS = 20  # judgments below which speed is not remarked on


def table(
    figures: Iterable[AnnotatorFigures],
    fit: AnnotatorFit | None,
    checks: Mapping[str, AnnotatorChecks] = NO_CHECKS,
    practice: Mapping[str, PracticeState] = NO_STATES,
) -> Markup:
    """A row for each annotator with judgments, by number of judgments."""
    judged = sorted(
        (f for f in figures if f.judgments), key=lambda f: (-f.judgments, f.annotator.name)
    )
    if not judged:
        return components.empty("No judgments yet", "Figures appear after the first judgments.")
    columns = [*_JUDGED, *(_CHECKED if checks else ()), *(_FITTED if fit else ())]
    rows = [_row(f, remarks(f, judged, fit, checks), fit, checks, practice) for f in judged]
    return components.table(columns, rows, caption="How each annotator judges")


def _row(
    f: AnnotatorFigures,
    said: Sequence[str],
    fit: AnnotatorFit | None,
    checks: Mapping[str, AnnotatorChecks],
    practice: Mapping[str, PracticeState],
) -> Sequence[Any]:
    quick = f"10%: {components.duration(f.quick_seconds)}" if f.quick_seconds is not None else ""
    cells: list[Any] = [
        _name(f.annotator.name, said),
        components.number(f.judgments),
        components.figure(
            components.percent(f.left_rate), components.interval(*(f.left_interval or (None, None)))
        ),
        components.percent(f.tie_rate),
        components.percent(f.both_bad_rate),
        components.figure(components.duration(f.median_seconds), quick),
        shared_agreement(f),
    ]
    if checks:
        found = checks.get(f.annotator.id, AnnotatorChecks())
        state = practice.get(f.annotator.id, "not started")
        cells += [_checked(found.gold), _checked(found.reask), _checked(found.practice, state)]
    if fit:
        cells += _fitted_cells(fit.by_annotator.get(f.annotator.id))
    return cells


def _checked(found: CheckResult, state: str = "") -> Markup | str:
    if found.interval is None:
        return components.DASH
    pairs = plural(found.answered, "pair")
    spread = components.interval(*found.interval)
    return components.figure(components.percent(found.share), spread, pairs, state)


def _fitted_cells(found: AnnotatorEstimate | None) -> list[Any]:
    if found is None:  # has judged since the fit
        return [components.DASH, components.DASH, components.DASH, components.DASH]
    return [
        _estimate(found.slope, found.slope_sd),
        _estimate(found.side_bias, found.side_bias_sd),
        components.decimal(found.weight),
        _with_model(found),
    ]


def slope(found: AnnotatorEstimate | None) -> Markup | str:
    """The fitted slope with its 95% interval."""
    return _estimate(found.slope, found.slope_sd) if found else components.DASH


def _with_model(found: AnnotatorEstimate) -> Markup | str:
    if found.with_model is None:
        return components.DASH
    return components.figure(
        components.percent(found.with_model),
        components.interval(*wilson(found.with_model, found.decided)),
        f"expected {components.percent(found.with_model_expected)}",
    )


def _estimate(value: float | None, sd: float | None) -> Markup:
    """A figure with its 95% interval."""
    if value is None or sd is None:
        return components.figure(components.decimal(value), "")
    interval = (value - NORMAL * sd, value + NORMAL * sd)
    return components.figure(components.decimal(value), _between(interval))


def _between(interval: Sequence[float]) -> str:
    return " to ".join(map(components.decimal, interval))


def _name(name: str, said: Sequence[str]) -> Markup:
    """The name, with remarks below."""
    words = [components.badge(each, "warn") for each in said]
    return Markup('<span class="ks-words"><b dir="auto">{}</b>{}</span>').format(
        name, components.lines(words)
    )


# ------------------------------------------------------------------ in words


def side_bias(left_rate: float | None, decided: int) -> float | None:
    """How many standard errors the left rate is from one half; None without decisions.

    With random sides the rate has the standard error √(¼ / n).
    """
    if left_rate is None or decided == 0:
        return None
    return (left_rate - 0.5) / math.sqrt(0.25 / decided)


def remarks(
    f: AnnotatorFigures,
    everybody: Sequence[AnnotatorFigures],
    fit: AnnotatorFit | None,
    checks: Mapping[str, AnnotatorChecks] = NO_CHECKS,
) -> list[str]:
    """Remarks on differences from the others in `everybody` that chance is unlikely to explain.

    Side bias and slope are measured without others.  Differences need `UNLIKELY` standard errors;
    `_speed` and `_slope` have their own limits.
    """
    others = [other for other in everybody if other.annotator.id != f.annotator.id]
    found = [
        _side(f),
        _share("judges {} as ties", f, others, lambda each: each.tie_rate),
        _share("judges {} as both bad", f, others, lambda each: each.both_bad_rate),
        _speed(f, others),
        _agreement(f, others),
        _missed("answers {} of gold pairs as expected", f, checks, lambda each: each.gold),
        _missed("judges {} of pairs the same again", f, checks, lambda each: each.reask),
        _slope(fit.by_annotator.get(f.annotator.id) if fit else None),
    ]
    return [words for words in found if words]


def _side(f: AnnotatorFigures) -> str:
    bias = side_bias(f.left_rate, f.decided)
    if bias is None or f.left_rate is None or abs(bias) <= UNLIKELY:
        return ""
    side, share = ("left", f.left_rate) if bias > 0 else ("right", 1 - f.left_rate)
    return f"prefers the {side} in {components.percent(share)} of decisions"


def _share(
    words: str,
    f: AnnotatorFigures,
    others: Sequence[AnnotatorFigures],
    rate: Callable[[AnnotatorFigures], float | None],
) -> str:
    """A remark if two shares differ by more than chance, by a z-test with the pooled share."""
    n, m = f.judgments, sum(other.judgments for other in others)
    mine = rate(f)
    if mine is None or m == 0:
        return ""
    theirs = sum((rate(other) or 0.0) * other.judgments for other in others) / m
    pooled = (mine * n + theirs * m) / (n + m)
    error = math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
    if error == 0 or abs(mine - theirs) <= UNLIKELY * error:
        return ""
    return f"{words.format(components.percent(mine))}; others {components.percent(theirs)}"


def _speed(f: AnnotatorFigures, others: Sequence[AnnotatorFigures]) -> str:
    times = [o.median_seconds for o in others if o.median_seconds is not None]
    if f.median_seconds is None or not times or f.judgments < _MIN_JUDGMENTS:
        return ""
    usual = statistics.median(times)
    if f.median_seconds >= usual / 3:
        return ""
    return f"takes {components.duration(f.median_seconds)} per pair; others {components.duration(usual)}"


def shared_agreement(f: AnnotatorFigures) -> Markup:
    """The agreement with others and its interval; without one, there are too few pairs for a figure."""
    if not f.shared_items:
        return components.figure(components.DASH, "no pair shared")
    pairs = plural(f.shared_items, "pair")
    if f.agreement_interval is None:
        return components.figure(components.DASH, f"{pairs}: too few")
    spread = components.interval(*f.agreement_interval)
    return components.figure(components.percent(f.agreement), spread, pairs)


def _agreement(f: AnnotatorFigures, others: Sequence[AnnotatorFigures]) -> str:
    shares = [o.agreement for o in others if o.agreement is not None]
    if f.agreement is None or f.agreement_interval is None or not shares:
        return ""
    usual = statistics.median(shares)
    reach = (f.agreement_interval[1] - f.agreement) * UNLIKELY / NORMAL
    if f.agreement + reach >= usual:
        return ""
    return f"agrees with others in {components.percent(f.agreement)} of cases; others {components.percent(usual)}"


def _missed(
    words: str,
    f: AnnotatorFigures,
    checks: Mapping[str, AnnotatorChecks],
    kind: Callable[[AnnotatorChecks], CheckResult],
) -> str:
    """A remark if the share is below that of all others together by more than chance."""
    mine = kind(checks.get(f.annotator.id, AnnotatorChecks()))
    others = (kind(each) for id, each in checks.items() if id != f.annotator.id)
    usual = sum(others, CheckResult())
    if mine.share is None or usual.share is None:
        return ""
    if not clearly_below(mine.matched, mine.answered, usual.matched, usual.answered):
        return ""
    return (
        f"{words.format(components.percent(mine.share))}; others {components.percent(usual.share)}"
    )


def _slope(found: AnnotatorEstimate | None) -> str:
    if found is None or found.slope_sd is None:
        return ""
    high = found.slope + NORMAL * found.slope_sd
    if high < 0:
        return "prefers the response with the lower reward"
    return (
        "choices depend on the reward less than half as strongly as average" if high < 0.5 else ""
    )


# ------------------------------------------------------------------ together


def agreement(found: Agreement, fit: AnnotatorFit | None) -> Markup:
    """Percent agreement and both α with intervals, the expected agreement, and κ of each pair."""
    if not found.items:
        return components.empty(
            "No agreement to show yet",
            "Agreement needs pairs that two people judged. labeling.overlap sets their share.",
        )
    tiles = [
        components.tile(
            "Agreement",
            _value(
                components.percent(found.percent, 1),
                components.interval(*(found.percent_interval or (None, None))),
            ),
            _judged_by_two(found.items),
            help="How often two judgments of the same pair agree. Small: the 95% interval.",
        ),
        _expected(fit),
        components.tile(
            "Krippendorff's α",
            _value(components.decimal(found.alpha), _between(found.alpha_interval or ())),
            _expected_alpha(fit),
            help="Agreement of all annotators on the four outcomes (nominal), corrected for chance: "
            "1 is perfect, 0 is chance. Compare it with the value that the fitted model expects from "
            "these annotators on unseen pairs, where both bad counts as a tie. Pairs of nearly equal "
            "responses keep it low even if people are careful.",
        ),
        components.tile(
            "α, ordinal",
            _value(
                components.decimal(found.alpha_ordinal),
                _between(found.alpha_ordinal_interval or ()),
            ),
            "a tie lies between the two preferences",
            help="α on an ordinal scale, where a tie and a preference disagree less than two "
            "opposite preferences. Both bad counts as a tie.",
        ),
    ]
    return components.stack(components.tiles(tiles), _kappas(found.kappas))


def _judged_by_two(items: int) -> str:
    judged = f"{plural(items, 'pair')} judged by two or more"
    return judged if items >= MIN_ITEMS else f"{judged}: too few for a reliable figure"


def _value(figure: str, interval: str) -> Markup:
    small = Markup(" <small>{}</small>").format(interval) if interval else ""
    return Markup("{}{}").format(figure, small)


def _expected(fit: AnnotatorFit | None) -> Markup:
    """The agreement that the fitted model expects, because careful people disagree too."""
    expected = fit.expected_agreement if fit else None
    if fit is None:
        detail = "known after the first reward model"
    elif expected is None or fit.observed_agreement is None:
        detail = "unknown: two people have judged none of the newest reward model's unseen pairs"
    else:
        observed, items = fit.observed_agreement, fit.overlapping_items
        low, high = wilson(observed, items)
        how = "less than" if high < expected else "more than" if low > expected else "as"
        detail = (
            f"observed on {plural(items, 'unseen pair')}: {components.percent(observed)} "
            f"({components.interval(low, high)}), {how} expected"
        )
    return components.tile(
        "Expected agreement",
        components.percent(expected, 1),
        detail,
        help="How often two annotators with the fitted slopes and side biases would agree on the "
        "unseen pairs that several people judged. The audit model scores pairs that the reward "
        "model learned from. Both bad counts as a tie. Pairs of nearly equal responses keep it low "
        "even if people are careful.",
    )


def _expected_alpha(fit: AnnotatorFit | None) -> str:
    if fit is None or fit.expected_alpha is None:
        return "1 is perfect, 0 is chance"
    return (
        f"expected {components.decimal(fit.expected_alpha)} on {plural(fit.overlapping_items, 'unseen pair')}"
        f"; observed there {components.decimal(fit.observed_alpha)}"
    )


def _kappas(kappas: Sequence[Kappa]) -> Markup:
    """κ of every two annotators who judged the same pairs, highest first."""
    ordered = sorted(kappas, key=lambda each: (each.kappa is None, -(each.kappa or 0.0)))
    rows = [
        (
            *each.annotators,
            components.figure(components.decimal(each.kappa), _between(each.interval or ())),
            components.number(each.items),
        )
        for each in ordered
    ]
    columns = [
        Column("Annotator"),
        Column("Annotator"),
        Column("Cohen's κ", "right", "Agreement of the two, corrected for chance. Below: the 95% "
               "interval, if they share at least ten pairs."),
        Column("Pairs", "right", "Pairs of responses that both judged."),
    ]  # fmt: skip
    return components.table(columns, rows, caption="Agreement of each pair of annotators")
