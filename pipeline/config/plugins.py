"""Functions of other people's, named ``module:function``.  Loads no torch.

Naming one in the settings runs its module.  Who may name which is for `pipeline.loop.loop` to say: the
operator any, in ``config.toml`` and on the command line; a researcher's page only those that the
operator has named.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

PATIENCE = 30.0
"""Seconds that importing the functions of the settings may take before training starts."""

MOVED = {"pipeline.gold": "pipeline.simulation.preference"}
"""Modules that settings of version 0.1 may name, and where they are now."""

_SAYS = "kitestring-says: "


def load_function(name: str, *, what: str) -> Callable[..., Any]:
    """The function of that name; ``ValueError`` says what is wrong with it.

    `what` is the word for it in messages, as in "gold".
    """
    module_name, colon, function_name = name.partition(":")
    if not colon or not all(module_name.split(".")) or not function_name:
        raise ValueError(f"{what} {name!r} must be written module:function")
    try:
        module = importlib.import_module(MOVED.get(module_name, module_name))
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


def require_in_a_process(module: str, names: Sequence[str]) -> None:
    """Run `python -m module NAMES`, which calls `answer`; ``ValueError`` with what it refused.

    It has the folder and the environment of a worker, so that it finds what a worker will find.
    A process of its own, because importing runs code: a module may load torch, block or exit, and
    the web process must do none of that.  Reading the source instead would not tell of names that
    are made as a module runs.
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
        told, complained = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"importing {listed} took more than {PATIENCE:g} s; load slow dependencies on the first call"
        ) from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    said = [line.removeprefix(_SAYS) for line in told.splitlines() if line.startswith(_SAYS)]
    if not said:
        last = next(iter(complained.strip().splitlines()[::-1]), "")
        raise ValueError(f"importing {listed} ended the process that tried it: {last}".rstrip(": "))
    if refusal := json.loads(said[-1]):
        raise ValueError(refusal)


def answer(names: Sequence[str], load: Callable[[str], Any]) -> None:
    """The other side of `require_in_a_process`: print what `load` refuses of `names`, if anything."""
    refusal = None
    try:
        for name in names:
            load(name)
    except ValueError as error:
        refusal = str(error)
    # A line of its own, behind whatever the modules have printed.
    print(f"\n{_SAYS}{json.dumps(refusal)}", flush=True)  # noqa: T201
    os._exit(0)  # threads that a module has started do not hold the answer up
