"""Settings kept with the workspace, e.g. the guidelines for annotators (key "guidelines")."""

from __future__ import annotations

import json
from typing import Any

from storage.codec import Setting
from storage.database import Database

_GET = "SELECT value FROM settings WHERE key = $key"


def get(db: Database, key: str, default: Any = None) -> Any:
    """The value stored under a key, or `default` when there is none."""
    rows = db.read(_GET, key=key)
    return json.loads(rows[0]["value"]) if rows else default


def put(db: Database, key: str, value: Any) -> None:
    """Store a value that JSON can hold."""
    db.write(lambda tx: tx.store(Setting(key=key, value=value)))
