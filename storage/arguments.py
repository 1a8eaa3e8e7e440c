"""Validation of JSON arguments against the annotations of the function that takes them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError


def check_arguments(
    command: str,
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    *,
    own: Collection[str] = (),
) -> None:
    """Raise ``ValueError`` unless the function accepts these arguments.

    `own` names the parameters that the caller fills in itself, such as a database.  A function
    that takes `**options` checks those itself.
    """
    declared = inspect.signature(function, eval_str=True).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in declared.values())
    parameters = {
        name: each
        for name, each in declared.items()
        if name not in own and each.kind is not each.VAR_KEYWORD
    }
    unknown = sorted(arguments.keys() - parameters.keys())
    if unknown and not takes_any:
        known = ", ".join(parameters) or "none"
        raise ValueError(f"{command} takes no {', '.join(unknown)}; it takes: {known}")
    needed = {name for name, each in parameters.items() if each.default is each.empty}
    if missing := sorted(needed - arguments.keys()):
        raise ValueError(f"{command} needs {', '.join(missing)}")
    for name in arguments.keys() & parameters.keys():
        annotation = parameters[name].annotation
        if annotation is inspect.Parameter.empty:
            continue
        value = arguments[name]
        try:
            # Strict JSON converts a list to a tuple and a string to a path, but nothing else.
            _validator(annotation).validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            wrong = " or ".join(dict.fromkeys(each["msg"] for each in error.errors()))
            raise ValueError(f"{command}: {name} is {value!r:.80}. {wrong}") from None


@cache
def _validator(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation)
