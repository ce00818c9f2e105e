"""Files are replaced together or not at all, and lines that could not be written spoil no other."""

import os

import numpy as np
import pytest

from lipscan.recording import recording, write
from lipscan.recording.files import replacing


def test_files_are_replaced_together_or_not_at_all(tmp_path, monkeypatch):
    one, two = tmp_path / "one", tmp_path / "two"
    write(one, "old")
    with pytest.raises(ZeroDivisionError), replacing(one, two) as (new, other):
        new.write_text("new")
        other.write_text("new")
        raise ZeroDivisionError
    assert one.read_text() == "old" and os.listdir(tmp_path) == ["one"]
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError):
        write(one, "new")
    assert one.read_text() == "old" and os.listdir(tmp_path) == ["one"]


def test_a_line_that_could_not_be_written_spoils_no_other(tmp_path, monkeypatch):
    with recording("full", {}, tmp_path) as record:
        record.add("a", [{"n": 1}], 0)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises(OSError, match="No space left on device"):
                record.add("b", [{"n": 2}], 0)
        assert record.rows("b") is None
        record.add("c", [{"n": np.int64(3)}], 0)
    with recording("full", {}, tmp_path) as record:
        assert [record.rows(key) for key in "abc"] == [[{"n": 1}], None, [{"n": 3}]]
