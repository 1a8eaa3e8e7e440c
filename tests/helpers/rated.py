"""Comparisons and judgments in a line each."""

from __future__ import annotations

from typing import Any

from storage.records import Comparison, Completion, Judgment


def pair(
    id: str, first: str, second: str, *, prompt: str = "p", iteration: int = 1, **more: Any
) -> list[Any]:
    """A comparison of two texts, and its completions."""
    return [
        Completion(id=f"{id}-x", prompt=prompt, policy="m", text=first),
        Completion(id=f"{id}-y", prompt=prompt, policy="m", text=second),
        Comparison(
            id=id, prompt=prompt, first=f"{id}-x", second=f"{id}-y", iteration=iteration,
            arm="random", **more,
        ),
    ]  # fmt: skip


def judgment(comparison: str, annotator: str, outcome: str, **more: Any) -> Judgment:
    return Judgment(
        id=more.pop("id", f"j-{comparison}-{annotator}"),
        comparison=comparison,
        annotator=annotator,
        outcome=outcome,  # type: ignore[arg-type]
        shown_swapped=False,
        **more,
    )
