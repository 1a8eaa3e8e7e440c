"""What can go wrong in a workspace.  Every message is a sentence for the person at the screen."""

from __future__ import annotations


class Conflict(ValueError):
    """What is asked contradicts what is already stored."""


class NotFound(LookupError):
    """Nothing is stored under this id."""


class NotLeased(PermissionError):
    """The annotator was never given this comparison."""


class WorkspaceLocked(RuntimeError):
    """Another process has the workspace open."""


class StorageFull(RuntimeError):
    """The disk refused a write.  Nothing of it was acknowledged; the same request may be repeated."""


class StorageDamaged(RuntimeError):
    """A file of the workspace cannot be read as it was written."""
