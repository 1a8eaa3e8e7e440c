"""A small parquet file may not fill the memory of the web process."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from storage_world import child, outcome_of

from storage import engine
from storage.database import Database
from storage.filetypes import read_rows
from storage.importing import import_prompts

MIB = 2**20


def write(path: Path, columns: dict[str, pa.Array], **options) -> Path:
    parquet.write_table(pa.table(columns), path, compression="zstd", **options)
    return path


BOMBS = {
    "one text in every row": {"prompt": pa.array(["word " * 200] * 400_000)},
    "one long text": {"prompt": pa.array(["a" * (300 * MIB)])},
    "one long text in every row": {"prompt": pa.array(["a" * (20 * MIB)] * 60)},
    "rows of nothing": {"prompt": pa.nulls(3_000_000, pa.string())},
    "long lists": {"messages": pa.array([[True] * 100_000] * 100)},
}

MEASURE = """
import resource, sys
from pathlib import Path
from storage.filetypes import read_rows
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_rows(Path(sys.argv[1]))
    print("read")
except ValueError as error:
    print("refused" if "split it" in str(error) else error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_file_that_becomes_far_larger_in_memory_is_refused_before_it_does(tmp_path, bomb):
    path = write(tmp_path / "bomb.parquet", BOMBS[bomb])
    assert path.stat().st_size < MIB
    status, said = outcome_of(child(MEASURE, str(path)))
    verdict, grown = said.split()
    assert (status, verdict) == (0, "refused")
    assert int(grown) < 320  # MiB; the first one took 790 before


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
    path = write(tmp_path / "bomb.parquet", BOMBS["rows of nothing"])
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
