"""Stored tables measured again."""

import pandas as pd
import pytest

from lab import described, experiments, results
from lab.experiments import Table
from lab.experiments import table as registry
from lab.experiments.checking import check, deviation
from lipnb.recording import Unit


def rows_of(n, factor=1.0):
    return [{"n": n, "kind": kind, "value": factor * n / 7 + (kind == "b"), "seconds": factor} for kind in "ab"]


def table(factor=1.0, lengths=(2, 3, 5, 8)):
    units = [Unit(str(n), lambda n=n: rows_of(n, factor), 2) for n in lengths]
    return Table("squares", lambda: ({"lengths": lengths}, units))


@pytest.fixture
def stored(tmp_path, monkeypatch):
    monkeypatch.setenv("LIPNB_RESULTS", str(tmp_path))
    return results.make("squares", *table().prepare(), progress=False)


def test_the_same_code_gives_the_same_table(stored):
    (found,) = check([table()], rows=3, progress=False)
    assert found == {
        "table": "squares",
        "rows": 4,
        "units": "2 of 4",
        "column": "value",
        "deviation": pytest.approx(0, abs=1e-5),
        "other": 0,
    }


def test_other_numbers_are_seen_and_times_are_not(stored):
    (found,) = check([table(1.25)], rows=8, progress=False)
    assert found["column"] == "value" and 0.1 < found["deviation"] <= 0.21 and found["other"] == 0


def test_another_word_is_seen(stored):
    now = pd.DataFrame(rows_of(3)).replace({"kind": {"b": "c"}})
    assert deviation(now, stored)["other"] == 1


def test_a_missing_number_is_seen(stored):
    now = pd.DataFrame(rows_of(3))
    now.loc[0, "value"] = float("nan")
    assert deviation(now, stored)["deviation"] == float("inf")


def test_rounding_is_no_deviation():
    one, other = pd.DataFrame({"k": ["a"], "error": [3e-16]}), pd.DataFrame({"k": ["a"], "error": [1e-17]})
    assert deviation(one, other)["deviation"] == 0


def test_other_settings_are_refused(stored):
    with pytest.raises(ValueError, match=r"squares was made with other settings \(lengths\): make it --again"):
        next(check([table(lengths=(2, 3))], progress=False))


def test_a_table_is_registered_where_its_rows_are_measured(stored, monkeypatch):
    """Units, options, settings and columns follow from the function that measures a row."""
    monkeypatch.setattr(registry, "TABLES", {})

    @registry.table(
        "powers",
        "powers of numbers",
        over=lambda numbers: [(n, kind) for n in numbers for kind in ("square", "cube")],
        size=lambda kind: {"square": 1, "cube": 2}[kind],
        settings=lambda seed: {"text": f"of seed {seed}"},
        numbers=(2, 3),
    )
    def power(n, kind, *, seed=0):
        return {"power": n ** {"square": 2, "cube": 3}[kind] + seed}

    made = registry.TABLES["powers"]
    assert made.options == {"numbers": (2, 3), "seed": 0} and not made.trains
    settings, units = made.work(numbers=(5,), seed=1, other=7)
    assert settings == {"numbers": (5,), "seed": 1, "text": "of seed 1"}
    assert [(unit.key, unit.size) for unit in units] == [("5/square", 1), ("5/cube", 2)]
    assert power(3, "cube") == {"n": 3, "kind": "cube", "power": 27}  # a row is measured again by its arguments
    table = registry.make(["powers"], progress=False)["powers"]
    assert list(table.columns) == ["n", "kind", "power"] and list(table.power) == [4, 8, 9, 27]
    (found,) = check([made], rows=9, progress=False)
    assert found["rows"] == 4 and found["deviation"] == found["other"] == 0


@pytest.mark.parametrize("name", [name for name in experiments.TABLES if name in results.names()])
def test_options_are_among_the_settings_of_the_stored_table(name):
    """Else `--check` could not make it again, or would refuse it."""
    assert set(experiments.TABLES[name].options) <= set(results.provenance(name)["settings"])


def test_a_table_whose_name_is_computed_is_refused_in_a_sentence(tmp_path, monkeypatch):
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "some.py").write_text('@table("a" + NAME, "what it holds")\ndef rows():\n    ...\n')
    monkeypatch.setattr(described, "LAB", tmp_path)
    with pytest.raises(ValueError, match="some.py, line 1: write the name of a table, what it holds and its command"):
        described.tables.__wrapped__()
