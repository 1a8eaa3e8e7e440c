"""How annotators judge, as the researcher reads it: figures, words, agreement."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labeler.research.team.people import reliability_view
from storage.analysis.agreement import Agreement, Kappa
from storage.analysis.annotator_fit import AnnotatorEstimate, AnnotatorFit
from storage.analysis.checks import AnnotatorChecks, CheckResult
from storage.analysis.reliability import AnnotatorFigures
from storage.records import Annotator
from tests.helpers.recording_loop import HOSTILE


def test_side_bias_is_in_standard_errors_of_a_fair_toss():
    # 65 of 100 to the left: (.65 − .5) / √(.25 / 100) = .15 / .05 = 3
    assert reliability_view.side_bias(0.65, 100) == pytest.approx(3)
    assert reliability_view.side_bias(None, 0) is None


def judging(name: str, **more) -> AnnotatorFigures:
    """Somebody like everybody, but for what is said."""
    usual = {
        "judgments": 100, "decided": 80, "left_rate": 0.5, "left_interval": (0.39, 0.61),
        "tie_rate": 0.15, "both_bad_rate": 0.05, "median_seconds": 9.0, "quick_seconds": 4.0,
        "shared_items": 40, "agreement": 0.7, "agreement_interval": (0.55, 0.81),
    }  # fmt: skip
    return AnnotatorFigures(annotator=Annotator(id=name, name=name), **(usual | more))


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({}, []),
        ({"left_rate": 0.83}, ["prefers the left in 83% of decisions"]),
        ({"left_rate": 0.2}, ["prefers the right in 80% of decisions"]),
        ({"left_rate": 0.66}, []),  # (.66 − .5) / √(.25 / 80) = 2.9 standard errors
        # (.45 − .15) / √(.225 · .775 · (1/100 + 1/300)) = .30 / .0482 = 6.2
        ({"tie_rate": 0.45}, ["judges 45% as ties; others 15%"]),
        ({"tie_rate": 0.27}, []),  # (.27 − .15) / √(.18 · .82 · (1/100 + 1/300)) = 2.7
        ({"both_bad_rate": 0.4}, ["judges 40% as both bad; others 5%"]),
        ({"median_seconds": 2.5}, ["takes 2.5 s per pair; others 9.0 s"]),
        ({"median_seconds": 2.5, "judgments": 12}, []),
        ({"agreement": 0.4, "agreement_interval": (0.28, 0.53)},
         ["agrees with others in 40% of cases; others 70%"]),
        ({"agreement": 0.5, "agreement_interval": (0.37, 0.65)}, []),
    ],
)  # fmt: skip
def test_what_stands_out_is_said_in_words(figures, words):
    one = judging("one", **figures)
    everybody = [one, *(judging(name) for name in ("b", "c", "d"))]
    assert reliability_view.remarks(one, everybody, None) == words


def test_a_slope_is_put_into_words_where_it_is_known_well():
    fitted = AnnotatorFit(
        annotators=(
            AnnotatorEstimate(annotator="a", slope=-0.6, slope_sd=0.2),
            AnnotatorEstimate(annotator="b", slope=-0.1, slope_sd=0.2),
            AnnotatorEstimate(annotator="c", slope=1.2, slope_sd=0.2),
            AnnotatorEstimate(annotator="d", slope=-3.0),
        )
    )
    everybody = [judging(name) for name in "abcd"]
    said = [reliability_view.remarks(f, everybody, fitted) for f in everybody]
    assert said == [
        ["prefers the response with the lower reward"],
        ["choices depend on the reward less than half as strongly as average"],
        [],
        [],  # nobody says how well it is known
    ]


def test_everybody_who_judged_has_a_row_and_unknown_figures_are_dashes():
    alone = AnnotatorFigures(
        annotator=Annotator(id="x", name="x"), judgments=1, tie_rate=1.0, both_bad_rate=0.0
    )
    rows = reliability_view.table([judging("a"), alone], None).split("<tr>")[2:]
    assert [">a<" in row for row in rows] == [True, False]
    assert rows[1].count("–") == 3  # left, time, agreement
    assert "39–61%" in rows[0]
    assert "70%<small>55–81%</small><small>40 pairs</small>" in rows[0]


def test_fitted_columns_stand_only_where_a_model_says_something():
    estimate = AnnotatorEstimate(annotator="a", slope=0.5, slope_sd=0.1, weight=0.25)
    fitted = AnnotatorFit(annotators=(estimate,))
    seen = reliability_view.table([judging("a"), judging("b")], fitted)
    # .5 ± 1.96 · .1
    assert "0.50<small>0.30 to 0.70</small>" in seen
    follows = AnnotatorEstimate(
        annotator="a", slope=1.0, decided=100, with_model=0.6, with_model_expected=0.72
    )
    fitted = AnnotatorFit(annotators=(follows,))
    row = reliability_view.table([judging("a")], fitted)
    assert "60%<small>50–69%</small><small>expected 72%</small>" in row
    assert "Slope" not in reliability_view.table([judging("a")], None)


KNOWN = Agreement(
    items=9, percent=0.8, percent_interval=[0.7, 0.9], alpha=0.6,
    alpha_interval=[0.45, 0.75], alpha_ordinal=0.65,
)  # fmt: skip


def kappa(one, other, value, items, interval=None):
    return Kappa(annotators=[one, other], kappa=value, items=items, interval=interval)


def test_agreement_lists_each_pair_the_best_first_with_its_interval():
    kappas = [
        kappa("a", "b", None, 30), kappa("a", "c", -0.1, 20, [-0.4, 0.2]), kappa("b", "c", 0.7, 9),
        kappa("c", "d", -0.004, 9),
    ]  # fmt: skip
    seen = reliability_view.agreement(replace(KNOWN, kappas=kappas), None)
    rows = seen.split("<tbody>")[1].split("</tr>")[:-1]
    for row, figure, items in zip(
        rows, ("0.70", ">0.00<", "−0.10", "–"), ("9", "9", "20", "30"), strict=True
    ):
        assert figure in row
        assert f">{items}<" in row
    assert ["−0.40 to 0.20" in row for row in rows] == [False, False, True, False]


def test_the_agreement_of_one_annotator_on_one_pair_is_no_figure():
    one = judging("a", agreement=1.0, agreement_interval=None, shared_items=1)
    assert "–<small>1 pair: too few</small>" in reliability_view.shared_agreement(one)
    more = judging("a", agreement=0.9, agreement_interval=(0.6, 0.98), shared_items=12)
    assert "90%<small>60–98%</small><small>12 pairs</small>" in reliability_view.shared_agreement(
        more
    )


@pytest.mark.parametrize(("items", "said"), [(9, True), (10, False)])
def test_agreement_on_few_pairs_says_so(items, said):
    seen = reliability_view.agreement(replace(KNOWN, items=items), None)
    assert (f"{items} pairs judged by two or more: too few for a reliable figure" in seen) is said


def test_alpha_stands_beside_what_the_model_expects():
    fitted = AnnotatorFit(
        annotators=(), expected_agreement=0.6, observed_agreement=0.6,
        expected_alpha=0.312, observed_alpha=0.288, overlapping_items=40,
    )  # fmt: skip
    seen = reliability_view.agreement(KNOWN, fitted)
    assert "expected 0.31 on 40 unseen pairs; observed there 0.29" in seen
    assert "1 is perfect, 0 is chance" in reliability_view.agreement(KNOWN, None)


# Wilson's interval of 60% of 100: (.6 + .0192 ± 1.96 √(.0024 + .000096))/1.0384 = .502 to .691
SEEN = "observed on 100 unseen pairs: 60% (50–69%), "


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        (0.7, f"{SEEN}less than expected"),
        (0.69, f"{SEEN}as expected"),
        (0.5, f"{SEEN}more than expected"),
        (None, "two people have judged none"),
    ],
)
def test_agreement_stands_beside_what_the_model_expects_of_the_same_pairs(expected, words):
    fitted = AnnotatorFit(
        annotators=(), expected_agreement=expected,
        observed_agreement=0.6, overlapping_items=100,
    )  # fmt: skip
    seen = reliability_view.agreement(KNOWN, fitted)
    for text in ("80.0%", "<small>70–90%", "<small>0.45 to 0.75", "0.65<", words):
        assert text in seen
    assert "known after" in reliability_view.agreement(KNOWN, None)


def test_names_are_text():
    seen = reliability_view.table([judging(HOSTILE)], None)
    seen += reliability_view.agreement(replace(KNOWN, kappas=[kappa(HOSTILE, "b", 0.5, 9)]), None)
    assert seen.count("&lt;img") == 2
    assert "<img" not in seen


def test_checks_have_columns_and_remarks_once_there_are_any():
    checks = {
        "a": AnnotatorChecks(gold=CheckResult(answered=10, matched=3)),
        "b": AnnotatorChecks(
            gold=CheckResult(answered=30, matched=27), reask=CheckResult(answered=8, matched=6)
        ),
    }
    everybody = [judging("a"), judging("b"), judging("c")]
    # Fisher's exact test: 0.0006, and three standard errors are 0.00135.
    assert reliability_view.remarks(everybody[0], everybody, None, checks) == [
        "answers 30% of gold pairs as expected; others 90%"
    ]
    assert reliability_view.remarks(everybody[1], everybody, None, checks) == []
    one_each = {
        "a": AnnotatorChecks(reask=CheckResult(answered=1, matched=0)),
        "b": AnnotatorChecks(reask=CheckResult(answered=1, matched=1)),
    }
    assert reliability_view.remarks(everybody[0], everybody, None, one_each) == []
    rows = reliability_view.table(everybody, None, checks)
    assert "Self-consistency" in rows
    assert "75%" in rows
    assert "8 pairs" in rows
    assert "Self-consistency" not in reliability_view.table(everybody, None)
