"""A small parquet file may not fill the memory of the web process."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from storage.engine import connection as engine
from storage.engine.database import Database
from storage.importing.files import parquet_batches
from storage.importing.files.filetypes import read_rows
from storage.importing.imports import import_prompts
from tests.helpers.storage_world import child, outcome_of

MIB = 2**20


def write(path: Path, columns: dict[str, pa.Array], **options) -> Path:
    parquet.write_table(pa.table(columns), path, compression="zstd", **options)
    return path


BOMBS = {
    "one text in every row": lambda: {"prompt": pa.array(["word " * 200] * 400_000)},
    "one long text": lambda: {"prompt": pa.array(["a" * (300 * MIB)])},
    "one long text in every row": lambda: {"prompt": pa.array(["a" * (20 * MIB)] * 60)},
    "rows of nothing": lambda: {"prompt": pa.nulls(3_000_000, pa.string())},
    "long lists": lambda: {"messages": pa.array([[True] * 100_000] * 100)},
    "one list of nothing": lambda: {
        "messages": pa.ListArray.from_arrays([0, 10**8], pa.nulls(10**8, pa.int8()))
    },
    "one long text by reference": lambda: {
        "prompt": pa.DictionaryArray.from_arrays(
            pa.array([0] * 6_400, pa.int32()), pa.array(["a" * (MIB // 8)])
        )
    },
    "one map of nothing": lambda: {
        "messages": pa.MapArray.from_arrays(
            [0, 8 * 10**6], pa.array([True] * (8 * 10**6)), pa.nulls(8 * 10**6, pa.bool_())
        )
    },
}
"""Made by the test: a gigabyte at import would be in every process that collects tests."""

# Not ru_maxrss, which a child has from the process that started it.
MEASURE = """
import sys
from pathlib import Path
from storage.importing.files.filetypes import read_rows
def most():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])
before = most()
try:
    read_rows(Path(sys.argv[1]))
    print("read")
except ValueError as error:
    print("refused" if "split it" in str(error) else error)
print((most() - before) // 1024)
"""


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_file_that_becomes_far_larger_in_memory_is_refused_before_it_does(tmp_path, bomb):
    path = write(tmp_path / "bomb.parquet", BOMBS[bomb]())
    assert path.stat().st_size < MIB
    status, said = outcome_of(child(MEASURE, str(path)))
    verdict, grown = said.split()
    assert (status, verdict) == (0, "refused")
    assert int(grown) < 320  # MiB; the first one took 790 before


def varint(number: int, length: int = 1) -> bytes:
    """As thrift writes a positive number, in at least `length` bytes."""
    rest = number << 1
    digits = [rest >> 7 * n & 127 for n in range(max(length, (rest.bit_length() + 6) // 7))]
    return bytes([*(digit | 128 for digit in digits[:-1]), digits[-1]])


def test_a_footer_that_calls_its_rows_small_is_not_believed(tmp_path):
    text = pa.array(["a" * (4 * MIB)])
    rows = pa.DictionaryArray.from_arrays(pa.array([0] * 256, pa.int32()), text)
    path = write(
        tmp_path / "lies.parquet",
        {"prompt": rows},
        store_schema=False,
        dictionary_pagesize_limit=2**30,
    )
    told = varint(parquet.ParquetFile(path).metadata.row_group(0).total_byte_size)
    head, _, tail = path.read_bytes().rpartition(told)
    path.write_bytes(head + varint(1, len(told)) + tail)
    assert parquet.ParquetFile(path).metadata.row_group(0).total_byte_size == 1

    status, said = outcome_of(child(MEASURE, str(path)))
    verdict, grown = said.split()
    assert (status, verdict) == (0, "refused")
    assert int(grown) < 320  # MiB; 256 rows of 4 are a GiB


def compact(*fields: tuple[int, int, bytes]) -> bytes:
    """A struct as thrift writes it: each field as the step from the last number, its type and value."""
    return b"".join(bytes([step << 4 | kind]) + value for step, kind, value in fields) + b"\0"


def listed(count: int, struct: bytes) -> bytes:
    """A list of `count` such structs, whose length takes three bytes."""
    size = bytes([count & 127 | 128, count >> 7 & 127 | 128, count >> 14])
    return b"\xfc" + size + struct * count


def test_a_footer_of_millions_of_columns_is_refused(tmp_path):
    """Three bytes of it become 700 in memory, before anything of the file is known."""
    root = compact((4, 8, b"\x04root"), (1, 5, varint(1)))
    leaf = compact((1, 5, varint(6)), (2, 5, varint(1)), (1, 8, b"\x01a"))
    group = compact(
        (1, 9, listed(500_000, compact((2, 6, varint(0))))), (1, 6, varint(0)), (1, 6, varint(0))
    )
    footer = compact(
        (1, 5, varint(1)),
        (1, 9, b"\x2c" + root + leaf),
        (1, 6, varint(0)),
        (1, 9, b"\x8c" + group * 8),
    )
    path = tmp_path / "footer.parquet"
    path.write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    assert path.stat().st_size < 13 * MIB
    status, said = outcome_of(child(MEASURE, str(path)))
    verdict, grown = said.split()
    assert (status, verdict) == (0, "refused")
    assert int(grown) < 320


def test_what_the_trial_cannot_read_is_not_read_after_it(tmp_path, monkeypatch):
    path = write(tmp_path / "p.parquet", {"prompt": pa.array(["a"])})
    broken = tmp_path / "broken.py"
    broken.write_text("raise RuntimeError('no thread can be started')")
    monkeypatch.setattr(parquet_batches, "__file__", str(broken))
    with pytest.raises(ValueError, match=r"p\.parquet cannot be read as parquet: RuntimeError: no"):
        read_rows(path)


def test_what_breaks_the_trial_is_refused(tmp_path, monkeypatch):
    """A library may end its process where there is no memory, or on a file that was made to do so."""
    path = write(tmp_path / "p.parquet", {"prompt": pa.array(["a"])})
    crash = tmp_path / "crash.py"
    crash.write_text("import os; os.abort()")
    monkeypatch.setattr(parquet_batches, "__file__", str(crash))
    with pytest.raises(ValueError, match="split it into smaller files"):
        read_rows(path)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([2**61], pa.timestamp("us")),
        pa.array([2**30], pa.date32()),
        pa.array([0], pa.timestamp("us", tz="No/Where")),
    ],
    ids=["timestamp", "date", "zone"],
)
def test_a_value_that_python_does_not_know_is_a_sentence(tmp_path, column):
    path = write(tmp_path / "p.parquet", {"prompt": pa.array(["a"]), "when": column})
    with pytest.raises(ValueError, match=r"p\.parquet has a value after row 0 that cannot be read"):
        read_rows(path)


def test_columns_of_every_kind_are_read(tmp_path):
    columns = {
        "prompt": pa.array(["a", "b", "a"]).dictionary_encode(),
        "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        "fixed": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)),
    }
    rows, bad = read_rows(write(tmp_path / "p.parquet", columns))
    assert [list(row.values.values()) for row in rows] == [
        ["a", [("k", 1)], [1, 2]],
        ["b", [], None],
        ["a", None, [3, 4]],
    ]
    assert bad.count == 0


def test_more_files_are_read_than_fit_in_a_command(tmp_path):
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    first = write(folder / "00000.parquet", {"prompt": pa.array(["a"])})
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"no parquet")
    files = [broken] + [first] * 15_000  # of 200 characters and more; the first one ends it
    with pytest.raises(ValueError, match=r"broken\.parquet is not a parquet file"):
        list(parquet_batches.batches(files))


def test_ordinary_files_are_read_whole_and_in_order(tmp_path):
    texts = [f"question {n}? " + "word " * (n % 90) for n in range(3000)]
    turns = [[{"role": "user", "content": text}] for text in texts]
    path = write(
        tmp_path / "p.parquet",
        {"prompt": pa.array(texts), "messages": pa.array(turns)},
        row_group_size=700,
    )
    rows, bad = read_rows(path)
    assert [row.line for row in rows] == list(range(1, 3001))
    assert [row.values["prompt"] for row in rows] == texts
    assert rows[-1].values["messages"] == turns[-1]
    assert bad.count == 0


def test_a_refused_file_leaves_nothing_in_the_workspace(tmp_path):
    path = write(tmp_path / "bomb.parquet", BOMBS["rows of nothing"]())
    with Database.open(tmp_path / "w") as db:
        with pytest.raises(ValueError, match="split it into smaller files"):
            import_prompts(db, path)
        assert db.read("SELECT * FROM prompts") == []


def test_duckdb_leaves_memory_to_the_others():
    with engine.connect() as connection:
        (limit,) = connection.execute("SELECT current_setting('memory_limit')").fetchall()[0]
    amount, unit = limit.split()
    gib = {"KiB": 2**-20, "MiB": 2**-10, "GiB": 1}[unit]
    assert float(amount) * gib <= 2
