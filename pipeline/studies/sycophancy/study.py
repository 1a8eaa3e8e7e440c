"""Runs the lab: testbed, reference, arms, report; finished parts are not run again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pipeline.config.sections import Config
from pipeline.models.devices import cap_threads
from pipeline.runs.repeat import exclusive
from pipeline.runs.rundir import write_atomically
from pipeline.studies.sycophancy import report
from pipeline.studies.sycophancy.arms import Arms, LabArm, PolicyMeasurement, names
from pipeline.studies.sycophancy.testbed import LabConfig, Progress, build
from storage.reports import from_json, to_json

_T = TypeVar("_T")


def study(
    folder: Path, lab: LabConfig, config: Config, progress: Progress
) -> tuple[report.LabReport, Path]:
    """Run what has not run yet in `folder`; return the findings and the plot's path."""
    with exclusive(folder, option="--folder"):
        cap_threads(config.worker)
        testbed = build(folder, lab, config, progress)
        arms = Arms(testbed, progress)
        reference = _load_or_make(folder / "reference.json", PolicyMeasurement, arms.reference)
        found = []
        for number, name in enumerate(names(testbed), 1):
            path = folder / f"arm_{name.replace(' + ', '_')}.json"
            if path.exists():
                progress(f"{name} ({number} of {len(names(testbed))}): already done")
            found.append(_load_or_make(path, LabArm, lambda name=name: arms.run(name)))
        findings = report.findings(testbed, reference, found)
        return findings, report.write(folder, findings, found)


def _load_or_make(path: Path, kind: type[_T], make: Callable[[], _T]) -> _T:
    """Read the object of this kind in a file; if there is no file, make it and write it."""
    if not path.exists():
        write_atomically(path, json.dumps(to_json(make()), indent=1))
    return from_json(kind, json.loads(path.read_text()))
