"""The command line: importing this module registers every command with `app`."""

from __future__ import annotations

import signal
import sys

from commands import (
    adjudicate,
    audit,
    data,
    flags,
    gold,
    judgments,
    loop,
    playground,
    project,
    prompts,
    push,
    reward,
    serve,
    settings,
    simulate,
    studies,
    sycophancy,
    webhooks,
)
from commands.app import app
from storage.errors import NotFound, explain
from storage.reports import InvalidSettings

MODULES = (
    *(serve, settings, loop, data, push, prompts, gold, judgments, adjudicate, flags),
    *(webhooks, reward, playground, studies, simulate, sycophancy, audit, project),
)
app.registered_commands.sort(
    key=lambda command: [module.__name__ for module in MODULES].index(command.callback.__module__)
)
"""`--help` lists commands in this order, not in that of the imports."""

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line; errors that a user can fix are printed without a traceback."""
    # SIGTERM raises an exception, so that the command stops the processes it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        app()
    except (ValueError, NotFound, RuntimeError, OSError) as error:
        print(f"kitestring: {_in_words(error)}", file=sys.stderr)
    else:
        return
    # Outside `except`: the error's frames hold the database, which would print leaks at exit.
    sys.exit(1)


def _in_words(error: BaseException) -> str:
    """The error's text; a line for each of several wrong settings."""
    wrong = (
        list(dict.fromkeys(error.problems.values())) if isinstance(error, InvalidSettings) else []
    )
    if len(wrong) < 2:
        return explain(error)
    return "\n  ".join([f"{len(wrong)} settings are wrong:", *wrong])
