"""Verdicts on statements: each page records what it tested, and the book gathers them into one table.

A page ends with one call, ``ledger.record(...)``, of rows made by `upper`, `lower`, `equal` and `unchecked`. A verdict
follows from the numbers of its row. What a page recorded travels in its executed notebook, under the type `MIME`.
"""

import html
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

__all__ = ["MIME", "Row", "Verdicts", "equal", "lower", "record", "statements", "unchecked", "upper"]

MIME = "application/vnd.lipnb.verdicts+json"
HOLDS, REFUTED, UNCHECKED = "holds", "refuted", "not checkable here"
SLACK = 1e-9  # rounding of a measured value, relative


@cache
def statements():
    """All statements that need a verdict.

    Returns
    -------
    DataFrame
        Index id, as ``castin.thm-3.3``; columns source (bibliography key), name, claim (in our words), and printed: how
        sure it is that the paper prints this form (certain, likely, uncertain).
    """
    return pd.read_csv(Path(__file__).with_name("statements.csv"), index_col="id")


@dataclass(frozen=True)
class Row:
    """One tested form of a statement.

    Attributes
    ----------
    id : str
        Of `statements`.
    form : str
        The form that was tested, in words.
    cases : int
        Number of inputs.
    worst_ratio : float or None
        Measured over stated: the largest for an upper bound, the smallest for a lower one; for an identity 1 plus the
        largest relative error.
    verdict : str
        "holds", "refuted" or "not checkable here".
    kind : str
        "upper", "lower", "equal" or "unchecked".
    grounds : str
        On what: which inputs, compared with what; or why nothing could be checked.
    counter_example : str or None
        The smallest one, where the form is refuted.
    variant : bool
        Whether this is another form than the statement's own, sharper, corrected or with fewer hypotheses.
    """

    id: str
    form: str
    cases: int
    worst_ratio: float | None
    verdict: str
    kind: str
    grounds: str
    counter_example: str | None = None
    variant: bool = False


def upper(id, form, ratios, *, grounds, counter_example=None, variant=False):
    """An upper bound: holds if no measured value exceeds it.

    Parameters
    ----------
    id, form, grounds, counter_example, variant
        As in `Row`.
    ratios : array_like of float
        Measured over bound, one for each case; compared with 1 up to rounding.

    Returns
    -------
    Row

    Raises
    ------
    ValueError
        "there is no statement ...", "ratios must be ...", "a refuted form needs its counter-example".
    """
    ratios = _numbers(id, ratios)
    worst = ratios.max()
    return _row(id, form, ratios, worst, worst <= 1 + SLACK, "upper", grounds, counter_example, variant)


def lower(id, form, ratios, *, grounds, counter_example=None, variant=False):
    """A lower bound on a supremum: holds if the measured values at its construction reach it. As `upper`."""
    ratios = _numbers(id, ratios)
    worst = ratios.min()
    return _row(id, form, ratios, worst, worst >= 1 - SLACK, "lower", grounds, counter_example, variant)


def equal(id, form, errors, *, within, grounds, counter_example=None, variant=False):
    """An identity, a definition or a limit: holds if all relative errors are at most `within`. As `upper`.

    Parameters
    ----------
    errors : array_like of float
        Relative errors, one for each case.
    within : float
        The largest error that counts as equal: rounding, or the accuracy of what it is compared with.
    """
    errors = np.abs(_numbers(id, errors))
    worst = errors.max()
    return _row(id, form, errors, 1 + float(f"{worst:.1g}"), worst <= within, "equal",
                f"{grounds} (within {within:.0e})", counter_example, variant)


def unchecked(id, form, why):
    """A statement that cannot be checked here, and why. As `upper`."""
    _known(id)
    return Row(id, form, 0, None, UNCHECKED, "unchecked", why)


def _known(id):
    if id not in statements().index:
        raise ValueError(f"there is no statement {id!r}: lipnb.ledger.statements() lists them.")


def _numbers(id, values):
    values = np.atleast_1d(np.asarray(values, dtype=float)).ravel()
    if not values.size or not np.isfinite(values).all():
        raise ValueError(f"ratios must be finite numbers, one for each case, got {values[:5]} for {id}.")
    return values


def _row(id, form, values, worst, holds, kind, grounds, counter_example, variant):
    _known(id)
    if not holds and not counter_example:
        raise ValueError(f"{id}, {form}: refuted, worst ratio {worst:.6g}: a refuted form needs its counter-example.")
    stored = float(worst) if kind == "equal" else float(f"{worst:.6g}")  # six digits would round errors away
    return Row(id, form, values.size, stored, HOLDS if holds else REFUTED, kind, grounds,
               None if holds else counter_example, variant)


class Verdicts:
    """What a page recorded: shown as a table, and kept as data in the executed notebook."""

    def __init__(self, rows):
        self.rows = rows

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": str(self), "text/html": self.table(), MIME: [asdict(row) for row in self.rows]}

    def __str__(self):
        return "\n".join(f"{row.id:22s} {row.verdict:20s} {_worst(row):>9s} {row.cases:>7,d} cases  {row.form}"
                         for row in self.rows)

    def __getitem__(self, id):
        """Rows of one statement."""
        return [row for row in self.rows if row.id == id]

    def table(self):
        """The rows as an HTML table."""
        head = "".join(f"<th>{name}</th>" for name in ("statement", "form tested", "verdict", "worst", "cases"))
        lines = []
        for row in self.rows:
            note = row.counter_example or row.grounds
            cells = (f"{html.escape(statements().name[row.id])}<br><code>{row.id}</code>",
                     f"{html.escape(row.form)}<br><small>{html.escape(note)}</small>",
                     f"<b>{row.verdict}</b>", _worst(row), f"{row.cases:,d}" if row.cases else "")
            lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
        return f'<table class="verdicts"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


def _worst(row):
    """The worst ratio as it is shown: of an identity the error, of a bound measured over stated."""
    if row.worst_ratio is None:
        return ""
    if row.kind != "equal":
        return f"{row.worst_ratio:.4g}"
    return f"1 ± {row.worst_ratio - 1:.0e}" if row.worst_ratio > 1 else "exact"


def record(*rows):
    """The verdicts of a page; make it the last line of a cell, so that the notebook shows and keeps it.

    Parameters
    ----------
    *rows : Row
        From `upper`, `lower`, `equal` and `unchecked`.

    Returns
    -------
    Verdicts

    Raises
    ------
    ValueError
        "... is recorded twice".
    """
    seen = [(row.id, row.form) for row in rows]
    for key in seen:
        if seen.count(key) > 1:
            raise ValueError(f"{key[0]}, {key[1]!r}, is recorded twice: give each form its own words.")
    return Verdicts(list(rows))
