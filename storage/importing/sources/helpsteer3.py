"""nvidia/HelpSteer3, the part with preferences: up to three people's scores of two responses.

A score is -3 (response 1 is much better) to 3 (response 2 is much better); 0 is a tie.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storage.importing.sources.source import Source, Translated, Values, messages


def _translate(row: Values, _names: Mapping[str, str]) -> Translated:
    pair = {
        "messages": messages(row.get("context")),
        "response_a": row.get("response1"),
        "response_b": row.get("response2"),
    }
    scores = row.get("individual_preference")
    if scores is None or len(scores) == 0:
        scores = [{"score": row.get("overall_preference")}]
    return Translated(judgments=[pair | _judgment(each) for each in scores])


def _judgment(said: Any) -> dict[str, Any]:
    score = said.get("score") if isinstance(said, Mapping) else None
    if not isinstance(score, int | float) or isinstance(score, bool) or score not in range(-3, 4):
        raise ValueError(f"a score is {score!r} and must be a whole number from -3 to 3")
    vote: dict[str, Any] = {"outcome": "a" if score < 0 else "b" if score > 0 else "tie"}
    if score:
        vote["strength"] = abs(int(score))
    if reason := said.get("reasoning"):
        vote["comment"] = reason
    return vote


HELPSTEER3 = Source(
    "HelpSteer3",
    [
        ("context",),
        ("response1",),
        ("response2",),
        ("individual_preference", "overall_preference"),
    ],
    _translate,
)
