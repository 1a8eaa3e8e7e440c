"""``python -m pipeline.studies WORKSPACE KIND NAME``: runs a study that the studio has started."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import cast

from pipeline.runs.study_folder import StudyFolder
from pipeline.studies.study import run_study
from storage.records import StudyKind


def main(workspace: str, kind: str, name: str) -> int:
    """Run the study of a folder; its outcome is in the folder."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = StudyFolder(Path(workspace), cast("StudyKind", kind), name)
    spec = folder.spec()
    if spec is None:
        raise ValueError(f"{folder.path} has no study.json")
    run_study(Path(workspace), spec, folder.append_log)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
