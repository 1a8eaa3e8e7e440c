"""The arms of each part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.reward_models.arms import Arm, JudgeModel, Part
from pipeline.simulation.annotators import PLAIN

BAD = 0.3
DECIDED = replace(PLAIN, decision_ms=7000.0, reading_noise=0.3)
"""Annotators who need 7 s for a pair of equals, and less for a clear one."""
STRICT = replace(PLAIN, standard=-0.3)
"""Annotators who press *both bad* on about a sixth of the pairs."""
SHARP = JudgeModel(slope=1.1)
VERBOSE = JudgeModel(slope=0.8, verbosity=0.8)
GUESSING = JudgeModel(slope=0.0)
FEW = 0.25
"""The share of the pairs that people label beside a judge."""


def _by_name(*arms: Arm) -> dict[str, Arm]:
    return {arm.name: arm for arm in arms}


def _with_judge(name: str, judge: JudgeModel, **others: Any) -> Arm:
    settings = {"tie_model": "ordinal", **others.pop("settings", {})}
    return Arm(name=name, judge=judge, people=FEW, bad=0.25, settings=settings, **others)


PARTS = {
    "ties": Part(
        arms=_by_name(
            Arm(name="drop", settings={"tie_model": "drop"}),
            Arm(name="half", settings={"tie_model": "half"}),
            Arm(name="davidson", settings={"tie_model": "davidson"}),
            Arm(name="rao_kupper", settings={"tie_model": "rao_kupper"}),
            Arm(name="ordinal", settings={"tie_model": "ordinal"}),
            Arm(name="bad-as-tie", settings={"tie_model": "rao_kupper", "both_bad": "tie"}),
        ),
        labels=300,
        annotators=8,
    ),
    "annotators": Part(
        arms=_by_name(
            Arm(name="pooled-30", settings={"annotators": False}, bad=BAD),
            Arm(name="joint-30", settings={"annotators": True}, bad=BAD),
            Arm(name="oracle-30", settings={"annotators": False}, bad=BAD, careful_only=True),
            Arm(name="pooled-0", settings={"annotators": False}),
            Arm(name="joint-0", settings={"annotators": True}),
        ),
        labels=1500,
        annotators=20,
        optional=frozenset({"oracle-30"}),
        separates=True,
    ),
    "times": Part(
        arms=_by_name(
            *(
                Arm(
                    name=f"{'times' if times else 'choices'}{strengths}{noise}",
                    settings={"response_times": times, **tie_model},
                    bad=0.25,
                    like=PLAIN if noise else DECIDED,
                )
                for strengths, tie_model in (("", {"tie_model": "rao_kupper"}), ("-strengths", {}))
                for noise in ("", "-noise")
                for times in (False, True)
            )
        ),
        labels=300,
        annotators=16,
    ),
    "judges": Part(
        arms=_by_name(
            Arm(name="people-100", people=FEW, bad=0.25, settings={"tie_model": "ordinal"}),
            Arm(name="people-400", bad=0.25, settings={"tie_model": "ordinal"}),
            Arm(name="sharp-alone", judge=SHARP, people=0.0),
            Arm(name="verbose-alone", judge=VERBOSE, people=0.0),
            _with_judge("sharp", SHARP),
            _with_judge("sharp-joint", SHARP, joint=True),
            _with_judge("verbose", VERBOSE),
            _with_judge("verbose-joint", VERBOSE, joint=True),
            _with_judge("verbose-routed", VERBOSE, routed=True),
            _with_judge("guessing", GUESSING),
            _with_judge("guessing-joint", GUESSING, joint=True),
            _with_judge("guessing-pooled", GUESSING, joint=True, settings={"annotators": False}),
        ),
        labels=400,
        annotators=8,
    ),
    "anchors": Part(
        arms=_by_name(
            Arm(name="tie", settings={"both_bad": "tie"}, like=STRICT),
            Arm(name="absolute", settings={"both_bad": "absolute"}, like=STRICT),
        ),
        labels=300,
        annotators=8,
    ),
    "shift": Part(
        arms=_by_name(
            Arm(name="all", weighting="all"),
            Arm(name="weighted", weighting="weighted"),
            Arm(name="recent", weighting="recent"),
        ),
        labels=240,
        annotators=8,
    ),
    "pessimism": Part(
        arms=_by_name(
            Arm(name="stopped", bad=0.25),
            Arm(name="further", bad=0.25, pessimism=0.0),
            Arm(name="pessimistic", bad=0.25, pessimism=0.1),
            Arm(name="very-pessimistic", bad=0.25, pessimism=0.3),
        ),
        labels=300,
        annotators=8,
    ),
}
