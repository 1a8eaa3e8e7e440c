"""What is wrong with an open workspace, for the status command, the researcher's page and `/healthz`."""

from __future__ import annotations

from storage.errors import explain


class Health:
    """`refused` says why writes are refused, `damaged` what is wrong though they are taken, `stuck`
    which unexpected error keeps the loop from going on.

    Each is one assignment of a sentence or None, so any thread may read and write them.
    """

    def __init__(self) -> None:
        self.refused: str | None = None
        self.damaged: str | None = None
        self.stuck: str | None = None

    @property
    def trouble(self) -> str | None:
        """The sentence to show, None when all is well."""
        return self.refused or self.damaged or self.stuck

    def refuse(self, error: Exception) -> None:
        """Note what a write was refused with."""
        self.refused = explain(error)

    def public(self) -> tuple[str, int]:
        """A word for anybody who asks, without names of files, and its HTTP status."""
        if self.refused is not None:
            return "writes are refused", 503
        return ("the journal is damaged", 200) if self.damaged is not None else ("ok", 200)
