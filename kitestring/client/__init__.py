"""A Python client of a Kitestring studio (docs/client.md)."""

from kitestring.client.annotator import Annotator
from kitestring.client.connection import StudioError
from kitestring.client.rows import Pages, Rows
from kitestring.client.studio import Studio

__all__ = ["Annotator", "Pages", "Rows", "Studio", "StudioError"]
