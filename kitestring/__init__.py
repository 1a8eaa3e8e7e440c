"""A Python client of a Kitestring studio: ``kitestring.Studio``.  It imports no part of the studio."""

from kitestring.client import Studio, StudioError

__all__ = ["Studio", "StudioError"]
