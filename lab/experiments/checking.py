"""Comparison of stored tables with new measurements: some units of each, computed by the present code."""

import io
import json
import random

import numpy as np
import pandas as pd

from lab import results
from lipscan.recording import bar
from lipscan.recording.table import FLOAT_FORMAT

ZERO = 1e-10  # values below it on both sides are rounding, or remainders of a stopped iteration


def check(tables, *, rows=5, seed=0, progress=True):
    """Measure some random units of stored tables again, with the options of the stored tables.

    Units are drawn until they hold `rows` rows, or all. Yields, as soon as a table is done, table, rows (measured
    again), units (total number), column and deviation (the largest relative deviation of a number, and its column,
    without `Table.aside`), other (rows in which a word, a truth value or a missing entry differs), unlike (rows and
    columns that are stored but not measured, or measured but not stored, in words).
    """
    work = []
    for table in tables:
        birth = results.provenance(table.name)
        options = {name: value for name, value in birth["settings"].items() if name in table.options}
        settings, units = table.work(**options)
        if other := [
            name for name, value in json.loads(json.dumps(settings)).items() if birth["settings"].get(name) != value
        ]:
            raise ValueError(f"{table.name} was made with other settings ({', '.join(other)}): make it --again.")
        work.append((table, units, _drawn(units, rows, seed)))
    with bar(sum(unit.size for _, _, drawn in work for unit in drawn), "row", progress) as shown:
        for table, units, drawn in work:
            found = []
            for unit in drawn:
                shown.set_description(f"{table.name}: {unit.key}")
                found += unit.measure()
                shown.update(unit.size)
            now = pd.DataFrame(found)
            now = _stored(now if table.join is None else table.join(now))
            stored, made = results.load(table.name), results.provenance(table.name)["rows"]
            yield {
                "table": table.name,
                "rows": len(now),
                "units": f"{len(drawn)} of {len(units)}",
                **deviation(now, stored, table.aside),
                "unlike": "; ".join(_unlike(now, stored, table.told, len(units), len(drawn), made)),
            }


def _unlike(now, stored, told, units, drawn, made):
    """Rows and columns that only one of two tables has, in words.

    `told`: as in `Table`. `units`, `drawn`: total and measured numbers. `made`: rows that the table was made with.
    """
    both = pd.concat([now, stored], keys=["now", "stored"])
    if lacking := [name for name in now if name not in stored]:
        yield f"the column {', '.join(lacking)} is not stored"
    told = [name for name in told if name in now and name in stored]
    key = both[told].astype(str).agg("/".join, axis=1) if told else pd.Series("all", both.index)
    measured, kept = key["now"].value_counts(), key["stored"].value_counts()
    more = stored[key["stored"].isin(measured.index).to_numpy()].drop(columns=now.columns, errors="ignore")
    if len(stored) != made:
        yield f"{len(stored)} rows are stored, but {made} were made"
    if told and len(kept) != units:
        yield f"rows of {len(kept)} units are stored, but there are {units}"
    if told or units == drawn:
        if more := list(more.columns[more.notna().any()]):
            yield f"the column {', '.join(more)} is not measured"
        for one in measured.index[measured != kept.reindex(measured.index, fill_value=0)][:3]:
            yield f"{kept.get(one, 0)} rows of {one} are stored, but {measured[one]} measured"


def deviation(now, stored, aside=()):
    """Largest deviation of new rows from those of a stored table.

    `now`, `stored`: each row of `now` is compared with the row of `stored` that shares most entries with it and,
    among these, is nearest in numbers. Returns column, deviation (relative, the largest) and other (rows with an entry
    that is not a number and differs).
    """
    names = [name for name in now.columns if name in stored.columns and name not in aside]
    kinds = {name: {stored[name].dtype.kind, now[name].dtype.kind} for name in names}
    numbers = [name for name in names if kinds[name] in ({"f"}, {"f", "i"})]  # a missing integer makes a float
    rest = [name for name in names if name not in numbers]
    texts, measured = ({name: _texts(rows[name]) for name in names} for rows in (stored, now))
    values, found = stored[numbers].to_numpy(float), now[numbers].to_numpy(float)
    worst, column, other = 0.0, "", 0
    for row in range(len(now)):
        same = {name: texts[name] == measured[name][row] for name in names}
        common = np.sum([*same.values()], axis=0)
        apart = _apart(found[row], values)
        nearest = np.lexsort((apart.max(1, initial=0), -common))[0]
        other += not all(same[name][nearest] for name in rest)
        if numbers and apart[nearest].max() >= worst:
            worst, column = apart[nearest].max(), numbers[apart[nearest].argmax()]
    return {"column": column, "deviation": float(worst), "other": other}


def _texts(column):
    """Entries of a column as text, missing ones as None."""
    pairs = zip(column, column.isna(), strict=True)
    return np.array([None if missing else str(value) for value, missing in pairs], dtype=object)


def _apart(one, many):
    """Relative differences of a row of numbers from many, (rows, columns); infinite if only one of two is missing."""
    scale = np.maximum(np.abs(one), np.abs(many))
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = np.abs(many - one) / scale
    apart[scale < ZERO] = 0
    apart[(many == one) | (np.isnan(many) & np.isnan(one))] = 0
    return np.nan_to_num(apart, nan=np.inf)


def _drawn(units, rows, seed):
    """Random units, until they hold `rows` rows."""
    shuffled, drawn = random.Random(seed).sample(units, len(units)), []
    while shuffled and sum(unit.size for unit in drawn) < rows:
        drawn.append(shuffled.pop())
    return drawn


def _stored(table):
    """The table after a round trip through its stored format."""
    return pd.read_csv(io.StringIO(table.to_csv(index=False, float_format=FLOAT_FORMAT)))
