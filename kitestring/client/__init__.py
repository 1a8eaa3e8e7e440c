"""A Python client of a Kitestring studio (docs/client.md)."""

from kitestring.client.connection import StudioError
from kitestring.client.rows import Pages, Rows
from kitestring.client.studio import Studio

__all__ = ["Pages", "Rows", "Studio", "StudioError"]
