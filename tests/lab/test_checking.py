"""Stored tables measured again."""

import json

import pandas as pd
import pytest

from lab import experiments, results
from lab.experiments import Table, checking
from lab.experiments import table as registry
from lab.experiments.checking import check, deviation
from lipscan.recording import Unit


def rows_of(n, factor=1.0):
    return [{"n": n, "kind": kind, "value": factor * n / 7 + (kind == "b"), "seconds": factor} for kind in "ab"]


def table(factor=1.0, lengths=(2, 3, 5, 8)):
    units = [Unit(str(n), lambda n=n: rows_of(n, factor), 2) for n in lengths]
    return Table("squares", lambda: ({"lengths": lengths}, units), aside=("seconds",), told=("n",))


@pytest.fixture
def stored(tmp_path, monkeypatch):
    monkeypatch.setenv("LIPNB_RESULTS", str(tmp_path))
    return results.make("squares", *table().prepare(), progress=False)


def test_the_same_code_gives_the_same_table(stored):
    (found,) = check([table()], rows=3, progress=False)
    assert (found["rows"], found["units"], found["other"], found["unlike"]) == (4, "2 of 4", 0, "")
    assert found["deviation"] < 1e-5


def test_other_numbers_are_seen_and_times_are_not(stored):
    (found,) = check([table(1.25)], rows=8, progress=False)
    assert found["column"] == "value" and 0.1 < found["deviation"] <= 0.21 and found["other"] == 0


def test_only_the_columns_that_a_table_names_are_left_aside(stored):
    now = pd.DataFrame(rows_of(3)).assign(steps=2.0, residual_token=1.0)
    stored = stored.assign(steps=2.0, residual_token=1.1)
    assert deviation(now, stored, ("steps",))["column"] == "residual_token"
    assert deviation(now, stored.assign(steps=7.0), ("residual_token",))["column"] == "steps"


@pytest.mark.parametrize("name", [name for name in experiments.TABLES if name in results.names()])
def test_what_is_left_aside_is_what_varies_from_run_to_run(name):
    """A column with a verdict on it is held against what is measured now: the residual stream, counted iterations."""
    aside = {one for one in results.load(name) if one in experiments.TABLES[name].aside}
    assert aside <= {"seconds", "rounding", "residual", "steps"} and not (name == "kv-rounding" and aside)


def rewritten(change):
    """The stored table, changed as somebody might change it, with its count of rows."""
    path, birth = results.folder() / "squares.csv", results.provenance("squares")
    changed = change(results.load("squares"))
    changed.to_csv(path, index=False)
    path.with_suffix(".json").write_text(json.dumps(birth | {"rows": len(changed)}))


@pytest.mark.parametrize(
    ("change", "rows", "said"),
    [
        (lambda kept: pd.concat([kept, kept.tail(2).assign(n=9)]), 2, "rows of 5 units are stored, but there are 4"),
        (lambda kept: kept[kept.n != 3], 2, "rows of 3 units are stored, but there are 4"),
        (lambda kept: pd.concat([kept, kept.tail(1)]), 8, "3 rows of 8 are stored, but 2 measured"),
        (lambda kept: kept.drop(index=1), 8, "1 rows of 2 are stored, but 2 measured"),
        (lambda kept: kept.assign(more=1), 2, "the column more is not measured"),
        (lambda kept: kept.drop(columns="kind"), 2, "the column kind is not stored"),
        (lambda kept: kept, 2, ""),
    ],
)
def test_rows_and_columns_that_are_invented_or_gone_are_seen(stored, change, rows, said):
    rewritten(change)
    assert next(check([table()], rows=rows, progress=False))["unlike"] == said


def test_rows_that_were_added_to_a_stored_table_are_seen_by_their_number(stored):
    path = results.folder() / "squares.csv"
    path.write_text(path.read_text() + path.read_text().splitlines()[-1] + "\n")
    assert "9 rows are stored, but 8 were made" in next(check([table()], rows=2, progress=False))["unlike"]


def test_a_missing_word_is_the_same_as_a_missing_word():
    now = pd.DataFrame({"changes": [None, "3:7"], "value": [1.0, 2.0]})
    stored = checking._stored(now)
    assert stored.changes.isna().tolist() == [True, False] and deviation(stored, stored)["other"] == 0
    assert deviation(stored, stored.assign(changes=["3:7", "3:7"]))["other"] == 1
    none = stored.assign(changes=[float("nan")] * 2)  # a column without any word is read as one of numbers
    assert (
        deviation(none, none)["other"] == 0
        and deviation(none, stored)["other"] == deviation(stored, none)["other"] == 1
    )


def test_other_entries_are_seen_and_rounding_is_none():
    one = pd.DataFrame({"n": [1, 2], "value": [0.5, 1.5], "kind": ["a", "b"], "error": [3e-16, 0]})
    assert deviation(one, one.assign(error=[1e-17, 0])) == {"column": "value", "deviation": 0.0, "other": 0}
    assert deviation(one, one.assign(n=[1, 3]))["other"] == deviation(one, one.assign(kind=["a", "c"]))["other"] == 1
    assert deviation(one, one.assign(n=[1.0, float("nan")]))["column"] == "n"
    assert deviation(one, one.assign(value=[float("nan"), 1.5]))["deviation"] == float("inf")


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
