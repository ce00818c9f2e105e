"""Resumable tables and safe writing of files: measurements survive any interruption."""

from lipscan.recording.files import held, kept, write
from lipscan.recording.table import Recording, Unit, bar, make, recording, remeasure

__all__ = ["Recording", "Unit", "bar", "held", "kept", "make", "recording", "remeasure", "write"]
