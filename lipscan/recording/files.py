"""Files that are replaced whole or not at all, and folders that one process at a time writes into."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lipnb.extras import extra

with extra("scan"):
    from filelock import FileLock, Timeout

__all__ = ["held", "kept", "replacing", "write"]

LOOK = 0.5  # seconds that a lock is waited for: `held` may just be looking at it


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


class Lines:
    """A file of JSON lines that only grows: a run that is killed leaves whole lines, and at most half of one.

    Parameters
    ----------
    path : Path
        Of the file; it need not be there.
    """

    def __init__(self, path: Path):
        self.path = path

    def read(self) -> list[Any]:
        """Every whole line; what follows the last one, which a killed run left, is passed over."""
        return [json.loads(line) for line in self.raw()]

    def raw(self) -> list[bytes]:
        """Every whole line as it stands, none where there is no file."""
        return self.path.read_bytes().split(b"\n")[:-1] if self.path.exists() else []

    def keep(self, lines: int) -> None:
        """Cut the file after so many whole lines."""
        os.truncate(self.path, sum(len(line) + 1 for line in self.raw()[:lines]))

    def append(self, line: dict, default: Any = None) -> None:
        """Add a line, on the disk when this returns; where it cannot be written whole, none of it stays.

        Parameters
        ----------
        line : dict
            Of numbers, strings, booleans, None, and lists and mappings of them.
        default : callable, optional
            Makes such a value of any other, as for `json.dumps`.
        """
        text = (json.dumps(line, default=default) + "\n").encode()
        with kept(self.path), self.path.open("ab", buffering=0) as file:
            before = file.seek(0, os.SEEK_END)
            try:
                if (written := file.write(text)) < len(text):  # the next write says why
                    file.write(text[written:])
                os.fsync(file.fileno())
            except OSError:
                os.truncate(self.path, before)  # half a line would spoil the next one
                raise


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
        mine = FileLock(folder / lock, timeout=LOOK)
        mine.acquire()
    except Timeout:
        raise RuntimeError(busy) from None
    except OSError as error:
        raise OSError(f"the folder {folder} cannot be written ({error.strerror}): {fix}.") from None
    try:
        yield
    finally:
        mine.release()


def held(lock: Path) -> bool:
    """Whether a run holds this lock now."""
    with suppress(OSError):  # such as in the folder of somebody else
        try:
            if lock.is_file():
                FileLock(lock, timeout=0).acquire().lock.release()
        except Timeout:
            return True
    return False
