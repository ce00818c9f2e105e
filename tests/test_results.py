"""Tables: saved whole, resumed after any kind of death, refused when they would mix."""

import json

import pytest

from lipnb import results

SETTINGS = {"seed": 0, "lengths": [2, 4]}


def fill(record, units):
    for unit in units:
        if record.rows(unit) is None:
            record.add(unit, [{"unit": unit, "value": len(unit) / 3}], seconds=0.5)


def test_a_table_and_its_birth_certificate(results_folder):
    with results.recording("small", SETTINGS) as record:
        fill(record, "ab")
        table = record.finish()
    assert list(table.unit) == ["a", "b"] and results.names() == ["small"]
    assert list(results.load("small").unit) == ["a", "b"]
    birth = results.provenance("small")
    assert birth["settings"] == SETTINGS and birth["rows"] == 2 and birth["seconds"] == 1.0
    assert birth["versions"]["torch"] and "commit" in birth["versions"]
    assert not list(results_folder.glob("*.partial.jsonl"))


def test_resumption_after_a_torn_line_gives_the_same_bytes(results_folder):
    with results.recording("whole", SETTINGS) as record:
        fill(record, "abc")
        record.finish()
    with results.recording("torn", SETTINGS) as record:
        fill(record, "ab")
    partial = results_folder / "torn.partial.jsonl"
    raw = partial.read_bytes()
    for cut in (len(raw), len(raw) - 1, len(raw) - 20, raw.find(b"\n") + 1, raw.find(b"\n") - 3, 0):
        partial.write_bytes(raw[:cut])
        with results.recording("torn", SETTINGS) as record:
            assert (record.rows("a") is not None) == (raw[:cut].count(b"\n") > 1)
            fill(record, "abc")
    with results.recording("torn", SETTINGS) as record:
        record.finish()
    assert (results_folder / "torn.csv").read_bytes() == (results_folder / "whole.csv").read_bytes()


def test_other_settings_are_refused_and_nothing_is_lost(results_folder):
    with results.recording("mine", SETTINGS) as record:
        fill(record, "a")
    with pytest.raises(ValueError, match="begun with other settings"), results.recording("mine", {"seed": 1}):
        pass
    with results.recording("mine", SETTINGS) as record:
        assert record.rows("a") is not None


def test_a_damaged_partial_table_is_named_and_left_alone(results_folder):
    with results.recording("hurt", SETTINGS) as record:
        fill(record, "ab")
    partial = results_folder / "hurt.partial.jsonl"
    damaged = partial.read_bytes().replace(b'"unit": "a"', b'"unit" "a"', 1)
    partial.write_bytes(damaged)
    with pytest.raises(ValueError, match="hurt.partial.jsonl is damaged"), results.recording("hurt", SETTINGS):
        pass
    assert partial.read_bytes() == damaged


def test_two_runs_at_once_are_refused(results_folder):
    with results.recording("busy", SETTINGS):
        with pytest.raises(RuntimeError, match="another run is making the table 'busy'"):
            with results.recording("busy", SETTINGS):
                pass


def test_an_absent_table_names_those_there_are(results_folder):
    with pytest.raises(FileNotFoundError, match="no table 'x' .there are: none.*data/README.md"):
        results.load("x")


def test_an_unwritable_folder_is_said_at_once(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LIPNB_RESULTS", str(tmp_path / "file" / "below"))
    with pytest.raises(OSError, match="results folder .* cannot be written .*set LIPNB_RESULTS"):
        with results.recording("any", SETTINGS):
            pass


def test_every_committed_table_has_its_provenance():
    assert {"real-text", "real-text-embedded"} <= set(results.names())
    for name in results.names():
        birth = results.provenance(name)
        assert birth["rows"] == len(results.load(name))
        assert {"python", "torch", "lipnb"} <= set(birth["versions"])
        assert "/" not in json.dumps(birth["settings"])  # no path of the machine that made it
