"""Registry of the figures that need only stored tables; each has a name and is registered where it is drawn."""

from collections.abc import Callable
from dataclasses import dataclass

from lab import results


@dataclass(frozen=True)
class BookFigure:
    """A figure of the book that can be drawn from stored tables.

    `name`: its name in `FIGURES`, also used for its file.
    `page`: the page that shows it, as ``41_real_text``.
    `tables`: stored tables that it needs, in the order of the arguments of `function`.
    `function`: takes the tables, returns a matplotlib Figure. The page calls the same one.
    `about`: its contents in a few words.
    `live`: what the page adds from its own measurements.
    """

    name: str
    page: str
    tables: tuple[str, ...]
    function: Callable
    about: str
    live: str = ""

    @property
    def call(self):
        """The call by which its page draws it."""
        return f"figures.{self.function.__module__.split('.')[-1]}.{self.function.__name__}("

    def missing(self):
        """Names of its tables that are missing."""
        return [name for name in self.tables if name not in results.names()]


FIGURES: dict[str, BookFigure] = {}  # by name; complete once all modules are imported


def figure(name, *, page, tables, about, live=""):
    """Decorator that registers a drawing function; the arguments are those of `BookFigure`."""

    def register(function):
        FIGURES[name] = BookFigure(name, page, tables, function, about, live)
        return function

    return register
