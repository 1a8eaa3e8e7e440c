"""The annotator's page in one Chromium, on one server with enough pairs for a file of tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from playwright.sync_api import Browser

from storage.engine.database import Database
from storage.records import Annotator
from tests.helpers.browser import chromium
from tests.helpers.desk_world import Server, add_pairs, add_person, make_app, serving, workspace

World = tuple[Database, FastAPI]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """Later tests of a file find what earlier ones left.

    A file with `TEXTS` has these pairs, each for any number of annotators; others have 600 pairs for
    one annotator each.
    """
    folder: Path = tmp_path_factory.mktemp("desk")
    own = getattr(request.module, "TEXTS", None)
    plain = [(f"Question {i}?", f"first {i}", f"second {i}") for i in range(600)]
    with workspace(folder, []) as db:
        add_pairs(db, own or plain, wanted=99 if own else 1)
        yield db, make_app(db)


@pytest.fixture(scope="module")
def server(world: World) -> Iterator[Server]:
    with serving(world[1]) as running:
        yield running


@pytest.fixture
def who(world: World) -> Annotator:
    return add_person(world[0], f"Ann {uuid.uuid4().hex[:6]}")
