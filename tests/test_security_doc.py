"""SECURITY.md: every requirement of ASVS 4.0.3, level 1, once."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (\d+\.\d+\.\d+) \| (.+?) \| ([a-z/ ]+) \| (.+) \|$", TEXT, re.MULTILINE)
# From OWASP's table of the standard: the requirements of level 1, those that were deleted left out.
LEVEL_1 = {
    "2.1": range(1, 13), "2.2": range(1, 4), "2.3": [1], "2.5": range(1, 7), "2.7": range(1, 5),
    "2.8": [1], "3.1": [1], "3.2": range(1, 4), "3.3": [1, 2], "3.4": range(1, 6), "3.7": [1],
    "4.1": [1, 2, 3, 5], "4.2": [1, 2], "4.3": [1, 2], "5.1": range(1, 6), "5.2": range(1, 9),
    "5.3": range(1, 11), "5.5": range(1, 5), "6.2": [1], "7.1": [1, 2], "7.4": [1],
    "8.2": range(1, 4), "8.3": range(1, 5), "9.1": range(1, 4), "10.3": range(1, 4),
    "11.1": range(1, 6), "12.1": [1], "12.3": range(1, 6), "12.4": [1, 2], "12.5": [1, 2],
    "12.6": [1], "13.1": [1, 3], "13.2": range(1, 4), "13.3": [1], "14.2": range(1, 4),
    "14.3": [2, 3], "14.4": range(1, 8), "14.5": range(1, 4),
}  # fmt: skip


def test_every_requirement_stands_once_with_one_of_four_answers():
    expected = [f"{section}.{number}" for section, numbers in LEVEL_1.items() for number in numbers]
    assert [row[0] for row in ROWS] == expected
    assert {row[2] for row in ROWS} == {"met", "partly", "not met", "n/a"}
    counted = Counter(row[2] for row in ROWS)
    figures = ", ".join(f"{counted[each]} {each}" for each in ("met", "partly", "not met", "n/a"))
    assert f"Of {len(expected)}: {figures}." in TEXT


def test_most_answers_name_a_file():
    # tests/test_docs.py checks that the files exist.
    assert len(set(re.findall(r"`((?:labeler|storage|pipeline|tests|docs)/[\w/.]+)`", TEXT))) > 25
    assert "(SECURITY.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
