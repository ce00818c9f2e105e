"""Texts to measure on, and windows of their tokens: `lipscan.corpora`, imported on first access."""

from lipscan.corpora import *  # noqa: F403
from lipscan.corpora import __all__ as __all__
