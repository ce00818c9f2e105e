"""Tables that can be made, in units of work with one progress bar, and measured again, a few rows at a time."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pandas as pd
from tqdm.auto import tqdm

from lab import results

__all__ = ["Table", "Unit", "make", "remeasure"]


@dataclass(frozen=True)
class Unit:
    """A piece of a table that is measured in one go.

    Parameters
    ----------
    key : str
        Names the unit within its table; a run that is continued passes over the keys it finds.
    rows : int
        How many rows it gives.
    measure : callable
        Gives these rows, a list of dictionaries. Called once, and only when the unit is not there yet.
    """

    key: str
    rows: int
    measure: Callable[[], list]


@dataclass(frozen=True)
class Table:
    """A table that the book loads, and how to make it.

    Parameters
    ----------
    name : str
        Its name in the results folder; `lab.results.listed` says in a few words what it holds.
    prepare : callable
        ``prepare(**options)`` gives the settings that the rows depend on, a dictionary, and the list of its units.
        What is not at hand (texts, models) is said here, before anything is measured.
    options : dict
        Names and default values of the options that `prepare` takes.
    join : callable, optional
        Makes the table from that of all units' rows; default: that table itself.
    """

    name: str
    prepare: Callable[..., tuple]
    options: dict = field(default_factory=dict)
    join: Callable | None = None

    def work(self, **options):
        """Settings and units, with those of these options that the table has, others as by default."""
        return self.prepare(**{name: options.get(name, default) for name, default in self.options.items()})


def make(tables, *, save_as=None, progress=True, **options):
    """Make tables, one after the other, with one progress bar; a killed run continues where it was.

    Parameters
    ----------
    tables : sequence of Table
        All are prepared before the first one is measured.
    save_as : str, optional
        Another name, where there is one table.
    progress : bool
        Whether to show the progress bar.
    **options
        For the tables that have them, see `Table.options`.

    Returns
    -------
    dict
        The finished tables, name -> DataFrame; each is saved in `lab.results.folder()` as soon as it is complete.

    Raises
    ------
    ValueError, FileNotFoundError, OSError, RuntimeError
        The sentences of the tables and of `lab.results.recording`.
    """
    for option in options.keys() - {name for table in tables for name in table.options}:
        if tables:
            raise ValueError(f"no table to make here has an option {option!r}: leave it out.")
    work = [(table, *table.work(**options)) for table in tables]
    made = {}
    total = sum(unit.rows for _, _, units in work for unit in units)
    with tqdm(total=total, unit="row", disable=not progress, smoothing=0.05) as bar:
        for table, settings, units in work:
            name = save_as or table.name
            with results.recording(name, settings) as record:
                for unit in units:
                    bar.set_description(f"{name}: {unit.key}")
                    if record.rows(unit.key) is None:
                        began = time.perf_counter()
                        record.add(unit.key, unit.measure(), time.perf_counter() - began)
                        bar.update(unit.rows)
                    elif not bar.disable:  # found, not measured: not part of the rate
                        bar.initial += unit.rows
                        bar.n += unit.rows
                        bar.last_print_n += unit.rows
                made[name] = record.finish(table.join)
    return made


def remeasure(table, again, *, rows=4, seed=0, by=None):
    """Measure a few random rows of a stored table again, now.

    Parameters
    ----------
    table : DataFrame
        From `lab.results.load`; all its rows are candidates.
    again : callable
        Of a row, a dictionary: what is measured now, column -> number, or None where the row cannot be measured here.
        Such rows are passed over.
    rows : int
        How many rows; there may be fewer.
    seed : int
        Seed of the choice.
    by : list of str, optional
        Columns: rows that are equal in all of them are chosen together, and `rows` counts these groups.

    Returns
    -------
    DataFrame
        The chosen rows, with ``X again`` and ``X difference`` (relative) for every column X measured.

    Raises
    ------
    ValueError
        "no row of this table can be measured here ...".
    """
    shuffled, chosen, count = table.reset_index(drop=True).sample(frac=1, random_state=seed), [], 0
    for _, group in shuffled.groupby(shuffled.index if by is None else by, sort=False):
        pairs = [(row, again(row)) for row in group.sort_index().to_dict("records")]
        if any(found is None for _, found in pairs):
            continue
        for row, found in pairs:
            now = {f"{name} again": value for name, value in found.items()}
            gaps = {f"{name} difference": abs(value / row[name] - 1) for name, value in found.items()}
            chosen.append(row | now | gaps)
        count += 1
        if count == rows:
            break
    if not chosen:
        raise ValueError("no row of this table can be measured here: its texts are not at hand in the same edition.")
    return pd.DataFrame(chosen)
