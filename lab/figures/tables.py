"""Tables for readers: HTML in the book and in Jupyter, aligned text in a terminal."""

import html
import math
import re
from numbers import Integral, Real

import numpy as np
import pandas as pd

__all__ = ["MOST_COLUMNS", "ShownTable", "table"]

MOST_COLUMNS = 7
POWER = re.compile(r"(?<![\w.,^])10\^(−?\d+)(?![\w^]|[.,]\d)")  # a complete power, with the minus that `number` writes


def number(value, digits):
    """A number with `digits` significant digits in readable form, with an exponent only if necessary."""
    if not math.isfinite(value):
        return {math.inf: "∞", -math.inf: "−∞"}.get(value, "–")
    if value == 0:
        return "0"
    power = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    if -4 <= power < 6:
        return f"{value:,.{max(0, digits - 1 - power)}f}".replace("-", "−")
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa} · 10^{int(exponent)}".replace("-", "−")


def text(value, digits):
    """One entry as text."""
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{int(value):,}".replace("-", "−")
    if isinstance(value, Real):
        return number(float(value), digits)
    return "–" if value is None or value is pd.NA or value is pd.NaT else str(value)


class ShownTable:
    """Rows of text under headings, with emphasis; the result of `table`.

    Attributes
    ----------
    headings : list of str
    rows : list of list of str
    numeric : list of bool
        Columns that hold numbers, which are aligned to the right.
    bold : list of bool
        Rows that are emphasised.
    """

    def __init__(self, headings, rows, numeric, bold):
        self.headings, self.rows, self.numeric, self.bold = headings, rows, numeric, bold

    def _repr_html_(self):
        """HTML for the book and Jupyter; the class is styled in book/_static/custom.css."""

        def line(cells, tag, mark=""):
            kinds = (' class="number"' if right else "" for right in self.numeric)
            entries = (
                f"<{tag}{kind}>{superscript(html.escape(cell))}</{tag}>"
                for cell, kind in zip(cells, kinds, strict=True)
            )
            return f"<tr{mark}>{''.join(entries)}</tr>"

        body = "\n".join(
            line(row, "td", ' class="matters"' if bold else "") for row, bold in zip(self.rows, self.bold, strict=True)
        )
        return (
            f'<div class="house-table"><table class="house">\n<thead>{line(self.headings, "th")}</thead>\n'
            f"<tbody>\n{body}\n</tbody></table></div>"
        )

    def __repr__(self):
        marked = [[("* " if bold else "") + row[0], *row[1:]] for row, bold in zip(self.rows, self.bold, strict=True)]
        return pd.DataFrame(marked, columns=self.headings).to_string(index=False)


def superscript(text):
    """Text with complete powers of ten raised, as `number` writes them; other carets stay."""
    return POWER.sub(r"10<sup>\1</sup>", text)


def marks_of(frame, index, bold):
    """Emphasised rows of a frame, a boolean each; a Series is matched by index, which the frame may have as columns."""
    if bold is None:
        return [False] * len(frame)
    if callable(bold):
        return [bool(bold(row)) for _, row in frame.iterrows()]
    if isinstance(bold, pd.Series) and not bold.index.equals(index):
        if not bold.index.is_unique or not index.isin(bold.index).all():
            raise ValueError("bold must say yes or no for each row: its index is not that of the frame.")
        bold = bold.reindex(index)
    marks = list(bold)
    if len(marks) != len(frame) or any(pd.isna(one) for one in marks):
        said = sum(not pd.isna(one) for one in marks)
        raise ValueError(f"bold must say yes or no for each of {len(frame)} rows, got {said}.")
    return [bool(one) for one in marks]


def table(frame, names=None, *, digits=3, bold=None):
    """A table for readers: few columns with headings and units, significant digits only, the important row bold.

    Parameters
    ----------
    frame : DataFrame
        Its rows are those of the table; its index is shown only if `names` contains its name.
    names : dict, optional
        Column -> heading with its unit; selects the columns and orders them. Default: all, under their own names.
    digits : int or dict
        Significant digits of numbers that are not integers: for all columns, or by column (others: 3).
    bold : sequence of bool, or callable, optional
        Rows to emphasise: a Series by the frame's index, another sequence by position; a callable is applied to each
        row.

    Returns
    -------
    ShownTable
        Shown as HTML by Jupyter and the book.

    Raises
    ------
    TypeError
        `frame` is not a pandas DataFrame.
    ValueError
        The table has more than 7 columns, a column is missing, two headings are equal, or `digits` or `bold` do not
        match it.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"length": [8, 1024], "bound": [3.14159, 2.5e7]})
    >>> table(frame, {"length": "tokens n", "bound": "bound"}, bold=[False, True])
    tokens n       bound
           8        3.14
     * 1,024 2.50 · 10^7
    """
    if not isinstance(frame, pd.DataFrame):
        raise TypeError(f"frame must be a pandas DataFrame, one row of the table each, got {type(frame).__name__}.")
    index = frame.index
    frame = frame.reset_index() if names and any(name in names for name in frame.index.names if name) else frame
    names = {column: str(column) for column in frame.columns} if names is None else names
    if missing := [str(name) for name in names if name not in frame.columns]:
        raise ValueError(
            f"there is no column {', '.join(missing)}: the frame has {', '.join(map(str, frame.columns))}."
        )
    if several := [str(name) for name in frame.columns[frame.columns.duplicated()].unique() if name in names]:
        raise ValueError(f"two columns are called {', '.join(several)}: give each a name of its own.")
    if len(names) > MOST_COLUMNS:
        raise ValueError(
            f"a table has at most {MOST_COLUMNS} columns to be readable, got {len(names)}: choose them by names."
        )
    marks = marks_of(frame, index, bold)
    wanted = digits if isinstance(digits, dict) else dict.fromkeys(names, digits)
    if hidden := [str(name) for name in wanted if name not in names]:
        raise ValueError(f"digits are given for {', '.join(hidden)}, which the table does not show.")
    columns = [[text(value, wanted.get(name, 3)) for value in frame[name]] for name in names]
    numeric = [
        pd.api.types.is_numeric_dtype(frame[name]) and not pd.api.types.is_bool_dtype(frame[name]) for name in names
    ]
    return ShownTable(list(names.values()), [list(row) for row in zip(*columns, strict=True)], numeric, marks)
