"""What of a scan could not be measured: a row that says so and why, where an error would end all the rest."""

from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten

import pandas as pd

from lipnb.recording.table import GAP

__all__ = ["AGAIN", "COLUMNS", "as_sentences", "tried"]

COLUMNS = ["table", GAP, "reason"]
PLAIN = (ValueError, RuntimeError, ArithmeticError)  # that say in words what is wrong
AGAIN = "What is shown was measured all the same; the same command tries the rest again."
MOST = 12  # places that a sentence names


@contextmanager
def tried(rows: list[dict], what: str) -> Iterator[None]:
    """Whatever fails inside becomes a row that names it, and what comes after goes on.

    Parameters
    ----------
    rows : list of dict
        The row is added to these: ``gap`` is `what`, ``reason`` the error in a line.
    what : str
        What is measured inside, in words.

    Examples
    --------
    >>> rows = []
    >>> with tried(rows, "layer 2"):
    ...     raise ValueError("a product is infinite")
    >>> rows
    [{'gap': 'layer 2', 'reason': 'a product is infinite'}]
    """
    try:
        yield
    except Exception as error:  # of a map that anyone wrote: no list of kinds would be whole
        said = (str(error).strip() or "no reason given").splitlines()[0]
        plain = type(error) in PLAIN or isinstance(error, ArithmeticError)
        said = said if plain else f"{type(error).__name__}: {said}"
        rows.append({GAP: what, "reason": shorten(said, 300, placeholder=" ...")})


def as_sentences(gaps: pd.DataFrame) -> list[str]:
    """What was not measured, those of one reason in one sentence, and what to do; nothing where there are no gaps.

    Examples
    --------
    >>> rows = [("scan", "layer 2", "overflow"), ("heads", "head 0 of layer 2", "overflow")]
    >>> as_sentences(pd.DataFrame(rows, columns=COLUMNS))[0]
    'Not measured: layer 2; head 0 of layer 2. Reason: overflow.'
    """
    said = []
    for reason, group in gaps.groupby("reason", sort=False):
        named = [*group[GAP].iloc[:MOST]]
        if len(group) > MOST:
            named.append(f"and {len(group) - MOST} more, which the *.json files name")
        said.append(f"Not measured: {'; '.join(named)}. Reason: {str(reason).rstrip('.')}.")
    return [*said, AGAIN] if said else said
