"""How each annotator judges, beside the others, and in words what stands out.  Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from labeler.html import components
from labeler.html.components import Column, Markup
from storage.analysis.agreement import Agreement, Kappa
from storage.analysis.intervals import wilson
from storage.analysis.reliability import Figures, Fitted, FittedModel

_JUDGED = (
    Column("Annotator"),
    Column("Judged", "right", "Current judgments over all iterations."),
    Column(
        "Left",
        "right",
        "Share of decided judgments that went to the response on the left, with its 95% interval. "
        "Sides are tossed fairly: an interval without 50% means a side is favoured.",
    ),
    Column("Ties", "right", "Share of judgments that are ties."),
    Column("Both bad", "right", "Share of judgments that say both are bad."),
    Column(
        "Time",
        "right",
        "Median from seeing a pair to answering it. Small: a tenth was quicker than this.",
    ),
    Column(
        "Agreement",
        "right",
        "Share of others' judgments of the same pairs that say the same. Small: its 95% interval, "
        "clustered by prompt, and how many pairs others judged too.",
    ),
)
_FITTED = (
    Column(
        "Slope",
        "right",
        "How closely choices follow the reward, as the newest reward model fits it: 1 as the "
        "average does, 0 not at all, below 0 the other way round. With its 95% interval.",
    ),
    Column(
        "Side bias",
        "right",
        "What standing on the left is worth to this annotator, in units of reward; the fit "
        "allows for it. With its 95% interval.",
    ),
    Column("Weight", "right", "What a judgment weighs in the fit."),
    Column(
        "With model",
        "right",
        "Share of the annotator's preferences that went to the response with the higher reward, on "
        "pairs that the model which scores them did not learn from. With its 95% interval, and what "
        "slope and side bias let one expect.",
    ),
)

UNLIKELY = 3.0
"""Standard errors from which a figure is remarked on: one honest annotator in 370."""
_FEWEST = 20  # judgments below which speed is not remarked on


def table(figures: Iterable[Figures], fitted: FittedModel | None) -> Markup:
    """One row for each annotator who has judged, the busiest first."""
    judged = sorted(
        (f for f in figures if f.judgments), key=lambda f: (-f.judgments, f.annotator.name)
    )
    if not judged:
        return components.empty("Nothing judged yet", "Figures appear with the first judgments.")
    columns = [*_JUDGED, *(_FITTED if fitted else ())]
    rows = [_row(f, remarks(f, judged, fitted), fitted) for f in judged]
    return components.table(columns, rows, caption="How each annotator judges")


def _row(f: Figures, said: Sequence[str], fitted: FittedModel | None) -> Sequence[Any]:
    quick = f"10%: {components.duration(f.quick_seconds)}" if f.quick_seconds is not None else ""
    pairs = f"{components.plural(f.shared_items, 'pair')}" if f.shared_items else "no pair shared"
    spread = components.interval(*f.agreement_interval) if f.agreement_interval else ""
    cells: list[Any] = [
        _name(f.annotator.name, said),
        components.number(f.judgments),
        components.figure(
            components.percent(f.left_rate), components.interval(*(f.left_interval or (None, None)))
        ),
        components.percent(f.tie_rate),
        components.percent(f.both_bad_rate),
        components.figure(components.duration(f.median_seconds), quick),
        components.figure(components.figure(components.percent(f.agreement), spread), pairs),
    ]
    if fitted:
        cells += _fitted_cells(fitted.annotators.get(f.annotator.id))
    return cells


def _fitted_cells(found: Fitted | None) -> list[Any]:
    if found is None:  # has judged since the fit
        return [components.DASH, components.DASH, components.DASH, components.DASH]
    return [
        components.figure(_decimal(found.slope), _spread(found.slope, found.slope_sd)),
        components.figure(_decimal(found.side_bias), _spread(found.side_bias, found.side_bias_sd)),
        _decimal(found.weight),
        _with_model(found),
    ]


def _with_model(found: Fitted) -> Markup | str:
    if found.with_model is None:
        return components.DASH
    spread = components.interval(*wilson(found.with_model, found.decided))
    expected = f"expected {components.percent(found.with_model_expected)}"
    return components.figure(
        components.figure(components.percent(found.with_model), spread), expected
    )


def _spread(value: float | None, sd: float | None) -> str:
    if value is None or sd is None:
        return ""
    return _between((value - 1.96 * sd, value + 1.96 * sd))


def _decimal(value: float | None) -> str:
    """Two decimals, one below the other."""
    return components.DASH if value is None else f"{value:z.2f}".replace("-", "−")


def _between(interval: Sequence[float]) -> str:
    return f"{_decimal(interval[0])} to {_decimal(interval[1])}"


def _name(name: str, said: Sequence[str]) -> Markup:
    """The name, and below it what stands out, in words."""
    words = [components.badge(each, "warn") for each in said]
    return Markup('<span class="ks-words"><b dir="auto">{}</b>{}</span>').format(
        name, components.lines(words)
    )


# ------------------------------------------------------------------ in words


def side_bias(left_rate: float | None, decided: int) -> float | None:
    """How many standard errors the left rate is from one half; None without decisions.

    Under a fair toss the rate has the standard error √(¼ / n).
    """
    if left_rate is None or decided == 0:
        return None
    return (left_rate - 0.5) / math.sqrt(0.25 / decided)


def remarks(f: Figures, everybody: Sequence[Figures], fitted: FittedModel | None) -> list[str]:
    """What is unlikely in someone who judges as the others do, in plain words; mostly nothing.

    The others are those of `everybody` but this annotator; without any, only sides are remarked on.
    """
    others = [other for other in everybody if other.annotator.id != f.annotator.id]
    found = [
        _side(f),
        _share("calls {} ties", f, others, "tie_rate"),
        _share("calls {} both bad", f, others, "both_bad_rate"),
        _speed(f, others),
        _agreement(f, others),
        _slope(fitted.annotators.get(f.annotator.id) if fitted else None),
    ]
    return [words for words in found if words]


def _side(f: Figures) -> str:
    bias = side_bias(f.left_rate, f.decided)
    if bias is None or f.left_rate is None or abs(bias) <= UNLIKELY:
        return ""
    side, share = ("left", f.left_rate) if bias > 0 else ("right", 1 - f.left_rate)
    return f"answers {side} {components.percent(share)} of the time"


def _share(words: str, f: Figures, others: Sequence[Figures], name: str) -> str:
    """Two shares differ by more than chance: the z-test with the pooled share."""
    n, m = f.judgments, sum(other.judgments for other in others)
    mine = getattr(f, name)
    if mine is None or m == 0:
        return ""
    theirs = sum(getattr(other, name) * other.judgments for other in others) / m
    pooled = (mine * n + theirs * m) / (n + m)
    error = math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
    if error == 0 or abs(mine - theirs) <= UNLIKELY * error:
        return ""
    return f"{words.format(components.percent(mine))}, others {components.percent(theirs)}"


def _speed(f: Figures, others: Sequence[Figures]) -> str:
    times = [o.median_seconds for o in others if o.median_seconds is not None]
    if f.median_seconds is None or not times or f.judgments < _FEWEST:
        return ""
    usual = statistics.median(times)
    if f.median_seconds >= usual / 3:
        return ""
    return f"answers in {components.duration(f.median_seconds)}, others in {components.duration(usual)}"


def _agreement(f: Figures, others: Sequence[Figures]) -> str:
    shares = [o.agreement for o in others if o.agreement is not None]
    if f.agreement is None or f.agreement_interval is None or not shares:
        return ""
    usual = statistics.median(shares)
    reach = (f.agreement_interval[1] - f.agreement) * UNLIKELY / 1.96
    if f.agreement + reach >= usual:
        return ""
    return f"agrees with others on {components.percent(f.agreement)}, others on {components.percent(usual)}"


def _slope(found: Fitted | None) -> str:
    if found is None or found.slope_sd is None:
        return ""
    high = found.slope + 1.96 * found.slope_sd
    if high < 0:
        return "prefers the response with the lower reward"
    return "follows the reward less than half as closely as most" if high < 0.5 else ""


# ------------------------------------------------------------------ together


def agreement(found: Agreement, fitted: FittedModel | None) -> Markup:
    """Percent agreement and both α with intervals, what the model expects, and every pair's κ."""
    if not found.items:
        return components.empty(
            "No agreement to show yet",
            "It needs comparisons that two people judged; labeling.overlap sets their share.",
        )
    tiles = [
        components.tile(
            "Agreement",
            _value(components.percent(found.percent, 1), found.percent_interval, _shares),
            f"{components.plural(found.items, 'pair')} judged by two or more",
            help="Of two judgments of the same pair of responses, how often both say the same. "
            "Small: the 95% interval.",
        ),
        _expected(fitted),
        components.tile(
            "Krippendorff's α",
            _value(_decimal(found.alpha), found.alpha_interval, _between),
            _expected_alpha(fitted),
            help="Agreement corrected for chance over all annotators and the four outcomes "
            "(nominal): 1 is perfect, 0 chance. The yardstick is what the fitted model expects of "
            "these annotators on unseen pairs, both bad counting as a tie: pairs of nearly "
            "equal responses keep it low, however careful people are.",
        ),
        components.tile(
            "α, ordinal",
            _value(_decimal(found.alpha_ordinal), found.alpha_ordinal_interval, _between),
            "a tie is half way between",
            help="The same with a tie between the two preferences, so that tie against a "
            "preference is less of a disagreement. Both bad counts as tie.",
        ),
    ]
    return components.lines([components.tiles(tiles), Markup("<br>"), _kappas(found.kappas)])


def _value(figure: str, interval: Sequence[float] | None, write: Any) -> Markup:
    small = Markup(" <small>{}</small>").format(write(interval)) if interval else ""
    return Markup("{}{}").format(figure, small)


def _shares(interval: Sequence[float]) -> str:
    return components.interval(*interval)


def _expected(fitted: FittedModel | None) -> Markup:
    """The yardstick for agreement: people who differ honestly agree only so often."""
    expected = fitted.expected_agreement if fitted else None
    if fitted is None:
        detail = "known once a reward model with annotators is trained"
    elif expected is None or fitted.observed_agreement is None:
        detail = "unknown: of the newest reward model's unseen pairs, none was judged by two"
    else:
        observed, items = fitted.observed_agreement, fitted.overlapping_items
        low, high = wilson(observed, items)
        how = "less than" if high < expected else "more than" if low > expected else "about as"
        detail = (
            f"on {components.plural(items, 'unseen pair')} people agreed in {components.percent(observed)} "
            f"({components.interval(low, high)}): {how} expected"
        )
    return components.tile(
        "Expected agreement",
        components.percent(expected, 1),
        detail,
        help="How often two annotators with the fitted slopes and side biases would say the same "
        "of unseen pairs that several judged: what the reward model learned from is scored by the audit "
        "model. Both bad counts as a tie. Pairs of nearly equal responses keep it low, however careful people are.",
    )


def _expected_alpha(fitted: FittedModel | None) -> str:
    if fitted is None or fitted.expected_alpha is None:
        return "1 perfect, 0 chance"
    return (
        f"expected {_decimal(fitted.expected_alpha)} on {components.plural(fitted.overlapping_items, 'unseen pair')}"
        f", where it was {_decimal(fitted.observed_alpha)}"
    )


def _kappas(kappas: Sequence[Kappa]) -> Markup:
    """Every pair that shares comparisons, the best agreed first."""
    ordered = sorted(kappas, key=lambda each: -_or_low(each.kappa))
    rows = [
        (
            *each.annotators,
            components.figure(
                _decimal(each.kappa), _between(each.interval) if each.interval else ""
            ),
            components.number(each.items),
        )
        for each in ordered
    ]
    columns = [
        Column("Annotator"),
        Column("Annotator"),
        Column("Cohen's κ", "right", "Agreement of the two, corrected for what chance gives. Below, the 95% "
               "interval from ten pairs on."),
        Column("Pairs", "right", "Pairs of responses that both judged."),
    ]  # fmt: skip
    return components.table(columns, rows, caption="Agreement of each pair of annotators")


def _or_low(value: float | None) -> float:
    return -2.0 if value is None else value
