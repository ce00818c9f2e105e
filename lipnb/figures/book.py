"""The figures of the book that stored tables are enough for, and how to draw them again."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt

from lipnb import results
from lipnb.figures import adversarial, l2, positions, real_text, released, robustness, speed, training, verified
from lipnb.figures.style import STYLE

__all__ = ["FIGURES", "FORMATS", "BookFigure", "draw", "redraw"]

# what a file says of itself does not name the day it was drawn, so that the same tables give the same bytes
FORMATS = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


@dataclass(frozen=True)
class BookFigure:
    """A figure of the book that can be drawn from stored tables.

    Attributes
    ----------
    name : str
        By which it is asked for, and of its file.
    page : str
        The page that shows it, as ``41_real_text``.
    tables : tuple of str
        Stored tables that it needs, in the order in which `function` takes them.
    function : callable
        Takes the tables, gives a matplotlib Figure. The page calls the same one.
    about : str
        What it shows.
    live : str
        What the page adds to it from measurements of its own.
    """

    name: str
    page: str
    tables: tuple[str, ...]
    function: Callable
    about: str
    live: str = ""

    def missing(self):
        """Those of its tables that are not there."""
        return [name for name in self.tables if name not in results.names()]


FIGURES = {figure.name: figure for figure in (
    BookFigure("verification", "29_verification", ("verify",), verified.worst_cases,
               "the worst of ten thousand inputs against every upper bound"),
    BookFigure("real-text", "41_real_text", ("real-text",), real_text.figure_1,
               "constant against length on Alice, as defined and as released"),
    BookFigure("real-text-layers", "41_real_text", ("real-text",), real_text.layers,
               "the same for every layer of the trained maps"),
    BookFigure("real-text-rates", "41_real_text", ("real-text",), real_text.rates,
               "fitted exponents of all layers, with intervals"),
    BookFigure("real-text-jump", "41_real_text", ("real-text-news",), real_text.jump,
               "MiniLM's first layer beyond the length of its training texts", "windows of the text at hand"),
    BookFigure("adversarial-heads", "42_adversarial_inputs", ("adversarial", "adversarial-layers"),
               adversarial.worst_heads, "one head of a layer under attack, between its bounds"),
    BookFigure("adversarial-rates", "42_adversarial_inputs", ("adversarial",), adversarial.head_rates,
               "exponent and constant of every head under attack"),
    BookFigure("scaling-factor", "43_scaling_factor", ("scaling-factor",), adversarial.scaling_factors,
               "2 gamma R^2 of every head, the logarithm of its window", "where the growth really ends"),
    BookFigure("gpt2-mini-training", "44_gpt2_positions", ("gpt2-mini-training",), positions.training,
               "the loss of gpt2-mini while it was trained", "two baselines that know no context"),
    BookFigure("position-norms", "44_gpt2_positions", ("position-norms",), positions.norms,
               "norm of the learned position of each place"),
    BookFigure("positions", "44_gpt2_positions", ("positions",), positions.growth,
               "constants and norms with positions as trained and changed"),
    BookFigure("released-code", "45_released_code", ("released-text", "released-adversarial"),
               released.two_quantities, "what the released loop reports, beside the constant"),
    BookFigure("l2-exponents", "62_l2_attention", ("l2-bounds",), l2.bound_exponents,
               "L2 attention over its bounds with exponents 2 and 4", "two tokens in width one"),
    BookFigure("l2-tightness", "63_l2_tightness", ("l2-tightness",), l2.tightness,
               "ascents of the row sum, the bound and the constant"),
    BookFigure("inversion-curves", "64_invertible_attention", ("inversion-curves",), l2.inversion,
               "error of the inverse against iterations"),
    BookFigure("language-model", "65_language_model", ("language-model",), training.losses,
               "losses of four kinds of attention by depth, and learning curves"),
    BookFigure("language-model-layers", "65_language_model", ("language-model",), training.constants,
               "local constants of the trained layers, below their bounds"),
    BookFigure("training-stability", "66_training_stability", ("training-stability", "training-controls"),
               training.stability, "which kinds still train at a fixed rate, by depth"),
    BookFigure("training-layers", "66_training_stability", ("training-stability",), training.trained_layers,
               "constants of the trained layers, and the spread they pass on"),
    BookFigure("brackets", "72_certified_bracket", ("bracket-minilm", "bracket-gpt2"), verified.brackets,
               "certified brackets of every layer, below published bounds"),
    BookFigure("robustness-attacks", "75_robustness", ("robustness",), robustness.attacks,
               "attacks and bounds over the first-order prediction"),
    BookFigure("robustness-ranks", "75_robustness", ("robustness",), robustness.ranks,
               "what the best attack achieves against the local constant"),
    BookFigure("solver-speed", "77_solver_speed", ("bench-workload",), speed.workload,
               "how fast each method is, and how often wrong"),
)}


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
        "there is no figure ..."; "... lacks rows or columns that this figure shows".
    FileNotFoundError
        "the table ... is not in ...": says what makes it.
    """
    if name not in FIGURES:
        raise ValueError(f"there is no figure {name!r}: choose from {', '.join(FIGURES)}.")
    figure = FIGURES[name]
    tables = [results.load(table) for table in figure.tables]
    try:
        return figure.function(*tables)
    except (AttributeError, IndexError, KeyError, ValueError) as error:
        raise ValueError(f"{' or '.join(figure.tables)}, in {results.folder()}, lacks rows or columns that this figure "
                         f"shows ({type(error).__name__}: {error}).") from error


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
    with plt.style.context([STYLE, {"svg.hashsalt": name}]):
        try:
            return _write(draw(name), Path(folder) / f"{name}.{format}", format)
        finally:  # also one that was begun
            for number in set(plt.get_fignums()) - {*open_before}:
                plt.close(number)


def _write(figure, path, format):
    """Write a figure beside its place, then put it there."""
    beside = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(beside, format=format, metadata=FORMATS[format])
        return beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise OSError(f"the folder {path.parent} cannot be written ({error.strerror}): name another.") from None
