"""Studies for the research page that only remember what they were asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storage.errors import NotFound
from storage.records import Study, StudyKind
from storage.reports import StudyOffer


class RecordingStudies:
    """`offered` is what `offer` returns."""

    def __init__(self, asked: list[tuple[str, object]]) -> None:
        self._asked = asked
        self.offered = StudyOffer(reason="There is no policy run to repeat yet.")

    def offer(self) -> StudyOffer:
        return self.offered

    def start(
        self,
        kind: StudyKind,
        name: str,
        plan: Mapping[str, Any],
        settings: Mapping[str, str],
        *,
        created_by: str = "",
    ) -> Study:
        self._asked.append(("study", (kind, name, plan, settings, created_by)))
        raise NotFound("the study does not exist")

    def resume(self, id: str) -> Study:
        self._asked.append(("continue study", id))
        raise NotFound("the study does not exist")

    def cancel(self, id: str) -> Study:
        self._asked.append(("cancel study", id))
        raise NotFound("the study does not exist")
