"""Drawing of the book's figures from the stored tables."""

from pathlib import Path

import matplotlib.pyplot as plt

from lab import results
from lab.figures.registry import FIGURES
from lab.statistics.power_laws import SeveralSeries
from lipscan.recording.files import replacing
from lipscan.scanning.figures import STYLE

__all__ = ["FORMATS", "draw", "redraw"]

# no date in the metadata of a file, so that the same tables give the same bytes
FORMATS = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


def draw(name):
    """A figure of the book, drawn from the stored tables.

    Parameters
    ----------
    name : str
        A key of `FIGURES`.

    Returns
    -------
    Figure
        As on its page, without what the page measures live. Uses matplotlib's current style: see `house_style`.

    Raises
    ------
    ValueError
        The name is unknown, or a table lacks rows or columns that this figure shows, or holds several series where the
        figure needs one.
    FileNotFoundError
        A table is missing; the message names the command that makes it.
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
        A key of `FIGURES`.
    folder : path
        Output folder, created if missing. An existing file is replaced in one step.
    format : str
        A key of `FORMATS`.

    Returns
    -------
    Path
        The file ``NAME.FORMAT``; the same tables give the same bytes.

    Raises
    ------
    ValueError, FileNotFoundError
        As for `draw`; also if the format is unknown.
    OSError
        The folder cannot be written.
    """
    if format not in FORMATS:
        raise ValueError(f"there is no format {format!r}: choose from {', '.join(FORMATS)}.")
    open_before = plt.get_fignums()
    with plt.style.context(["default", STYLE, {"svg.hashsalt": name}]):
        try:
            return _write(draw(name), Path(folder) / f"{name}.{format}", format)
        finally:  # also an unfinished figure
            for number in set(plt.get_fignums()) - {*open_before}:
                plt.close(number)


def _write(figure, path, format):
    """Create or replace the file of a figure."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as (new,):
            figure.savefig(new, format=format, metadata=FORMATS[format])
        return path
    except OSError as error:
        raise OSError(f"the folder {path.parent} cannot be written ({error.strerror}): name another.") from None
