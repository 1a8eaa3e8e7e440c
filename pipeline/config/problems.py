"""What is wrong with settings: every wrong one, with its reason.  Does not import torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from storage.reports import InvalidSettings


def problems(
    apply: Callable[[Mapping[str, Any]], Any], changes: Mapping[str, Any]
) -> dict[str, str]:
    """A sentence for each of the `changes` that `apply` refuses; empty if it accepts them.

    `apply` raises ValueError for the first problem that it finds.  The settings that its sentence
    names are set aside and the others tried again, so one call finds all problems.
    """
    found: dict[str, str] = {}
    rest = dict(changes)
    while rest:
        if (error := _refusal(apply, rest)) is None:
            return found
        wrong = _blamed(apply, rest, error)
        found |= wrong
        for name in wrong:
            del rest[name]
    return found


def _blamed(
    apply: Callable[[Mapping[str, Any]], Any], changes: Mapping[str, Any], error: ValueError
) -> dict[str, str]:
    """The changes to which an error belongs, at least one."""
    if isinstance(error, InvalidSettings):
        known = {name: why for name, why in error.problems.items() if name in changes}
        if known:
            return known
    sentence = str(error)
    blamed = named(sentence, changes) or _causes(apply, changes, sentence) or set(changes)
    return dict.fromkeys(sorted(blamed), sentence)


def named(sentence: str, names: Iterable[str]) -> set[str]:
    """The settings that a sentence names."""
    return {n for n in names if re.search(rf"(?<![\w.]){re.escape(n)}(?!\.?\w)", sentence)}


def _refusal(
    apply: Callable[[Mapping[str, Any]], Any], changes: Mapping[str, Any]
) -> ValueError | None:
    try:
        apply(changes)
    except ValueError as error:
        return error
    return None


def _causes(
    apply: Callable[[Mapping[str, Any]], Any], changes: Mapping[str, Any], sentence: str
) -> set[str]:
    """The settings without which `apply` would not say this sentence."""
    return {
        name
        for name in changes
        if str(_refusal(apply, {n: v for n, v in changes.items() if n != name})) != sentence
    }
