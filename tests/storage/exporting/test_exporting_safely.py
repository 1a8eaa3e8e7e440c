"""Exports that somebody else opens: a spreadsheet, or a page that shows the dataset card."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from storage.engine.database import Database
from storage.exporting.exports import export
from storage.importing.imports import import_judgments
from tests.helpers.import_files import write_rows


def test_a_csv_says_that_it_holds_formulas_and_can_be_made_safe_for_a_spreadsheet(
    db: Database, tmp_path: Path
) -> None:
    hostile = ['=HYPERLINK("http://evil.example")', "+1", "-1", "@SUM(A1)", "\t=1", " =1", "＝1"]
    rows = [
        {
            "prompt": f"Question {i}?",
            "response_a": text,
            "response_b": "fine",
            "annotator": "Ann",
            "outcome": "a",
        }
        for i, text in enumerate(hostile)
    ]
    import_judgments(db, write_rows(tmp_path / "in.jsonl", rows))
    plain = export(db, format="trl", out=tmp_path / "plain.csv")
    assert any("7 cells" in note and "--csv-safe" in note for note in plain.notes)
    safe = export(db, format="trl", out=tmp_path / "safe.csv", csv_safe=True)
    assert safe.notes == []
    with (tmp_path / "safe.csv").open(newline="") as file:
        found = {row["chosen"] for row in csv.DictReader(file)}
    assert found == {f"'{text}" for text in hostile}
    # Other files are read by programs.
    assert export(db, format="trl", out=tmp_path / "plain.jsonl").notes == []
    with pytest.raises(ValueError, match=r"--csv-safe is for FILE\.csv"):
        export(db, format="trl", out=tmp_path / "x.jsonl", csv_safe=True)


def test_a_name_in_the_card_is_no_markdown_and_fetches_nothing(
    db: Database, tmp_path: Path
) -> None:
    names = [
        "![x](http://evil.example/pixel.png)",
        "<img src=http://evil.example/x.png>",
        "&lt;b&gt; [me](//evil.example) **bold** www.evil.example me@evil.example",
    ]
    rows = [
        {
            "prompt": "Tea?", "response_a": "Yes.", "response_b": "No.", "outcome": "a",
            "annotator": name, "model_a": names[0], "model_b": names[1],
        }
        for name in names
    ]  # fmt: skip
    import_judgments(db, write_rows(tmp_path / "in.jsonl", rows))
    card = Path(export(db, format="raw", out=tmp_path / "raw.jsonl", names=True).card).read_text()
    assert "pixel.png" in card
    assert "www.evil" not in card
    page = (
        MarkdownIt("commonmark", {"html": True}).enable("table").render(card.split("---\n", 2)[2])
    )
    outside_code = re.sub(r"<code>.*?</code>", "", page)
    assert not re.search(r"https?://|\w@\w", outside_code)
    for element in ("<img", "<a ", "<b>", "<strong>"):
        assert element not in outside_code, element
