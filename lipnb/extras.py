"""Extras of the installation: which of them brings a package that is not installed."""

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["extra"]


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Say which extra of lipnb brings a package that is imported inside, where it is not installed.

    Raises
    ------
    ModuleNotFoundError
        "... is not installed: pip install '.[NAME]' in a clone of lipnb."

    Examples
    --------
    >>> with extra("scan"):
    ...     import no_such_package
    Traceback (most recent call last):
    ModuleNotFoundError: no_such_package is not installed: pip install '.[scan]' in a clone of lipnb.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in ("lipnb", "lipscan"):
            raise
        sentence = f"{error.name.split('.')[0]} is not installed: pip install '.[{name}]' in a clone of lipnb."
        raise ModuleNotFoundError(sentence, name=error.name) from None
