"""Tables in the making: saved whole, resumed after any kind of death, refused when they would mix."""

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pytest

from lipscan.recording import Unit, bar, make, recording, remeasure

SETTINGS = {"seed": 0, "lengths": [2, 4]}


def fill(record, units):
    for unit in units:
        if record.rows(unit) is None:
            record.add(unit, [{"unit": unit, "value": len(unit) / 3}], seconds=0.5)


def test_importing_it_asks_for_no_widgets():
    """tqdm.auto warns in a notebook without ipywidgets: a page whose outputs are compared would differ."""
    code = "import sys, lipscan.recording, lab.figures; print('tqdm.auto' in sys.modules, 'tqdm' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False True\n"


def test_a_table_and_its_birth_certificate(tmp_path):
    with recording("small", SETTINGS, tmp_path) as record:
        fill(record, "ab")
        table = record.finish()
    assert list(table.unit) == ["a", "b"] and list(pd.read_csv(tmp_path / "small.csv").unit) == ["a", "b"]
    birth = json.loads((tmp_path / "small.json").read_text())
    assert birth["settings"] == SETTINGS and birth["rows"] == 2 and birth["seconds"] == 1.0
    assert birth["versions"]["torch"] and "commit" in birth["versions"]
    assert not list(tmp_path.glob("*.partial.jsonl"))


def test_resumption_after_a_torn_line_gives_the_same_bytes(tmp_path):
    with recording("whole", SETTINGS, tmp_path) as record:
        fill(record, "abc")
        record.finish()
    with recording("torn", SETTINGS, tmp_path) as record:
        fill(record, "ab")
    partial = tmp_path / "torn.partial.jsonl"
    raw = partial.read_bytes()
    for cut in (len(raw), len(raw) - 1, len(raw) - 20, raw.find(b"\n") + 1, raw.find(b"\n") - 3, 0):
        partial.write_bytes(raw[:cut])
        with recording("torn", SETTINGS, tmp_path) as record:
            assert (record.rows("a") is not None) == (raw[:cut].count(b"\n") > 1)
            fill(record, "abc")
    with recording("torn", SETTINGS, tmp_path) as record:
        record.finish()
    assert (tmp_path / "torn.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_other_settings_are_refused_and_nothing_is_lost(tmp_path):
    with recording("mine", {"lengths": [10**6]}, tmp_path):
        pass  # settings without rows bind nobody: a command may fail before its first row
    with recording("mine", SETTINGS, tmp_path) as record:
        fill(record, "a")
    with pytest.raises(ValueError, match="other settings"), recording("mine", {"seed": 1}, tmp_path):
        pass
    with recording("mine", SETTINGS, tmp_path) as record:
        assert record.rows("a") is not None


DAMAGED = ["[1]", "null", "{}", '{"settings": {}}\n{"rows": []}', '{"settings": {}}\n5', '{"settings": {}}\n{"a" 1}']


def test_a_damaged_partial_table_is_named_and_left_alone(tmp_path):
    partial = tmp_path / "hurt.partial.jsonl"
    for text in DAMAGED:
        partial.write_text(text + "\n")
        with pytest.raises(ValueError, match="hurt.partial.jsonl is damaged"), recording("hurt", SETTINGS, tmp_path):
            pass
        assert partial.read_text() == text + "\n"


def test_two_runs_at_once_are_refused(tmp_path):
    with recording("busy", SETTINGS, tmp_path), pytest.raises(RuntimeError, match="another run"):
        recording("busy", SETTINGS, tmp_path).__enter__()


def test_a_full_disk_is_said_and_the_old_pair_of_files_stays(tmp_path, monkeypatch):
    """Table and provenance are replaced together, or neither; the same command finishes."""
    with recording("pair", SETTINGS, tmp_path) as record:
        fill(record, "a")
        record.finish()
    old = {path.name: path.read_bytes() for path in tmp_path.glob("pair.*")}
    real, calls = os.fsync, []

    def full(descriptor):
        calls.append(1)
        if len(calls) == 3:  # one unit, the table; then the provenance
            raise OSError(28, "No space left on device")
        real(descriptor)

    with recording("pair", {"seed": 1}, tmp_path) as record:
        monkeypatch.setattr(os, "fsync", full)
        fill(record, "b")
        with pytest.raises(OSError, match="pair.csv .*No space left on device.: everything measured so far is kept"):
            record.finish()
        monkeypatch.setattr(os, "fsync", real)
        assert {path.name: path.read_bytes() for path in tmp_path.glob("pair.[cj]*")} == old
        assert not list(tmp_path.glob(".*.new"))
    with recording("pair", {"seed": 1}, tmp_path) as record:
        assert record.rows("b") is not None
        record.finish()
    assert json.loads((tmp_path / "pair.json").read_text())["settings"] == {"seed": 1}


def counting(done, fails_at=None):
    """Three units that note when they are measured; one of them may fail."""

    def measured(n):
        if n == fails_at:
            raise KeyboardInterrupt
        done.append(n)
        return [{"n": n, "square": n * n}] * n

    return [Unit(f"n={n}", lambda n=n: measured(n), n) for n in (1, 2, 3)]


@pytest.mark.parametrize("workers", [None, 2])
def test_the_one_loop_measures_what_is_missing_once(tmp_path, workers):
    done, pool = [], ThreadPoolExecutor(workers) if workers else None
    with pytest.raises(KeyboardInterrupt):
        make("squares", SETTINGS, counting(done, fails_at=2), tmp_path, progress=False)
    assert done == [1] and not (tmp_path / "squares.csv").exists()
    table = make("squares", SETTINGS, counting(done), tmp_path, pool=pool, progress=False)
    assert sorted(done) == [1, 2, 3] and sorted(table.square) == [1, 4, 4, 9, 9, 9]
    joined = make("sum", SETTINGS, counting([]), tmp_path, join=lambda t: t.groupby("n", as_index=False).sum())
    assert list(joined.square) == [1, 8, 27]


def test_the_bar_counts_what_is_found_but_not_in_the_rate(tmp_path, capsys):
    with recording("squares", SETTINGS, tmp_path) as record, bar(6, "row") as shown:
        record.fill(counting([])[:2], shown)
    with recording("squares", SETTINGS, tmp_path) as record, bar(6, "row") as shown:
        record.fill(counting([]), shown, title="squares")
        assert (shown.n, shown.initial) == (6, 3)
    assert "squares: n=3" in capsys.readouterr().err


def test_what_runs_beside_a_failure_is_kept(tmp_path):
    begun = threading.Event()

    def slow():
        begun.set()
        time.sleep(0.2)
        return [{"n": 2}]

    def fails():
        begun.wait(10)
        raise RuntimeError("out of power")

    units = [Unit("a", fails), Unit("b", slow)]
    with ThreadPoolExecutor(2) as pool, pytest.raises(RuntimeError, match="out of power"):
        make("beside", {}, units, tmp_path, progress=False, pool=pool)
    with recording("beside", {}, tmp_path) as record:
        assert record.rows("b") == [{"n": 2}] and record.rows("a") is None


def test_a_zero_measured_again_agrees():
    found = remeasure(pd.DataFrame({"v": [0.0, 0.0]}), lambda row: {"v": 0.0})
    assert (found["v difference"] == 0).all()
    assert (remeasure(pd.DataFrame({"v": [0.0]}), lambda row: {"v": 1.0})["v difference"] == float("inf")).all()


def test_a_gap_is_told_and_measured_again_and_nothing_else_is(tmp_path):
    """What a unit could not measure is no row of the table: it stands in its provenance until it is there."""
    broken, measured = True, []

    def measure(name):
        measured.append(name)
        return [{"name": name}] + ([{"gap": "half of b", "reason": "overflow"}] if name == "b" and broken else [])

    units = [Unit(name, lambda name=name: measure(name)) for name in "abc"]
    table = make("gaps", SETTINGS, units, tmp_path, progress=False)
    assert list(table.name) == ["a", "b", "c"] and list(table) == ["name"]
    assert json.loads((tmp_path / "gaps.json").read_text())["gaps"] == [{"gap": "half of b", "reason": "overflow"}]
    broken = False
    again = make("gaps", SETTINGS, units, tmp_path, progress=False)
    assert measured == ["a", "b", "c", "b"] and sorted(again.name) == ["a", "b", "c"]
    assert "gaps" not in json.loads((tmp_path / "gaps.json").read_text())
    assert not (tmp_path / "gaps.partial.jsonl").exists()


def test_what_was_stopped_twice_still_has_all_its_units(tmp_path):
    for unit in "abc":
        with recording("stopped", {}, tmp_path) as record:
            record.add(unit, [{"unit": unit}], 0.0)
    with recording("stopped", {}, tmp_path) as record:
        assert [record.rows(unit) for unit in "abc"] == [[{"unit": unit}] for unit in "abc"]


def test_of_a_group_that_is_measured_together_no_part_is_measured_again_alone():
    table = pd.DataFrame({"text": ["here", "here", "gone", "gone"], "row": range(4)})
    found = remeasure(table, lambda row: None if row["row"] == 2 else {"row": row["row"]}, by=["text"])
    assert found.row.tolist() == [0, 1]


def test_a_number_that_fell_differs_as_much_as_one_that_rose():
    found = remeasure(pd.DataFrame({"v": [2.0, 4.0]}), lambda row: {"v": 3.0})
    assert sorted(found["v difference"]) == [0.25, 0.5]


def test_a_shorter_table_leaves_what_was_measured_for_a_longer_one(tmp_path):
    def made(asked, units):
        with recording("lengths", SETTINGS, tmp_path, extends=lambda begun: True) as record:
            fill(record, units)
            record.keep([Unit(key, None) for key in asked])
            assert len(record.finish()) == len(asked)
        return (tmp_path / "lengths.partial.jsonl").exists()

    assert made("a", "abc") and not made("abcd", "d")
