"""Read the header of a GGUF file: its entries, and where its tensors lie; every count is held against the file's size.

A file can come from anybody. The reader of the `gguf` library trusts the counts that a file states; this one does not.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lipnb.origin import extra

__all__ = ["Header", "Place", "dequantized", "read_header"]

MOST = 1_000_000  # entries, tensors, or words of a vocabulary; the largest models have a third of that
LONGEST = 10_000_000  # bytes of one text; chat templates have thousands
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9


@dataclass(frozen=True)
class Place:
    """Where a tensor lies in a file.

    Parameters
    ----------
    shape : tuple of int
        Rows first, as in PyTorch; the file states them last.
    kind : gguf.GGMLQuantizationType
        How its numbers are stored.
    start, size : int
        First byte in the file, and how many.
    """

    shape: tuple[int, ...]
    kind: Any
    start: int
    size: int


@dataclass(frozen=True)
class Header:
    """What a GGUF file says of itself: `entries`, name -> value, and `tensors`, name -> `Place`."""

    entries: dict[str, Any]
    tensors: dict[str, Place]


class _Reader:
    """The numbers and texts of an open file, in order; ValueError where it ends before them."""

    def __init__(self, file: BinaryIO, size: int):
        self.file, self.size = file, size

    @property
    def left(self):
        return self.size - self.file.tell()

    def take(self, count):
        if count > self.left:
            raise ValueError("it ends too early")
        return self.file.read(count)

    def number(self, code):
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def count(self, most, what):
        found = self.number("Q")
        if found > most:
            raise ValueError(f"it states {found:,} {what}")
        return found

    def text(self):
        return self.take(self.count(LONGEST, "bytes in one text")).decode("utf-8")

    def value(self, inside=False):
        """An entry's value: a number, a text, or a list of one of them."""
        return self._of_kind(self.number("I"), inside)

    def _of_kind(self, kind, inside=False):
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind == TEXT:
            return self.text()
        if kind != ARRAY or inside:
            raise ValueError(f"an entry of unknown kind {kind}")
        kind, length = self.number("I"), self.count(MOST, "values in one entry")
        if kind in SCALARS:
            code = SCALARS[kind]
            return list(struct.unpack(f"<{length}{code}", self.take(length * struct.calcsize("<" + code))))
        return [self._of_kind(kind, inside=True) for _ in range(length)]


def read_header(path: Path, name: str) -> Header:
    """Entries of a GGUF file and the places of its tensors; no tensor is read.

    Parameters
    ----------
    path : Path
        The file.
    name : str
        What the sentence calls it.

    Returns
    -------
    Header

    Raises
    ------
    ValueError
        "... is not a whole GGUF file (...): download or copy it again."

    Notes
    -----
    Versions 2 and 3 of the format, little-endian.
    """
    size = path.stat().st_size
    try:
        with open(path, "rb") as file:
            return _header(_Reader(file, size))
    except (ValueError, struct.error) as error:
        raise ValueError(f"{name!r} is not a whole GGUF file ({error}): download or copy it again.") from None


def _header(reader):
    if reader.take(4) != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    if (version := reader.number("I")) not in (2, 3):
        raise ValueError(f"version {version} of the format; 2 and 3 are read")
    tensors, count = reader.count(MOST, "tensors"), reader.count(MOST, "entries")
    entries = _once((reader.text(), reader.value()) for _ in range(count))
    alignment = entries.get("general.alignment", 32)
    if type(alignment) is not int or not 1 <= alignment <= 1 << 20:
        raise ValueError(f"an alignment of {alignment!r} bytes")
    stated = _once((reader.text(), _statement(reader)) for _ in range(tensors))
    begin = -(-reader.file.tell() // alignment) * alignment
    places = {name: _place(name, *statement, begin) for name, statement in stated.items()}
    spans = sorted((place.start, place.start + place.size) for place in places.values())
    if any(start < end for (_, end), (start, _) in pairwise(spans)):
        raise ValueError("two tensors overlap")
    if spans and spans[-1][1] > reader.size:
        raise ValueError("it ends before its last tensor")
    return Header(entries, places)


def _once(pairs: Iterator):
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name[:80]!r} is there twice")
        found[name] = value
    return found


def _statement(reader):
    """Dimensions, kind and offset of a tensor."""
    if (count := reader.number("I")) > 4:
        raise ValueError(f"a tensor of {count} dimensions")
    shape = tuple(reader.number("Q") for _ in range(count))
    return shape[::-1], reader.number("I"), reader.number("Q")


def _place(name, shape, kind, offset, begin):
    with extra("weights"):
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    try:
        kind = GGMLQuantizationType(kind)
    except ValueError:
        raise ValueError(f"{name[:80]!r} is stored in an unknown way, number {kind}") from None
    block, width = GGML_QUANT_SIZES[kind]
    if not shape or min(shape) < 1 or shape[-1] % block:
        raise ValueError(f"{name[:80]!r} has the shape {shape}, stored in blocks of {block}")
    return Place(shape, kind, begin + offset, math.prod(shape) // block * width)


def dequantized(path: Path, place: Place) -> np.ndarray:
    """The numbers of a tensor in float32, as the `gguf` library defines them, shape `place.shape`.

    Raises
    ------
    ValueError
        "... is stored as ..., which the gguf library does not turn into numbers ..."
    """
    with extra("weights"):
        from gguf.quants import dequantize
    raw = np.fromfile(path, np.uint8, place.size, offset=place.start)
    try:
        # in rows of whole blocks: its functions work on the last axis
        return dequantize(raw.reshape(math.prod(place.shape[:-1]), -1), place.kind).reshape(place.shape)
    except NotImplementedError:
        raise ValueError(
            f"a tensor is stored as {place.kind.name}, which the gguf library does not turn into numbers: "
            "take another file of the model."
        ) from None
