"""The one resumable table, and the one writer of files: what is measured is kept, whatever stops the run."""

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
