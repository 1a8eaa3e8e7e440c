"""The health of an open workspace, for `status`, the researcher's page and `/healthz`."""

from __future__ import annotations


class Health:
    """Each attribute is a sentence about a problem, or None.  Any thread may read and assign it."""

    def __init__(self) -> None:
        self.refused: str | None = None
        """Why writes are refused."""
        self.damaged: str | None = None
        """What is damaged, although writes are accepted."""
        self.loop_error: str | None = None
        """The unexpected error that stops the loop."""

    @property
    def trouble(self) -> str | None:
        """The most serious problem."""
        return self.refused or self.damaged or self.loop_error

    def public(self) -> tuple[str, int]:
        """A public status without file names, and its HTTP status code."""
        if self.refused is not None:
            return "writes are refused", 503
        return ("the journal is damaged", 200) if self.damaged is not None else ("ok", 200)
