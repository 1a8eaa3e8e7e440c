"""A shaping component that makes updates slow; the studio imports it as it checks its settings."""

from __future__ import annotations

import time


def slow(_: str) -> float:
    """Takes 0.1 s for each response."""
    time.sleep(0.1)
    return 0.0
