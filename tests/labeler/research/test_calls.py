"""Values that no control of the researcher's page sends: a sentence each, and few lines of the log."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from labeler import serving as serving_module
from labeler.open_pages import OPEN_PAGES
from labeler.research.team.guidelines import tab as guidelines_tab
from storage.tables import guidelines
from storage.tables.people import annotators
from tests.helpers.desk_world import add_person, make_app, serving, session_cookie, workspace
from tests.helpers.page_calls import Page

NOTHING = "The guidelines were not saved."


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("calls")
    with pytest.MonkeyPatch.context() as patch, workspace(folder) as db:
        patch.setenv("GRADIO_TEMP_DIR", str(folder))
        who = add_person(db, "Rosa", "researcher")
        with serving(make_app(db)) as server:
            headers = {**session_cookie(server.app, db, who), "origin": server.url}
            with httpx.Client(base_url=server.url, headers=headers, timeout=20) as client:
                yield db, Page(client), server.app


@pytest.mark.parametrize("name", [None, "", "  "])
def test_nobody_without_a_name_is_added(world, name):
    db, page, _ = world
    before = len(annotators.listing(db))
    done = page.call(page.of("annotator-add", "click"), [name, "annotator"])
    assert "An annotator needs a name" in json.dumps(done["output"]["data"])
    assert len(annotators.listing(db)) == before


def test_nobody_without_a_role_is_added(world):
    _, page, _ = world
    done = page.call(page.of("annotator-add", "click"), ["Ann", None])
    assert "Choose a role" in json.dumps(done["output"]["data"])


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        *((event, "no such button") for event in (None, 5, [], "action", {}, {"action": "clear"})),
        ({"action": 1, "id": 2}, "no such button"),
        ({"action": "drop", "id": "x"}, "no such button"),
        ({"action": "invite", "id": "x"}, "There is no annotator"),
        ({"action": "disable", "id": "x"}, "There is no annotator"),
        ({"action": "clear", "id": "x"}, "There is no flag"),
    ],
)
@pytest.mark.parametrize("table", ["people", "flags"])
def test_a_button_that_no_table_has_is_refused_in_a_sentence(world, table, event, sentence):
    _, page, _ = world
    done = page.call(page.of(table, "act"), [], event)
    assert done["success"]
    assert sentence in json.dumps(done["output"]["data"])


def test_guidelines_that_are_no_text_are_neither_shown_nor_saved(world):
    db, page, _ = world
    guidelines.save(db, "Be kind.")
    previewed = page.call(page.of("guidelines", "change"), [None])
    assert "No guidelines yet" in json.dumps(previewed["output"]["data"])
    saved = page.call(page.of("guidelines-save", "click"), [None, "", None, None])
    assert NOTHING in json.dumps(saved["output"]["data"])
    assert guidelines.current(db, "") == "Be kind."


@pytest.fixture
def fresh_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The minutes of the log begin anew: other tests share the process."""
    monkeypatch.setattr(serving_module._QUIET, "_last_logged", {})


@pytest.mark.usefixtures("fresh_log")
def test_values_that_no_control_sends_take_a_line_of_the_log(world, caplog, capfd):
    _, page, _ = world
    function = page.of("annotator-add", "click")
    with caplog.at_level(logging.WARNING):
        answers = [page.call(function, ["Ann", role]) for role in ("x\x1b[31m", 5, {}, []) * 5]
    assert not any(answer["success"] for answer in answers)
    assert "is not in the list of choices" in answers[0]["output"]["error"]
    assert answers[3]["output"]["error"] == "Role takes one choice."
    told = [r.getMessage() for r in caplog.records if r.name == "labeler.research.calls"]
    assert len(told) == 1
    assert told[0].startswith("A call of the research page was refused: Error(")
    assert "\x1b" not in told[0]
    assert "Traceback" not in caplog.text + capfd.readouterr().err


@pytest.mark.usefixtures("fresh_log")
def test_a_defect_takes_one_traceback_of_the_log(world, caplog, capfd, monkeypatch):
    _, page, _ = world

    def broken(*_: object, **__: object) -> str:
        raise RuntimeError("a defect of the test")

    monkeypatch.setattr(guidelines_tab, "render", broken)
    function = page.of("guidelines", "change")
    with caplog.at_level(logging.WARNING):
        answers = [page.call(function, ["**text**"]) for _ in range(5)]
    assert {answer["output"]["error"] for answer in answers} == {"a defect of the test"}
    assert caplog.text.count("Traceback (most recent call last)") == 1
    assert "in broken" in caplog.text
    assert "Traceback" not in capfd.readouterr().err


def test_an_open_page_keeps_no_copy_of_its_components(world):
    _, page, app = world
    page.call(page.of("annotator-add", "click"), ["Noor", "annotator"])
    mounted = next(each.app for each in app.routes if getattr(each, "path", "") == "/research")
    opened = mounted.state_holder[f"session{page.calls}"]
    assert opened.blocks_config.blocks
    assert opened.config_values == {}
    assert mounted.state_holder.capacity == OPEN_PAGES
