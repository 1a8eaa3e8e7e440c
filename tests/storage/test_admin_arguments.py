"""What the administrator's route answers to arguments of the wrong kind: a sentence, never a 500."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from commands.studio import Studio
from pipeline.loop.workspace_config import prepare
from storage.arguments import check_arguments
from storage.engine.database import Database
from tests.helpers.desk_world import ADMIN_TOKEN, make_app

WRONG: tuple[Any, ...] = (None, True, 7, -1.5, "\0x", [], ["x"], {}, {"x": [1]}, {"x": {"y": None}})
UNKNOWN = ("self", "db", "arguments", "é")


@pytest.fixture(scope="module")
def studio(tmp_path_factory) -> Iterator[Studio]:
    place = tmp_path_factory.mktemp("admin") / "workspace"
    config = prepare(place, None, [], [])
    Database.open(place).close()
    with closing(Studio(place, config)) as opened:
        opened.commands.register("link", lambda: "a link")
        yield opened


@pytest.fixture(scope="module")
def client(studio) -> TestClient:
    app = make_app(studio.db, admin=studio.commands.call)
    headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
    return TestClient(app, headers=headers, raise_server_exceptions=False)


def test_every_command_refuses_what_it_does_not_take_in_a_sentence(studio, client):
    # These would start work instead of refusing.
    commands = sorted(studio.commands._table.keys() - {"advance", "verify"})
    assert len(commands) > 15
    for command in commands:
        for name in (*signature(studio.commands._table[command]).parameters, *UNKNOWN):
            for value in WRONG:
                call = {"command": command, "arguments": {name: value}}
                answer = client.post("/admin/api/call", json=call)
                assert answer.status_code in (200, 400), (call, answer.text)
                if answer.status_code == 400:
                    assert len(answer.json()["error"]) > 10, (call, answer.text)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            {"command": "iteration", "arguments": {"number": "one"}},
            "Input should be a valid integer",
        ),
        ({"command": "iteration", "arguments": {}}, "iteration needs number"),
        (
            {"command": "users.add", "arguments": {"name": ["Ann"]}},
            "name is ['Ann']. Input should be a valid string",
        ),
        ({"command": "users.add", "arguments": {"name": "A", "color": 1}}, "takes no color"),
        ({"command": "export", "arguments": {"out": 1, "format": "trl"}}, "out is 1"),
        (
            {"command": "export", "arguments": {"out": "x", "format": "xls"}},
            "Input should be 'trl'",
        ),
        (
            {"command": "import", "arguments": {"kind": "x", "file": "y"}},
            "Input should be 'prompts'",
        ),
        (
            {"command": "import", "arguments": {"kind": "prompts", "file": "y", "role": 1}},
            "role is 1. Input should be 'sft'",
        ),
        (
            {"command": "import", "arguments": {"kind": "prompts", "file": "y", "length": {}}},
            "takes no length",
        ),
        (
            {"command": "train", "arguments": {"overrides": {"ppo.lr": 1}}},
            "Input should be a valid string",
        ),
        ({"command": "nothing", "arguments": {}}, "no command 'nothing'"),
    ],
)
def test_the_sentence_says_what_is_wanted(client, call, says):
    answer = client.post("/admin/api/call", json=call)
    assert answer.status_code == 400
    assert says in answer.json()["error"]


@pytest.mark.parametrize(
    "body",
    [b"", b"x", b"[]", b"null", b'{"command": 7}', b'{"command": "status", "arguments": []}'],
)
def test_a_body_of_another_shape_is_422(client, body):
    headers = {"content-type": "application/json"}
    answer = client.post("/admin/api/call", content=body, headers=headers)
    assert answer.status_code == 422
    assert answer.json()["error"]


def test_what_is_declared_is_what_is_taken():
    def command(db: Database, names: list[str], size: float = 1.0, out: Path | None = None) -> None:
        del db, names, size, out

    def checked(arguments: dict[str, Any]) -> None:
        check_arguments("c", command, arguments, own=("db",))

    checked({"names": []})
    checked({"names": ["x"], "size": 2, "out": "y"})
    checked({"names": [], "out": None})
    for wrong in (
        {"names": "x"}, {"names": [1]}, {"names": [], "size": True}, {"names": [], "out": 3}, {},
        {"names": [], "db": "x"},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"^c"):
            checked(wrong)
