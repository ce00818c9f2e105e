"""Optional dependencies: a context that names the extra of a missing package."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Context for imports of the extra `name` of lipnb: a missing package is reported with this extra.

    Raises
    ------
    ModuleNotFoundError
        If a package imported inside is not installed; the message has the command that installs it.

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
