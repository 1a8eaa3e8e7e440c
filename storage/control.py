"""The progress of an import or a push that somebody watches, and their request to cancel it."""

from __future__ import annotations

import threading

CANCEL_SECONDS = 0.2
"""How often an import that waits looks whether it was cancelled."""


class ImportCancelled(ValueError):
    """An import was cancelled before it stored anything."""


class Control:
    """Progress and cancellation of one import; thread-safe.

    An import can be cancelled until it starts to store, so a cancelled one has stored nothing.
    `stored` of `total` records are stored; `total` is None before that.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self.total: int | None = None
        self.stored = 0
        self.of_bytes: int | None = None
        """Of a push to the hub: bytes to send; `sent` of them are sent."""
        self.sent = 0

    def cancel(self) -> bool:
        """Cancel; False if the import has started to store and will be completed."""
        with self._lock:
            if self.total is None:
                self._cancelled = True
            return self._cancelled

    def require_wanted(self) -> None:
        """Raise `ImportCancelled` if the import was cancelled."""
        with self._lock:
            if self._cancelled:
                raise ImportCancelled("it was cancelled; nothing was stored")

    def start_storing(self, total: int) -> None:
        """From here on, the import cannot be cancelled; raises `ImportCancelled` if it was.

        After a change by others, the rest is planned again and `total` is another number.
        """
        self.require_wanted()
        with self._lock:
            if self._cancelled:
                raise ImportCancelled("it was cancelled; nothing was stored")
            self.total, self.stored = total, 0
