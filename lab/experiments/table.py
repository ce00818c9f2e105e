"""Tables that can be made: units of work with one progress bar, each unit saved as soon as it is done."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tqdm.auto import tqdm

from lab import results

__all__ = ["Table", "Unit", "make"]


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
    """

    name: str
    prepare: Callable[..., tuple]
    options: dict = field(default_factory=dict)

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
                made[name] = record.finish()
    return made
