"""Runs the lab: testbed, reference, arms, report; finished parts are not run again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.config.sections import Config
from pipeline.models.devices import cap_threads
from pipeline.runs.repeat import exclusive
from pipeline.runs.rundir import write_atomically
from pipeline.studies.sycophancy import report
from pipeline.studies.sycophancy.arms import Arms, LabArm, PolicyMeasurement, names
from pipeline.studies.sycophancy.measure import Measured, Rate
from pipeline.studies.sycophancy.testbed import LabConfig, Progress, build


def study(
    folder: Path, lab: LabConfig, config: Config, progress: Progress
) -> tuple[report.LabReport, Path]:
    """Run what has not run yet in `folder`; return the findings and the plot's path."""
    with exclusive(folder, option="--folder"):
        cap_threads(config.worker)
        testbed = build(folder, lab, config, progress)
        arms = Arms(testbed, progress)
        reference = _kept(folder / "reference.json", arms.reference, _look)
        found = []
        for number, name in enumerate(names(testbed), 1):
            path = folder / f"arm_{name.replace(' + ', '_')}.json"
            if path.exists():
                progress(f"{name} ({number} of {len(names(testbed))}): done before")
            found.append(_kept(path, lambda name=name: arms.run(name), _arm))
        findings = report.findings(testbed, reference, found)
        return findings, report.write(folder, findings, found)


def _kept(path: Path, make: Callable[[], Any], read: Callable[[dict[str, Any]], Any]) -> Any:
    """The object that a file holds; it is made and written first if there is no file."""
    if not path.exists():
        write_atomically(path, json.dumps(asdict(make()), indent=1))
    return read(json.loads(path.read_text()))


def _arm(data: dict[str, Any]) -> LabArm:
    looks = [_look(look) for look in data["looks"]]
    return LabArm(name=data["name"], looks=looks, final=_look(data["final"]))


def _look(data: dict[str, Any]) -> PolicyMeasurement:
    measured = data["measured"]
    rates = {name: Rate(**measured[name]) for name in ("agrees", "truthful")}
    texts = tuple((prompt, text) for prompt, text in measured["texts"])
    return PolicyMeasurement(
        at=data["at"], measured=Measured(**(measured | rates | {"texts": texts}))
    )
