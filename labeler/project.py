"""What annotators are given: guidelines, the form, practice.  The commands and routes of a project.

Results are JSON values.  The pages of the same names call storage themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from labeler.annotate.session import DEFAULT_GUIDELINES
from labeler.translation import Language, translated
from storage.engine.database import Database
from storage.labeling import gold
from storage.records import Criterion
from storage.tables import guidelines, settings
from storage.tables.settings import Presence, Scale, StrengthRule


class Project:
    """The project of an open workspace."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def commands(self) -> dict[str, Callable[..., Any]]:
        """The commands of the command line by name."""
        return {
            "guidelines.show": self.guidelines,
            "guidelines.save": self.save_guidelines,
            "form.show": self.form,
            "form.set": self.set_form,
            "practice.show": self.practice,
            "practice.ask": self.ask_for_practice,
        }

    def guidelines(self, language: Language | None = None) -> dict[str, Any]:
        """The text that annotators see who chose `language`, and all saved texts, oldest first."""
        default = translated(DEFAULT_GUIDELINES, language or "en")
        return {
            "version": guidelines.version(self._db, DEFAULT_GUIDELINES),
            "text": guidelines.current(self._db, default, language or ""),
            "saved": [asdict(each) for each in guidelines.saved(self._db, DEFAULT_GUIDELINES)],
        }

    def save_guidelines(self, text: str, language: Language | None = None) -> dict[str, str]:
        """Show this text to annotators, with a `language` only to those who chose it.

        An empty text removes that of a language; without a language, ValueError.
        """
        if not text.strip() and language is None:
            raise ValueError("the guidelines are empty; write what a good response is")
        guidelines.save(self._db, text, language=language or "", default=DEFAULT_GUIDELINES)
        return {"version": guidelines.version(self._db, DEFAULT_GUIDELINES)}

    def form(self) -> dict[str, Any]:
        """What annotators are asked about a pair."""
        return asdict(settings.judgment_form(self._db))

    def set_form(
        self,
        scale: Scale | None = None,
        strength: StrengthRule | None = None,
        criteria: Sequence[Criterion] | None = None,
        reasons: Sequence[str] | None = None,
        rationale: Presence | None = None,
        safety: Presence | None = None,
        marks: bool | None = None,
    ) -> dict[str, Any]:
        """Change the form; None leaves a field as it is.  Annotators get it with their next pair."""
        given: dict[str, Any] = {
            "scale": scale, "strength": strength, "criteria": criteria, "reasons": reasons,
            "rationale": rationale, "safety": safety, "marks": marks,
        }  # fmt: skip
        changed = {name: value for name, value in given.items() if value is not None}
        form = replace(settings.judgment_form(self._db), **changed)
        settings.choose_judgment_form(self._db, form)
        return asdict(form)

    def practice(self) -> dict[str, Any]:
        """Whether annotators first judge the practice pairs, and how many there are."""
        pairs = [each for each in gold.listing(self._db, "practice") if each.active]
        return {"asked": settings.check_plan_of(self._db).practice, "pairs": len(pairs)}

    def ask_for_practice(self, asked: bool) -> dict[str, Any]:
        """Ask annotators for practice, or no longer."""
        settings.ask_for_practice(self._db, asked)
        return self.practice()
