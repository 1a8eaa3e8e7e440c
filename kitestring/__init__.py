"""A Python client of a Kitestring studio: ``kitestring.Studio``, ``kitestring.Annotator``.  It imports no part of the studio."""

from kitestring.client import Annotator, Studio, StudioError

__all__ = ["Annotator", "Studio", "StudioError"]
