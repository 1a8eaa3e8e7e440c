"""Functions of other people's, named ``module:function``.  Loads no torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def load_function(name: str, *, what: str) -> Callable[..., Any]:
    """The function of that name; ``ValueError`` says what is wrong with it.

    `what` is the word for it in messages, as in "gold".
    """
    module_name, colon, function_name = name.partition(":")
    if not colon or not all(module_name.split(".")) or not function_name:
        raise ValueError(f"{what} {name!r} must be written module:function")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(f"{what} {name!r}: there is no module {error.name!r}") from None
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"{what} {name!r}: {module_name} cannot be imported: {in_a_line(error)}"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ValueError(f"{what} {name!r}: {module_name} has no function {function_name!r}")
    return function


def in_a_line(error: BaseException) -> str:
    """Type and first line of what other people's code raised."""
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
