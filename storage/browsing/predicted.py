"""The reward models' stored predictions for pairs, as a table for a WITH clause.

Two places have them: the table `predictions`, written when a reward stage ends, has pairs of two
policies, predicted by the model that trained the newer one; and held_out.parquet of a reward model's
run has the pairs on which that model was measured.  A pair of the newest model's file has that
model's prediction, any other pair the one of the table.
"""

from __future__ import annotations

from storage.engine.database import Database
from storage.records import HELD_OUT_FILE
from storage.tables import models

_STORED = "SELECT comparison, reward_model, first AS expected FROM predictions"
_WITH_FILE = """
    predicted AS MATERIALIZED (
        WITH measured AS (
            SELECT comparison, '{model}' AS reward_model, any_value(expected) AS expected
            FROM read_parquet('{file}') GROUP BY comparison)
        FROM measured UNION ALL BY NAME
        ({stored} WHERE comparison NOT IN (SELECT comparison FROM measured)))
"""


def predicted(db: Database) -> str:
    """The table `predicted`: comparison, reward_model and `expected`.

    `expected` is the probability that `first` is preferred, plus half that of a tie.
    """
    newest = next(iter(models.reward_models(db)), None)
    if newest is not None and newest.directory:
        file = db.workspace / newest.directory / "outputs" / HELD_OUT_FILE
        if file.exists():
            return _WITH_FILE.format(
                model=_quoted(newest.model), file=_quoted(str(file)), stored=_STORED
            )
    return f"predicted AS ({_STORED})"


def _quoted(text: str) -> str:
    return text.replace("'", "''")
