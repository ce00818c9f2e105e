"""Texts to measure on, and windows of their tokens: a door to `lipscan.corpora`, opened when asked."""

from lipscan.corpora import *  # noqa: F403
from lipscan.corpora import __all__ as __all__
