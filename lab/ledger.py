"""Verdicts on statements: each page records what it tested, and the book gathers them into one table.

A page ends with one call, ``ledger.record(...)``, of rows made by `upper`, `lower`, `equal`, `depends`, `undecided` and
`unchecked`. A verdict follows from the numbers of its row, and from how its form is known: only a paper's own claim, in
a form that its text or its released code shows and that is no variant of it, can be refuted; every other form can only
fail. What a page recorded travels in its executed notebook, under the type `MIME`.
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
EVIDENCE = "../book/evidence.html"  # where the book shows all rows, seen from a page
SLACK = 1e-9  # rounding of a measured value, relative
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
WORST = (  # the heading of the column, with what it means
    '<span title="measured over stated: the largest for an upper bound, the smallest for a lower one, and in brackets '
    'the median; of an identity the largest error">worst (median)</span>'
)
ROUNDING = 1e-3  # a smaller error of an identity keeps one digit, since it differs between machines; a larger one two


@cache
def statements():
    """All statements that need a verdict.

    Returns index id, as ``castin.thm-3.3``; columns source (bibliography key), name, claim (in our words), and printed:
    how sure it is that the paper prints this form (certain, likely, uncertain).
    """
    return pd.read_csv(Path(__file__).with_name("statements.csv"), index_col="id")


@dataclass(frozen=True)
class Row:
    """One tested form of a statement.

    `id`: of `statements`.
    `form`: the form that was tested, in words.
    `worst_ratio`: measured over stated: the largest for an upper bound, the smallest for a lower one; for an identity 1
      plus the largest relative error.
    `verdict`: "holds"; "refuted", for the paper's own claim in a form that its text or its code shows, not a variant;
      "fails", for any other form that does not hold; "depends", on the definition or on the range of lengths; "not
      decided", of a test that could not tell; "not checkable here".
    `kind`: "upper", "lower", "equal", "depends", "undecided" or "unchecked".
    `grounds`: on what: which inputs, compared with what; or why nothing could be checked.
    `seen`: how the form is known, one of `SEEN`.
    `counter_example`: the smallest one, where the form does not hold.
    `variant`: whether this is another form than the statement's own, tighter, corrected or with fewer hypotheses; any
      form of ours is.
    `effort`: how hard it was tried, one of `EFFORT`; None where nothing was tested. "proved": a complete proof stands
      on a page, and the form was tested besides.
    `median_ratio`: the median where `worst_ratio` has the worst.
    `spread`: largest less smallest ratio of a bound; of an identity the largest error, which `worst_ratio` holds only
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
    """An upper bound: holds if no measured value exceeds it.

    `id`, `form`, `seen`, `effort`, `grounds`, `counter_example`, `variant`: as in `Row`. `ratios`: measured over bound,
    one for each case; compared with 1 up to rounding.
    """
    return _bound(Row(id, form, 0, None, "", "upper", grounds, seen, counter_example, variant, effort), ratios, np.max)


def lower(id, form, ratios, *, seen, effort, grounds, counter_example=None, variant=False):
    """A lower bound on a supremum: holds if the measured values at its construction reach it. As `upper`."""
    return _bound(Row(id, form, 0, None, "", "lower", grounds, seen, counter_example, variant, effort), ratios, np.min)


def equal(id, form, errors, *, within, seen, effort, grounds, counter_example=None, variant=False):
    """An identity, a definition or a limit: holds if all relative errors are at most `within`. As `upper`.

    `errors`: relative errors, one for each case, of two computations that do not share what is tested. `within`: the
    largest error that counts as equal: rounding, or the accuracy of what it is compared with; above 0.
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
    """A statement that cannot be checked here, and why. As `upper`."""
    return _known(Row(id, form, 0, None, UNCHECKED, "unchecked", why, seen))


def depends(id, form, why, *, seen, cases=0, variant=False):
    """A statement that holds under one reading of its words, or over one range of lengths, and not under another.

    `why` says which; the rest is as for `upper`.
    """
    return _known(Row(id, form, cases, None, DEPENDS, "depends", why, seen, variant=variant))


def undecided(id, form, why, *, seen, cases=0, variant=False):
    """A form whose test could not tell, as of three seeds: what was found, and why it decides nothing. As `depends`."""
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
        raise ValueError(f"ratios must be finite numbers, one for each case, got {values[:5]} for {id}.")
    return values


def _bound(row, ratios, worst):
    """The row of a bound; where every ratio is 1, a number was set against itself, or the statement is an identity."""
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
    """The name of a row in links, from its page to the table of all rows and back: as ``castin-thm-3-3-1f2a3b``."""
    return f"{re.sub(r'[^a-z0-9]+', '-', id.lower())}-{hashlib.sha256(form.encode()).hexdigest()[:6]}"


class Verdicts:
    """What a page recorded: shown as a table, and kept as data in the executed notebook."""

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
        """The rows as an HTML table."""
        names = ("statement", "form tested", "verdict", WORST, "cases")
        head = "".join(f"<th>{name}</th>" for name in names)
        lines = []
        for row in self.rows:
            note, name = row.counter_example or row.grounds, anchor(row.id, row.form)
            tried = " · ".join(filter(None, (row.seen, row.effort)))
            cells = (
                f"{html.escape(statements().name[row.id])}<br>"
                f'<a href="{EVIDENCE}#row-{name}" title="this row among all"><code>{row.id}</code></a>',
                f"{html.escape(row.form)}<br><small>{html.escape(note)}<br><i>{tried}</i></small>",
                f"<b>{row.verdict}</b>",
                worst(row),
                f"{row.cases:,d}" if row.cases else "",
            )
            lines.append(f'<tr id="verdict-{name}">' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
        return f'<table class="verdicts"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


def worst(row):
    """The worst ratio as it is shown, and the median: of an identity the error, of a bound measured over stated."""
    if row.worst_ratio is None:
        return ""
    if row.kind == "equal":
        error = row.worst_ratio - 1 if row.spread is None else row.spread
        return f"1 ± {written(error, 1 if error < ROUNDING else 2)}" if error > 0 else "exact"
    median = f" ({written(row.median_ratio, 2)})" if row.cases > 1 and row.median_ratio is not None else ""
    return f"{written(row.worst_ratio, 4)}{median}"


def written(number, digits):
    """A number to so many significant digits as a person writes it."""
    mantissa, e, power = f"{number:.{digits}g}".partition("e")
    return f"{mantissa} · 10{str(int(power)).translate(RAISED)}" if e else mantissa


def record(*rows):
    """The verdicts of a page; make it the last line of a cell, so that the notebook shows and keeps it.

    `*rows`: from `upper`, `lower`, `equal`, `depends`, `undecided` and `unchecked`.
    """
    keys = [(row.id, row.form) for row in rows]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise ValueError(f"{twice[0]}, {twice[1]!r}, is recorded twice: give each form its own words.")
    return Verdicts(list(rows))
