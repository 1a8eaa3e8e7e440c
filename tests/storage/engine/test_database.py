"""The writer thread, groups, the lock, and texts of every kind."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pandas as pd
import pytest

from pipeline.loop.workspace_config import prepare
from storage.engine.codec import StoredSetting
from storage.engine.database import Database
from storage.engine.transaction import Transaction
from storage.errors import Conflict, NotFound, WorkspaceLocked
from storage.records import Completion, Prompt
from storage.tables import prompts, settings
from tests.helpers.storage_world import child, outcome_of


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with Database.open(tmp_path) as opened:
        yield opened


def completion(id: str, text: str = "yes") -> Completion:
    return Completion(id=id, prompt="p", policy="m", text=text)


def texts(db: Database) -> dict[str, str]:
    return {row["id"]: row["text"] for row in db.read("SELECT id, text FROM completions")}


def in_one_group(db: Database, *operations) -> list[object]:
    """What each operation gave or raised when the writer took all of them as one group."""
    started, go = threading.Event(), threading.Event()

    def hold(_: Transaction) -> None:
        started.set()
        assert go.wait(30)

    def answer(operation) -> object:
        try:
            return db.write(operation)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(operations) + 1) as threads:
        threads.submit(db.write, hold)
        assert started.wait(30)
        waiting = []
        for n, operation in enumerate(operations, 1):
            waiting.append(threads.submit(answer, operation))
            while db._waiting.qsize() < n:  # so that they stand in this order
                pass
        go.set()
        return [future.result(30) for future in waiting]


def test_a_failed_operation_takes_none_of_its_neighbors_with_it(db):
    def stores_then_fails(tx: Transaction) -> None:
        tx.store(completion("lost"))
        raise ValueError("no")

    attempts: list[str] = []

    def counted(tx: Transaction) -> int:
        attempts.append("run")
        return tx.store(completion("before"))

    outcomes = in_one_group(
        db, counted, stores_then_fails, lambda tx: tx.store(completion("after"))
    )
    assert attempts == ["run", "run"]  # they really were one group, rolled back and run again
    assert outcomes[0] == 1
    assert isinstance(outcomes[1], ValueError)
    assert outcomes[2] == 1
    assert texts(db) == {"before": "yes", "after": "yes"}


def test_broken_sql_takes_none_of_its_neighbors_with_it(db):
    outcomes = in_one_group(
        db,
        lambda tx: tx.store(completion("before")),
        lambda tx: tx.rows("SELECT * FROM nowhere"),
        lambda tx: tx.store(completion("after")),
    )
    assert isinstance(outcomes[1], duckdb.CatalogException)
    assert (outcomes[0], outcomes[2]) == (1, 1)
    assert texts(db) == {"before": "yes", "after": "yes"}


def test_an_operation_that_swallows_an_sql_error_is_not_acknowledged(db):
    """DuckDB's COMMIT after an error returns normally and rolls back."""

    def swallows(tx: Transaction) -> str:
        tx.store(completion("x"))
        try:
            tx.rows("SELECT 1/0 FROM nowhere")
        except duckdb.Error:
            return "all is well"
        return "unreachable"

    with pytest.raises(RuntimeError, match="SQL had failed"):
        db.write(swallows)
    assert texts(db) == {}
    assert db.journal.size == 0


def test_a_refusal_before_anything_is_written_costs_the_group_nothing(db):
    attempts: list[str] = []

    def counted(tx: Transaction) -> int:
        attempts.append("run")
        return tx.store(completion("kept"))

    def refuses(_: Transaction) -> None:
        raise Conflict("no")

    outcomes = in_one_group(db, counted, refuses)
    assert attempts == ["run"]
    assert outcomes[0] == 1
    assert isinstance(outcomes[1], Conflict)
    assert texts(db) == {"kept": "yes"}


def test_two_new_records_of_one_id_in_a_group_are_told_apart(db):
    """`fresh` leaves the check to the unique index; the group is then run again carefully."""
    outcomes = in_one_group(
        db,
        lambda tx: tx.store(completion("same", "one"), fresh=True),
        lambda tx: tx.store(completion("other"), fresh=True),
        lambda tx: tx.store(completion("same", "two"), fresh=True),
    )
    assert outcomes[:2] == [1, 1]
    assert isinstance(outcomes[2], Conflict)
    assert texts(db) == {"same": "one", "other": "yes"}
    assert db.write(lambda tx: tx.store(completion("same", "one"), fresh=True)) == 0


def test_storing_again_is_a_no_op_when_equal_and_a_conflict_when_not(db):
    assert db.write(lambda tx: tx.store(completion("k"), completion("l"))) == 2
    size = db.journal.size
    assert db.write(lambda tx: tx.store(completion("k"), completion("m"), completion("m"))) == 1
    with pytest.raises(Conflict, match="'k'"):
        db.write(lambda tx: tx.store(completion("n"), completion("k", "no")))
    assert set(texts(db)) == {"k", "l", "m"}
    assert b'"id":"n"' not in db.journal.path.read_bytes()
    assert db.journal.path.read_bytes()[size:].count(b"\n") == 1


def test_a_prompt_stored_again_keeps_its_first_role(db):
    first = Prompt.make("why?", role="train", category="a", source="one.jsonl")
    again = Prompt.make("why?", role="held-out", category="b", source="two.jsonl")
    assert prompts.add(db, [first]) == 1
    assert prompts.add(db, [again]) == 0
    assert prompts.listing(db) == [first]


def test_a_transaction_reads_what_it_stored(db):
    def operation(tx: Transaction) -> list[dict]:
        tx.store(completion("k"))
        return tx.rows("SELECT id FROM completions")

    assert db.write(operation) == [{"id": "k"}]


def test_replaceable_records_take_the_last_value(db):
    db.write(
        lambda tx: tx.store(
            StoredSetting(key="a", value=1), StoredSetting(key="a", value={"b": [2]})
        )
    )
    assert settings.get(db, "a") == {"b": [2]}
    lines = db.journal.path.read_bytes().count(b"\n")
    settings.put(db, "a", {"b": [2]})
    assert db.journal.path.read_bytes().count(b"\n") == lines  # nothing new to say
    assert settings.get(db, "missing", "default") == "default"


def test_an_operation_cannot_write_through_the_database(db):
    with pytest.raises(RuntimeError, match="own transaction"):
        db.write(lambda _: settings.put(db, "a", 1))


def test_a_closed_workspace_says_so(tmp_path):
    db = Database.open(tmp_path)
    db.close()
    with pytest.raises(RuntimeError, match="closed"):
        db.read("SELECT 1")
    with pytest.raises(RuntimeError, match="closed"):
        settings.put(db, "a", 1)
    db.close()


def test_closing_leaves_no_cursor_to_a_thread_that_lives_on(tmp_path):
    """Such a cursor would be destroyed while the thread ends, and may abort the process then."""
    found: list[weakref.ref[duckdb.DuckDBPyConnection]] = []
    was_read, may_end = threading.Event(), threading.Event()

    def read(db: Database) -> None:
        db.read("SELECT 1 AS one")
        found.append(weakref.ref(db.cursor()))
        was_read.set()
        may_end.wait(60)

    with Database.open(tmp_path) as db:
        reader = threading.Thread(target=read, args=(db,))
        reader.start()
        assert was_read.wait(60)
        assert found[0]() is not None
    try:
        assert reader.is_alive()
        assert found[0]() is None
    finally:
        may_end.set()
        reader.join()


def test_readers_in_many_threads_each_get_their_own_rows(db):
    db.write(lambda tx: tx.store(*(completion(f"k{i}", str(i)) for i in range(200))))

    def read(i: int) -> str:
        rows = db.read("SELECT text FROM completions WHERE id = $id", id=f"k{i % 200}")
        return rows[0]["text"]

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(read, range(400))) == [str(i % 200) for i in range(400)]


WEIRD = [
    "NUL \0 inside",
    "astral 🪁 and combining e\u0301",
    "line\u2028separator\nnewline\r\ttab",
    "bidi \u202e override",
    "'; DROP TABLE completions; --",
    "",
    "\ufeff\uffff$id",
]


def test_every_whole_character_survives_table_journal_and_restart(tmp_path):
    with Database.open(tmp_path) as db:
        db.write(lambda tx: tx.store(*(completion(f"k{i}", t) for i, t in enumerate(WEIRD))))
        settings.put(db, "texts", WEIRD)
    (tmp_path / "workspace.duckdb").unlink()  # so that the next start has only the journal
    with Database.open(tmp_path) as db:
        assert texts(db) == {f"k{i}": text for i, text in enumerate(WEIRD)}
        assert settings.get(db, "texts") == WEIRD


def test_half_a_surrogate_pair_is_refused_with_a_sentence_and_harms_nobody(db):
    outcomes = in_one_group(
        db,
        lambda tx: tx.store(completion("good")),
        lambda tx: tx.store(completion("also refused"), completion("bad", "half \ud83e here")),
    )
    assert outcomes[0] == 1
    assert isinstance(outcomes[1], ValueError)
    assert "surrogate" in str(outcomes[1])
    assert texts(db) == {"good": "yes"}


def test_parquet_holds_the_rows_of_the_query(db, tmp_path):
    db.write(lambda tx: tx.store(completion("k1", "a"), completion("k2", "b")))
    path = tmp_path / "it's.parquet"
    sql = "SELECT id, text FROM completions WHERE text >= $least ORDER BY id"
    assert db.copy_to_parquet(sql, path, least="b") == 1
    assert pd.read_parquet(path).to_dict("records") == [{"id": "k2", "text": "b"}]


PROGRESS = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from storage.engine.database import Database
setting = "SELECT current_setting('enable_progress_bar') AS bar"
with Database.open(Path(sys.argv[1])) as db, ThreadPoolExecutor(1) as other:
    print(db.read(setting), other.submit(db.read, setting).result(),
          db.write(lambda tx: tx.rows(setting)))
"""


def test_no_progress_bar_is_drawn_into_what_a_program_prints(tmp_path):
    """Where Python runs no file, DuckDB draws one on standard output after two seconds."""
    assert outcome_of(child(PROGRESS, str(tmp_path))) == (
        0,
        " ".join(["[{'bar': False}]"] * 3) + "\n",
    )


def test_nothing_is_fetched_from_the_network_for_a_query(db):
    assert db.read("SELECT current_setting('autoinstall_known_extensions') AS on") == [
        {"on": False}
    ]


LOCKING = """
import sys
from pathlib import Path
from storage.engine.database import Database
try:
    Database.open(Path(sys.argv[1]))
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.usefixtures("db")
def test_a_second_process_is_refused_and_told_where_the_server_is(tmp_path):
    _, said = outcome_of(child(LOCKING, str(tmp_path)))
    assert said.startswith("WorkspaceLocked another process has")
    (tmp_path / "server.json").write_text('{"url": "http://127.0.0.1:7860", "token": "t"}')
    _, said = outcome_of(child(LOCKING, str(tmp_path)))
    assert "http://127.0.0.1:7860" in said
    assert '"t"' not in said
    with pytest.raises(WorkspaceLocked):  # nor may this process open it twice
        Database.open(tmp_path)


def test_opening_without_create_wants_a_workspace(tmp_path):
    with pytest.raises(NotFound, match="init"):
        Database.open(tmp_path / "nothing", create=False)
    assert not (tmp_path / "nothing").exists()


def test_storage_needs_no_torch():
    code = "import sys, storage.engine.backup, storage.labeling.queue, storage.labeling.judgments; print('torch' in sys.modules)"
    assert outcome_of(child(code)) == (0, "False\n")


def test_a_workspace_is_its_owners_alone_also_one_that_was_there_before(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        Database.open(tmp_path / "new").close()
        prepare(tmp_path / "studio", None, [], [])
        (tmp_path / "shared").mkdir(mode=0o755)
        Database.open(tmp_path / "shared").close()
        (tmp_path / "everybody").mkdir()
        (tmp_path / "everybody").chmod(0o1777)  # as /tmp is: never closed to the others
        Database.open(tmp_path / "everybody").close()
    finally:
        os.umask(before)
    names = ("new", "studio", "shared", "everybody")
    rights = {each: (tmp_path / each).stat().st_mode & 0o7777 for each in names}
    assert rights == {"new": 0o700, "studio": 0o700, "shared": 0o700, "everybody": 0o1777}


def test_closing_interrupts_a_query_of_another_thread(tmp_path):
    """As when the server stops while a page is being answered."""
    db = Database.open(tmp_path / "w")
    met: list[BaseException] = []

    def read() -> None:
        try:
            db.read("SELECT sum(a.range * b.range) FROM range(1000000) AS a, range(1000000) AS b")
        except duckdb.Error as error:
            met.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    time.sleep(0.3)  # the query runs for hours
    db.close()
    reader.join(30)
    assert not reader.is_alive()
    assert [type(error) for error in met] == [duckdb.InterruptException]
    Database.open(tmp_path / "w").close()
