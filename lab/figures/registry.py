"""Figures that stored tables are enough for: each is registered where it is drawn, and has one name."""

from collections.abc import Callable
from dataclasses import dataclass

from lab import results


@dataclass(frozen=True)
class BookFigure:
    """A figure of the book that can be drawn from stored tables.

    `name`: by which it is asked for, and of its file.
    `page`: the page that shows it, as ``41_real_text``.
    `tables`: stored tables that it needs, in the order in which `function` takes them.
    `function`: takes the tables, gives a matplotlib Figure. The page calls the same one.
    `about`: what it shows, in a few words.
    `live`: what the page adds to it from measurements of its own.
    """

    name: str
    page: str
    tables: tuple[str, ...]
    function: Callable
    about: str
    live: str = ""

    @property
    def call(self):
        """How its page calls the function that draws it."""
        return f"figures.{self.function.__module__.split('.')[-1]}.{self.function.__name__}("

    def missing(self):
        """Those of its tables that are not there."""
        return [name for name in self.tables if name not in results.names()]


FIGURES: dict[str, BookFigure] = {}  # all whose modules have been imported, by name


def figure(name, *, page, tables, about, live=""):
    """Register the function that it decorates; the arguments are those of `BookFigure`."""

    def register(function):
        FIGURES[name] = BookFigure(name, page, tables, function, about, live)
        return function

    return register
