"""The form in which annotators judge: set by the settings files or on the page, and the latest counts."""

from __future__ import annotations

import pytest

from storage.engine.database import Database
from storage.tables import settings
from storage.tables.settings import JudgmentForm

ONE_PRESS = JudgmentForm("one-press", "optional")
REQUIRED = JudgmentForm("two-step", "required")


@pytest.fixture
def db(tmp_path):
    with Database.open(tmp_path) as opened:
        yield opened


def test_without_settings_there_are_two_steps_and_an_optional_strength(db):
    assert settings.judgment_form(db) == JudgmentForm("two-step", "optional")


def test_a_choice_on_the_page_outlives_a_restart_with_the_same_files(db):
    settings.configure_judgment_form(db, ONE_PRESS)
    settings.choose_judgment_form(db, REQUIRED)
    settings.configure_judgment_form(db, ONE_PRESS)
    assert settings.judgment_form(db) == REQUIRED


def test_files_that_changed_count_more_than_an_earlier_choice(db):
    settings.choose_judgment_form(db, REQUIRED)
    settings.configure_judgment_form(db, ONE_PRESS)
    assert settings.judgment_form(db) == ONE_PRESS
    settings.configure_judgment_form(db, JudgmentForm())  # back to the defaults is a change too
    assert settings.judgment_form(db) == JudgmentForm()


def test_what_is_not_a_form_is_refused(db):
    with pytest.raises(ValueError, match="scale='stars' must be one of 'two-step', 'one-press'"):
        settings.choose_judgment_form(db, JudgmentForm("stars"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="strength=None must be one of"):
        JudgmentForm(strength=None)  # type: ignore[arg-type]
