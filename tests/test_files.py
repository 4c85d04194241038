"""Files that are whole or not there, and errors that name the file that was asked for."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from spikegcl.errors import WriteError
from spikegcl.files import write_text, written_atomically


def test_a_file_that_fails_leaves_the_old_one(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(KeyError), written_atomically(path) as temporary:
        temporary.write_text("new")
        raise KeyError
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("a.txt", "old")]


def test_an_error_of_arrow_names_the_file_and_not_the_temporary_one(tmp_path):
    path = tmp_path / ("a" * 250)
    with pytest.raises(WriteError) as caught, written_atomically(path) as temporary:
        pa.OSFile(str(temporary), "wb")
    assert str(caught.value) == f"cannot write {path}: File name too long"


@pytest.mark.parametrize(("name", "reason"), [("file/b", "file is not a folder"), ("file/b/c", "Not a directory")])
def test_a_folder_that_is_a_file_is_named(tmp_path, name, reason):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match=f"cannot write {tmp_path / name}: .*{reason}"):
        write_text(tmp_path / name, "")


def test_the_folder_one_is_in_is_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WriteError, match="cannot write"):
        write_text(Path(), "")
