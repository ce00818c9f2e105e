"""Verdicts on statements: each page records what it tested, and the book gathers them into one table.

A page ends with one call, ``ledger.record(...)``, of rows made by `upper`, `lower`, `equal`, `depends`, `undecided`
and `unchecked`. A verdict follows from the numbers of its row, and from how its form is known: only a paper's own
claim, in a form that its text or its released code shows and that is not a variant of it, can be refuted; every other
form can only fail. The executed notebook stores the record of its page, under the type `MIME`.
"""

import hashlib
import html
import re
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

MIME = "application/vnd.lipnb.verdicts+json"
HOLDS, REFUTED, FAILS, UNCHECKED = "holds", "refuted", "fails", "not checkable here"
DEPENDS, UNDECIDED = "depends", "not decided"
SEEN = ("text of the paper", "released code", "reconstructed", "ours")  # how the form of a row is known
SHOWN = SEEN[:2]  # the claim is the paper's own, in a form that can be read
EFFORT = ("random", "structured", "ascended", "proved")  # how hard a row was tried
VERDICTS = "../book/verdicts.html"  # path from a page to the page of the book with all rows
SLACK = 1e-9  # rounding of a measured value, relative
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
WORST = (  # heading of the column, with an explanation
    '<span title="measured over stated: the largest for an upper bound, the smallest for a lower one, and in brackets '
    'the median; of an identity the largest error">worst (median)</span>'
)
ROUNDING = 1e-3  # a smaller error of an identity keeps one digit, since it differs between machines; a larger one two


@cache
def statements():
    """All statements that need a verdict.

    Returns index id, as ``castin.thm-3.3``; columns source (bibliography key), name, claim (in our words), and printed:
    how certain it is that the paper prints this form (certain, likely, uncertain).
    """
    return pd.read_csv(Path(__file__).with_name("statements.csv"), index_col="id")


@dataclass(frozen=True)
class Row:
    """One tested form of a statement.

    `id`: an id in `statements`.
    `form`: the tested form, in words.
    `worst_ratio`: measured over stated: the largest for an upper bound, the smallest for a lower one; for an identity 1
      plus the largest relative error.
    `verdict`: "holds"; "refuted", for the paper's own claim in a form that its text or its code shows, not a variant;
    "fails", for any other form that does not hold; "depends", on the definition or on the range of lengths; "not
    decided", for an inconclusive test; "not checkable here".
    `kind`: "upper", "lower", "equal", "depends", "undecided" or "unchecked".
    `grounds`: the evidence: inputs and comparison; or the reason why nothing could be checked.
    `seen`: how the form is known, one of `SEEN`.
    `counter_example`: the smallest one, if the form does not hold.
    `variant`: whether this form differs from the statement's own: tighter, corrected or with fewer hypotheses; true for
    any form of ours.
    `effort`: how hard it was tried, one of `EFFORT`; None if nothing was tested. "proved": a page has a complete proof,
    and the form was tested too.
    `median_ratio`: the median of the ratios of which `worst_ratio` is the worst.
    `spread`: largest less smallest ratio of a bound; for an identity the largest error, which `worst_ratio` holds only
    to the rounding of a number near 1.
    """

    id: str
    form: str
    cases: int
    worst_ratio: float | None
    verdict: str
    kind: str
    grounds: str
    seen: str
    counter_example: str | None = None
    variant: bool = False
    effort: str | None = None
    median_ratio: float | None = None
    spread: float | None = None


def upper(id, form, ratios, *, seen, effort, grounds, counter_example=None, variant=False):
    """Row for an upper bound: holds if no measured value exceeds it.

    `id`, `form`, `seen`, `effort`, `grounds`, `counter_example`, `variant`: as in `Row`. `ratios`: measured over bound,
    one for each case; compared with 1 up to rounding.
    """
    return _bound(Row(id, form, 0, None, "", "upper", grounds, seen, counter_example, variant, effort), ratios, np.max)


def lower(id, form, ratios, *, seen, effort, grounds, counter_example=None, variant=False):
    """Row for a lower bound on a supremum: holds if the measured values at its construction reach it. As `upper`."""
    return _bound(Row(id, form, 0, None, "", "lower", grounds, seen, counter_example, variant, effort), ratios, np.min)


def equal(id, form, errors, *, within, seen, effort, grounds, counter_example=None, variant=False):
    """Row for an identity, a definition or a limit: holds if all relative errors are at most `within`. As `upper`.

    `errors`: relative errors, one for each case, of two computations that do not share what is tested. `within`: the
    largest error that counts as equal: rounding, or the accuracy of the reference; above 0.
    """
    if not within > 0:
        raise ValueError(f"{id}, {form}: within must be above 0, the rounding of two computations, got {within}.")
    errors = np.abs(_numbers(id, errors))
    most, middle = errors.max(), np.median(errors)
    worst, median = (1 + float(f"{error:.{1 if error < ROUNDING else 2}g}") for error in (most, middle))
    grounds = f"{grounds} (within {within:g})"
    row = Row(id, form, errors.size, worst, "", "equal", grounds, seen, counter_example, variant, effort, median)
    row = replace(row, spread=float(f"{most:.{1 if most < ROUNDING else 2}g}"))
    return _judged(row, errors.max() <= within)


def unchecked(id, form, why, *, seen):
    """Row for a statement that cannot be checked here, with the reason. As `upper`."""
    return _known(Row(id, form, 0, None, UNCHECKED, "unchecked", why, seen))


def depends(id, form, why, *, seen, cases=0, variant=False):
    """Row for a statement that holds under one reading, or over one range of lengths, but not under another.

    `why` explains which; other arguments as for `upper`.
    """
    return _known(Row(id, form, cases, None, DEPENDS, "depends", why, seen, variant=variant))


def undecided(id, form, why, *, seen, cases=0, variant=False):
    """Row for a form with an inconclusive test, such as three seeds; `why` explains the result. As `depends`."""
    return _known(Row(id, form, cases, None, UNDECIDED, "undecided", why, seen, variant=variant))


def _known(row):
    if row.id not in statements().index:
        raise ValueError(f"there is no statement {row.id!r} in lab/statements.csv: name one that is there, or add it.")
    if row.seen not in SEEN:
        raise ValueError(f"{row.id}, {row.form}: seen must be one of {SEEN}, got {row.seen!r}.")
    return row


def _numbers(id, values):
    values = np.atleast_1d(np.asarray(values, dtype=float)).ravel()
    if not values.size or not np.isfinite(values).all():
        raise ValueError(f"ratios or errors must be finite numbers, one for each case, got {values[:5]} for {id}.")
    return values


def _bound(row, ratios, worst):
    """The row of a bound; if every ratio is 1, a number was compared with itself, or the statement is an identity."""
    ratios = _numbers(row.id, ratios)
    if np.abs(ratios - 1).max() <= SLACK:
        raise ValueError(
            f"{row.id}, {row.form}: every ratio is 1, which is no test of a bound: record an identity "
            "with `equal`, against an independent computation, or leave the row out."
        )
    shown = {"worst_ratio": worst(ratios), "median_ratio": np.median(ratios), "spread": np.ptp(ratios)}
    row = replace(row, cases=ratios.size, **{key: float(f"{value:.6g}") for key, value in shown.items()})
    return _judged(row, worst(ratios) <= 1 + SLACK if row.kind == "upper" else worst(ratios) >= 1 - SLACK)


def _judged(row, holds):
    """The row with its verdict: only a form that the paper or its code shows can be refuted."""
    if row.effort not in EFFORT:
        raise ValueError(f"{row.id}, {row.form}: effort must be one of {EFFORT}, got {row.effort!r}.")
    verdict = HOLDS if holds else REFUTED if row.seen in SHOWN and not row.variant else FAILS
    if not holds and not row.counter_example:
        raise ValueError(
            f"{row.id}, {row.form}: {verdict}, worst ratio {row.worst_ratio:.6g}: a form that does not "
            "hold needs its counter-example."
        )
    return _known(
        replace(
            row,
            verdict=verdict,
            counter_example=None if holds else row.counter_example,
            variant=row.variant or row.seen == SEEN[-1],
        )
    )


def anchor(id, form):
    """Name of a row in links between its page and the table of all rows: as ``castin-thm-3-3-1f2a3b``."""
    return f"{re.sub(r'[^a-z0-9]+', '-', id.lower())}-{hashlib.sha256(form.encode()).hexdigest()[:6]}"


class Verdicts:
    """Verdicts recorded by a page: shown as a table, and stored as data in the executed notebook."""

    def __init__(self, rows):
        self.rows = rows

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": str(self), "text/html": self.table(), MIME: [asdict(row) for row in self.rows]}

    def __str__(self):
        return "\n".join(
            f"{row.id:22s} {row.verdict:20s} {worst(row):>16s} {row.cases:>7,d} cases  {row.form}" for row in self.rows
        )

    def __getitem__(self, id):
        """Rows of one statement."""
        return [row for row in self.rows if row.id == id]

    def table(self):
        """HTML table of the rows."""
        names = ("statement", "form tested", "verdict", WORST, "cases")
        head = "".join(f"<th>{name}</th>" for name in names)
        lines = []
        for row in self.rows:
            note, name = row.counter_example or row.grounds, anchor(row.id, row.form)
            tried = " · ".join(filter(None, (row.seen, row.effort)))
            cells = (
                f"{html.escape(statements().name[row.id])}<br>"
                f'<a href="{VERDICTS}#row-{name}" title="this row among all"><code>{row.id}</code></a>',
                f"{html.escape(row.form)}<br><small>{html.escape(note)}<br><i>{tried}</i></small>",
                f"<b>{row.verdict}</b>",
                worst(row),
                f"{row.cases:,d}" if row.cases else "",
            )
            lines.append(f'<tr id="verdict-{name}">' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
        return f'<table class="verdicts"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


def worst(row):
    """The worst ratio and the median as text: the error of an identity, measured over stated for a bound."""
    if row.worst_ratio is None:
        return ""
    if row.kind == "equal":
        error = row.worst_ratio - 1 if row.spread is None else row.spread
        return f"1 ± {written(error, 1 if error < ROUNDING else 2)}" if error > 0 else "exact"
    median = f" ({written(row.median_ratio, 2)})" if row.cases > 1 and row.median_ratio is not None else ""
    return f"{written(row.worst_ratio, 4)}{median}"


def written(number, digits):
    """A number with `digits` significant digits in readable form."""
    mantissa, e, power = f"{number:.{digits}g}".partition("e")
    return f"{mantissa} · 10{str(int(power)).translate(RAISED)}" if e else mantissa


def record(*rows):
    """Record the verdicts of a page; call it in the last line of a cell, so that the notebook shows and stores them.

    `*rows`: from `upper`, `lower`, `equal`, `depends`, `undecided` and `unchecked`.
    """
    keys = [(row.id, row.form) for row in rows]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise ValueError(f"{twice[0]}, {twice[1]!r}, is recorded twice: give each form its own words.")
    return Verdicts(list(rows))
