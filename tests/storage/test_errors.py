"""Sentences for errors of the operating system."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from storage.errors import explain


def test_a_refused_file_names_what_refuses(tmp_path: Path):
    there = tmp_path / "file"
    there.touch()
    assert explain(PermissionError(errno.EACCES, "Permission denied", str(there))) == (
        f"{there}: permission denied. Change the owner or the permissions of the file"
    )


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_a_file_that_could_not_be_created_names_the_directory(tmp_path: Path, number: int):
    missing = tmp_path / "a" / "b"
    error = PermissionError(number, "Permission denied", str(missing))
    denied = f"{missing}: permission denied. Change the owner or the permissions of "
    assert explain(error) == denied + str(tmp_path)


def test_an_error_without_a_file_is_its_cause():
    error = OSError(errno.ENOSPC, "No space left on device")
    assert explain(error) == "the disk is full. Free some space and try again"
