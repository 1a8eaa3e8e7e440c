"""What an import keeps of a file: the rows that say something new, and the first of what is wrong."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from storage.engine.database import Database
from storage.importing import sheet
from storage.importing.files import filetypes
from storage.importing.files.cells import Cells
from storage.importing.files.filetypes import read_rows
from storage.importing.files.long_rows import ANY_LENGTH
from storage.importing.files.row_notes import MAX_NOTES, BadFile
from storage.importing.imports import import_pairs, import_prompts
from tests.helpers.import_files import everything

MANY = 3 * MAX_NOTES


def test_of_many_bad_rows_the_first_are_kept_and_the_others_counted(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("x\n" * MANY)
    rows, bad = read_rows(path)
    assert (rows, bad.count) == ([], MANY)
    assert [note.line for note in bad.first] == list(range(1, MAX_NOTES + 1))


@pytest.mark.parametrize("skip_bad", [False, True])
def test_the_report_says_how_many_rows_are_bad_for_whatever_reason(
    db: Database, tmp_path: Path, skip_bad: bool
) -> None:
    path = tmp_path / "mixed.csv"
    good = "p,x,y\n"
    path.write_text("prompt,response_a,response_b\n" + good + "p,x,x\np,x\n" * MANY)
    if skip_bad:
        report = import_pairs(db, path, skip_bad=True)
        assert (report.skipped_in_all, report.added["comparisons"]) == (2 * MANY, 1)
        told = report.skipped
    else:
        with pytest.raises(BadFile, match=f"which has {2 * MANY:,} bad rows") as refused:
            import_pairs(db, path)
        assert f"… and {2 * MANY - MAX_NOTES} more" in str(refused.value)
        told = refused.value.rows
    assert [note.line for note in told] == list(range(3, 3 + MAX_NOTES))


def test_a_row_that_repeats_another_is_let_go_at_once(db: Database, tmp_path: Path) -> None:
    path = tmp_path / "same.csv"
    path.write_text("prompt,response_a,response_b\n" + "a,b,c\n" * MANY)
    planned = []
    store = sheet.Sheet.parse

    def parse(self, *args, **options):
        planned.append(made := store(self, *args, **options))
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sheet.Sheet, "parse", parse)
        report = import_pairs(db, path)
    assert [len(made) for made in planned] == [1]
    assert (report.rows, report.added["comparisons"]) == (MANY, 1)
    assert report.warnings_in_all == MANY - 1
    assert len(report.warnings) == MAX_NOTES
    assert report.warnings[0].reason == "repeats line 2 and was imported once"


def test_a_row_is_let_go_as_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("prompt\n" + "p\n" * 10)
    read = sheet.Sheet(path, ANY_LENGTH)
    left: list[int] = []

    def parse(cells: Cells) -> int:
        left.append(len(read._rows))
        return cells.line

    assert read.parse(parse) == list(range(2, 12))
    assert left == list(range(9, -1, -1))


def test_text_is_read_no_further_than_the_rows_that_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text('{"prompt": "p"}\n' * 50)
    seen: list[int] = []
    checked = filetypes._checked
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filetypes, "_checked", lambda *a: seen.append(a[0]) or checked(*a))
        with pytest.raises(ValueError, match="more than 10 rows"):
            read_rows(path, max_rows=10)
    assert seen == list(range(1, 12))


def test_a_parquet_file_of_too_many_rows_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"prompt": ["p"] * 11}), path)
    with pytest.raises(ValueError, match="more than 10 rows"):
        read_rows(path, max_rows=10)
    assert len(read_rows(path, max_rows=11)[0]) == 11


def test_a_column_of_its_own_in_every_row_is_not_told_of_each(db: Database, tmp_path: Path) -> None:
    path = tmp_path / "wide.jsonl"
    path.write_text("".join(f'{{"prompt": "p", "extra {n}": 1}}\n' for n in range(2_000)))
    report = import_prompts(db, path)
    assert everything(db)["prompts"] == 1
    assert len([w for w in report.warnings if "is not used" in w.reason]) == 50
    assert report.warnings[0].line == 1


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv"])
def test_what_is_said_of_a_name_of_megabytes_is_short(
    db: Database, tmp_path: Path, name: str
) -> None:
    path, long = tmp_path / name, "k" * 2_000_000
    if name == "x.csv":
        path.write_text(f"prompt,response_a,response_b,{long}\na,b,c,d\n")
    else:
        path.write_text(f'{{"prompt":"a","response_a":"b","response_b":"c","{long}":1}}\n')

    [note] = import_pairs(db, path).warnings

    assert note.reason.startswith("column kkk")
    assert len(note.reason) == 1_000
