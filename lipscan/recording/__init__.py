"""Resumable tables and safe writing of files: measurements survive whatever stops the run."""

from lipscan.recording.files import held, kept, replacing, write
from lipscan.recording.table import FLOAT_FORMAT, Recording, Unit, bar, make, recording, remeasure

__all__ = [
    "FLOAT_FORMAT",
    "Recording",
    "Unit",
    "bar",
    "held",
    "kept",
    "make",
    "recording",
    "remeasure",
    "replacing",
    "write",
]
