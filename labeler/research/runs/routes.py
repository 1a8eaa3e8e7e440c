"""The routes of the comparison of runs, which viewers may read too.

``compare.js`` draws what they return; scripts can use them with an API token.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query

from labeler.ports import Loop
from labeler.research import reading
from labeler.research.tab import Cached
from storage.browsing.runs import KL, REWARD, Comparison, compare, summaries
from storage.engine.database import Database


def run_routes(db: Database, loop: Loop) -> APIRouter:
    """``/research/api/runs`` and ``/research/api/runs/curves``."""
    routes = APIRouter(prefix="/research/api")
    gate = Cached(loop.gate, at_most_every=10)

    @routes.get("/runs")
    def listed() -> dict[str, Any]:
        """All runs, the newest first.  A policy's run has its verdict and `people`: its win rate
        against SFT by people's judgments."""
        report = gate.get(reading.judging_version(db), occasion=reading.gate_occasion(db))
        standings = {each.policy: each for each in report.policies}
        rows = []
        for run in summaries(db):
            standing = standings.get(run.policy or "")
            rate = standing.win_rate if standing else None
            rows.append(
                asdict(run)
                | {
                    "people": None
                    if rate is None
                    else {"rate": rate.win_rate, "low": rate.low, "high": rate.high},
                    "verdict": standing.verdict if standing else None,
                }
            )
        return {"runs": rows}

    @routes.get("/runs/curves")
    def curves(
        run: Annotated[list[str], Query(min_length=1)],
        metric: Annotated[list[str] | None, Query()] = None,
    ) -> Comparison:
        """Curves of up to ten runs, by default those of reward and KL."""
        return compare(db, run, metric or (REWARD, KL))

    return routes
