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
    if not colon or not module_name or not function_name:
        raise ValueError(f"{what} {name!r} must be written module:function")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(f"{what} {name!r}: there is no module {error.name!r}") from None
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ValueError(f"{what} {name!r}: {module_name} has no function {function_name!r}")
    return function
