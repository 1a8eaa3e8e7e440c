"""The stage that improves the policy, whichever method it runs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pipeline.runs.rundir import Job, Report, RunDirectory

METHODS = {
    "ppo": "pipeline.policy.ppo",
    "dpo": "pipeline.policy.dpo",
    "rloo": "pipeline.policy.rloo",
}
"""Each is a module with ``run(job, report, directory) -> summary`` that saves model/."""


def run(job: Job, report: Report, directory: RunDirectory) -> dict[str, Any]:
    """Run `optimize.method`; its summary, with the method's name."""
    method = job.config.optimize.method
    return {"method": method} | import_module(METHODS[method]).run(job, report, directory)
