"""Draw the figures of the book again, from the stored tables."""

from pathlib import Path

import matplotlib.pyplot as plt

from lab import results
from lab.figures.registry import FIGURES
from lab.statistics.power_laws import SeveralSeries
from lipscan.recording import replacing
from lipscan.scanning.figures import STYLE

__all__ = ["FORMATS", "draw", "redraw"]

# what a file says of itself does not name the day it was drawn, so that the same tables give the same bytes
FORMATS = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


def draw(name):
    """A figure of the book, from the stored tables.

    Parameters
    ----------
    name : str
        One of `FIGURES`.

    Returns
    -------
    Figure
        As its page shows it, less what the page measures live. In matplotlib's present style: see `house_style`.

    Raises
    ------
    ValueError
        "there is no figure ..."; "... lacks rows or columns that this figure shows"; "... needs the rows of one
        series ...".
    FileNotFoundError
        "the table ... is not in ...": says what makes it.
    """
    if name not in FIGURES:
        raise ValueError(f"there is no figure {name!r}: choose from {', '.join(FIGURES)}.")
    figure = FIGURES[name]
    tables = [results.load(table) for table in figure.tables]
    try:
        return figure.function(*tables)
    except SeveralSeries:
        raise
    except (AttributeError, IndexError, KeyError, ValueError) as error:
        raise ValueError(
            f"{' or '.join(figure.tables)}, in {results.folder()}, lacks rows or columns that this figure "
            f"shows ({type(error).__name__}: {error})."
        ) from error


def redraw(name, folder, format="png"):
    """Draw a figure of the book into a file, in its style.

    Parameters
    ----------
    name : str
        One of `FIGURES`.
    folder : path
        Where to write; made where it is not there. A file that is there is replaced, in one step.
    format : str
        One of `FORMATS`.

    Returns
    -------
    Path
        Of the file, ``NAME.FORMAT``; the same tables give the same bytes.

    Raises
    ------
    ValueError, FileNotFoundError
        As `draw`; "there is no format ...".
    OSError
        "the folder ... cannot be written".
    """
    if format not in FORMATS:
        raise ValueError(f"there is no format {format!r}: choose from {', '.join(FORMATS)}.")
    open_before = plt.get_fignums()
    with plt.style.context(["default", STYLE, {"svg.hashsalt": name}]):
        try:
            return _write(draw(name), Path(folder) / f"{name}.{format}", format)
        finally:  # also one that was begun
            for number in set(plt.get_fignums()) - {*open_before}:
                plt.close(number)


def _write(figure, path, format):
    """Make or replace the file of a figure."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as (new,):
            figure.savefig(new, format=format, metadata=FORMATS[format])
        return path
    except OSError as error:
        raise OSError(f"the folder {path.parent} cannot be written ({error.strerror}): name another.") from None
