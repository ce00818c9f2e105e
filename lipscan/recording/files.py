"""Atomic replacement of files, append-only files of JSON lines, and folders locked by one process at a time."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lipnb.extras import extra

with extra("scan"):
    from filelock import FileLock, Timeout

__all__ = ["held", "kept", "write"]

LOOK = 0.5  # seconds to wait for a lock: `held` may be testing it


@contextmanager
def replacing(*paths: Path) -> Iterator[list[Path]]:
    """Replace files atomically: a reader never sees half a file, and no file is replaced before all are on the disk.

    Parameters
    ----------
    *paths : Path
        Paths of the files.

    Yields
    ------
    list of Path
        Paths to write to. When the block ends they replace the files; if it fails, as on a full disk, the old files
        stay and the new ones are deleted.

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
    """Replace one file by a UTF-8 text; see `replacing`."""
    with replacing(path) as (new,):
        new.write_text(text, encoding="utf-8")


@contextmanager
def kept(path: Path) -> Iterator[None]:
    """Context that explains an OSError while a table is written: finished units are kept in the partial file."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"{path} can no longer be written ({error.strerror or error}): everything measured so far is kept. Make "
            "room, then run the same command again."
        ) from error


class Lines:
    """A file of JSON lines that only grows: a killed run leaves complete lines and at most one incomplete line.

    Parameters
    ----------
    path : Path
        Path of the file, which need not exist.
    """

    def __init__(self, path: Path):
        self.path = path

    def read(self) -> list[Any]:
        """Parsed complete lines; an incomplete last line, from a killed run, is ignored."""
        return [json.loads(line) for line in self.raw()]

    def raw(self) -> list[bytes]:
        """Complete lines as bytes; empty if the file does not exist."""
        return self.path.read_bytes().split(b"\n")[:-1] if self.path.exists() else []

    def keep(self, lines: int) -> None:
        """Truncate the file after its first `lines` complete lines."""
        os.truncate(self.path, sum(len(line) + 1 for line in self.raw()[:lines]))

    def append(self, line: dict, default: Any = None) -> None:
        """Append a line, flushed to the disk on return; if it cannot be written completely, it is removed again.

        Parameters
        ----------
        line : dict
            A mapping with numbers, strings, booleans, None, and lists and mappings of them.
        default : callable, optional
            Converts other values, as for `json.dumps`.
        """
        text = (json.dumps(line, default=default) + "\n").encode()
        with kept(self.path), self.path.open("ab", buffering=0) as file:
            before = file.seek(0, os.SEEK_END)
            try:
                if (written := file.write(text)) < len(text):  # the next write raises the reason
                    file.write(text[written:])
                os.fsync(file.fileno())
            except OSError:
                os.truncate(self.path, before)  # half a line would spoil the next one
                raise


@contextmanager
def alone(folder: Path, lock: str, *, fix: str, busy: str) -> Iterator[None]:
    """Context for the only run in a folder: creates it if necessary, tests that it is writable, and locks it.

    Parameters
    ----------
    folder : Path
        Folder of the results.
    lock : str
        Name of the lock file in the folder.
    fix : str
        Fix named in the message if the folder is not writable.
    busy : str
        Message if another run holds the lock.

    Raises
    ------
    OSError
        The folder cannot be written.
    RuntimeError
        Another run holds the lock.
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
    with suppress(OSError):  # such as in another user's folder
        try:
            if lock.is_file():
                FileLock(lock, timeout=0).acquire().lock.release()
        except Timeout:
            return True
    return False
