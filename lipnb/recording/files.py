"""Files that are replaced whole or not at all, and folders that one process at a time writes into."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lipnb.origin import extra

with extra("scan"):
    from filelock import FileLock, Timeout

__all__ = ["alone", "kept", "replacing", "write"]


@contextmanager
def replacing(*paths: Path) -> Iterator[list[Path]]:
    """Replace files in one step: a reader never sees half of one, and of several none before all are on the disk.

    Parameters
    ----------
    *paths : Path
        Of the files.

    Yields
    ------
    list of Path
        Where to write them. When the block ends they take their places; if it fails, as on a full disk, the old files
        stay, and nothing else.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.txt")
    ...     with replacing(path) as (new,):
    ...         _ = new.write_text("whole")
    ...     path.read_text()
    'whole'
    """
    beside = [path.with_name(f".{path.name}.new") for path in paths]
    try:
        yield beside
        for new in beside:
            with new.open("rb") as file:
                os.fsync(file.fileno())
        for path, new in zip(paths, beside, strict=True):
            new.replace(path)
    except BaseException:
        for new in beside:
            with suppress(OSError):
                new.unlink()
        raise


def write(path: Path, text: str) -> None:
    """Replace one file by a text, in UTF-8; see `replacing`."""
    with replacing(path) as (new,):
        new.write_text(text, encoding="utf-8")


@contextmanager
def kept(path: Path) -> Iterator[None]:
    """A sentence where a file of a table cannot be written: what is finished is in the partial file."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"{path} cannot be written any more ({error.strerror or error}): what is measured is kept. Make "
            "room, then give the same command again."
        ) from error


@contextmanager
def alone(folder: Path, lock: str, *, fix: str, busy: str) -> Iterator[None]:
    """A folder for one run at a time: made where it is missing, tried for writing, locked.

    Parameters
    ----------
    folder : Path
        Of the results.
    lock : str
        Name of the file in it that keeps other runs out.
    fix : str
        What to do where it cannot be written, for the sentence that says so.
    busy : str
        The sentence where another run is there.

    Raises
    ------
    OSError
        "the folder ... cannot be written ...: FIX".
    RuntimeError
        `busy`.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f"{lock}.probe"
        probe.touch()
        probe.unlink()
        held = FileLock(folder / lock, timeout=0)
        held.acquire()
    except Timeout:
        raise RuntimeError(busy) from None
    except OSError as error:
        raise OSError(f"the folder {folder} cannot be written ({error.strerror}): {fix}.") from None
    try:
        yield
    finally:
        held.release()
