"""Imports with a preview over HTTP: what is understood, left out, stored, cancelled and refused."""

from __future__ import annotations

import csv
import io
import json
import threading
import time
import zipfile
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from labeler import uploads
from labeler.annotate.routes import explain_errors
from labeler.research import interrupted
from labeler.research.data.importing.jobs import Imports
from labeler.research.data.importing.routes import import_routes
from labeler.research.data.importing.tab import ImportTab
from labeler.research.interrupted import Started
from storage.engine.database import Database
from storage.importing.target import DatabaseTarget
from storage.tables import audit
from tests.helpers.desk_world import add_person, make_app, session_cookie, workspace
from tests.helpers.research_tabs import laid_out
from tests.helpers.short_prompts import NoLongerThan

ORIGIN = {"origin": "http://testserver"}
FILE, IMPORTS = "/research/upload/file", "/research/api/imports"
PAIR = {"prompt": "Name a fruit", "response_a": "Pear", "response_b": "Apple"}
VOTE = PAIR | {"annotator": "ann", "outcome": "b", "category": "food"}


@pytest.fixture
def db(tmp_path) -> Iterator[Database]:
    with workspace(tmp_path, []) as opened:
        yield opened


@pytest.fixture
def client(db) -> TestClient:
    """The routes without the access check and the pages, which take seconds to build."""
    return light(db, NoLongerThan(100))


def light(db, too_long=None) -> TestClient:
    app, kept = FastAPI(), uploads.Uploads(db.workspace)
    explain_errors(app)
    app.include_router(uploads.upload_routes(db, kept, lambda: too_long))
    app.include_router(import_routes(Imports(db, kept, lambda: too_long)))
    return TestClient(app)


def client_of(db, app, role="researcher") -> TestClient:
    who = add_person(db, f"somebody {role}", role)
    return TestClient(app, headers={**session_cookie(app, db, who), **ORIGIN})


def lines(*rows: Any) -> bytes:
    return "\n".join(json.dumps(row) for row in rows).encode()


def uploaded(client, content: bytes, name="rows.jsonl") -> str:
    answer = client.post(FILE, params={"name": name}, content=content)
    assert answer.status_code == 200, answer.text
    return answer.json()["upload"]


def run(client, **body: Any) -> dict[str, Any]:
    """A job at its end."""
    answer = client.post(IMPORTS, json=body)
    assert answer.status_code == 200, answer.text
    return followed(client, answer.json()["id"])


def followed(client, id: str) -> dict[str, Any]:
    for _ in range(600):
        job = client.get(f"{IMPORTS}/{id}").json()
        if job["phase"] in ("done", "failed", "cancelled"):
            return job
        time.sleep(0.05)
    raise AssertionError("the job did not end")


def stored(db, table="judgments") -> int:
    return db.read(f"SELECT count(*) AS n FROM {table}")[0]["n"]


def test_a_preview_shows_the_rows_and_stores_nothing_and_the_import_does(db, client):
    upload = uploaded(client, lines(VOTE, VOTE | {"prompt": "x", "outcome": "c"}), "my votes.jsonl")

    seen = run(client, upload=upload, preview=True)

    assert (seen["phase"], seen["file"]) == ("done", "my_votes.jsonl")
    assert (seen["kind"], seen["source"]) == ("judgments", None)
    assert "annotator" in seen["detected"]
    assert seen["report"]["rows_shown"] == [{"line": 1, **VOTE}]
    assert seen["report"]["added"]["judgments"] == 1
    assert (seen["left_out"]["count"], seen["left_out"]["bad"]) == (1, 1)
    assert seen["left_out"]["rows"][0]["row"] == 2
    assert "outcome is 'c'" in seen["left_out"]["rows"][0]["reason"]
    assert (stored(db), stored(db, "prompts")) == (0, 0)

    refused = run(client, upload=upload, kind="judgments")
    assert (refused["phase"], refused["left_out"]["count"]) == ("failed", 1)
    assert "1 bad row" in refused["error"]
    assert stored(db) == 0

    made = run(client, upload=upload, kind="judgments", skip_bad=True)
    assert (made["phase"], made["report"]["added"]["judgments"]) == ("done", 1)
    assert stored(db) == 1
    assert not list((db.workspace / "uploads").rglob("*.jsonl"))  # the file is gone
    gone = client.post(IMPORTS, json={"upload": upload})
    assert (gone.status_code, "upload it again" in gone.json()["error"]) == (422, True)


@pytest.mark.parametrize(
    ("kind", "row", "table"),
    [
        ("prompts", {"prompt": "p"}, "prompts"),
        ("sft", {"prompt": "p", "response": "x"}, "completions"),
        ("judgments", VOTE, "judgments"),
        ("preferences", {"prompt": "p", "chosen": "x", "rejected": "y"}, "judgments"),
        ("pairs", PAIR, "comparisons"),
        ("gold", PAIR | {"answer": "a"}, "checks"),
        ("practice", PAIR | {"answer": "a", "explanation": "why"}, "checks"),
    ],
)
def test_every_kind_of_the_command_is_detected_and_imported(db, client, kind, row, table):
    upload = uploaded(client, lines(row))
    assert run(client, upload=upload, preview=True)["kind"] == kind
    assert stored(db, table) == 0
    assert run(client, upload=upload, kind=kind)["phase"] == "done"
    assert stored(db, table) == 1


def test_another_tools_file_is_read_with_the_names_of_its_fields(db, client):
    record = {
        "fields": {"task": "Name a fruit.", "old": "Pear", "new": "Apple"},
        "responses": {"choice": [{"value": "new", "user_id": "u-1"}, {"value": "old", "user_id": "u-2", "status": "draft"}]},
    }  # fmt: skip
    upload = uploaded(client, lines(record))
    seen = run(client, upload=upload, preview=True)
    assert (seen["source"], seen["phase"]) == ("argilla", "failed" if seen["error"] else "done")
    names = {"prompt": "task", "a": "old", "b": "new"}
    seen = run(client, upload=upload, kind="judgments", source="argilla", names=names, preview=True)
    assert seen["report"]["rows_shown"][0]["outcome"] == "b"
    assert seen["left_out"]["left out"] == 1
    assert "the draft response of u-2" in seen["left_out"]["rows"][0]["reason"]
    made = run(client, upload=upload, kind="judgments", source="argilla", names=names)
    assert (made["phase"], stored(db)) == ("done", 1)


def test_rows_that_exceed_the_context_are_named_and_can_be_skipped(client):
    long = PAIR | {"prompt": "x" * 101}
    upload = uploaded(client, lines(PAIR, long, {"prompt": "p"}))
    seen = run(client, upload=upload, kind="pairs", preview=True)
    assert {k: seen["left_out"][k] for k in ("count", "bad", "long")} == {
        "count": 2,
        "bad": 1,
        "long": 1,
    }
    assert seen["left_out"]["rows"][0] == {
        "row": 2, "why": "long", "reason": "101 characters are too long",
    }  # fmt: skip
    assert run(client, upload=upload, kind="pairs", skip_bad=True)["phase"] == "done"
    # The shorter way has the same check.
    answer = client.post("/research/upload/pairs", params={"name": "x.jsonl"}, content=lines(long))
    assert (answer.status_code, answer.json()["rows"][0]["why"]) == (422, "long")
    skip = {"name": "x.jsonl", "skip_long": True}
    answer = client.post("/research/upload/pairs", params=skip, content=lines(PAIR, long))
    assert (answer.status_code, answer.json()["long_in_all"]) == (200, 1)


def test_all_rows_left_out_are_downloaded_and_no_cell_is_a_formula(client):
    rows = [{"=1+1": 1}] * 1_500  # more than a report lists
    upload = uploaded(client, lines(VOTE, *rows))
    seen = run(client, upload=upload, kind="judgments", preview=True)
    assert (seen["left_out"]["count"], len(seen["left_out"]["rows"])) == (1_500, 20)
    answer = client.get("/research/download/left-out", params={"id": seen["id"]})
    assert "attachment" in answer.headers["content-disposition"]
    found = list(csv.DictReader(io.StringIO(answer.text)))
    assert [int(each["row"]) for each in found] == list(range(2, 1_502))
    assert {each["left out because"] for each in found} == {"bad"}
    # The name of a question begins the reason.
    record = {
        "fields": {"prompt": "p", "response_a": "x", "response_b": "y"},
        "responses": {"=1+1": [{"value": "neither of them", "user_id": "u"}]},
    }
    upload = uploaded(client, lines(record))
    names = {"question": "=1+1"}
    job = run(client, upload=upload, kind="judgments", source="argilla", names=names, preview=True)
    assert job["left_out"]["rows"][0]["reason"].startswith("=1+1 is")
    text = client.get("/research/download/left-out", params={"id": job["id"]}).text
    assert list(csv.reader(io.StringIO(text)))[1][2].startswith("'=1+1 is")
    assert client.get("/research/download/left-out", params={"id": "unknown"}).status_code == 404


def test_a_cancelled_import_has_stored_nothing(db, client, monkeypatch):
    upload = uploaded(client, lines(*(VOTE | {"prompt": f"p{n}"} for n in range(50))))
    reached, go_on = threading.Event(), threading.Event()
    start = DatabaseTarget.start_reading

    def wait(self) -> None:
        reached.set()
        go_on.wait(20)
        start(self)

    monkeypatch.setattr(DatabaseTarget, "start_reading", wait)
    job = client.post(IMPORTS, json={"upload": upload, "kind": "judgments"}).json()
    assert reached.wait(20)
    assert client.get(f"{IMPORTS}/{job['id']}").json()["phase"] == "reading"
    assert client.post(f"{IMPORTS}/{job['id']}/cancel", json={}).status_code == 200
    go_on.set()
    assert followed(client, job["id"])["phase"] == "cancelled"
    assert (stored(db), stored(db, "prompts")) == (0, 0)
    # The file is still there, and the next import is not disturbed.
    assert run(client, upload=upload, kind="judgments")["phase"] == "done"
    assert stored(db) == 50


def test_an_import_that_a_restart_interrupted_is_named_until_the_next_one(db, client, monkeypatch):
    upload = uploaded(client, lines(VOTE))
    reached, go_on = threading.Event(), threading.Event()
    start = DatabaseTarget.start_reading

    def wait(self) -> None:
        reached.set()
        go_on.wait(60)
        start(self)

    monkeypatch.setattr(DatabaseTarget, "start_reading", wait)
    started = Started(db.workspace, "import")
    job = client.post(IMPORTS, json={"upload": upload, "kind": "judgments"}).json()
    assert reached.wait(20)
    assert started.interrupted() == {}  # it is running
    monkeypatch.setattr(interrupted, "_SERVER", "server-2")  # as after a restart
    tab = laid_out(lambda: ImportTab(db))
    said = "The import of rows.jsonl was interrupted, because the server stopped."
    assert said in tab.refresh()[tab.interrupted]
    assert "Import it again: records that are stored already" in tab.refresh()[tab.interrupted]
    other = light(db)
    found = other.get(f"{IMPORTS}/{job['id']}")
    assert (found.status_code, found.json()["error"].startswith(said)) == (404, True)
    assert len(started.interrupted()) == 1
    go_on.set()
    again = uploaded(other, lines(VOTE))
    assert run(other, upload=again, kind="judgments")["phase"] == "done"
    assert tab.refresh()[tab.interrupted] == ""
    monkeypatch.setattr(interrupted, "_SERVER", "server-3")
    assert started.interrupted() == {}  # it is over


def test_an_import_that_stores_is_completed(db, client, monkeypatch):
    upload = uploaded(client, lines(*(VOTE | {"prompt": f"p{n}"} for n in range(300))))
    reached, go_on = threading.Event(), threading.Event()
    store = DatabaseTarget.store

    def wait(self, *arguments):
        reached.set()
        go_on.wait(20)
        return store(self, *arguments)

    monkeypatch.setattr(DatabaseTarget, "store", wait)
    job = client.post(IMPORTS, json={"upload": upload, "kind": "judgments"}).json()
    assert reached.wait(20)
    # 300 prompts, comparisons and judgments, 600 responses, a model and an annotator.
    now = client.get(f"{IMPORTS}/{job['id']}").json()
    assert (now["phase"], now["stored"], now["total"]) == ("storing", 0, 300 * 5 + 2)
    refused = client.post(f"{IMPORTS}/{job['id']}/cancel", json={})
    assert (refused.status_code, "can't be cancelled" in refused.json()["error"]) == (409, True)
    go_on.set()
    ended = followed(client, job["id"])
    assert (ended["phase"], ended["stored"]) == ("done", ended["total"])
    assert stored(db) == 300


def parquet_bomb() -> bytes:
    """A few kilobytes that are a list of 300 million values."""
    buffer = io.BytesIO()
    values = pa.array([[0] * 30_000_000], pa.list_(pa.int8()))
    parquet.write_table(pa.table({"prompt": values}), buffer, compression="zstd")
    return buffer.getvalue()


def zip_bomb() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("rows.jsonl", b"0" * 50_000_000)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("rows.jsonl", zip_bomb(), "is a binary file or UTF-16"),
        ("rows.parquet", parquet_bomb(), "MiB of memory, too much for its size"),
        ("rows.csv", "prompt\nfür\n".encode("latin-1"), "is not UTF-8 (see line 2)"),
        ("rows.csv", "prompt\nx\n".encode("utf-16"), "is a binary file or UTF-16"),
        ("rows.jsonl", b'{"a": [' + b"[]," * 600_000 + b"0]}", "commas and brackets"),
        ("rows.jsonl", b"", "do not say what it contains: none that can be read"),
        ("rows.json", b"[" * 100_000, "do not say what it contains"),
        ("rows.csv", b"a;b\n1;2\n", "separated by semicolons"),
    ],
    ids=["zip", "parquet", "latin-1", "utf-16", "lists", "empty", "deep", "semicolons"],
)
def test_hostile_and_damaged_files_are_refused_in_a_sentence(db, client, name, content, says):
    job = run(client, upload=uploaded(client, content, name), preview=True)
    assert job["phase"] == "failed"
    said = job["error"] + "".join(row["reason"] for row in job["left_out"]["rows"])
    assert says in said
    assert stored(db, "prompts") == 0


def test_a_huge_row_and_markup_are_text(db, client):
    row = {"prompt": "<img src=x onerror=alert(1)> " + "y" * 3_000_000, "category": "=1+1"}
    client = light(db)  # without a limit for the context
    seen = run(client, upload=uploaded(client, lines(row)), preview=True)
    [shown] = seen["report"]["rows_shown"]
    assert shown["prompt"].startswith("<img src=x")
    assert (len(shown["prompt"]), shown["category"]) == (2_001, "=1+1")
    assert len(json.dumps(seen)) < 10_000


@pytest.mark.parametrize(
    "name", ["../../out.jsonl", "/etc/x.jsonl", "a/../../b.csv", "..\\x.jsonl"]
)
def test_a_name_cannot_lead_out_of_the_folder_of_uploads(db, client, name):
    before = {path for path in db.workspace.parent.rglob("*") if "uploads" not in path.parts}
    uploaded(client, b"{}", name)
    [file] = [path for path in (db.workspace / "uploads").rglob("*") if path.is_file()]
    assert file.parent.parent == db.workspace / "uploads"
    assert file.parent.parent.stat().st_mode & 0o777 == 0o700
    after = {path for path in db.workspace.parent.rglob("*") if "uploads" not in path.parts}
    assert after == before


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "an uploaded file or an address"),
        ({"upload": "x", "address": "hf://datasets/a/b"}, "and not both"),
        ({"upload": "../.."}, "is not here any more"),
        ({"upload": "."}, "is not here any more"),
        ({"address": "https://example.org/x.jsonl"}, "begins with hf://datasets/"),
        ({"address": "hf://datasets/a/b", "kind": "pairs", "source": "arena"}, "with --judgments, not --pairs"),
        ({"address": "hf://datasets/a/b", "source": "arena"}, "say what the file"),
        ({"address": "hf://datasets/a/b", "kind": "pairs", "names": {"a": "b"}}, "say which tool"),
        ({"address": "hf://datasets/a/b", "kind": "sft", "role": "train"}, "without a role"),
        ({"address": "hf://datasets/a/b", "kind": "pairs", "role": "live"}, "must be one of"),
        ({"kind": "everything"}, "kind"),
    ],
)  # fmt: skip
def test_a_request_that_contradicts_itself_is_refused(client, body, says):
    answer = client.post(IMPORTS, json=body)
    assert answer.status_code == 422
    assert says in answer.json()["error"]


def test_an_address_that_leads_out_of_its_folder_is_refused(client):
    job = run(client, address="hf://datasets/a/b/../../../x.jsonl", preview=True)
    assert (job["phase"], "must be hf://datasets/OWNER/NAME" in job["error"]) == ("failed", True)


def test_old_uploads_make_room_and_a_new_server_starts_with_none(db, client, monkeypatch):
    monkeypatch.setattr(uploads, "MAX_UPLOADS", 2)
    first, *_ = (uploaded(client, lines(PAIR)) for _ in range(3))
    assert len(list((db.workspace / "uploads").iterdir())) == 2
    assert client.post(IMPORTS, json={"upload": first}).status_code == 422
    light(db)
    assert not (db.workspace / "uploads").exists()


def test_only_researchers_import_and_the_audit_log_names_them(db):
    app = make_app(db, too_long=lambda: NoLongerThan(100))
    client = client_of(db, app)
    upload = uploaded(client, lines(VOTE))
    job = run(client, upload=upload, preview=True)
    for role in ("annotator", "adjudicator", "viewer"):
        others_are_refused(client_of(db, app, role), upload, job)
    assert stored(db) == 0
    long = uploaded(client, lines(PAIR | {"prompt": "x" * 101}))
    assert run(client, upload=long, preview=True)["left_out"]["long"] == 1
    assert run(client, upload=upload, kind="judgments")["phase"] == "done"
    [noted] = [each.row() for each in audit.listing(db) if each.row()["action"] == "import"]
    assert noted["actor"] == "somebody researcher"


def others_are_refused(other, upload, job):
    assert other.post(FILE, params={"name": "x.jsonl"}, content=b"{}").status_code == 403
    assert other.post(IMPORTS, json={"upload": upload}).status_code == 403
    assert other.get(f"{IMPORTS}/{job['id']}").status_code == 403
    assert other.post(f"{IMPORTS}/{job['id']}/cancel", json={}).status_code == 403
    assert other.get("/research/download/left-out", params={"id": job["id"]}).status_code == 403
