"""Registry of the tables that the book loads; each is registered in the module that measures its rows."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial, wraps

from lab import results
from lipscan.recording import Unit, bar

WINDOWS = ("corpus", "order", "model", "weights", "masked", "length")  # identify the measured inputs
SOLVE = ("residual", "steps")  # ignored in a table of solves: remainder and length of the iteration


@dataclass(frozen=True)
class Table:
    """A table that the book loads, with the way to make it.

    `name`: its name in the results folder.
    `prepare`: ``prepare(**options)`` returns the settings that the rows depend on, a dictionary, and the list of its
    units. It reports missing texts and models before anything is measured.
    `options`: names and default values of the options that `prepare` takes.
    `join`: makes the table from the table of all units' rows; default: no change.
    `trains`: whether each row takes the training of a network, so that the table is only made if named.
    `aside`: columns that may differ in a new measurement, such as times and remainders of an iteration.
    `told`: columns that together identify the unit of a row.
    """

    name: str
    prepare: Callable[..., tuple]
    options: dict = field(default_factory=dict)
    join: Callable | None = None
    trains: bool = False
    aside: tuple = ()
    told: tuple = WINDOWS

    def work(self, **options):
        """Settings and units, with those of these options that the table has; other options keep their defaults."""
        return self.prepare(**{name: options.get(name, default) for name, default in self.options.items()})


TABLES: dict[str, Table] = {}  # by name; complete once all modules are imported


def table(
    name,
    about,
    *,
    over=None,
    size=1,
    settings=(),
    join=None,
    command=None,
    trains=False,
    aside=(),
    told=WINDOWS,
    **options,
):
    """Decorator that registers a table: on the function that measures one unit, or on one that prepares all units.

    `name`, `about`: its name, and its contents in a few words. Both must be literals: `lab.results.listed` reads them
    without importing the module.
    `over`: the units, in the order of their rows: for each the first arguments of the function, a tuple, or one
    argument. Without it the function serves as `Table.prepare`.
    `size`: approximate number of rows of a unit.
    `settings`: further settings that the rows depend on besides the options.
    `join`, `trains`, `aside`, `told`: as for `Table`; with `over`, the arguments identify the unit of a row.
    `command`: the command that makes it, a literal. Default: ``python -m lab tables NAME``.
    `**options`: options that only `over`, `size` or `settings` take. Keyword arguments of the function are options too,
    with their defaults. Callables get the options that they name, `size` also the arguments of the unit. Returns the
    function; with `over` each of its rows, a dictionary or a list of them, starts with its arguments.
    """

    def register(function):
        mine = {**_defaults(function), **options}
        if over is None:
            TABLES[name] = Table(name, function, mine, join, trains, aside, told)
            return function
        measure, names = _with_arguments(function), tuple(_arguments(function))
        prepare = partial(_planned, measure, over, size, settings)
        TABLES[name] = Table(name, prepare, mine, join, trains, aside, names)
        return measure

    return register


def _defaults(function):
    parameters = inspect.signature(function).parameters.items()
    return {name: one.default for name, one in parameters if one.default is not one.empty}


def _arguments(function):
    return [name for name, one in inspect.signature(function).parameters.items() if one.default is one.empty]


def _with_arguments(function):
    """The function with those of its arguments that are strings or numbers prepended to its rows."""
    names = _arguments(function)

    @wraps(function)
    def measure(*arguments, **options):
        found, given = function(*arguments, **options), zip(names, arguments, strict=False)
        same = {name: value for name, value in given if isinstance(value, (str, int, float))}
        return same | found if isinstance(found, dict) else [same | row for row in found]

    return measure


def _planned(measure, over, size, settings, **options):
    """Settings and units of a table that is measured over arguments."""
    names, mine = _arguments(measure), {name: options[name] for name in _defaults(measure)}
    settings, units = options | dict(_given(settings, options)), []
    for one in _given(over, options):
        arguments = one if isinstance(one, tuple) else (one,)
        known = options | dict(zip(names, arguments, strict=False))
        key = "/".join(map(str, arguments))
        units.append(Unit(key, partial(_listed, measure, *arguments, **mine), _given(size, known)))
    return settings, units


def _given(value, known):
    """A value, or the result of a callable applied to the arguments that it names."""
    return value(**{name: known[name] for name in inspect.signature(value).parameters}) if callable(value) else value


def _listed(measure, *arguments, **options):
    found = measure(*arguments, **options)
    return [found] if isinstance(found, dict) else found


def solved(lip):
    """Columns of a solve, a `lipnb.LocalLipschitz`, named as in the tables."""
    names = ("residual", "upper", "steps", "converged")
    return {"lipschitz": lip.value, **{name: getattr(lip, name) for name in names}}


def by_window(columns):
    """A row for each window: `window`, and its entries of tensors (b,), as Python numbers."""
    values = {name: one.tolist() for name, one in columns.items()}
    count = len(next(iter(values.values())))
    return [{"window": i, **{name: one[i] for name, one in values.items()}} for i in range(count)]


def make(tables, *, save_as=None, progress=True, **options):
    """Make tables, one after the other, with one progress bar; a killed run continues where it was.

    `tables`: names in `TABLES`. All are prepared before the first one is measured.
    `save_as`: another name, for a single table.
    `progress`: whether to show the progress bar.
    `**options`: for the tables that have them, see `Table.options`.
    Returns the finished tables, name -> DataFrame; each is saved in `lab.results.folder()` as soon as it is complete.
    """
    tables = [TABLES[one] if isinstance(one, str) else one for one in tables]
    for option in options.keys() - {name for table in tables for name in table.options}:
        if tables:
            raise ValueError(f"no table to make here has an option {option!r}: leave it out.")
    there, work = results.names(), [(table, *table.work(**options)) for table in tables]
    made = {}
    with bar(sum(unit.size for _, _, units in work for unit in units), "row", progress) as shown:
        for table, settings, units in work:
            name = save_as or table.name
            with results.recording(name, settings) as record:
                record.keep(units)
                begun = any(record.rows(unit.key) is not None for unit in units)
                if name not in there and name in results.names() and not begun:  # another run has made it meanwhile
                    made[name] = results.load(name)
                    (results.folder() / f"{name}.partial.jsonl").unlink()
                    continue
                record.fill(units, shown, title=name)
                made[name] = record.finish(table.join)
    return made
