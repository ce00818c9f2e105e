"""Tables that can be made, one after the other with one progress bar."""

from collections.abc import Callable
from dataclasses import dataclass, field

from lab import results
from lipnb.recording import bar

__all__ = ["Table", "make"]


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
    with bar(sum(unit.size for _, _, units in work for unit in units), "row", progress) as shown:
        for table, settings, units in work:
            name = save_as or table.name
            with results.recording(name, settings) as record:
                record.fill(units, shown, title=name)
                made[name] = record.finish(table.join)
    return made
