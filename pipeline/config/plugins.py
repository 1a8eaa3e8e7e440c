"""User functions, named ``module:function``.  Does not import torch.

Naming a function in the settings runs its module.  The operator may name any function, in
``config.toml`` or on the command line; a researcher may name those that the operator allowed
(`pipeline.loop.loop`).
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Any

IMPORT_TIMEOUT = 30.0
"""Timeout for importing the functions, seconds."""

RENAMED_MODULES = {"pipeline.gold": "pipeline.simulation.preference"}
"""Modules that settings of version 0.1 may name, and their current names."""

_PREFIX = "kitestring-says: "


def load_function(name: str, *, what: str) -> Callable[..., Any]:
    """The function of that name; ValueError if there is none.

    `what` names it in messages, as in "gold".
    """
    module_name, colon, function_name = name.partition(":")
    if not colon or not all(module_name.split(".")) or not function_name:
        raise ValueError(f"{what} {name!r} must be written module:function")
    try:
        module = importlib.import_module(RENAMED_MODULES.get(module_name, module_name))
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


def named_in(functions: Iterable[Mapping[str, Set[str]]]) -> set[str]:
    """The functions of several `Config.functions`."""
    return {name for one in functions for names in one.values() for name in names}


def require_allowed(functions: Mapping[str, Set[str]], allowed: Set[str]) -> None:
    """ValueError if a setting names a function that is not in `allowed`; see `Config.functions`."""
    for setting, names in functions.items():
        if others := names - allowed:
            raise ValueError(
                f"{setting} names {', '.join(sorted(others))}, which would run as code on this "
                "machine: the operator must allow it first, in plugins.allowed in config.toml"
            )


def in_a_line(error: BaseException) -> str:
    """Type and first line of an exception from user code."""
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def require_in_subprocess(module: str, names: Sequence[str]) -> None:
    """Run `python -m module NAMES`, which calls `print_refusal`; raise its refusal as ValueError.

    The process has the folder and the environment of a worker.  Importing runs user code, which may
    load torch, block or exit, so it does not happen in the web process.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module, *names],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    listed = ", ".join(names)
    try:
        output, errors = process.communicate(timeout=IMPORT_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"importing {listed} took more than {IMPORT_TIMEOUT:g} s; load slow dependencies on the first call"
        ) from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    answers = [
        line.removeprefix(_PREFIX) for line in output.splitlines() if line.startswith(_PREFIX)
    ]
    if not answers:
        last = next(iter(errors.strip().splitlines()[::-1]), "")
        raise ValueError(f"importing {listed} ended the Python process: {last}".rstrip(": "))
    if refusal := json.loads(answers[-1]):
        raise ValueError(refusal)


def print_refusal(names: Sequence[str], load: Callable[[str], Any]) -> None:
    """Called in the process of `require_in_subprocess`: print the ValueError of `load`, if any."""
    refusal = None
    try:
        for name in names:
            load(name)
    except ValueError as error:
        refusal = str(error)
    # A separate line, after everything that the modules printed.
    print(f"\n{_PREFIX}{json.dumps(refusal)}", flush=True)  # noqa: T201
    os._exit(0)  # do not wait for threads that a module started
