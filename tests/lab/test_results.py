"""The stored tables: where they are, what made them, what is said of one that is not there."""

import json

import pytest

from lab import results
from lipscan.recording import Unit


def test_a_table_is_made_there(results_folder):
    units = [Unit(part, lambda part=part: [{"unit": part}]) for part in "ab"]
    table = results.make("small", {"seed": 0}, units, progress=False)
    assert list(table.unit) == list(results.load("small").unit) == ["a", "b"] and results.names() == ["small"]
    assert results.provenance("small")["settings"] == {"seed": 0}


def test_an_unwritable_folder_is_said_at_once(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LIPNB_RESULTS", str(tmp_path / "file" / "below"))
    with pytest.raises(OSError, match="folder .* cannot be written .*set LIPNB_RESULTS"):
        with results.recording("any", {}):
            pass


def test_every_committed_table_has_its_provenance():
    assert {"atlas-minilm", "real-text-embedded"} <= set(results.names())
    for name in results.names():
        birth = results.provenance(name)
        assert birth["rows"] == len(results.load(name))
        assert {"python", "torch", "lipnb"} <= set(birth["versions"])
        assert "/" not in json.dumps(birth["settings"])  # no path of the machine that made it
