"""Arguments that arrive as JSON, held against what a function declares."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_JSON_NAMES = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def check(command: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """``ValueError`` with a sentence unless the function takes these arguments.

    What is no JSON, such as a database, is the caller's own and not among them.  A function that
    hands further arguments on checks those where it does.
    """
    hints, declared = get_type_hints(function), inspect.signature(function).parameters
    hands_on = any(each.kind is each.VAR_KEYWORD for each in declared.values())
    parameters = {
        name: each
        for name, each in declared.items()
        if _said(hints.get(name, Any)) and each.kind is not each.VAR_KEYWORD
    }
    unknown = sorted(arguments.keys() - parameters.keys())
    if unknown and not hands_on:
        known = ", ".join(parameters) or "none"
        raise ValueError(f"{command} takes no {', '.join(unknown)}; it takes: {known}")
    needed = {name for name, each in parameters.items() if each.default is each.empty}
    if missing := sorted(needed - arguments.keys()):
        raise ValueError(f"{command} needs {', '.join(missing)}")
    for name, value in arguments.items():
        hint = hints.get(name, Any) if name in parameters else Any
        if not _fits(value, hint):
            raise ValueError(f"{command}: {name} is {value!r:.80} and must be {_said(hint)}")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a JSON value is of the type; what is not declared may be anything."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if hint is None or hint is type(None):
        return value is None
    if origin is Literal:
        return value in inner
    if origin in (Union, types.UnionType):
        return any(_fits(value, each) for each in inner)
    if origin in (dict, Mapping):
        return isinstance(value, dict) and all(_fits(each, inner[1]) for each in value.values())
    if origin in (list, Sequence):
        return isinstance(value, list) and all(_fits(each, inner[0]) for each in value)
    if hint is Path:
        return isinstance(value, str)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def _said(hint: Any) -> str:
    """The type in words; empty for what JSON cannot hold."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return "anything"
    if hint is None or hint is type(None):
        return "null"
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin in (Union, types.UnionType):
        return " or ".join(filter(None, map(_said, inner)))
    if origin in (dict, Mapping):
        return "an object"
    if origin in (list, Sequence):
        return "a list"
    return "a path" if hint is Path else _JSON_NAMES.get(hint, "")
