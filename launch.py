"""``python launch.py COMMAND``, installed as ``kitestring``; `commands` holds what each one does."""

# ruff: noqa: E402
from __future__ import annotations

import gc

# Importing makes a million objects and no garbage; looking for some takes a fifth of the start.
gc.disable()

from commands.main import app, main

gc.enable()

__all__ = ["app", "main"]

if __name__ == "__main__":
    main()
