"""A canary whose checks write down which process asked them."""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.canary import CanaryCheck

ASKED = "KITESTRING_TEST_ASKED"
"""The environment variable with the file."""


def checks() -> list[CanaryCheck]:
    return [CanaryCheck("short", f"Say {number}", _short) for number in range(40)]


def _short(answer: str) -> bool:
    with Path(os.environ[ASKED]).open("a") as file:
        file.write(f"{os.getpid()}\n")
    return len(answer) < 4
