"""Tables of the command line: plain text in a file, ruled and wrapped on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

from commands.app import show

ROWS = {"runs": [{"name": "a [bold]b", "loss": 0.123456}, {"name": "w" * 90, "labels": 3}]}


def test_a_table_in_a_file_is_plain_and_as_wide_as_its_cells(capsys):
    show(ROWS, as_json=False)
    wide = "w" * 90
    assert capsys.readouterr().out.splitlines() == [
        "runs:",
        f"  {'name':<90}  loss    labels",
        f"  {'a [bold]b':<90}  0.1235  –",
        f"  {wide}  –       3",
    ]


def test_a_table_on_a_terminal_is_ruled_and_keeps_to_its_width():
    ours, theirs = pty.openpty()
    code = f"from commands.app import show; show({ROWS!r}, False)"
    environment = os.environ | {"COLUMNS": "60", "TERM": "xterm"}
    subprocess.run([sys.executable, "-c", code], stdout=theirs, env=environment, check=True)
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    lines = shown.splitlines()
    assert "\x1b[1m" in lines[1]  # the heading is bold
    assert set(lines[2].strip()) == {"─"}
    assert shown.count("w") == 90  # folded, not cut off
    assert max(len(line) for line in lines[2:]) <= 64
    assert "a [bold]b" in shown
